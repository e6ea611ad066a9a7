"""Numbers without their last digits, in which processors differ.

A law is the same everywhere but for rounding: how many threads a matrix product is split over moves
its last bit. Where values are ranked, or held against a threshold, equal ones must stay equal then,
or a p-value that was worked out elsewhere is another.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DIGITS = 30  # binary


def settled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rounded to one part in a thousand million; what is equal up to rounding is equal.

    Examples
    --------
    >>> a, b = settled(np.array([0.1 + 0.2, 0.3]))
    >>> bool(a == b)
    True
    """
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(np.ldexp(mantissa, DIGITS)), exponent - DIGITS))
