"""Two samples of sequences compared on the tree that they make together; no law is needed.

A *node* is a prompt and the output so far; its children are the next symbols. Under the null
hypothesis (both arms have the same law, whatever it is, and requests are independent) the labels
that say which arm a sequence is of are a random choice among the sequences of the prompt. So, given
the tree that both arms make together and how many of the first arm reach a node, the first arm's
counts at its children are hypergeometric, and nodes are independent given what is above them.
A row of counts is taken one cell at a time, as in `conformance.statistics.exact`: every cell has
an exact conditional p-value, randomised at the observed value, and hence a normal score z.

Which cells are looked at, and with what weight, is decided from the pooled tree alone, which the
labels do not change. So the scores of all cells are independent and standard normal *exactly*, at
any depth and in any tail: a sum of squares is chi-square, and a weighted sum is normal. Nothing is
estimated, no permutation has to be drawn, and levels of 1e-8 cost nothing.

A permutation of labels (`permuted`) leaves the law of every statistic as it is; the tests use it to
check this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from conformance.statistics import saddlepoint
from conformance.statistics.exact import SMALLEST_P, Fit
from conformance.statistics.independence import Coincidences, coincidences
from conformance.statistics.tables import Floats, Ints

Bools = NDArray[np.bool_]

ABSENT = -2  # nothing here: the sequence has ended, or was cut, before this place
# A cell that both arms together fill less often tells more about its own rarity than about the
# arms. It guards power, not validity.
MIN_JOINT = 20
MOST_CELLS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """M cells of the tree, and the nodes they belong to.

    Parameters
    ----------
    depth : (M,) int64
        Output index.
    node : (M,) int64
        Number of the node.
    symbol, joint, first : (M,) int64
        The child, how often both arms took it, and how often the first did.
    z : (M,) float64
        Normal scores; above 0 where the first arm took the child more often.
    information : (M,) float64
        What a cell tells of a relative departure of a given size: the pooled variance of its count.
    sharpening : (M,) float64
        Weights of the direction in which likely children get likelier.
    totals : (K, 3) int64
        Of every node with a cell: depth, sequences of the first arm, of the second.
    """

    depth: Ints
    node: Ints
    symbol: Ints
    joint: Ints
    first: Ints
    z: Floats
    information: Floats
    sharpening: Floats
    totals: Ints

    def at(self, depths: range) -> Cells:
        """The cells at some output indices."""
        mine = (self.depth >= depths.start) & (self.depth < depths.stop)
        rows = (self.totals[:, 0] >= depths.start) & (self.totals[:, 0] < depths.stop)
        return Cells(
            depth=self.depth[mine],
            node=self.node[mine],
            symbol=self.symbol[mine],
            joint=self.joint[mine],
            first=self.first[mine],
            z=self.z[mine],
            information=self.information[mine],
            sharpening=self.sharpening[mine],
            totals=self.totals[rows],
        )

    @property
    def n(self) -> int:
        """Symbols of the first arm at nodes with a cell."""
        return int(self.totals[:, 1].sum())

    @property
    def effective(self) -> float:
        """Size of one sample that would tell as much: the sum of a b / (a + b) over the nodes."""
        a, b = self.totals[:, 1].astype(float), self.totals[:, 2].astype(float)
        return float((a * b / np.maximum(a + b, 1)).sum())

    def chi_square(self) -> Fit:
        """Any difference; the p-value is uniform where the arms agree."""
        df = len(self.z)
        total = float((self.z**2).sum())
        p = float(stats.chi2.sf(total, df)) if df else 1.0
        return Fit(total, df, max(p, SMALLEST_P))

    def by_frequency(self) -> Fit:
        """Any difference, most attention to what is frequent: squares weighted by `information`.

        Departures that are alike in relative size everywhere are seen best so. The weights are of
        the pooled tree, so the sum is one of independent weighted chi-squares; its tail is a
        saddlepoint one, exact to a few per cent at any depth.
        """
        return weighted_squares(self.z, self.information)

    def direction(self) -> Fit | None:
        """Sharper or flatter, two-sided; None without a cell that could tell."""
        norm = float(np.sqrt((self.sharpening**2).sum()))
        if norm == 0:
            return None
        z = float(self.sharpening @ self.z) / norm
        return Fit(z, 1, max(float(2 * stats.norm.sf(abs(z))), SMALLEST_P))


def compared(
    symbols: Ints, prompt: Ints, first: Bools, rng: np.random.Generator, most: int = MOST_CELLS
) -> Cells:
    """The scores of two samples.

    Parameters
    ----------
    symbols : (N, T) int64
        Sequences of both samples; `ABSENT` from where one ends.
    prompt : (N,) int64
        Labels are exchangeable among the sequences of one prompt.
    first : (N,) bool
        Which sequences are of the first sample.
    rng : Generator
        Randomises the discrete p-values.
    most : int
        Cells of a node, at most; the rest of its children is one remainder.
    """
    found: list[Cells] = []
    for depth, (node, child) in enumerate(_levels(symbols, prompt)):
        here = child >= 0
        level = (node[here], child[here], symbols[here, depth], first[here])
        found.append(_scores(depth, *level, rng, most))
    return Cells(
        depth=np.concatenate([c.depth for c in found]),
        node=np.concatenate([c.node for c in found]),
        symbol=np.concatenate([c.symbol for c in found]),
        joint=np.concatenate([c.joint for c in found]),
        first=np.concatenate([c.first for c in found]),
        z=np.concatenate([c.z for c in found]),
        information=np.concatenate([c.information for c in found]),
        sharpening=np.concatenate([c.sharpening for c in found]),
        totals=np.concatenate([c.totals for c in found]),
    )


def permuted(prompt: Ints, first: Bools, rng: np.random.Generator) -> Bools:
    """The labels of whole sequences, shuffled within each prompt."""
    out = first.copy()
    for p in np.unique(prompt):
        mine = np.flatnonzero(prompt == p)
        out[mine] = rng.permutation(first[mine])
    return out


def followed(symbols: Ints, prompt: Ints, lag: int) -> Coincidences | None:
    """Does a request go on like the one `lag` before it, of the same prompt and arm?

    Given the tree that the requests of one arm make, the order in which its sequences came is a
    random one. So at each node the next child is drawn, without putting back, from those that are
    still to come: that is the probability of agreeing with an earlier request, exactly.

    Parameters
    ----------
    symbols : (N, T) int64
        Sequences of one arm, in the order asked.
    prompt : (N,) int64
        The prompt of each.
    lag : int
        At least 1.

    Returns
    -------
    Coincidences or None
        None where no two requests can be compared.
    """
    n, length = symbols.shape
    partner = _before(prompt, lag)
    hits, others, probs = [], [], []
    for depth, (node, child) in enumerate(_levels(symbols, prompt)):
        if depth >= length:
            break
        here = np.flatnonzero((partner >= 0) & (child >= 0))
        other = partner[here]
        # both at one node, where both go on
        same = (node[other] == node[here]) & (child[other] >= 0)
        here, other = here[same], other[same]
        if not len(here):
            continue
        alive = np.flatnonzero(child >= 0)
        at_node = np.sort(node[alive] * n + alive)
        at_child = np.sort(child[alive] * n + alive)
        left = _still(at_node, node[here], here, n)
        wanted = _still(at_child, child[other], here, n)
        hits.append(symbols[here, depth])
        others.append(symbols[other, depth])
        probs.append(wanted / left)
    if not hits:
        return None
    token, other_token, prob = (np.concatenate(x) for x in (hits, others, probs))
    return coincidences(token, other_token, prob, np.ones(len(token), dtype=bool))


# --- sums of squares ------------------------------------------------------------------------------


def weighted_squares(z: Floats, weight: Floats) -> Fit:
    """Test that the weighted sum of squared normal scores is not too large. [M], [M] >= 0"""
    df = len(z)
    if df == 0:
        return Fit(0.0, 0, 1.0)
    w = weight / weight.max()
    total = float(w @ (z**2 - 1))
    return Fit(total, df, _upper(total, _Squares(w)))


class _Squares:
    """Cumulant function of a centred sum of weighted chi-squares of one degree of freedom."""

    def __init__(self, weights: Floats) -> None:
        self.weights = weights
        self.spread = float(np.sqrt(2 * (weights**2).sum()))
        self.farthest = (1 - 1e-9) / (2 * float(weights.max()))

    def __call__(self, t: float) -> tuple[float, float, float]:
        inverse = 1 / (1 - 2 * t * self.weights)
        slope = self.weights * inverse
        return (
            float(0.5 * np.log(inverse).sum() - t * self.weights.sum()),
            float((slope - self.weights).sum()),
            float(2 * (slope**2).sum()),
        )


def _upper(total: float, sum_of: _Squares) -> float:
    """Probability of a total at least as large."""
    # tilts have an upper limit, and no lower one
    farthest = sum_of.farthest if total > 0 else saddlepoint.FARTHEST
    tail = saddlepoint.two_sided(total, sum_of, sum_of.spread, farthest) / 2
    return float(max(tail if total > 0 else 1 - tail, SMALLEST_P))


# --- the tree -------------------------------------------------------------------------------------


def _levels(symbols: Ints, prompt: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Per output index: the node each sequence is at, and the child it takes; -1 where there is
    none. Numbers are unique within a level.
    """
    node = np.unique(prompt, return_inverse=True)[1].astype(np.int64).ravel()
    for depth in range(symbols.shape[1]):
        symbol = symbols[:, depth]
        child = np.full(len(node), -1, dtype=np.int64)
        here = np.flatnonzero((node >= 0) & (symbol != ABSENT))
        if len(here):
            _, code = np.unique(symbol[here], return_inverse=True)
            pair = node[here] * (int(code.max()) + 1) + code.ravel()
            child[here] = np.unique(pair, return_inverse=True)[1].ravel()
        yield node, child
        node = child


