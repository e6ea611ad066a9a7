"""Tail probabilities of a sum from its exact cumulant function.

Barndorff-Nielsen's r* (*Biometrika* 73, 1986; Jensen, *Saddlepoint approximations*, 1995, ch. 5)
keeps its relative accuracy at any depth, where a normal approximation is wrong by orders of
magnitude. Where no tilt makes the total typical, Chernoff's bound is given instead.

A sum of rare jumps of one size is a staircase: a smooth curve through its steps takes half a step
too little, and where a jump is expected a tenth of a time that is a factor of three. For a Poisson
number of jumps of size d, P(S >= x) is right to 3 % with Daniels' correction for a lattice of span
d (*International Statistical Review* 55, 1987), and d is the ratio of the third derivative to the
second. With jumps of m sizes, k of them, there are some m k^(m - 1) steps where there was one, and
the correction, in logarithm, is divided by that. It vanishes where a sum is nearly normal and where
the jumps are all different.
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
# t -> how alike the jumps are that make the sum up at tilt t: 1 if all are, 1/m for m sizes
Likeness = Callable[[float], float]


def root(t: float, cumulants: Cumulants, likeness: Likeness | None = None) -> float:
    """r* of the total that the tilt t makes typical; standard normal under the law."""
    k, total, curvature = cumulants(t)
    w = float(np.copysign(np.sqrt(max(2 * (t * total - k), 0.0)), t))
    if w == 0 or curvature <= 0:
        return w
    v = t * np.sqrt(curvature)
    if likeness is not None:
        h = 1e-3 * t
        third = (cumulants(t + h)[2] - cumulants(t - h)[2]) / (2 * h)
        x, alike = abs(t * third) / curvature, max(likeness(t), 1e-3)
        jumps = max(curvature**3 / max(third**2, 1e-300), 1.0)
        if x > 1e-9:
            v *= (-np.expm1(-x) / x) ** (alike * jumps ** (1 - 1 / alike))
    return w + float(np.log(v / w)) / w


def two_sided(
    total: float,
    cumulants: Cumulants,
    spread: float,
    farthest: float = FARTHEST,
    likeness: Likeness | None = None,
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
    likeness : callable, optional
        How alike its jumps are; left out for a sum that is known to be smooth.
    """
    if abs(total) < CENTRE * spread:
        return float(2 * stats.norm.sf(abs(total) / spread))
    sign = 1.0 if total > 0 else -1.0
    t = _tilt(total, cumulants, sign, min(1.0 / spread, farthest), farthest)
    if t is None:
        log_p = cumulants(sign * farthest)[0] - sign * farthest * total
        return float(np.clip(2 * np.exp(min(log_p, 0.0)), SMALLEST_P, 1.0))
    one_sided = float(stats.norm.sf(sign * root(t, cumulants, likeness)))
    return min(max(2 * one_sided, SMALLEST_P), 1.0)


def critical_tilt(
    p: float,
    cumulants: Cumulants,
    spread: float,
    farthest: float = FARTHEST,
    likeness: Likeness | None = None,
) -> float | None:
    """The positive tilt whose typical total has upper tail probability `p`; None if none has."""
    wanted, unit = float(stats.norm.isf(p)), 1.0 / spread
    far = min(wanted * unit, farthest)
    while root(far, cumulants, likeness) < wanted:
        if far >= farthest:
            return None
        far = min(2 * far, farthest)
    near = min(unit, far / 2)
    while root(near, cumulants, likeness) > wanted:
        near /= 2
    return float(
        optimize.brentq(lambda t: root(t, cumulants, likeness) - wanted, near, far, rtol=1e-10)
    )


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
