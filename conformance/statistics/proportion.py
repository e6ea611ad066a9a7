"""An interval for a rate."""

from __future__ import annotations


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval for a rate of which `hits` of `n` were seen."""
    from statsmodels.stats.proportion import proportion_confint  # noqa: PLC0415 - slow to import

    low, high = proportion_confint(hits, n, method="wilson")
    return float(low), float(high)
