"""The cumulant function of a sum of scores, kept as a few numbers instead of the laws.

A score is a bounded function of the token, fixed by the prefix and centred under its law; the
cumulant function of a sum over tokens is the sum of the prefixes' own. Its values and two
derivatives at the tilts 0 and +-2^(-6), 2^(-5.5), ..., 2^3 are added up as prefixes come, in one
pass over each law: every exponential but the first two is a square. Between the tilts a quintic
that meets all three at both ends is taken. So the exact tail of a million tokens over 150,000 ids
needs no stored law, and two workers' sums are added.

Over a large vocabulary tokens are graded first: tokens of a prefix that differ by less than is
worth telling apart are given the same score. The graded score is then the score; its law is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformance.statistics.tables import Floats, Ints

CELLS_AT_ONCE = 1 << 18  # of a law in memory, times some ten temporaries
ENOUGH = 1 << 15  # cells that make taking them in at once worth while
UNGRADED = 4096  # vocabularies up to this size keep every token's own score
SMALLEST, LARGEST = 2.0**-6, 8.0
_POSITIVE = SMALLEST * 2.0 ** np.arange(0, 9.25, 0.5)  # [SIDE]
SIDE = len(_POSITIVE)
TILTS = np.concatenate([-_POSITIVE[::-1], [0.0], _POSITIVE])  # [2 SIDE + 1]


@dataclass(frozen=True, slots=True, eq=False)
class CumulantSum:
    """Additive state of a sum of centred scores.

    Parameters
    ----------
    n : float
        Terms. Need not be whole, for planning.
    values : (2 SIDE + 1, 4) float64
        At each of `TILTS`: the cumulant function, two derivatives, and the sum, over every token of
        every prefix, of the square of what it adds to the second derivative.
    """

    n: float
    values: Floats

    @classmethod
    def empty(cls) -> CumulantSum:
        """A sum of nothing."""
        return cls(0.0, np.zeros((len(TILTS), 4)))

    @classmethod
    def of(cls, times: Floats | Ints, law: Floats, score: Floats) -> CumulantSum:
        """`times` terms for each row, [u]; laws that sum to 1 and scores centred, [u, V] each."""
        values = np.zeros((len(TILTS), 4))
        share = law * score * score
        values[SIDE, 2:] = _spread(times, share)
        for sign in (1, -1):
            top = (sign * score).max(axis=1, keepdims=True)
            powers = [np.exp(t * (sign * score - top)) for t in _POSITIVE[:2]]
            for k, t in enumerate(_POSITIVE):
                e = powers[k % 2]
                tilted = law * e
                m0 = tilted.sum(axis=1)
                mean = np.einsum("ij,ij->i", tilted, score) / m0
                share = score - mean[:, None]
                share *= share
                share *= tilted
                values[SIDE + sign * (1 + k)] = (
                    float(times @ (np.log(m0) + t * top[:, 0])),
                    float(times @ mean),
                    *_spread(times / m0, share),
                )
                e *= e
        return cls(float(times.sum()), values)

    def merge(self, other: CumulantSum) -> CumulantSum:
        """The sum of both."""
        return CumulantSum(self.n + other.n, self.values + other.values)

    @property
    def variance(self) -> float:
        """Variance of the sum under the law."""
        return float(self.values[SIDE, 2])

    def __call__(self, t: float) -> tuple[float, float, float]:
        """The cumulant function and two derivatives at |t| <= LARGEST."""
        at = int(np.clip(np.searchsorted(TILTS, t, side="right") - 1, 0, len(TILTS) - 2))
        low, high = TILTS[at], TILTS[at + 1]
        h = high - low
        scale = np.array([1.0, h, h * h])
        c = _QUINTIC @ np.concatenate(
            [self.values[at, :3] * scale, self.values[at + 1, :3] * scale]
        )
        x = (t - low) / h
        powers = x ** np.arange(6)
        k = float(c @ powers)
        slope = float((c[1:] * np.arange(1, 6)) @ powers[:5]) / h
        curvature = float((c[2:] * np.arange(1, 5) * np.arange(2, 6)) @ powers[:4]) / (h * h)
        return k, slope, curvature

    def likeness(self, t: float) -> float:
        """How alike the terms are that make up the variance at tilt t: 1 if it comes from one
        token at one prefix, 1/m if evenly from m. One prefix in two parts counts as two.
        """
        alike = self.values[:, 3] / np.maximum(self.values[:, 2] ** 2, 1e-300)
        return min(float(np.interp(t, TILTS, alike)), 1.0)


class CumulantBatch:
    """Takes in terms like `CumulantSum.of`, several rows at once where rows come one by one."""

    def __init__(self) -> None:
        self._sum = CumulantSum.empty()
        self._waiting: list[tuple[Floats | Ints, Floats, Floats]] = []

    def add(self, times: Floats | Ints, law: Floats, score: Floats) -> None:
        """As for `CumulantSum.of`; rows of one length."""
        self._waiting.append((times, law, score))
        if sum(law.size for _, law, _ in self._waiting) >= ENOUGH:
            self._settle()

    def _settle(self) -> None:
        times, law, score = (np.concatenate(x) for x in zip(*self._waiting, strict=True))
        self._sum = self._sum.merge(CumulantSum.of(times, law, score))
        self._waiting.clear()

    def total(self) -> CumulantSum:
        """The sum of all terms."""
        if self._waiting:
            self._settle()
        return self._sum


@dataclass(frozen=True, slots=True, eq=False)
class Graded:
    """Scores of u prefixes in G grades, before or after centring.

    Parameters
    ----------
    value : (u, G) or (G,) float64
        Score of each grade.
    level : (u, V) int64 or None
        Grade of each token; None where every token is its own, so that G = V.
    """

    value: Floats
    level: Ints | None

    def mass(self, law: Floats) -> Floats:
        """Probability of each grade. [u, V] -> [u, G]"""
        if self.level is None:
            return law
        rows, grades = len(law), self.value.shape[-1]
        flat = self.level + grades * np.arange(rows)[:, None]
        mass = np.bincount(flat.ravel(), law.ravel(), rows * grades)
        return np.asarray(mass.reshape(rows, grades), dtype=np.float64)

    def centred(self, mass: Floats) -> Graded:
        """Less the mean under these masses. [u, G]"""
        value = np.broadcast_to(self.value, mass.shape)
        return Graded(value - (mass * value).sum(axis=1, keepdims=True), self.level)

    def at(self, row: Ints, token: Ints) -> Floats:
        """Score of each token. [n], [n] -> [n]"""
        return self.value[row, token if self.level is None else self.level[row, token]]

    def dense(self) -> Floats:
        """Score of every token. [u, V]"""
        if self.level is None:
            return self.value
        return np.take_along_axis(self.value, self.level, axis=1)


def _spread(times: Floats | Ints, share: Floats) -> tuple[float, float]:
    """From every token's share in the variance, [u, V]: the variance, and the sum of squares."""
    return (
        float(times @ share.sum(axis=1)),
        float(times**2 @ np.einsum("ij,ij->i", share, share)),
    )


