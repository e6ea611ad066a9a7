"""An anytime-valid test that two arms answer alike: a bet on pairs of answers.

A pair is one answer of each arm to the same prompt. As long as both are at one node of the tree of
outputs, and both have the same law there, whatever it is, the next symbols x and y are two
independent draws from that law. Bet with laws a and b learnt from earlier pairs, and with their
mean m:

    E = a(x) b(y) / (m(x) m(y))

Under a law p the expectation is A B with A = sum p a / m and B = sum p b / m; A + B = 2, so it is
at most 1 (Turner, Ly and Gruenwald, *Generic E-variables for exact sequential k-sample tests*,
2024). The product over everything seen is a test supermartingale, and so is a mean of several: by
Ville's inequality it ever reaches 1 / alpha with probability at most alpha.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import logsumexp

# How many answers of its own an arm needs before its law counts as much as that of both together.
SHRINKAGE = np.array([4.0, 16.0, 64.0, 256.0])


class Pairs:
    """The evidence so far."""

    def __init__(self) -> None:
        self._log = np.zeros(len(SHRINKAGE))
        self._seen: dict[tuple[int, ...], tuple[dict[int, int], dict[int, int]]] = {}
        self.n = 0

    @property
    def log_e(self) -> float:
        """Log of the e-process."""
        return float(logsumexp(self._log) - math.log(len(SHRINKAGE)))

    def add(self, prompt: int, x: Sequence[int], y: Sequence[int]) -> None:
        """One more pair of answers, symbols only."""
        self.n += 1
        node: tuple[int, ...] = (prompt,)
        for u, v in zip(x, y, strict=False):
            first, second = self._seen.setdefault(node, ({}, {}))
            self._log += _gain(first, second, u, v)
            first[u] = first.get(u, 0) + 1
            second[v] = second.get(v, 0) + 1
            if u != v:
                return
            node = (*node, u)


def _gain(first: dict[int, int], second: dict[int, int], u: int, v: int) -> np.ndarray:
    """Log of the factor of one pair of symbols, for each shrinkage."""
    n = sum(first.values())  # pairs come together: as many in both
    if n == 0:
        return np.zeros(len(SHRINKAGE))

    def laws(s: int) -> tuple[np.ndarray, np.ndarray]:
        # a symbol never seen has the same probability in both laws, however much that is: 1 will do
        a, b = first.get(s, 0), second.get(s, 0)
        prior = (a + b) / (2 * n + 1) if a + b else 1.0
        return a + SHRINKAGE * prior, b + SHRINKAGE * prior

    (au, bu), (av, bv) = laws(u), laws(v)
    return np.asarray(np.log(4 * au * bv / ((au + bu) * (av + bv))))