def _scores(
    depth: int,
    node: Ints,
    child: Ints,
    symbol: Ints,
    first: Bools,
    rng: np.random.Generator,
    most: int,
) -> Cells:
    """One level of the tree."""
    joint = np.bincount(child).astype(np.int64)
    mine = np.bincount(child, first, len(joint)).astype(np.int64)
    at = np.zeros(len(joint), dtype=np.int64)
    what = np.zeros(len(joint), dtype=np.int64)
    at[child], what[child] = node, symbol
    order = np.lexsort((what, -joint, at))
    at, joint, mine, what = at[order], joint[order], mine[order], what[order]
    rows, start, row = np.unique(at, return_index=True, return_inverse=True)
    row = row.ravel()
    total = np.bincount(row, joint).astype(np.int64)
    total_first = np.bincount(row, mine).astype(np.int64)
    rank = np.arange(len(joint)) - start[row]
    kept = (joint >= MIN_JOINT) & (rank < most)
    size = len(rows)
    rest = total - np.bincount(row[kept], joint[kept], size).astype(np.int64)
    last = np.bincount(row[kept], minlength=size) - 1
    kept &= ~((rank == last[row]) & (rest[row] < MIN_JOINT))  # what is left must be a cell as well
    # before each cell, those of its row: all of them precede it in this order
    left = total[row] - _running(joint, start, row)
    left_first = total_first[row] - _running(mine, start, row)
    inside = left - joint
    log = np.log(joint / total[row])
    weighed = joint * log
    tail = np.bincount(row, weighed, size)[row] - _running(weighed, start, row) - weighed
    contrast = log - tail / np.maximum(inside, 1)
    information = joint * inside / np.maximum(left, 1)
    weight = np.sqrt(information) * contrast
    z = _normal_scores(mine[kept], left[kept], joint[kept], left_first[kept], rng)
    judged = np.unique(row[kept])
    return Cells(
        depth=np.full(int(kept.sum()), depth, dtype=np.int64),
        node=rows[row[kept]].astype(np.int64),
        symbol=what[kept],
        joint=joint[kept],
        first=mine[kept],
        z=z,
        information=np.asarray(information[kept]),
        sharpening=np.asarray(weight[kept]),
        totals=np.stack(
            [
                np.full(len(judged), depth, dtype=np.int64),
                total_first[judged],
                (total - total_first)[judged],
            ],
            axis=1,
        ),
    )


