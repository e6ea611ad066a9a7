"""Tail probabilities of a sum from its exact cumulant function.

Barndorff-Nielsen's r* (*Biometrika* 73, 1986; Jensen, *Saddlepoint approximations*, 1995, ch. 5)
keeps its relative accuracy at any depth, where a normal approximation is wrong by orders of
magnitude. Where no tilt makes the total typical, Chernoff's bound is given instead.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import optimize, stats

from conformance.statistics.exact import SMALLEST_P

FARTHEST = 1e4  # a tilt beyond it leaves nothing but the most extreme outcome
CENTRE = 1e-3  # in standard deviations: nearer to the mean r* is 0/0, and the normal law is right

# t -> the cumulant function of the centred sum at t, and its first two derivatives
Cumulants = Callable[[float], tuple[float, float, float]]


def root(t: float, cumulants: Cumulants) -> float:
    """r* of the total that the tilt t makes typical; standard normal under the law."""
    k, total, curvature = cumulants(t)
    w = float(np.copysign(np.sqrt(max(2 * (t * total - k), 0.0)), t))
    if w == 0 or curvature <= 0:
        return w
    return w + float(np.log(t * np.sqrt(curvature) / w)) / w


def two_sided(
    total: float, cumulants: Cumulants, spread: float, farthest: float = FARTHEST
) -> float:
    """Twice the probability of the tail that `total` lies in.

    Parameters
    ----------
    total : float
        The centred sum.
    cumulants : callable
        Its cumulant function under the law, with two derivatives.
    spread : float
        Its standard deviation, > 0.
    farthest : float
        The largest tilt, on either side, at which `cumulants` may be asked.
    """
    if abs(total) < CENTRE * spread:
        return float(2 * stats.norm.sf(abs(total) / spread))
    sign = 1.0 if total > 0 else -1.0
    t = _tilt(total, cumulants, sign, min(1.0 / spread, farthest), farthest)
    if t is None:
        log_p = cumulants(sign * farthest)[0] - sign * farthest * total
        return float(np.clip(2 * np.exp(min(log_p, 0.0)), SMALLEST_P, 1.0))
    one_sided = float(stats.norm.sf(sign * root(t, cumulants)))
    return min(max(2 * one_sided, SMALLEST_P), 1.0)


def critical_tilt(
    p: float, cumulants: Cumulants, spread: float, farthest: float = FARTHEST
) -> float | None:
    """The positive tilt whose typical total has upper tail probability `p`; None if none has."""
    wanted, unit = float(stats.norm.isf(p)), 1.0 / spread
    far = min(wanted * unit, farthest)
    while root(far, cumulants) < wanted:
        if far >= farthest:
            return None
        far = min(2 * far, farthest)
    near = min(unit, far / 2)
    return float(optimize.brentq(lambda t: root(t, cumulants) - wanted, near, far, rtol=1e-10))


def _tilt(
    total: float, cumulants: Cumulants, sign: float, unit: float, farthest: float
) -> float | None:
    """The tilt that makes `total` typical; None where even the farthest does not."""
    far = unit
    while sign * (cumulants(sign * far)[1] - total) < 0:
        if far >= farthest:
            return None
        far = min(2 * far, farthest)
    return sign * float(
        optimize.brentq(lambda t: cumulants(sign * t)[1] - total, 0.0, far, rtol=1e-10)
    )
