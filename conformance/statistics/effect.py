"""Effect sizes with intervals."""

from __future__ import annotations

import zlib

import numpy as np
from scipy import optimize, special, stats

from conformance.statistics.tables import Floats, Ints, Table
from conformance.verdict import Interval


def kl_per_token(table: Table, confidence: float = 0.95) -> Interval | None:
    """Kullback-Leibler divergence of what was observed from the law, in nats per token.

    G / 2n estimates it with a bias of df / 2n, which is removed; the interval inverts the
    noncentral chi-square law of G.

    Returns
    -------
    Interval or None
        None for a table without cells.
    """
    if table.df == 0:
        return None
    rest_count, rest_prob = table.remainders()
    observed = np.concatenate([table.count, rest_count]).astype(float)
    expected = np.concatenate(
        [table.total[table.row] * table.prob, table.total * np.maximum(rest_prob, 1e-300)]
    )
    g = float(2 * special.xlogy(observed, observed / expected).sum())
    tail = (1 - confidence) / 2
    scale = 1 / (2 * table.n)
    return Interval(
        estimate=max(g - table.df, 0.0) * scale,
        low=_noncentrality(g, table.df, 1 - tail) * scale,
        high=_noncentrality(g, table.df, tail) * scale,
        confidence=confidence,
    )


def total_variation(
    table: Table, rng: np.random.Generator | None = None, confidence: float = 0.95
) -> Interval | None:
    """Total variation between what is emitted and the law, averaged over the rows' answers.

    It is the largest excess of probability that any set of cells has. The plug-in value takes the
    set that happened to have it, and is far above 0 even under exactness. So the answers are split
    at random: one half chooses each row's set, the other measures its excess, and the other way
    round. That is the estimate; where cells are too many or depart too little for their signs to be
    seen, it is below the truth. Its lower confidence limit is one for the total variation whatever
    the shape of the departure. The upper limit is the lower of two: Pinsker's inequality from the
    limit for the divergence, and the plug-in value, which is above the truth on average and
    fluctuates by no more than one set's excess does.

    Parameters
    ----------
    table : Table
        Observed counts and the law.
    rng : Generator, optional
        Splits the answers. Left out, the split is a fixed one for these counts.
    confidence : float
        Of the interval.

    Returns
    -------
    Interval or None
        None for a table without cells.

    Notes
    -----
    Measured over tables of 5 to 390 degrees of freedom with no, one, some or all cells departing,
    by total variations from .01 to .6: an interval of 95 % covers in 97 to 100 %.
    """
    limits = kl_per_token(table, 1 - (1 - confidence) / 2)
    if limits is None:
        return None
    rest_count, rest_prob = table.remainders()
    row = np.concatenate([table.row, np.arange(len(table.total))])
    count = np.concatenate([table.count, rest_count])
    prob = np.concatenate([table.prob, rest_prob])
    weight = table.total / table.n
    plugin = float((weight[row] * np.abs(count / table.total[row] - prob)).sum()) / 2
    if rng is None:
        rng = np.random.default_rng(zlib.crc32(np.ascontiguousarray(count).tobytes()))
    half = rng.binomial(count, 0.5)
    excess, variance = np.mean(
        [_excess(c, count - c, prob, row, weight) for c in (half, count - half)], axis=0
    )
    tail = (1 - confidence) / 2
    high = min(
        np.sqrt(limits.high / 2), plugin + stats.norm.isf(tail / 2) / (2 * np.sqrt(table.n)), 1.0
    )
    low = max(float(excess - stats.norm.isf(tail) * np.sqrt(variance)), 0.0)
    return Interval(
        float(np.clip(excess, low, high)), min(low, float(high)), float(high), confidence
    )


def _excess(
    chooser: Ints, measured: Ints, prob: Floats, row: Ints, weight: Floats
) -> tuple[float, float]:
    """Excess, in `measured`, of the cells that are in excess in `chooser`; and its variance."""
    size = len(weight)
    chosen = chooser > np.bincount(row, chooser, size)[row] * prob
    n = np.bincount(row, measured, size)
    share = np.bincount(row, np.where(chosen, measured, 0), size) / np.maximum(n, 1)
    law = np.bincount(row, np.where(chosen, prob, 0.0), size)
    used = np.where(n > 0, weight, 0.0)
    # a share of 0 or 1 is not known without error: one answer is added to either side
    spread = (share * n + 1) * ((1 - share) * n + 1) / (n + 2) ** 2 / np.maximum(n, 1)
    return float(used @ (share - law)), float(used**2 @ spread)


def _noncentrality(g: float, df: int, quantile: float) -> float:
    """Lambda at which g is the given quantile of a noncentral chi-square; 0 if none is."""

    def excess(lam: float) -> float:
        return float(stats.ncx2.cdf(g, df, lam) if lam > 0 else stats.chi2.cdf(g, df)) - quantile

    if excess(0.0) <= 0:
        return 0.0
    # An upper end from the normal approximation, widened until it brackets.
    high = g + 10 * np.sqrt(g + 1) + 10
    while excess(high) > 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-6))
