"""Alternatives to the law: what an engine might emit instead, computed from (p, q) alone.

Every alternative is a line through the law,

    r = p + s (p' - p),    so that    r / p = 1 + s (g - 1)    with    g = p' / p,

a *direction* g and a *strength* s < 1. Directions are the laws that known faults emit (the draft's
own, a lenient acceptance, resampling from p, ...), and tilts that no draft is needed for
(temperature, greedy, flat). Strengths below 1 stand for a fault that meets only part of the
positions. Because s < 1 no ratio is 0: one token never rules an alternative out for good.

A ratio at a token needs sums over the vocabulary only through a few numbers per prefix, which share
their passes: about thirty multiply-adds a cell, and no power or logarithm but one exponential.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from conformance.statistics.tables import Floats, Ints
from conformance.statistics.ties import settled

LENIENT = (0.5, 0.7, 0.82, 0.9, 0.95, 0.975, 0.9875, 0.994)
THRESHOLDS = (0.05, 0.3)
LIKELIEST = 10  # tokens that a relaxed rule accepts whatever the draft says
TAILS = (1e-2, 1e-3, 1e-4)  # tokens rarer than this are lost
HALVINGS = 6  # temperatures 1 / (1 + 2^-k) for k < HALVINGS, and 1 / (1 - 2^-k) for 1 <= k
FULL = 1 - 2.0**-10  # the largest strength: it costs nothing and keeps every ratio above 0
RAREST = 1e-30  # p below this is taken for this: ratios get smaller, never larger
CELLS_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction with its strengths.

    Parameters
    ----------
    name : str
        What an engine that emits this law does.
    prior : float
        Share of the mixture, divided evenly between the strengths.
    strengths : tuple of float
        Each in (0, FULL].
    """

    name: str
    prior: float
    strengths: tuple[float, ...]


def _directions() -> Iterator[Direction]:
    """In the order of the columns of `_with_draft` and `_without_draft`."""
    yield Direction("draft leak", 0.30, (FULL, *(2.0**-k for k in range(1, 10))))
    yield Direction("away from the draft", 0.04, (FULL, 0.3, 0.1, 0.03))
    yield Direction("resample-from-p", 0.09, (FULL, 0.5, 0.2))
    yield Direction("softmax residual", 0.05, (FULL, 0.3, 0.1))
    yield Direction("argmax draft", 0.04, (FULL, 0.3, 0.1))
    yield Direction("likeliest recovered", 0.03, (FULL, 0.3))
    yield Direction("draft declared flatter than drawn", 0.02, (FULL, 0.3))
    yield Direction("draft declared sharper than drawn", 0.02, (FULL, 0.3))
    for tau in THRESHOLDS:
        yield Direction(f"accept where p >= {tau:g}", 0.04, (FULL, 0.3))
    yield Direction(f"accept the {LIKELIEST} likeliest", 0.03, (FULL, 0.3))
    for factor in LENIENT:
        yield Direction(f"lenient {factor:g}", 0.24 / len(LENIENT), (FULL,))
    yield Direction("greedy", 0.03, (FULL, 0.3, 0.1, 0.03))
    yield Direction("flat", 0.03, (0.3, 0.1, 0.03, 0.01))
    for rare in TAILS:
        yield Direction(f"nothing rarer than {rare:g}", 0.01, (FULL,))
    temperatures = [1 / (1 + 2.0**-k) for k in range(HALVINGS)]
    temperatures += [1 / (1 - 2.0**-k) for k in range(1, HALVINGS)]
    for temperature in temperatures:
        yield Direction(f"temperature {temperature:.3g}", 0.10 / len(temperatures), (FULL,))


DIRECTIONS = tuple(_directions())
DRAFT_AWARE = 9 + len(THRESHOLDS) + len(LENIENT)  # leading directions that need the draft
_COLUMN = np.array([d for d, x in enumerate(DIRECTIONS) for _ in x.strengths])  # [C]
_STRENGTH = np.array([s for x in DIRECTIONS for s in x.strengths])  # [C]
NAMES = tuple(
    x.name if s == FULL else f"{x.name}, {s:.3g} of the tokens"
    for x in DIRECTIONS
    for s in x.strengths
)
PRIOR = np.array([x.prior / len(x.strengths) for x in DIRECTIONS for _ in x.strengths])
PRIOR /= PRIOR.sum()  # [C]


