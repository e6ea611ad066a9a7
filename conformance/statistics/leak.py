"""Draft leak: how much of the draft's law is mixed into the output.

Most faults of speculative decoding lean to the draft, so that the emitted law is close to
(1 - eps) p + eps q. The score of eps, the derivative of the log likelihood, is

    s = (r - 1) / (1 + eps (r - 1)),    r = q / p,

which at any eps > 0 is bounded by 1 / eps. It is taken at eps = 1/32. At 0 it is unbounded where
the draft is far, and its rare large values drown the rest. A lower bound costs more than it saves:
against q/p clipped at 8, leaks a third smaller are caught where the draft is far, and none is
missed by more than two hundredths of its size. Prefixes need no weights beside: the score of a
likelihood weighs them by what they tell.

Its whole distribution under the law is known, because p is. The p-value is a saddlepoint tail
probability from that exact cumulant function, which keeps its relative accuracy at 1e-9, where a
normal approximation would not. All of it is sums over prefixes, so laws need not be kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from conformance.statistics import saddlepoint
from conformance.statistics.cumulants import (
    LARGEST,
    UNGRADED,
    CumulantBatch,
    CumulantSum,
    Graded,
    blocks,
    token_blocks,
)
from conformance.statistics.tables import Floats, Ints
from conformance.verdict import Interval

Z95 = 1.959964
BOUND = 32.0  # the largest score before centring; 1 / eps at which the score is taken
# Grades of log(q/p), finest around 0: a hundredth apart relatively, from 1e-4 up to 20
FINEST, PER_FOLD, WIDEST = 1e-4, 100, 20.0


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

    @property
    def interval(self) -> Interval:
        """The estimate with a 95 % interval."""
        return Interval(self.eps, self.eps - Z95 * self.se, self.eps + Z95 * self.se)


class LeakSum:
    """The leak of tokens that come in parts: batches, workers, nights. Starts empty."""

    def __init__(self) -> None:
        self.total = 0.0  # of the scores
        self.cumulants = CumulantSum.empty()  # of that sum under the law
        # over all tokens: what a unit of eps adds to the total; the variance that it adds
        self.slope, self.draft_square, self.slope_square = 0.0, 0.0, 0.0

    def add(self, prefix: Ints, token: Ints, law: Floats, draft: Floats) -> None:
        """Take in tokens, as in `leak`."""
        times, batch = np.bincount(prefix, minlength=len(law)), CumulantBatch()
        for rows, mine in token_blocks(prefix, law.shape):
            score = self._expect(times[rows], law[rows], draft[rows], batch)
            self.total += float(score.at(np.searchsorted(rows, prefix[mine]), token[mine]).sum())
        self.cumulants = self.cumulants.merge(batch.total())

    def expect(self, times: Floats | Ints, law: Floats, draft: Floats) -> None:
        """Take in tokens, [U] of each prefix, whose scores are added to `total` elsewhere, or,
        for planning, not at all.
        """
        batch = CumulantBatch()
        for rows in blocks(times, law.shape[1]):
            self._expect(times[rows], law[rows], draft[rows], batch)
        self.cumulants = self.cumulants.merge(batch.total())

    def _expect(
        self, times: Floats | Ints, law: Floats, draft: Floats, batch: CumulantBatch
    ) -> Graded:
        p = np.asarray(law, dtype=np.float64)
        p = p / p.sum(axis=1, keepdims=True)
        q = np.asarray(draft, dtype=np.float64)
        score, mp = _score(p, q)
        s, mq = score.value, score.mass(q)
        gain = ((mq - mp) * s).sum(axis=1)
        self.slope += float(times @ gain)
        self.slope_square += float(times @ gain**2)
        self.draft_square += float(times @ (mq * s**2).sum(axis=1))
        batch.add(times, mp, s)
        return score

    def merge(self, other: LeakSum) -> LeakSum:
        """The sum of both."""
        both = LeakSum()
        both.cumulants = self.cumulants.merge(other.cumulants)
        for name in ("total", "slope", "draft_square", "slope_square"):
            setattr(both, name, getattr(self, name) + getattr(other, name))
        return both

    def result(self) -> Leak | None:
        """Estimate and test; None where nothing can be seen."""
        null = self.cumulants
        if self._blind():
            return None
        eps = self.total / self.slope
        spread = float(np.sqrt(null.variance))
        return Leak(
            eps=eps,
            se=float(np.sqrt(self._variance(min(max(eps, 0.0), 1.0)))) / self.slope,
            z=self.total / spread,
            p_value=saddlepoint.two_sided(self.total, null, spread, LARGEST, null.likeness),
            information=self.slope**2 / null.variance,
            n=round(null.n),
        )

    def detectable(self, alpha: float, power: float) -> float | None:
        """Smallest leak that the test of level `alpha` catches with probability `power`.

        The score is skewed, so the normal formula (z_{alpha/2} + z_beta) / sqrt(information)
        promises too much: the critical value lies further out, and with the leak its spread grows.

        Returns
        -------
        float or None
            None where even the draft alone would not be caught so surely.
        """
        null = self.cumulants
        if self._blind():
            return None
        spread = float(np.sqrt(null.variance))
        tilt = saddlepoint.critical_tilt(alpha / 2, null, spread, LARGEST, null.likeness)
        if tilt is None:
            return None
        critical, z = null(tilt)[1], float(stats.norm.isf(1 - power))

        def short(eps: float) -> float:
            return critical + z * float(np.sqrt(self._variance(eps))) - eps * self.slope

        return None if short(1.0) > 0 else float(optimize.brentq(short, 0.0, 1.0))

    def _blind(self) -> bool:
        return self.cumulants.variance <= 1e-12 * max(self.cumulants.n, 1.0) or self.slope <= 0

    def _variance(self, eps: float) -> float:
        """Variance of the total where the leak is eps."""
        null = (1 - eps) * self.cumulants.variance + eps * self.draft_square
        return max(null - eps * eps * self.slope_square, 0.0)


def leak(prefix: Ints, token: Ints, law: Floats, draft: Floats) -> Leak | None:
    """Estimate and test the draft leak.

    Parameters
    ----------
    prefix, token : (n,) int64
        Row of the law, and the token drawn.
    law, draft : (U, V) float64 or float32
        Target and draft laws.

    Returns
    -------
    Leak or None
        None where the draft equals the target at every prefix, so that nothing can be seen.
    """
    sums = LeakSum()
    sums.add(prefix, token, law, draft)
    return sums.result()


def detectable(
    times: Floats | Ints, law: Floats, draft: Floats, alpha: float, power: float
) -> float | None:
    """Smallest leak that is caught; `LeakSum.detectable` of laws at hand.

    Parameters
    ----------
    times : (U,) float64 or int64
        Tokens at each prefix; need not be whole, for planning.
    law, draft : (U, V) float64
        Target and draft laws.
    """
    sums = LeakSum()
    sums.expect(times, law, draft)
    return sums.detectable(alpha, power)


def bounded_score(law: Floats, draft: Floats) -> Floats:
    """The score of a leak at eps = 1 / BOUND, centred under p; 0 where p = 0. [U, V]"""
    return _score(law, draft)[0].dense()


def _score(law: Floats, draft: Floats) -> tuple[Graded, Floats]:
    """`bounded_score`, graded where the vocabulary is large, and the mass of its grades.
    [u, V], [u, G]
    """
    with np.errstate(over="ignore", divide="ignore"):
        ratio = np.divide(draft, law, out=np.ones_like(law), where=law > 0)
        if law.shape[1] > UNGRADED:
            most = int(_grade(np.array(WIDEST)))
            level = np.clip(_grade(np.log(ratio)), -most, most).astype(np.int64) + most
            # the last grade is for p = 0, and gets the mean
            level[law == 0] = 2 * most + 1
            grades = np.arange(-most, most + 1)
            ratio = np.exp(FINEST * np.sinh(grades / PER_FOLD))
        else:
            level = None
        excess = ratio - 1
        # q/p beyond the largest double: the score is at its bound
        raw = np.where(np.isinf(excess), BOUND, excess / (1 + np.minimum(excess, 1e300) / BOUND))
    if level is None:
        score = Graded(raw, None).centred(law)
        return Graded(np.where(law > 0, score.value, 0.0), None), law
    score = Graded(np.append(raw, 0.0), level)
    mass = score.mass(law)
    score = score.centred(mass)
    score.value[:, -1] = 0.0
    return score, mass


def _grade(log_ratio: Floats) -> Floats:
    return np.asarray(np.rint(PER_FOLD * np.arcsinh(log_ratio / FINEST)))
