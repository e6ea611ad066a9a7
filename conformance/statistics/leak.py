"""Draft leak: how much of the draft's law is mixed into the output.

Most faults of speculative decoding lean to the draft, so that the emitted law is close to
(1 - eps) p + eps q. The score of eps at 0 is q/p - 1; clipped it is bounded, and its whole
distribution under the law is known, because p is. The p-value is a saddlepoint tail probability
(Barndorff-Nielsen's r*) from that exact cumulant function, which keeps its relative accuracy at
1e-9, where a normal approximation would not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from conformance.statistics.exact import SMALLEST_P
from conformance.statistics.tables import Floats, Ints

CLIP = 8.0  # q/p above this adds little information and much skewness
FARTHEST = 1e4  # a tilt beyond it leaves nothing but the most extreme token of every law


@dataclass(frozen=True, slots=True)
class Leak:
    """Estimate of eps with a standard error, and the test of eps = 0.

    The standard error is that of the mixture estimated; ``information``, for planning, and the
    standardised score ``z`` are those of eps = 0.
    """

    eps: float
    se: float
    z: float
    p_value: float
    information: float
    n: int


def leak(prefix: Ints, token: Ints, law: Floats, draft: Floats) -> Leak | None:
    """Estimate and test the draft leak.

    Parameters
    ----------
    prefix, token : (n,) int64
        Row of the law, and the token drawn.
    law, draft : (U, V) float64
        Target and draft laws.

    Returns
    -------
    Leak or None
        None where the draft equals the target at every prefix, so that nothing can be seen.
    """
    score = bounded_score(law, draft)
    times = np.bincount(prefix, minlength=len(law))
    square, draft_square = ((m * score**2).sum(axis=1) for m in (law, draft))
    variance = float(times @ square)
    # what a full unit of eps would add to the sum: E_q - E_p of the score
    gain = ((draft - law) * score).sum(axis=1)
    slope = float(times @ gain)
    if variance <= 1e-12 * max(len(token), 1) or slope <= 0:
        return None
    total = float(score[prefix, token].sum())
    eps = total / slope
    share = min(max(eps, 0.0), 1.0)
    spread = times @ ((1 - share) * square + share * draft_square - (share * gain) ** 2)
    return Leak(
        eps=eps,
        se=float(np.sqrt(max(spread, 0.0))) / slope,
        z=total / float(np.sqrt(variance)),
        p_value=_saddlepoint(total, times, law, score),
        information=slope**2 / variance,
        n=len(token),
    )


def bounded_score(law: Floats, draft: Floats) -> Floats:
    """min(q/p, CLIP), centred under p; 0 where p = 0. [U, V]"""
    ratio = np.divide(draft, law, out=np.zeros_like(law), where=law > 0)
    g = np.minimum(ratio, CLIP)
    return np.asarray(np.where(law > 0, g - (law * g).sum(axis=1, keepdims=True), 0.0))


def detectable(
    times: Floats | Ints, law: Floats, draft: Floats, alpha: float, power: float
) -> float | None:
    """Smallest leak that the test of level `alpha` catches with probability `power`.

    The score is skewed, so the normal formula (z_{alpha/2} + z_beta) / sqrt(information) promises
    too much: the critical value lies further out, and with the leak its spread grows.

    Parameters
    ----------
    times : (U,) float64 or int64
        Tokens at each prefix; need not be whole, for planning.
    law, draft : (U, V) float64
        Target and draft laws.

    Returns
    -------
    float or None
        None where even the draft alone would not be caught so surely.
    """
    score = bounded_score(law, draft)
    square, draft_square = ((m * score**2).sum(axis=1) for m in (law, draft))
    gain = ((draft - law) * score).sum(axis=1)
    slope = float(times @ gain)
    null = _Sum.of(times, law, score)
    if null.spread <= 1e-6 * np.sqrt(times.sum()) or slope <= 0:
        return None
    wanted, unit = float(stats.norm.isf(alpha / 2)), 1.0 / null.spread
    far = wanted * unit
    while null.root(far) < wanted:
        far *= 2
        if far > FARTHEST:
            return None
    tilt = float(optimize.brentq(lambda t: null.root(t) - wanted, unit, far, rtol=1e-10))
    critical = null.cumulants(tilt)[1]
    z = float(stats.norm.isf(1 - power))

    def short(eps: float) -> float:
        variance = times @ ((1 - eps) * square + eps * draft_square - (eps * gain) ** 2)
        return critical + z * float(np.sqrt(max(variance, 0.0))) - eps * slope

    return None if short(1.0) > 0 else float(optimize.brentq(short, 0.0, 1.0))


@dataclass(frozen=True, slots=True)
class _Sum:
    """The null law of a sum of independent scores: n of each row, [U'], [U', V], [U', V]."""

    n: Floats | Ints
    p: Floats
    s: Floats
    spread: float

    @classmethod
    def of(cls, times: Floats | Ints, law: Floats, score: Floats) -> _Sum:
        seen = times > 0
        n, p, s = times[seen], law[seen], score[seen]
        return cls(n, p, s, float(np.sqrt(n @ (p * s**2).sum(axis=1))))

    def cumulants(self, t: float) -> tuple[float, float, float]:
        """The cumulant function at t, and its first two derivatives."""
        top = (t * self.s).max(axis=1, keepdims=True)
        e = self.p * np.exp(t * self.s - top)
        m = e.sum(axis=1)
        mean = (e * self.s).sum(axis=1) / m
        var = (e * self.s**2).sum(axis=1) / m - mean**2
        k = float(self.n @ (np.log(m) + top[:, 0]))
        return k, float(self.n @ mean), float(self.n @ var)

    def root(self, t: float) -> float:
        """Barndorff-Nielsen's r* of the sum that the tilt t makes typical; normal under the law."""
        k, total, curvature = self.cumulants(t)
        w = float(np.copysign(np.sqrt(max(2 * (t * total - k), 0.0)), t))
        return w + float(np.log(t * np.sqrt(curvature) / w)) / w


def _saddlepoint(total: float, times: Ints, law: Floats, score: Floats) -> float:
    """Two-sided tail probability of a sum of independent scores with known laws."""
    null = _Sum.of(times, law, score)
    if abs(total) < 1e-3 * null.spread:  # r* is 0/0 at the centre, where the normal law is right
        return float(2 * stats.norm.sf(abs(total) / null.spread))
    # A sum far out on either side is tilted to by a multiplier t; 1 / spread is its natural unit.
    sign = 1.0 if total > 0 else -1.0
    far = 1.0 / null.spread
    while sign * (null.cumulants(sign * far)[1] - total) < 0:
        far *= 2
        if far > FARTHEST:  # every token is the most extreme one its law allows
            return SMALLEST_P
    t = sign * float(
        optimize.brentq(lambda x: null.cumulants(sign * x)[1] - total, 0.0, far, rtol=1e-10)
    )
    one_sided = float(stats.norm.sf(sign * null.root(t)))
    return min(max(2 * one_sided, SMALLEST_P), 1.0)
