"""Contingency tables conditional on the prefix, pooled by expectation only.

A table has rows (prefixes) with n answers each and, in every row, explicit cells (tokens) with a
count and a probability under the law; what is not explicit is the row's remainder. Which cells are
explicit is decided from n and the law, never from the counts, so pooling cannot select.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from conformance.statistics.ties import settled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Values = TypeVar("Values", Ints, Floats)

# Below this expectation a cell tells more about its own rarity than about the engine. It guards
# power, not validity: the tests on these tables are exact at any expectation.
MIN_EXPECTED = 10.0


@dataclass(frozen=True, slots=True)
class Table:
    """R rows with M explicit cells in all; every row has a remainder besides.

    Parameters
    ----------
    total : (R,) int64
        Answers in each row.
    row : (M,) int64
        The row of each explicit cell; non-decreasing.
    count : (M,) int64
        Observed.
    prob : (M,) float64
        Probability under the law, conditional on the row.
    """

    total: Ints
    row: Ints
    count: Ints
    prob: Floats

    @property
    def n(self) -> int:
        """Answers in all rows."""
        return int(self.total.sum())

    @property
    def df(self) -> int:
        """Degrees of freedom: explicit cells, since each row's remainder follows from them."""
        return len(self.row)

    def before(self, values: Values) -> Values:
        """Per cell, the sum of `values` over the earlier cells of its row."""
        running = np.cumsum(values) - values
        first = np.searchsorted(self.row, self.row, side="left")
        return running - running[first]

    def remainders(self) -> tuple[Ints, Floats]:
        """Count and probability of each row's remainder. [R], [R]"""
        size = len(self.total)
        count = self.total - np.bincount(self.row, self.count, size).astype(np.int64)
        prob = 1.0 - np.bincount(self.row, self.prob, size)
        return count, np.maximum(prob, 0.0)


def conditional_table(
    prefix: Ints, token: Ints, law: Floats, min_expected: float = MIN_EXPECTED
) -> Table:
    """Tabulate tokens by prefix.

    Parameters
    ----------
    prefix : (n,) int64
        Row of `law` that each token was drawn from.
    token : (n,) int64
        The tokens, in [0, V).
    law : (U, V) float64
        Laws.
    min_expected : float
        Cells expected less often join the row's remainder. A remainder that would itself be
        expected less often takes in the row's smallest explicit cell.

    Returns
    -------
    Table
        Rows without any explicit cell are left out: nothing can be judged there.
    """
    rows, back = np.unique(prefix, return_inverse=True)
    total = np.bincount(back, minlength=len(rows)).astype(np.int64)
    # Only rows that can have a cell beside a remainder are ever made dense.
    live = np.flatnonzero(total >= 2 * min_expected)
    position = np.full(len(rows), -1)
    position[live] = np.arange(len(live))
    mine = position[back] >= 0
    vocab = law.shape[1]
    counts = np.bincount(
        position[back[mine]] * vocab + token[mine], minlength=len(live) * vocab
    ).reshape(len(live), vocab)
    return pooled_table(total[live], counts, law[rows[live]], min_expected)


def stacked(tables: Sequence[Table]) -> Table:
    """One table with the rows of all."""
    offsets = np.cumsum([0, *(len(t.total) for t in tables)])
    none = np.zeros(0, dtype=np.int64)
    return Table(
        total=np.concatenate([none, *(t.total for t in tables)]),
        row=np.concatenate([none, *(t.row + o for t, o in zip(tables, offsets, strict=False))]),
        count=np.concatenate([none, *(t.count for t in tables)]),
        prob=np.concatenate([np.zeros(0), *(t.prob for t in tables)]),
    )


def pooled_cells(
    total: Ints, prob: Floats, min_expected: float = MIN_EXPECTED
) -> tuple[Ints, Ints, Ints]:
    """Decide which cells are explicit, from expectations alone.

    Parameters
    ----------
    total : (R,) int64
        Answers in each row.
    prob : (R, C) float64
        Cell probabilities.

    Returns
    -------
    kept : (R',) int64
        Rows with at least one explicit cell.
    row, cell : (M,) int64
        Explicit cells, most expected first within a row; `row` counts within `kept`.
    """
    expected = settled(total[:, None] * prob)
    order = np.argsort(-expected, axis=1, kind="stable")
    ranked = np.take_along_axis(expected, order, axis=1)
    explicit = ranked >= min_expected
    rest = total - np.where(explicit, ranked, 0.0).sum(axis=1)
    last = explicit.sum(axis=1) - 1
    absorb = (last >= 0) & (rest < min_expected)
    explicit[np.flatnonzero(absorb), last[absorb]] = False
    kept = np.flatnonzero(explicit.any(axis=1))
    row, rank = np.nonzero(explicit[kept])
    return kept, row, order[kept][row, rank]


def pooled_table(
    total: Ints, counts: Ints, prob: Floats, min_expected: float = MIN_EXPECTED
) -> Table:
    """Pool dense rows of counts and probabilities, [R], [R, C], [R, C]."""
    kept, row, cell = pooled_cells(total, prob, min_expected)
    return Table(total[kept], row, counts[kept][row, cell], prob[kept][row, cell])


def cells_expected(law: Floats, n: int, min_expected: float = MIN_EXPECTED) -> int:
    """Degrees of freedom of one row of `n` answers from `law`, known before sampling. [V]"""
    if n < 2 * min_expected:
        return 0
    return len(pooled_cells(np.array([n]), law[None], min_expected)[1])
