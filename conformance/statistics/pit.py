"""The probability integral transform: every token becomes one uniform number, whatever its prefix.

u = P(tokens ranked before x) + V P(x) with V uniform is exactly uniform on (0, 1) when x is drawn
from the law, for any ranking that is fixed by the prefix. Prefixes need not repeat, so long
generations and large vocabularies are judged as well as short ones. The ranking decides what is
seen: by p it shows sharpening and flattening, by q/p anything that leans to the draft.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from conformance.statistics.exact import SMALLEST_P
from conformance.statistics.tables import Floats, Ints
from conformance.statistics.ties import settled

COMPARED_AT_ONCE = 2**17  # numbers in one array; what is compared at once stays in the cache
SORT_ABOVE = 32  # tokens a row


@dataclass(frozen=True, slots=True)
class KS:
    """Two-sided Kolmogorov-Smirnov distance from the uniform law."""

    distance: float
    p_value: float


def transform(
    prefix: Ints, token: Ints, law: Floats, key: Floats, rng: np.random.Generator
) -> Floats:
    """Randomised probability integral transform.

    Parameters
    ----------
    prefix, token : (n,) int64
        Row of the law, and the token drawn.
    law : (U, V) float64
        Laws.
    key : (U, V) float64
        Tokens are ranked by decreasing key; ties by token id.
    rng : Generator
        Source of V.

    Returns
    -------
    (n,) float64
        Uniform under exactness.
    """
    return randomised(
        mass_before(prefix, token, law, key), law[prefix, token], rng.random(len(token))
    )


def mass_before(prefix: Ints, token: Ints, law: Floats, key: Floats) -> Floats:
    """Mass of the tokens ranked before each token.

    Parameters
    ----------
    prefix, token : (n,) int64
        Row of the law, and the token drawn.
    law, key : (u, V) float64
        Laws; tokens are ranked by decreasing key, ties by token id. What differs by rounding alone
        is a tie: a draft that is the target has a ratio of 1 everywhere.

    Returns
    -------
    (n,) float64
    """
    vocab, key = law.shape[1], settled(key)
    pairs, back = np.unique(prefix * vocab + token, return_inverse=True)
    row, x = np.divmod(pairs, vocab)
    rows, at = np.unique(row, return_inverse=True)
    # comparing costs a pass over the vocabulary for every token, sorting some for every row
    if len(pairs) > SORT_ABOVE * len(rows):
        before = _sorted_before(law[rows], key[rows])[at, x]
    else:
        before = _compared_before(row, x, law, key)
    return np.asarray(before[back])


def _compared_before(row: Ints, x: Ints, law: Floats, key: Floats) -> Floats:
    """`mass_before` of distinct tokens, by comparing each with all others."""
    before, ids = np.empty(len(row)), np.arange(law.shape[1])
    step = max(1, COMPARED_AT_ONCE // law.shape[1])
    for begin in range(0, len(row), step):
        r, t = row[begin : begin + step], x[begin : begin + step]
        mine, own = key[r], key[r, t][:, None]
        ahead = (mine > own) | ((mine == own) & (ids < t[:, None]))
        before[begin : begin + step] = np.einsum("ij,ij->i", law[r], ahead)
    return before


def _sorted_before(law: Floats, key: Floats) -> Floats:
    """`mass_before` of every token, by sorting. [u, V]"""
    order = np.argsort(-key, axis=1, kind="stable")
    ranked = np.take_along_axis(law, order, axis=1)
    before = np.empty_like(law)
    np.put_along_axis(before, order, np.cumsum(ranked, axis=1) - ranked, axis=1)
    return before


def mass_before_id(prefix: Ints, token: Ints, law: Floats) -> Floats:
    """As `mass_before` for the ranking by token id: what a draw by inverse distribution function
    has below it. [n]
    """
    if len(token) > SORT_ABOVE * len(law):
        return np.asarray((np.cumsum(law, axis=1) - law)[prefix, token])
    below, ids = np.empty(len(token)), np.arange(law.shape[1])
    step = max(1, COMPARED_AT_ONCE // law.shape[1])
    for begin in range(0, len(token), step):
        r, t = prefix[begin : begin + step], token[begin : begin + step]
        below[begin : begin + step] = np.where(ids < t[:, None], law[r], 0.0).sum(axis=1)
    return below


def randomised(before: Floats, mass: Floats, v: Floats) -> Floats:
    """Uniform under exactness: `before` plus the uniform share `v` of the token's `mass`. [n]"""
    return np.clip(before + v * mass, 0.0, 1.0)


def kolmogorov_smirnov(u: Floats) -> KS:
    """Exact two-sided Kolmogorov-Smirnov test of uniformity."""
    n = len(u)
    s = np.sort(u)
    steps = np.arange(n)
    distance = float(max(np.max((steps + 1) / n - s), np.max(s - steps / n)))
    return KS(distance, max(float(stats.kstwo.sf(distance, n)), SMALLEST_P))


def draft_key(law: Floats, draft: Floats) -> Floats:
    """q/p, the ranking that puts what the draft likes too much first; tokens of p = 0 last."""
    return np.divide(draft, law, out=np.full_like(law, -1.0), where=law > 0)
