"""The tree of outputs with the laws that a server tells, within the bounds they are known in.

A node is a prompt and the output so far. Its law is known in the middle of what repeats of the
question told; how far it may be off is the largest distance, over all nodes and tokens, of a single
answer from that middle, times `SAFETY`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from conformance.adapters.openai_logprobs import Top
from conformance.adapters.openai_styles import STYLES
from conformance.decoding import Decoding, Dialect
from conformance.served.bounds import LEAST_NOISE, Bounds, bounds
from conformance.served.plan import ServedCase
from conformance.statistics.tables import MIN_EXPECTED, Floats, Ints

if TYPE_CHECKING:  # what is in that module is made from what is in this one
    from conformance.served.laws import ServedLaws

Node = tuple[int, tuple[int, ...]]  # prompt, and the output so far
SAFETY = 2.0
WORTH = 2 * MIN_EXPECTED  # answers of an arm expected at a node, for it to be looked at
WIDEST = 0.05  # total variation: a law that is known less well than this is not used


class Nodes:
    """What is known at each node.

    Parameters
    ----------
    case : ServedCase
        Planned.
    told : ServedLaws
        By its control server.

    Attributes
    ----------
    noise : float
        How far a log-probability may be off, in nats.
    laws : dict of Node to Bounds
        Where the law is known well enough.
    expected : dict of Node to float
        Answers of an arm expected at each node that is looked at: by known laws alone.
    unknown : Counter of str
        Why the law is not known at others.
    """

    def __init__(self, case: ServedCase, told: ServedLaws) -> None:
        assert case.met is not None
        assert case.workload is not None
        style = STYLES[case.met.style]
        self._dialect = Dialect(order=style.order, top_k_ties=style.ties)
        self._decoding = Decoding() if told.processed else case.decoding
        repeats: dict[Node, list[Top]] = {}
        for node, top in zip(told.nodes, told.tops, strict=True):
            repeats.setdefault(node, []).append(top)
        middles = {node: _middle(tops) for node, tops in repeats.items()}
        furthest = max((m[2] for m in middles.values()), default=0.0)
        self.noise = max(SAFETY * furthest, LEAST_NOISE)
        self.laws: dict[Node, Bounds] = {}
        self.unknown: Counter[str] = Counter()
        for node, (ids, logprobs, _, missing) in middles.items():
            self._learn(node, ids, logprobs, missing)
        each = case.workload.requests / len(case.texts)
        self.expected = self._expected(len(case.texts), each)

    def _learn(self, node: Node, ids: Ints, logprobs: Floats, missing: tuple[float, float]) -> None:
        if not len(ids):
            self.unknown["repeats of the question have no token in common"] += 1
            return
        law = bounds(ids, logprobs, self._decoding, self._dialect, self.noise, missing)
        if isinstance(law, str):
            self.unknown[law] += 1
        elif law.width > WIDEST:
            self.unknown[f"the law is known no better than to {WIDEST:g}"] += 1
        else:
            self.laws[node] = law

    def _expected(self, prompts: int, each: float) -> dict[Node, float]:
        out: dict[Node, float] = {}
        level: list[tuple[Node, float]] = [((p, ()), each) for p in range(prompts)]
        while level:
            following: list[tuple[Node, float]] = []
            for node, n in level:
                law = self.laws.get(node)
                if law is None or n < WORTH:
                    continue
                out[node] = n
                p, prefix = node
                for i, prob in zip(law.ids.tolist(), law.probs.tolist(), strict=False):
                    following.append(((p, (*prefix, i)), n * prob))
            level = following
        return out


def _middle(tops: list[Top]) -> tuple[Ints, Floats, float, tuple[float, float]]:
    """Tokens that every repeat has, most likely first; log-probabilities in the middle; how far the
    furthest single one is from it; and the least and the most that all other tokens have together.
    """
    told = [dict(zip(t.ids, t.logprobs, strict=True)) for t in tops]
    common = [i for i in tops[0].ids if all(i in t for t in told)]
    x = np.array([[t[i] for i in common] for t in told]).reshape(len(told), len(common))
    if not common:
        return np.zeros(0, np.int64), np.zeros(0), 0.0, (0.0, 1.0)
    middle = (x.max(axis=0) + x.min(axis=0)) / 2
    order = np.argsort(-middle, kind="stable")
    furthest = float((x.max(axis=0) - x.min(axis=0)).max()) / 2
    mass = np.exp(x).sum(axis=1)
    missing = (max(1 - float(mass.max()), 0.0), max(1 - float(mass.min()), 0.0))
    return np.array(common, dtype=np.int64)[order], middle[order], furthest, missing
