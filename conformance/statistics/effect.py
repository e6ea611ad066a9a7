"""Effect sizes with intervals."""

from __future__ import annotations

import numpy as np
from scipy import optimize, special, stats

from conformance.statistics.tables import Table
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
