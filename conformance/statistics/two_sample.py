"""Speculative against control arm, where the law is not to be trusted or not known.

For each prefix that both arms reached, the two rows of counts are compared given what they add up
to: cell by cell a hypergeometric law, exactly as a single row is a chain of binomials.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from conformance.statistics.exact import SMALLEST_P, Fit
from conformance.statistics.tables import MIN_EXPECTED, Ints, Table, pooled_cells


def two_sample(
    first: tuple[Ints, Ints], second: tuple[Ints, Ints], vocab: int, rng: np.random.Generator
) -> tuple[Fit, int]:
    """Exact chi-square test that two samples come from the same conditional laws.

    Parameters
    ----------
    first, second : tuple of (n,) int64
        ``(prefix, token)`` of each sample; prefixes numbered alike in both.
    vocab : int
        Number of tokens.
    rng : Generator
        Randomises the discrete p-values.

    Returns
    -------
    fit : Fit
        ``p_value`` is uniform if the arms agree.
    n : int
        Tokens of the first sample that were compared.
    """
    # Rows without room for a cell and a remainder in the smaller sample would never be used; large
    # vocabularies cannot afford to make them dense.
    often, too = (_reached(prefix, 2 * MIN_EXPECTED) for prefix, _ in (first, second))
    shared = np.intersect1d(often, too)
    a, b = (_counts(shared, *sample, vocab) for sample in (first, second))
    # Pooling looks only at the sum of both samples, which the test is conditional on; an explicit
    # cell is then expected at least MIN_EXPECTED times in the smaller sample.
    total_a, both = a.sum(axis=1), a + b
    total = both.sum(axis=1)
    smaller = np.minimum(total_a, total - total_a)
    kept, row, token = pooled_cells(smaller, both / np.maximum(total, 1)[:, None])
    plan = Table(total[kept], row, both[kept][row, token], np.zeros(len(row)))
    x, m = a[kept][row, token], plan.count
    left = plan.total[row] - plan.before(m)
    left_a = total_a[kept][row] - plan.before(x)
    mass = stats.hypergeom.pmf(x, left, m, left_a)
    v = rng.random(len(x))
    low = stats.hypergeom.cdf(x, left, m, left_a) - v * mass
    high = stats.hypergeom.sf(x, left, m, left_a) + v * mass
    z2 = stats.chi2.isf(np.clip(2 * np.minimum(low, high), SMALLEST_P, 1.0), 1)
    df = len(z2)
    p = float(stats.chi2.sf(z2.sum(), df)) if df else 1.0
    return Fit(float(z2.sum()), df, max(p, SMALLEST_P)), int(total_a[kept].sum())


def _reached(prefix: Ints, times: float) -> Ints:
    """Prefixes reached at least so often."""
    rows, count = np.unique(prefix, return_counts=True)
    return np.asarray(rows[count >= times])


def _counts(shared: Ints, prefix: Ints, token: Ints, vocab: int) -> Ints:
    mine = np.isin(prefix, shared)
    at = np.searchsorted(shared, prefix)
    flat = np.bincount(at[mine] * vocab + token[mine], minlength=len(shared) * vocab)
    return flat.reshape(len(shared), vocab).astype(np.int64)
