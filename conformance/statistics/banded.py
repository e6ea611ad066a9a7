"""Goodness of fit to laws that are known within bounds.

A row of counts is a chain of binomials, as in `conformance.statistics.exact`: every cell has a
normal score z, randomised at the observed value, and under the law the scores are independent and
standard normal exactly. A score falls as the probability of its cell rises. So if that is known
within bounds, the score is as well, ``lowest <= z <= highest``, and what is nearest to 0 between
them is never further from 0 than the true score. A statistic that grows with the size of every
score is then never larger than it would be with the true law, *whichever it is*, and its p-value
never smaller: no departure within the bounds is taken for one, and nothing has to be assumed of
where in them the law is. It may even be another one, within them, for every single answer: the
number of successes then lies between two binomials, of the lowest and the highest probability.

Which cells there are, and with what weights they are added, is decided before sampling: from how
many answers are *expected* at a place, and the middle of the bounds. So scores of places that
follow from one another are independent as well. A place that fewer answers reached, or none, has
scores that are all chance.

A law may also be *noisy*: every log-probability off by a random error of its own, of a given size
(root mean square). All of them at once are not on the worst side, so bounds would be far too wide.
Such errors add I (1 + h) noise^2 to the variance of a score, for a cell with information I, whose
odds are against tokens with errors of their own (h = sum q^2 of their shares q); scores are divided
by the root of what that makes. This is an approximation, where bounds are none: it takes errors to
be normal, and not to depend on the answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from conformance.statistics import certificate
from conformance.statistics.exact import SMALLEST_P, Fit
from conformance.statistics.tables import MIN_EXPECTED, Floats, Ints, Table
from conformance.statistics.tree import weighted_squares


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """Answers at one place, and bounds of the law there.

    Parameters
    ----------
    expected : float
        Answers expected, by the law of what comes before.
    counts : (C + 1,) int64
        How often each cell was seen; the last is everything else.
    low, high : (C + 1,) float64
        Bounds of weights, not normalised.
    """

    expected: float
    counts: Ints
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Banded:
    """M scores of R rows, with their bounds.

    Parameters
    ----------
    table : Table
        The cells, with probabilities in the middle of the bounds.
    lowest, highest : (M,) float64
        Bounds of the normal scores, noise and all.
    information : (M,) float64
        Variance of each count, given the cells before it.
    sharpening : (M,) float64
        Weights of the direction in which likely cells get likelier.
    noise : (M,) float64
        What noise adds to the variance of each score, which is 1 otherwise.
    width : float
        How far apart two laws within the bounds may be, in total variation; mean over the answers.
    """

    table: Table
    lowest: Floats
    highest: Floats
    information: Floats
    sharpening: Floats
    noise: Floats
    width: float

    @property
    def nearest(self) -> Floats:
        """The scores of the law within the bounds that suits each cell best. [M]"""
        return np.asarray(np.maximum(self.lowest, 0.0) + np.minimum(self.highest, 0.0))

    def chi_square(self) -> Fit:
        """Any departure; the p-value is at most uniform whatever the law within the bounds."""
        df = len(self.lowest)
        total = float((self.nearest**2).sum())
        p = float(stats.chi2.sf(total, df)) if df else 1.0
        return Fit(total, df, max(p, SMALLEST_P))

    def detectable(self, level: float, power: float) -> float | None:
        """Smallest mean total variation from the law that `chi_square` catches with this
        probability, wherever in its bounds the law is.
        """
        df, n = len(self.lowest), self.table.n
        if not df or not n:
            return None
        needed = certificate.noncentrality(level, power, df) * (1 + float(self.noise.max()))
        return math.sqrt(needed / (4 * n)) + self.width

    def by_frequency(self) -> Fit:
        """Any departure, most attention to what is frequent; as that of the two-sample tree."""
        return weighted_squares(self.nearest, self.information)

    def direction(self) -> Fit | None:
        """Sharper or flatter, two-sided; None without a cell that could tell."""
        w = self.sharpening
        norm = float(np.sqrt((w**2).sum()))
        if norm == 0:
            return None
        low = float((w * np.where(w > 0, self.lowest, self.highest)).sum()) / norm
        high = float((w * np.where(w > 0, self.highest, self.lowest)).sum()) / norm
        z = max(low, 0.0) + min(high, 0.0)
        return Fit(z, 1, max(float(2 * stats.norm.sf(abs(z))), SMALLEST_P))


def banded(
    rows: Sequence[Row],
    rng: np.random.Generator,
    min_expected: float = MIN_EXPECTED,
    most: int | None = None,
    noise: float = 0.0,
) -> Banded:
    """Score rows of counts.

    Parameters
    ----------
    rows : sequence of Row
        Those in which no cell is expected often enough are left out.
    rng : Generator
        Randomises at the observed values.
    min_expected : float
        Cells expected less often join the row's remainder; one that would itself be expected less
        often takes in the row's smallest cell.
    most : int, optional
        Cells of a row, at most.
    noise : float
        Of each log-probability, root mean square, in nats.
    """
    parts = [_cells(row, min_expected, most) for row in rows]
    kept = [(row, p) for row, p in zip(rows, parts, strict=True) if len(p.cell)]
    size = [len(p.cell) for _, p in kept]
    table = Table(
        np.array([int(row.counts.sum()) for row, _ in kept], dtype=np.int64),
        np.repeat(np.arange(len(kept)), size),
        _joined([row.counts[p.cell] for row, p in kept]).astype(np.int64),
        _joined([p.prob for _, p in kept]),
    )
    n = table.total[table.row] - table.before(table.count)
    v = rng.random(len(n))
    expected = np.array([row.expected for row, _ in kept])
    left = 1 - table.before(table.prob)
    pi = np.clip(table.prob / np.maximum(left, 1e-300), 0.0, 1.0)
    information = expected[table.row] * left * pi * (1 - pi)
    added = information * (1 + _joined([p.alike for _, p in kept])) * noise**2
    spread = np.sqrt(1 + added)
    return Banded(
        table,
        _score(table.count, n, _joined([p.most for _, p in kept]), v) / spread,
        _score(table.count, n, _joined([p.least for _, p in kept]), v) / spread,
        information,
        np.sqrt(information) * _joined([p.contrast for _, p in kept]),
        added,
        float(sum(row.expected * p.width for row, p in kept)) / max(float(expected.sum()), 1e-300),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    """The explicit cells of a row, most likely first: probabilities, bounds of them given that no
    cell before was taken, contrasts, and the width of the bounds.
    """

    cell: Ints
    prob: Floats
    least: Floats
    most: Floats
    contrast: Floats
    alike: Floats  # sum of the squared shares of what comes later
    width: float


def _cells(row: Row, min_expected: float, most: int | None) -> _Cells:
    middle = (row.low + row.high) / 2
    law = middle / middle.sum()
    order = np.argsort(-law[:-1], kind="stable")  # the last is the remainder, whatever its size
    cell = order[row.expected * law[order] >= min_expected][:most]
    if len(cell) and row.expected * (1 - law[cell].sum()) < min_expected:
        cell = cell[:-1]  # what is left must be a cell as well
    low, high = row.low[cell], row.high[cell]
    after_low = np.maximum(row.low.sum() - np.cumsum(low), 0.0)
    after_high = np.maximum(row.high.sum() - np.cumsum(high), 0.0)
    mass = np.append(law[cell], max(1 - float(law[cell].sum()), 1e-300))
    log = np.log(np.maximum(mass, 1e-300))
    if len(cell):  # none of the tokens that are left is likelier than the last of the cells
        log[-1] = min(log[-1], log[-2])
    weighed = mass * log
    log_after = (weighed.sum() - np.cumsum(weighed))[:-1]
    mass_after = np.maximum((mass.sum() - np.cumsum(mass))[:-1], 1e-300)
    return _Cells(
        cell,
        law[cell],
        low / np.maximum(low + after_high, 1e-300),
        np.minimum(high / np.maximum(high + after_low, 1e-300), 1.0),
        log[:-1] - log_after / mass_after,
        ((mass**2).sum() - np.cumsum(mass**2))[:-1] / mass_after**2,
        _width(row.low, row.high, cell),
    )


def _width(low: Floats, high: Floats, cell: Ints) -> float:
    """How far apart two laws within the bounds may be on these cells and the remainder."""
    low = np.append(low[cell], low.sum() - low[cell].sum())
    high = np.append(high[cell], high.sum() - high[cell].sum())
    most = high / (high + low.sum() - low)
    least = low / np.maximum(low + high.sum() - high, 1e-300)
    return float((most - least).sum() / 2)


def _score(x: Ints, n: Ints, pi: Floats, v: Floats) -> Floats:
    mass = stats.binom.pmf(x, n, pi)
    low = stats.binom.cdf(x, n, pi) - v * mass
    high = stats.binom.sf(x, n, pi) + v * mass
    near = np.clip(np.minimum(low, high), SMALLEST_P, 0.5)
    return np.asarray(np.where(low < high, 1.0, -1.0) * special.ndtri(near))


def _joined(parts: Sequence[Floats | Ints]) -> Floats:
    return np.concatenate([np.zeros(0), *parts])
