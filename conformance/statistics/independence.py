"""Do neighbours share randomness where their prefixes differ? (Where they agree: `repeats`.)

An engine whose every request has the right law can still draw two requests from one random stream.

*Correlation*: the probability integral transforms of neighbours move together, as they do where
uniforms are shared. The transform must rank tokens as the engine's sampler does to see it best: by
token id for an inverse cumulative sum.

*Coincidences*: the same token at the same output index more often than the law at the second
request's own prefix allows, as with shared Gumbel noise (an exponential race) over the vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from conformance.statistics import saddlepoint
from conformance.statistics.exact import SMALLEST_P
from conformance.statistics.tables import Floats, Ints
from conformance.verdict import Interval

Bools = NDArray[np.bool_]

FEWEST_PAIRS = 20  # fewer products have no p-value to speak of
# Nearer to 0 or 1, a transform is rounding, and its score another on every processor.
NEAREST = 1e-9
# Strengths of a coincidence, in log odds: from "hardly more often" to "always", and less often.
LOG_ODDS = np.array([0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, -0.06, -0.25, -1.0, -4.0])


# --- correlation ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Correlation:
    """Correlation of normal scores `lag` apart.

    Parameters
    ----------
    n : int
        Products.
    correlation : Interval
        Their mean, with an interval.
    statistic : float
        Their sum over its standard deviation under independence.
    p_value : float
        Two-sided, from the exact cumulant function of the sum.
    paths : (k, 2) int64
        Lengths of the runs of scores that are chained, and how many there are of each.
    """

    n: int
    correlation: Interval
    statistic: float
    p_value: float
    paths: Ints

    def detectable(self, alpha: float, power: float) -> float | None:
        """Smallest correlation that is caught; None if not even 1 would be."""
        chain = _Chains(self.paths)
        t = saddlepoint.critical_tilt(alpha / 2, chain, chain.spread, chain.farthest)
        if t is None:
            return None
        critical, z = chain(t)[1], float(stats.norm.isf(1 - power))

        def short(rho: float) -> float:
            return critical + z * chain.spread * math.sqrt(1 + rho * rho) - rho * self.n

        return None if short(1.0) > 0 else float(optimize.brentq(short, 0.0, 1.0))


def correlation_at_lag(u: Floats, judged: Bools, lag: int = 1) -> Correlation | None:
    """Do transforms `lag` apart move together?

    Parameters
    ----------
    u : (N, T) float64
        Randomised probability integral transforms; neighbours along the first axis at the same
        place of the second are compared. Transposed, neighbours within a sequence.
    judged : (N, T) bool
        Which are to be used.
    lag : int
        At least 1.

    Returns
    -------
    Correlation or None
        None with fewer than 20 pairs.

    Notes
    -----
    Scores are independent and standard normal, and products of neighbours in a run of m form a
    quadratic form with eigenvalues cos(k pi / (m + 1)), k = 1 .. m; hence the cumulant function.
    """
    z = np.where(judged, special.ndtri(np.clip(u, NEAREST, 1 - NEAREST)), 0.0)
    total, n, runs = 0.0, 0, []
    for begin in range(min(lag, len(z))):
        here, use = z[begin::lag], judged[begin::lag]
        both = use[1:] & use[:-1]
        total += float((here[1:] * here[:-1])[both].sum())
        n += int(both.sum())
        runs.append(_run_lengths(use))
    if n < FEWEST_PAIRS:
        return None
    paths = np.stack(np.unique(np.concatenate(runs), return_counts=True), axis=1)
    paths = paths[paths[:, 0] > 1]
    chain = _Chains(paths)
    r = total / n
    half = float(stats.norm.isf(0.025)) * np.sqrt((1 + r * r) / n)
    return Correlation(
        n=n,
        correlation=Interval(r, r - half, r + half),
        statistic=total / chain.spread,
        p_value=saddlepoint.two_sided(total, chain, chain.spread, chain.farthest),
        paths=paths,
    )


def _run_lengths(use: Bools) -> Ints:
    """Lengths of the runs of True down each column. [N, T]"""
    wall = np.zeros((1, use.shape[1]), dtype=np.int8)
    edges = np.diff(np.concatenate([wall, use.astype(np.int8), wall]), axis=0)
    starts, ends = (np.nonzero((edges == e).T) for e in (1, -1))
    return np.asarray(ends[1] - starts[1], dtype=np.int64)


class _Chains:
    """Cumulant function of the sum of products of neighbours in runs of standard normals."""

    def __init__(self, paths: Ints) -> None:
        lengths, times = paths.T
        top = int(lengths.max())
        self.eigenvalues = np.concatenate(
            [np.cos(np.pi * np.arange(1, m + 1) / (m + 1)) for m in lengths]
        )
        self.times = np.repeat(times, lengths)
        self.farthest = (1 - 1e-9) / (2 * float(np.cos(np.pi / (top + 1))))
        self.spread = float(np.sqrt(((lengths - 1) * times).sum()))

    def __call__(self, t: float) -> tuple[float, float, float]:
        inverse = 1 / (1 - 2 * t * self.eigenvalues)
        slope = self.eigenvalues * inverse
        return (
            0.5 * float(self.times @ np.log(inverse)),
            float(self.times @ slope),
            2 * float(self.times @ slope**2),
        )


# --- coincidences ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Coincidences:
    """Equal tokens where prefixes differ. Additive: `merge` joins batches and workers.

    Parameters
    ----------
    n : int
        Pairs of tokens compared.
    observed : int
        Equal ones.
    expected, variance : float
        Their expectation and variance given the first of each pair and the second's prefix.
    log_ratios : (len(LOG_ODDS),) float64
        Evidence for each strength of coupling.
    """

    n: int
    observed: int
    expected: float
    variance: float
    log_ratios: Floats

    def merge(self, other: Coincidences) -> Coincidences:
        """The evidence of both."""
        return Coincidences(
            self.n + other.n,
            self.observed + other.observed,
            self.expected + other.expected,
            self.variance + other.variance,
            self.log_ratios + other.log_ratios,
        )

    @property
    def log_e(self) -> float:
        """Log of an e-process: it may be looked at whenever one likes."""
        return float(special.logsumexp(self.log_ratios) - np.log(len(LOG_ODDS)))

    @property
    def p_value(self) -> float:
        """At most uniform under exactness, at any depth: min(1, 1 / E)."""
        return float(max(np.exp(-max(self.log_e, 0.0)), SMALLEST_P))

    @property
    def statistic(self) -> float:
        """Standard deviations above the expectation."""
        return (self.observed - self.expected) / float(np.sqrt(max(self.variance, 1e-12)))

    @property
    def rate(self) -> Interval:
        """Excess of equal tokens per pair compared."""
        excess = (self.observed - self.expected) / max(self.n, 1)
        half = float(stats.norm.isf(0.025)) * float(np.sqrt(self.variance)) / max(self.n, 1)
        return Interval(excess, excess - half, excess + half)

    def detectable(self, alpha: float, power: float) -> float | None:
        """Smallest excess per pair that is caught; None if not even certainty would be.

        Some strength alone must reach log(1 / alpha) and its share of the mixture, which takes a
        known number of coincidences; with an excess d they are binomial-like, with a variance of
        at most that under exactness plus n d.
        """
        if self.n == 0:
            return None
        up = LOG_ODDS > 0
        boost = self.observed * LOG_ODDS[up] - self.log_ratios[up]
        critical = float(((np.log(len(LOG_ODDS) / alpha) + boost) / LOG_ODDS[up]).min())
        z, most = float(stats.norm.isf(1 - power)), self.n - self.expected

        def short(extra: float) -> float:
            return critical + z * math.sqrt(self.variance + extra) - self.expected - extra

        return None if short(most) > 0 else float(optimize.brentq(short, 0, most)) / self.n


def coincidences(token: Ints, other: Ints, other_prob: Floats, compared: Bools) -> Coincidences:
    """Is the token of an earlier request emitted more often than its probability?

    Parameters
    ----------
    token : (n,) or (N, T) int64
        Tokens of the later requests.
    other : same shape, int64
        Tokens at the same output index of the requests they are compared with.
    other_prob : same shape, float64
        Probability of `other` under the law at the *later* request's own prefix.
    compared : same shape, bool
        Judged pairs; where the prefixes are the same, `repeats_at_lag` knows more.
    """
    pi = np.clip(other_prob[compared], 0.0, 1.0)
    hit = (token == other)[compared] & (pi > 0)
    boost = np.log1p(pi[:, None] * np.expm1(LOG_ODDS))  # [n, t]
    return Coincidences(
        n=len(pi),
        observed=int(hit.sum()),
        expected=float(pi.sum()),
        variance=float((pi * (1 - pi)).sum()),
        log_ratios=hit.sum() * LOG_ODDS - boost.sum(axis=0),
    )