def _quintic() -> NDArray[np.float64]:
    """From (value, slope, curvature) at 0 and at 1 to the six coefficients. [6, 6]"""
    rows = np.zeros((6, 6))
    j = np.arange(6)
    for end in (0, 1):
        power = np.where(j == 0, 1.0, float(end))
        rows[3 * end] = power
        rows[3 * end + 1, 1:] = j[1:] * power[:-1]
        rows[3 * end + 2, 2:] = j[2:] * (j[2:] - 1) * power[:-2]
    return np.asarray(np.linalg.inv(rows))


_QUINTIC = _quintic()


def blocks(times: Floats | Ints, vocab: int) -> list[Ints]:
    """Rows that were reached, so many at a time that a block is not large."""
    rows = np.flatnonzero(times)
    step = max(1, CELLS_AT_ONCE // vocab)
    return [rows[i : i + step] for i in range(0, len(rows), step)]


def token_blocks(prefix: Ints, shape: tuple[int, ...]) -> Iterator[tuple[Ints, Ints]]:
    """Blocks of rows of a law of that shape, and which tokens follow one of them."""
    times = np.bincount(prefix, minlength=shape[0])
    order, ends = np.argsort(prefix, kind="stable"), np.cumsum(times)
    for rows in blocks(times, shape[1]):
        yield rows, order[ends[rows[0]] - times[rows[0]] : ends[rows[-1]]]