def _running(values: NDArray, start: Ints, row: Ints) -> NDArray:  # type: ignore[type-arg]
    """Sum of the earlier values of the same row."""
    before = np.cumsum(values) - values
    return np.asarray(before - before[start[row]])


def _normal_scores(x: Ints, left: Ints, m: Ints, drawn: Ints, rng: np.random.Generator) -> Floats:
    """Scores of x successes among `drawn` from `left` of which m are successes."""
    mass = stats.hypergeom.pmf(x, left, m, drawn)
    v = rng.random(len(x))
    low = stats.hypergeom.cdf(x, left, m, drawn) - v * mass
    high = stats.hypergeom.sf(x, left, m, drawn) + v * mass
    near = np.clip(np.minimum(low, high), SMALLEST_P, 0.5)
    return np.asarray(np.where(low < high, 1.0, -1.0) * special.ndtri(near))


def _before(prompt: Ints, lag: int) -> Ints:
    """The request `lag` before each, of those with its prompt; -1 where there is none."""
    out = np.full(len(prompt), -1, dtype=np.int64)
    for p in np.unique(prompt):
        mine = np.flatnonzero(prompt == p)
        out[mine[lag:]] = mine[:-lag]
    return out


def _still(keys: Ints, group: Ints, begin: Ints, n: int) -> Ints:
    """Members of a group from a place on, in sorted keys ``group * n + place``."""
    end = np.searchsorted(keys, (group + 1) * n)
    return np.asarray(end - np.searchsorted(keys, group * n + begin))
