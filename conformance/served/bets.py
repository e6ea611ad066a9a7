"""Bets against the law that a control server tells, which may be looked at whenever one likes.

A bet is r(x) / p(x) for every token x, with a law r that is fixed before the token is seen: tilts
of p, and laws learnt from the tokens before it. What the bets have won is divided by the largest
likelihood that any law has which this may be, within its bounds and its noise (universal inference:
Wasserman, Ramdas, Balakrishnan, PNAS 2020). So it is a test supermartingale, or less, under each of
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from scipy.special import logsumexp

from conformance.served.bounds import Bounds
from conformance.served.nodes import Node, Nodes
from conformance.served.plan import LAW_GATE, LAW_GATE_TESTS
from conformance.served.server import END, SPECULATIVE
from conformance.statistics import eprocess
from conformance.statistics.alternatives import DIRECTIONS, DRAFT_AWARE, token_log_ratios
from conformance.statistics.tables import Floats

# The bets that need no draft, with what they weigh among themselves.
_MINE = np.array([d >= DRAFT_AWARE for d, x in enumerate(DIRECTIONS) for _ in x.strengths])
NARROW = 1e-4  # bounds so near to each other need no search between them
RARE = 2e-3  # tokens rarer than this do not carry the mean square of the noise
_LOG_PRIOR = np.log(eprocess.weights()[_MINE] / eprocess.weights()[_MINE].sum())


class _Place:
    """One node's bets, cell by cell."""

    def __init__(self, law: Bounds) -> None:
        p = law.probs
        cells = np.arange(len(p))
        ratios = token_log_ratios(np.zeros(len(p), np.int64), cells, p[None], None)
        self.cell = {int(t): c for c, t in enumerate(law.ids)}
        self.tilts: Floats = ratios[:, _MINE]  # [C + 1, tilts]
        self.prob = np.maximum(p, 1e-300)
        self.least, self.most = law.least, law.most
        self.possible = law.high > 0  # what the law excludes is the support test's
        self.seen = np.zeros(len(p))
        self.total = 0
        self._cost = (0, 0.0)

    def pay(self, symbol: int) -> tuple[Floats, Floats]:
        """Gains of the tilts and of the Dirichlet bets."""
        c = self.cell.get(symbol, len(self.prob) - 1)
        if not self.possible[c]:
            return np.zeros(1), np.zeros(1)
        a, prob = eprocess.CONCENTRATIONS, self.prob[c]
        learnt = np.log((a * prob + self.seen[c]) / (a + self.total)) - math.log(prob)
        self.seen[c] += 1
        self.total += 1
        return self.tilts[c], learnt

    def cost(self, noise: float, edge: float) -> float:
        """By how much the law that suits the tokens best, of those that it may be, is likelier
        than the one the bets are against.
        """
        at, kept = self._cost
        if at != self.total:
            kept = _best(self.seen, self.prob, self.least, self.most) + _noise(
                self.seen, self.prob, noise, edge
            )
            self._cost = (self.total, kept)
        return kept


def _best(seen: Floats, prob: Floats, least: Floats, most: Floats) -> float:
    """Largest log-likelihood ratio to `prob` of a law between `least` and `most`."""
    some = seen > 0
    if (most - least).sum() < NARROW:
        return float((seen[some] * np.log(most[some] / prob[some])).sum())
    # proportional to what was seen, as far as the bounds allow
    low, high = 0.0, 1.0 / seen.sum() * 1e3
    for _ in range(50):
        middle = (low + high) / 2
        if np.clip(seen * middle, least, most).sum() > 1:
            high = middle
        else:
            low = middle
    law = np.clip(seen * high, least, most)
    return float((seen[some] * np.log(law[some] / prob[some])).sum())


def _noise(seen: Floats, prob: Floats, noise: float, edge: float) -> float:
    """The same of a law whose log-probabilities are off by `noise`, root mean square.

    With errors u of the log-probabilities, sum p u <= -0.45 sum p u^2 where they are small, since
    p e^u adds up to 1. So n answers with Pearson's statistic X^2 gain at most t n^(1/2) X -
    0.45 n t^2 with a noise of t. A rare token weighs less than its error: each gains `edge`.
    """
    n, often = float(seen.sum()), prob >= RARE
    if not noise or not n:
        return 0.0
    distance = math.sqrt(float(((seen - n * prob)[often] ** 2 / (n * prob[often])).sum()))
    t = min(noise, distance / (0.9 * math.sqrt(n)))
    rare = float(seen[~often].sum()) * max(edge, noise)
    return t * math.sqrt(n) * distance - 0.45 * n * t * t + rare


class LawBets:
    """Bets against the law, of one arm.

    Parameters
    ----------
    nodes : Nodes
        Where the law is known.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._places: dict[Node, _Place] = {}
        self._tilts = np.zeros(int(_MINE.sum()))
        self._learnt = np.zeros(len(eprocess.CONCENTRATIONS))

    @property
    def log_e(self) -> float:
        """Log of the e-process."""
        nodes = self._nodes
        return self._won - sum(p.cost(nodes.noise, nodes.furthest) for p in self._places.values())

    @property
    def _won(self) -> float:
        """The same against the law in the middle of its bounds, which is never less."""
        tilts = float(logsumexp(self._tilts + _LOG_PRIOR))
        return eprocess.combine(tilts, eprocess.mix_concentrations(self._learnt))

    def reaches(self, log_e: float) -> bool:
        """Whether the e-process is as large as this; mostly told without the work of `log_e`."""
        return self._won >= log_e and self.log_e >= log_e

    def add(self, prompt: int, symbols: Iterable[int]) -> None:
        """One more answer."""
        prefix: tuple[int, ...] = ()
        for symbol in symbols:
            node = (prompt, prefix)
            if node not in self._nodes.expected or symbol == END:
                return
            place = self._places.get(node)
            if place is None:
                place = self._places[node] = _Place(self._nodes.laws[node])
            tilts, learnt = place.pay(symbol)
            self._tilts += tilts
            self._learnt += learnt
            prefix = (*prefix, symbol)


class LawWatch:
    """The bets of both arms.

    Parameters
    ----------
    nodes : Nodes
        Where the law is known.
    level : float
        At which the speculative arm's is won.
    """

    def __init__(self, nodes: Nodes, level: float) -> None:
        self.nodes, self.level = nodes, level
        self.apart, self.gate = LawBets(nodes), LawBets(nodes)

    def add(self, arm: str, prompt: int, symbols: Iterable[int]) -> None:
        """One more answer of an arm."""
        (self.apart if arm == SPECULATIVE else self.gate).add(prompt, symbols)

    def settled(self) -> bool:
        """Whether the bet was won, and the control arm has nothing against the law."""
        if not self.apart.reaches(-math.log(self.level)):
            return False
        return not self.gate.reaches(-math.log(LAW_GATE / LAW_GATE_TESTS))
