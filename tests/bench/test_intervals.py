"""Intervals: that they hold what they say they hold, and that none is made up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from conformance.bench import intervals
from conformance.bench.intervals import (
    bootstrap,
    clustered_rate,
    clustered_ratio,
    fewest_for,
    grouped_quantile,
    median,
    quantile,
)

RUNS = 4000


def share_is_at_least(hits: int, runs: int, wanted: float) -> bool:
    """Whether `hits` of `runs` are compatible with a coverage of `wanted` or more, at 1e-4."""
    return bool(stats.binom.cdf(hits, runs, wanted) > 1e-4)


@pytest.mark.parametrize("n", [6, 7, 10, 30])
def test_a_medians_interval_covers_whatever_the_law_is(n: int) -> None:
    rng = np.random.default_rng(n)
    truth = math.exp(1.0)  # the median of a log-normal law
    hits = 0
    for x in rng.lognormal(1.0, 1.5, (RUNS, n)):
        m = median(x.tolist())
        assert m is not None
        assert m.low is not None
        assert m.high is not None
        hits += m.low <= truth <= m.high
    assert share_is_at_least(hits, RUNS, 0.95)


@pytest.mark.parametrize(("n", "q"), [(100, 0.9), (1000, 0.99)])
def test_a_tails_interval_covers(n: int, q: float) -> None:
    rng = np.random.default_rng(n)
    truth = float(stats.expon.ppf(q))
    hits = 0
    for x in rng.exponential(size=(RUNS // 2, n)):
        m = quantile(x.tolist(), q)
        assert m is not None
        assert m.low is not None
        assert m.high is not None
        hits += m.low <= truth <= m.high
    assert share_is_at_least(hits, RUNS // 2, 0.95)


def test_too_few_samples_give_no_tail_and_no_interval() -> None:
    assert quantile([1.0] * 28, 0.9) is None
    assert quantile([1.0] * 29, 0.9) is not None
    assert quantile([1.0] * 298, 0.99) is None
    five = median([3.0, 1.0, 2.0, 5.0, 4.0])
    assert five is not None
    assert (five.estimate, five.low, five.high, five.n) == (3.0, None, None, 5)
    assert median([]) is None
    # a tail's interval needs more than the tail itself
    tail = quantile([float(i) for i in range(29)], 0.9)
    assert tail is not None
    assert tail.high is None


def test_fewest_for_is_where_the_largest_is_beyond_the_tail() -> None:
    for q in (0.9, 0.99):
        n = fewest_for(q)
        assert 1 - q**n >= 0.95 > 1 - q ** (n - 1)


def test_an_intervals_ends_are_samples() -> None:
    m = median([float(i) for i in range(1, 11)])
    assert m is not None
    # of 10 samples the 2nd and the 9th hold the median with 97.9 %, the 3rd and 8th with 89 %
    assert (m.low, m.high) == (2.0, 9.0)


def test_a_rate_of_clusters_covers() -> None:
    """Trials of one cluster share a chance of their own; Wilson's interval would be too short."""
    rng = np.random.default_rng(3)
    hits = naive = 0
    for _ in range(RUNS // 2):
        chance = rng.beta(2, 2, 40)
        tried = rng.integers(5, 40, 40)
        kept = rng.binomial(tried, chance)
        # the mean chance over trials, tried being independent of chance
        m = clustered_rate(kept.astype(float), tried.astype(float))
        assert m is not None
        assert m.low is not None
        assert m.high is not None
        hits += m.low <= 0.5 <= m.high
        low, high = intervals.wilson(int(kept.sum()), int(tried.sum()))
        naive += low <= 0.5 <= high
    # Student's ratio is approximate: near 95 %, where Wilson's is not
    assert hits / (RUNS // 2) > 0.93
    assert naive / (RUNS // 2) < 0.6


def test_a_rate_without_variance_still_has_an_interval() -> None:
    m = clustered_rate(np.full(10, 3.0), np.full(10, 3.0))
    assert m is not None
    assert m.low is not None
    assert (m.estimate, m.high) == (1.0, 1.0)
    assert 0.8 < m.low < 0.95
    assert clustered_rate(np.zeros(3), np.zeros(3)) is None


def test_a_ratio_may_be_below_zero() -> None:
    m = clustered_ratio(np.array([-3.0, -2.0, -4.0, -3.0, -2.0, -4.0]), np.full(6, 10.0))
    assert m.estimate == pytest.approx(-0.3)
    assert m.high is not None
    assert m.high < 0


def test_groups_are_resampled_whole() -> None:
    """Samples of one group are the same: as many as there are groups, and no more, are seen."""
    rng = np.random.default_rng(4)
    groups = [[x] * 50 for x in rng.exponential(size=30)]
    grouped = grouped_quantile(groups, 0.5)
    pooled = quantile([x for g in groups for x in g], 0.5)
    assert grouped is not None
    assert pooled is not None
    assert None not in (grouped.low, grouped.high, pooled.low, pooled.high)
    assert grouped.high - grouped.low > 3 * (pooled.high - pooled.low)  # type: ignore[operator]
    few = grouped_quantile([[1.0, 2.0]] * 5, 0.5)
    assert few is not None
    assert (few.low, few.high) == (None, None)


def test_the_bootstrap_covers_a_mean() -> None:
    rng = np.random.default_rng(5)
    hits, runs = 0, 400
    for x in rng.exponential(size=(runs, 40)):
        low, high = bootstrap(lambda rows, x=x: float(x[rows].mean()), len(x), resamples=400)
        assert low is not None
        assert high is not None
        hits += low <= 1.0 <= high
    assert hits / runs > 0.88  # percentile intervals are known to be a little short
    assert bootstrap(lambda _: 1.0, 9) == (None, None)
    assert bootstrap(lambda _: float("nan"), 20) == (None, None)
