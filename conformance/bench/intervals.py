"""Medians, tails and rates of few timings, with intervals that claim no more than they can.

Times are skewed, so nothing here assumes a normal law: a quantile's interval lies between order
statistics, whose coverage is binomial whatever the law is. It needs enough samples to exist at all,
and where it does not exist nothing is made up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from conformance.law import Floats
from conformance.statistics.proportion import wilson

CONFIDENCE = 0.95
RESAMPLES = 2000
FEWEST_CLUSTERS = 6
FEWEST_GROUPS = 10  # below it the bootstrap's intervals are too short
TAILS = (0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Measured:
    """An estimate from n samples; the interval is None where n is too small for one."""

    estimate: float
    low: float | None
    high: float | None
    n: int


def fewest_for(q: float) -> int:
    """Samples from which on the largest is above the q-quantile with 95 % probability.

    With fewer a tail is a guess at what was not seen.

    Examples
    --------
    >>> fewest_for(0.5), fewest_for(0.9), fewest_for(0.99)
    (5, 29, 299)
    """
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(q))


def quantile(values: Sequence[float], q: float) -> Measured | None:
    """A quantile of independent samples with its order-statistics interval.

    None for a tail of fewer than `fewest_for` samples. The median is given for any number; its
    interval needs six.
    """
    x = np.sort(np.asarray(values, dtype=np.float64))
    n = len(x)
    if n == 0 or (q > 0.5 and n < fewest_for(q)):
        return None
    low, high = _order(n, q)
    return Measured(
        float(np.quantile(x, q)),
        None if low is None else float(x[low]),
        None if high is None else float(x[high]),
        n,
    )


def median(values: Sequence[float]) -> Measured | None:
    """The median with its interval; None of nothing."""
    return quantile(values, 0.5)


def _order(n: int, q: float) -> tuple[int | None, int | None]:
    """Indices of the order statistics that bracket the q-quantile with 95 % probability.

    X_(i) is at most the quantile when at least i samples are, and their number is binomial. Where
    one side has no order statistic that is sure enough, the interval does not exist.
    """
    tail = (1 - CONFIDENCE) / 2
    low = int(stats.binom.ppf(tail, n, q)) - 1  # 0-based: P(fewer than low + 1 below) <= tail
    high = int(stats.binom.isf(tail, n, q))  # P(more than high below) <= tail
    inside = stats.binom.cdf(high, n, q) - stats.binom.cdf(low, n, q)
    if low >= 0 and high <= n - 1 and inside >= CONFIDENCE - 1e-12:
        return low, high
    return None, None


def grouped_quantile(groups: Sequence[Sequence[float]], q: float) -> Measured | None:
    """A quantile of samples of which those of one group hang together.

    The interval resamples groups, not samples; None for a tail of too few samples.
    """
    kept = [np.asarray(g, dtype=np.float64) for g in groups if len(g)]
    if all(len(g) == 1 for g in kept):
        return quantile([float(g[0]) for g in kept], q)
    flat = np.concatenate(kept)
    if q > 0.5 and len(flat) < fewest_for(q):
        return None
    point = float(np.quantile(flat, q))
    if len(kept) < FEWEST_GROUPS:
        return Measured(point, None, None, len(flat))
    low, high = bootstrap(
        lambda rows: float(np.quantile(np.concatenate([kept[i] for i in rows]), q)),
        len(kept),
        resamples=400,  # each sorts everything
    )
    return Measured(point, low, high, len(flat))


def bootstrap(
    statistic: Callable[[np.ndarray], float], n: int, resamples: int = RESAMPLES
) -> tuple[float | None, float | None]:
    """Percentile interval of a statistic of n units, given as indices; None where n is too small.

    The same numbers are resampled every time, so that a report can be made again.
    """
    if n < FEWEST_GROUPS:
        return None, None
    rng = np.random.default_rng(n)
    rows = rng.integers(0, n, size=(resamples, n))
    values = np.array([statistic(r) for r in rows])
    values = values[np.isfinite(values)]
    if len(values) < resamples / 2:
        return None, None
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def clustered_rate(hits: Floats, tried: Floats) -> Measured | None:
    """A rate whose trials come in clusters: hits of all over trials of all. [n], [n]

    The interval is Student's on the ratio, whose variance is between clusters; Wilson's where
    clusters do not differ at all, since a rate of 0 or 1 has no variance to see.
    """
    hits, tried = np.asarray(hits, float), np.asarray(tried, float)
    total = float(tried.sum())
    if total == 0:
        return None
    found = clustered_ratio(hits, tried)
    if found.low is None or found.high is None:
        return found
    if found.high - found.low < 1e-9:
        low, high = wilson(round(hits.sum()), round(total))
        return Measured(found.estimate, low, high, found.n)
    return Measured(found.estimate, max(0.0, found.low), min(1.0, found.high), found.n)


def clustered_ratio(sums: Floats, tried: Floats) -> Measured:
    """The sum of all over the trials of all, with Student's interval between clusters. [n], [n]"""
    total, n = float(tried.sum()), int((tried > 0).sum())
    ratio = float(sums.sum()) / total
    if n < FEWEST_CLUSTERS:
        return Measured(ratio, None, None, int(total))
    spread = float(((sums - ratio * tried) ** 2).sum())
    half = stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * math.sqrt(n / (n - 1) * spread) / total
    return Measured(ratio, ratio - half, ratio + half, int(total))
