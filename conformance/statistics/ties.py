"""Numbers without their last digits, in which processors differ.

A law is the same everywhere but for rounding: how many threads a matrix product is split over moves
its last bit. Where values are ranked, or held against a threshold, equal ones must stay equal then,
or a p-value that was worked out elsewhere is another.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DIGITS = 30  # binary, of the 53 that a float64 has
_DROPPED = 53 - DIGITS


def settled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rounded to one part in a thousand million; what is equal up to rounding is equal.

    Examples
    --------
    >>> a, b = settled(np.array([0.1 + 0.2, 0.3]))
    >>> bool(a == b)
    True
    """
    # on the bits themselves, which hold magnitudes in order: laws over 150,000 tokens come by here
    bits = np.array(values, dtype=np.float64).view(np.int64)
    bits += 1 << (_DROPPED - 1)
    bits &= -1 << _DROPPED
    return bits.view(np.float64)
