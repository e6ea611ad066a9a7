"""What a pass rules out: the smallest departure that would have been caught.

Every function answers, for a test of a given size and a power wanted, how large an effect must be
for the test to reject it with at least that power.
"""

from __future__ import annotations

import math
from functools import lru_cache

from scipy import optimize, stats


@lru_cache(maxsize=4096)
def noncentrality(alpha: float, power: float, df: int) -> float:
    """Lambda such that a noncentral chi-square(df, lambda) exceeds the level-alpha critical value
    with probability `power`.

    Examples
    --------
    >>> round(noncentrality(0.05, 0.8, 1), 2)
    7.85
    """
    critical = float(stats.chi2.isf(alpha, df))

    def missing(lam: float) -> float:
        return float(stats.ncx2.sf(critical, df, lam)) - power

    high = critical + 10.0
    while missing(high) < 0:
        high *= 2
    return float(optimize.brentq(missing, 1e-9, high, xtol=1e-6))


def chi_square_tv(alpha: float, power: float, df: int, n: int) -> float:
    """Smallest mean total variation, over the cells of a table, that a chi-square test catches.

    Pearson's noncentrality is n sum_h w_h chi2(p' || p) >= 4 n (mean TV)^2, by Cauchy-Schwarz.
    """
    return math.sqrt(noncentrality(alpha, power, df) / (4 * n))


def chi_square_n(alpha: float, power: float, df: int, tv: float) -> int:
    """Answers needed for `chi_square_tv` to reach `tv`."""
    return math.ceil(noncentrality(alpha, power, df) / (4 * tv * tv))


def ks_distance(alpha: float, power: float, n: int) -> float:
    """Smallest sup-distance between distribution functions that a Kolmogorov-Smirnov test of n
    values catches.

    By the Dvoretzky-Kiefer-Wolfowitz inequality (Massart's constant), twice: the critical value is
    at most sqrt(ln(2/alpha) / 2n), and the empirical distance falls short of the true one by more
    than sqrt(ln(1/beta) / 2n) with probability at most beta.
    """
    return math.sqrt(math.log(2 / alpha) / (2 * n)) + math.sqrt(math.log(1 / (1 - power)) / (2 * n))


def zero_events_rate(power: float, n: int) -> float:
    """Smallest rate of single-strike departures that n tokens would have shown once."""
    return -math.expm1(math.log1p(-power) / n)
