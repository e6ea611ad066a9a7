"""Goodness of fit with exact p-values at any depth: a multinomial taken one cell at a time.

Pearson's statistic is referred to a chi-square distribution that it only approaches. At the levels
used here (alpha = 1e-6 split over hundreds of tests) the approximation is wrong by orders of
magnitude where a cell is expected ten times, and on the dangerous side. But a multinomial row is
exactly a chain of binomials,

    O_1 ~ Bin(n, pi_1),   O_2 | O_1 ~ Bin(n - O_1, pi_2 / (1 - pi_1)),   ...

so every cell has an exact conditional p-value; with the usual randomisation at the observed value
it is exactly uniform, and the cells are independent. Turned into normal scores z and squared they
sum to an exact chi-square variable, which for large expectations is Pearson's statistic (Cochran's
decomposition). The same chain splits the likelihood ratio: G is the sum of the binomials'
deviances, so ordering outcomes by deviance gives an exact version of the G test.

The randomisation comes from a generator seeded by the run, so anyone can recompute it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import xlogy

from conformance.statistics.tables import Floats, Ints, Table

SMALLEST_P = 1e-300  # p-values are reported no smaller: beyond it doubles have no digits left
TIE = 1e-9  # deviances closer than this, relatively, are one deviance and a rounding error


@dataclass(frozen=True, slots=True)
class Fit:
    """A goodness-of-fit statistic with its exact p-value."""

    statistic: float
    df: int
    p_value: float


def chi_square(table: Table, rng: np.random.Generator) -> Fit:
    """Exact chi-square test of a table.

    Parameters
    ----------
    table : Table
        Observed counts and the law.
    rng : Generator
        Randomises the discrete p-values.

    Returns
    -------
    Fit
        ``p_value`` is uniform under exactness, for every table.
    """
    n, pi, o = _chain(table)
    v = rng.random(len(o))
    mass = stats.binom.pmf(o, n, pi)
    low = stats.binom.cdf(o, n, pi) - v * mass  # P(below) + (1 - v) P(equal)
    high = stats.binom.sf(o, n, pi) + v * mass
    return _combine(2 * np.minimum(low, high))


def likelihood_ratio(table: Table, rng: np.random.Generator) -> Fit:
    """Exact likelihood-ratio (G, Kullback-Leibler) test of a table; as `chi_square`, with
    outcomes ordered by their deviance.
    """
    n, pi, o = _chain(table)
    mean = n * pi
    observed = _deviance(o, n, pi)
    other = _same_deviance(observed, n, pi, below=o >= mean)
    # the far outcome of equal deviance, where it is a whole number, ties with the observed one
    near = np.rint(other)
    tie = (np.abs(_deviance(near, n, pi) - observed) <= TIE * (1 + observed)) & (near != o)
    tie &= (near >= 0) & (near <= n)
    up, down = o >= mean, o < mean
    # outcomes > upper_from - tie; never the observed one again, whose other side is itself where it
    # equals the mean
    upper_from = np.where(up, o, np.where(tie, near, np.maximum(np.ceil(other), o + 1)))
    lower_from = np.where(down, o, np.where(tie, near, np.minimum(np.floor(other), o - 1)))
    equal = stats.binom.pmf(o, n, pi) + np.where(tie, stats.binom.pmf(near, n, pi), 0.0)
    strict_up = np.where(
        up | tie, stats.binom.sf(upper_from, n, pi), stats.binom.sf(upper_from - 1, n, pi)
    )
    strict_down = np.where(
        down | tie, stats.binom.cdf(lower_from - 1, n, pi), stats.binom.cdf(lower_from, n, pi)
    )
    return _combine(strict_up + strict_down + rng.random(len(o)) * equal)


def _chain(table: Table) -> tuple[Ints, Floats, Ints]:
    """The binomials of the chain: trials, success probability, successes. [M] each"""
    left = table.total[table.row] - table.before(table.count)
    mass = 1.0 - table.before(table.prob)
    pi = np.clip(table.prob / np.maximum(mass, 1e-300), 0.0, 1.0)
    return left, pi, table.count


def _combine(p: Floats) -> Fit:
    z2 = stats.chi2.isf(np.clip(p, SMALLEST_P, 1.0), 1)
    df = len(z2)
    statistic = float(z2.sum())
    p_value = float(stats.chi2.sf(statistic, df)) if df else 1.0
    return Fit(statistic, df, max(p_value, SMALLEST_P))


def _deviance(outcome: Ints | Floats, n: Ints, pi: Floats) -> Floats:
    o = outcome.astype(np.float64)
    left = n - o
    with np.errstate(divide="ignore", invalid="ignore"):
        a = xlogy(o, o / (n * pi))
        b = xlogy(left, left / (n * (1 - pi)))
    return np.asarray(2 * np.where(n > 0, np.nan_to_num(a, nan=0.0) + np.nan_to_num(b, nan=0.0), 0))


def _same_deviance(wanted: Floats, n: Ints, pi: Floats, below: NDArray[np.bool_]) -> Floats:
    """The real outcome on the other side of the mean with the deviance `wanted`; -1 or n + 1
    where even the last outcome on that side has less.
    """
    mean = n * pi
    near, far = mean.copy(), np.where(below, 0.0, n.astype(np.float64))
    missing = _deviance(far, n, pi) < wanted - TIE * (1 + wanted)
    for _ in range(60):
        middle = (near + far) / 2
        short = _deviance(middle, n, pi) < wanted
        near, far = np.where(short, middle, near), np.where(short, far, middle)
    return np.where(missing, np.where(below, -1.0, n + 1.0), far)
