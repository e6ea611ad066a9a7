"""Held-out faults: departures that no test of the suite was designed against.

They were written down and frozen before any of them was run, and are different in kind from those
of the catalogue. `FAULTS` holds whole engines; bare verifiers are in ``held_out_verifiers``, and
exact engines of odd habits in ``held_out_exact``. A fault that the suite misses stays here.
"""

from __future__ import annotations

import held_out_blocks  # noqa: F401  (each enters its faults)
import held_out_rare  # noqa: F401
import held_out_requests  # noqa: F401
from held_out_making import CLAIMS, FAULTS, HeldOut, Wrapped, seeing

__all__ = ["CLAIMS", "FAULTS", "HeldOut", "Wrapped", "seeing"]
