"""Surprisal: are tokens as surprising, on average, as the law says they are?

The sum of -log p(x) less the entropies: a temperature too low makes it negative, one too high
positive. Its whole distribution under the law is known; the p-value is a saddlepoint tail
probability, and all it needs is sums over prefixes.
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
    token_blocks,
)
from conformance.statistics.tables import Floats, Ints
from conformance.verdict import Interval

MOST = 20.0  # nats; a token rarer than 2e-9 is surprising enough, and support's business if p = 0
PER_NAT = 64  # grades of the surprisal over a large vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class Surprisal:
    """Mean surprisal beyond the law's, and the test that it is 0.

    Parameters
    ----------
    n : int
        Tokens.
    excess : Interval
        Nats per token; below 0 the output is sharper than the law.
    z, p_value : float
        The standardised sum, and the two-sided tail probability.
    null : CumulantSum
        Law of the sum under exactness.
    spread : float
        Standard deviation of the sum as observed.
    """

    n: int
    excess: Interval
    z: float
    p_value: float
    null: CumulantSum
    spread: float

    def detectable(self, alpha: float, power: float) -> float | None:
        """Smallest shift, in nats per token and either direction, that is caught; None if none is.

        The shift is one of temperature: p^(1/T) is the law tilted by 1 - 1/T along the surprisal,
        so mean and spread of the shifted sum are the derivatives of the cumulant function there.
        """
        spread, z = float(np.sqrt(self.null.variance)), float(stats.norm.isf(1 - power))
        shifts = []
        for sign in (1.0, -1.0):

            def side(t: float, sign: float = sign) -> tuple[float, float, float]:
                k, slope, curvature = self.null(sign * t)
                return k, sign * slope, curvature

            def alike(t: float, sign: float = sign) -> float:
                return self.null.likeness(sign * t)

            at = saddlepoint.critical_tilt(alpha / 2, side, spread, LARGEST, alike)
            if at is None:
                return None
            critical = side(at)[1]

            def over(t: float, critical: float = critical) -> float:
                _, mean, variance = side(t)
                return mean - z * float(np.sqrt(max(variance, 0.0))) - critical

            if over(LARGEST) < 0:
                return None
            shifts.append(side(optimize.brentq(over, 0.0, LARGEST))[1])
        return max(shifts) / self.n


class SurprisalSum:
    """The surprisal of tokens that come in parts: batches, workers, nights. Starts empty."""

    def __init__(self) -> None:
        self.total, self.square = 0.0, 0.0
        self.null = CumulantSum.empty()

    def add(self, prefix: Ints, token: Ints, law: Floats) -> None:
        """Take in tokens.

        Parameters
        ----------
        prefix, token : (n,) int64
            Row of the law, and the token drawn.
        law : (U, V) float64 or float32
            Laws. Tokens of p = 0 add nothing.
        """
        times, batch = np.bincount(prefix, minlength=len(law)), CumulantBatch()
        for rows, mine in token_blocks(prefix, law.shape):
            p = np.asarray(law[rows], dtype=np.float64)
            p = p / p.sum(axis=1, keepdims=True)
            score, mass = _score(p)
            s = score.at(np.searchsorted(rows, prefix[mine]), token[mine])
            self.total += float(s.sum())
            self.square += float((s * s).sum())
            batch.add(times[rows], mass, score.value)
        self.null = self.null.merge(batch.total())

    def merge(self, other: SurprisalSum) -> SurprisalSum:
        """The sum of both."""
        both = SurprisalSum()
        both.total, both.square = self.total + other.total, self.square + other.square
        both.null = self.null.merge(other.null)
        return both

    def result(self) -> Surprisal | None:
        """Estimate and test; None where every law leaves no choice, or is flat."""
        n = round(self.null.n)
        if self.null.variance <= 1e-12 * max(n, 1):
            return None
        spread = float(np.sqrt(self.null.variance))
        mean = self.total / n
        observed = float(np.sqrt(max(self.square - n * mean * mean, 0.0)))
        half = float(stats.norm.isf(0.025)) * max(observed, 1e-12) / n
        return Surprisal(
            n=n,
            excess=Interval(mean, mean - half, mean + half),
            z=self.total / spread,
            p_value=saddlepoint.two_sided(
                self.total, self.null, spread, LARGEST, self.null.likeness
            ),
            null=self.null,
            spread=observed,
        )


def centred_surprisal(law: Floats) -> Floats:
    """-log p, at most MOST, less its mean under p; 0 where p = 0. [U, V]"""
    return _score(law)[0].dense()


def _score(law: Floats) -> tuple[Graded, Floats]:
    """`centred_surprisal`, graded where the vocabulary is large, and the mass of its grades.
    [u, V], [u, G]
    """
    surprise = np.minimum(-np.log(np.maximum(law, 1e-300)), MOST)
    if law.shape[1] <= UNGRADED:
        value = np.where(law > 0, Graded(surprise, None).centred(law).value, 0.0)
        return Graded(value, None), law
    level = np.rint(surprise * PER_NAT).astype(np.int64)
    most = int(MOST * PER_NAT)
    level[law == 0] = most + 1  # a grade of their own, which gets the mean
    score = Graded(np.append(np.arange(most + 1) / PER_NAT, 0.0), level)
    mass = score.mass(law)
    score = score.centred(mass)
    score.value[:, -1] = 0.0
    return score, mass
