"""Servers on loopback are those of the adapter's tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent.parent / "engines")]

from imitated import pair, prompts, start

__all__ = ["pair", "prompts", "start"]