def token_log_ratios(prefix: Ints, token: Ints, law: Floats, draft: Floats | None) -> Floats:
    """Log of r(x) / p(x) for every token and every alternative. [n, C]

    Parameters
    ----------
    prefix, token : (n,) int64
        Row of the law, and the token drawn.
    law, draft : (u, V) float64 or float32
        Target and draft laws; without a draft the alternatives that need one equal the law.

    Returns
    -------
    (n, C) float64
        Finite. A token of p = 0 is worth 0: it is proof by itself, and the support test's.
    """
    g = np.ones((len(token), len(DIRECTIONS)))
    order = np.argsort(prefix, kind="stable")
    rows, starts = np.unique(prefix[order], return_index=True)
    ends = np.append(starts[1:], len(order))
    step = max(1, CELLS_AT_ONCE // max(law.shape[1], 1))
    for begin in range(0, len(rows), step):
        mine = order[starts[begin] : ends[min(begin + step, len(rows)) - 1]]
        block = rows[begin : begin + step]
        at = np.searchsorted(block, prefix[mine]), token[mine]
        p = np.asarray(law[block], dtype=np.float64)
        g[mine, DRAFT_AWARE:] = _without_draft(p, at)
        if draft is not None:
            g[mine, :DRAFT_AWARE] = _with_draft(p, np.asarray(draft[block], np.float64), at)
    return lines(g, law[prefix, token])


def pointwise_log_ratios(token_p: Floats, token_q: Floats) -> Floats:
    """As `token_log_ratios` from p(x) and q(x) alone, [n] and [n]: the draft leak is looked for
    and nothing else. [n, C]
    """
    g = np.ones((len(token_p), len(DIRECTIONS)))
    g[:, 0] = token_q / np.maximum(token_p, RAREST)
    return lines(g, token_p)


def lines(g: Floats, token_p: Floats) -> Floats:
    """From directions [n, D] to alternatives [n, C]."""
    possible = (token_p > 0)[:, None]
    return np.asarray(np.where(possible, np.log1p(_STRENGTH * (g[:, _COLUMN] - 1)), 0.0))


def _with_draft(p: Floats, q: Floats, at: tuple[Ints, Ints]) -> Floats:
    """Directions that need the draft, at the tokens `at`. [B, V], [B, V] -> [m, DRAFT_AWARE]"""
    row, _ = at
    floor = np.maximum(p[at], RAREST)
    ratio = q[at] / floor
    rejected = np.maximum(1 - np.minimum(p, q).sum(axis=1), 0.0)  # [B]; mass of max(p - q, 0)
    left = rejected[row]
    # the residual over p; p itself where the residual is empty
    some = left > 1e-12
    recovered = np.where(some, np.maximum(p[at] - q[at], 0) / floor / np.where(some, left, 1), 1.0)
    accepted = np.minimum(ratio, 1.0)

    soft = np.exp(np.maximum(p - q, 0.0))
    softmax = soft[at] / soft.sum(axis=1)[row] / floor

    best = q.argmax(axis=1)
    rows = np.arange(len(p))
    p_best, q_best = p[rows, best], q[rows, best]
    kept = np.minimum(1.0, p_best / q_best)
    argmax = (at[1] == best[row]) * kept[row] / floor + (1 - kept)[row] * recovered

    likeliest = np.maximum(p - q, 0.0).argmax(axis=1)
    top = np.where(some, (at[1] == likeliest[row]) / floor, 1.0)

    columns = [ratio, recovered, accepted + left, accepted + left * softmax, argmax]
    columns.append(accepted + left * top)
    for raised in (np.sqrt(q), q * q):
        declared = raised / raised.sum(axis=1, keepdims=True)
        columns.append(_misdeclared(p, q, declared, at))
    settled_p = settled(p)
    last = p.shape[1] - min(LIKELIEST, p.shape[1])  # of the likeliest, in increasing order
    least = np.partition(settled_p, last, axis=1)[:, last, None]
    for certain in (*(p >= tau for tau in THRESHOLDS), settled_p >= least):
        bold = np.where(certain, q, np.minimum(p, q))
        rest = np.maximum(1 - bold.sum(axis=1), 0.0)[row]
        columns.append(bold[at] / floor + rest * recovered)
    for factor in LENIENT:
        rest = np.maximum(1 - np.minimum(p / factor, q).sum(axis=1), 0.0)[row]
        columns.append(np.minimum(ratio, 1 / factor) + rest * recovered)
    return np.stack(columns, axis=1)


def _misdeclared(p: Floats, drawn: Floats, declared: Floats, at: tuple[Ints, Ints]) -> Floats:
    """Proposals from `drawn` judged as if from `declared`. [B, V] each -> [m]"""
    row, _ = at
    kept = drawn * np.minimum(1.0, np.divide(p, declared, out=np.ones_like(p), where=declared > 0))
    rejected = np.maximum(1 - kept.sum(axis=1), 0.0)
    left = np.maximum(p - declared, 0.0).sum(axis=1)
    some = left > 1e-12
    share = rejected / np.where(some, left, 1.0)
    rest = np.where(some[row], np.maximum(p[at] - declared[at], 0.0), p[at]) * share[row]
    return np.asarray((kept[at] + rest) / np.maximum(p[at], RAREST))


def _without_draft(p: Floats, at: tuple[Ints, Ints]) -> Floats:
    """Directions that need no draft, at the tokens `at`. [B, V] -> [m, D - DRAFT_AWARE]"""
    row, token = at
    floor = np.maximum(p[at], RAREST)
    best = p.argmax(axis=1)
    greedy = (token == best[row]) / floor
    flat = 1 / ((p > 0).sum(axis=1)[row] * floor)
    # a law with nothing but a tail stays as it is
    mass = [np.where(p >= rare, p, 0.0).sum(axis=1)[row] for rare in TAILS]
    cut = [
        np.where(m > 0, (p[at] >= rare) / np.where(m > 0, m, 1.0), 1.0)
        for rare, m in zip(TAILS, mass, strict=True)
    ]
    sharp, wide = [p[at] / (p * p).sum(axis=1)[row]], []
    root = p
    for _ in range(1, HALVINGS):  # p^(1/2), p^(1/4), ...
        root = np.sqrt(root)
        sharp.append(root[at] / (p * root).sum(axis=1)[row])
        inverse = np.divide(p, root, out=np.zeros_like(p), where=root > 0)
        wide.append(inverse[at] / inverse.sum(axis=1)[row] / floor)
    return np.stack([greedy, flat, *cut, *sharp, *wide], axis=1)
