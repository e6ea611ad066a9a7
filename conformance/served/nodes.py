"""The tree of outputs with the laws that a server tells.

A node is a prompt and the output so far. Its law is the mean of what repeats of the question told,
within the bounds of `conformance.served.bounds`. Repeats differ: batches, kernels, low precision.
How far is one number, the standard deviation of a single answer from the mean, over all nodes and
tokens by their probability. `SAFETY` times as much is allowed wherever a law is held against
tokens, and at the edges of filters, because the server samples from another such law than those it
told, and speculates from yet another.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from conformance.adapters.openai_logprobs import Top
from conformance.adapters.openai_styles import STYLES
from conformance.decoding import Decoding, Dialect
from conformance.served.bounds import MISSING, Bounds, bounds
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
        Allowed error of a log-probability of these laws, root mean square, in nats.
    furthest : float
        How far one may be off at most.
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
        means = {node: _mean(tops, told.most) for node, tops in repeats.items()}
        single = SAFETY * _spread(means.values())
        self.laws: dict[Node, Bounds] = {}
        self.unknown: Counter[str] = Counter()
        for node, mean in means.items():
            self._learn(node, mean, single)
        # a temperature below 1 makes more of an error
        warmth = self._decoding.temperature
        self.noise = single / warmth
        furthest = max((m.furthest for m in means.values()), default=0.0)
        self.furthest = SAFETY * furthest / warmth
        each = case.workload.requests / len(case.texts)
        self.expected = self._expected(len(case.texts), each, frozenset(told.ends))

    def _learn(self, node: Node, mean: _Mean, edge: float) -> None:
        if not len(mean.ids):
            self.unknown["repeats of the question have no token in common"] += 1
            return
        law = bounds(mean.ids, mean.logprobs, self._decoding, self._dialect, edge, mean.missing)
        if law.width > WIDEST:
            few = f"{len(mean.ids)} tokens do not tell the law to a total variation of {WIDEST:g}"
            self.unknown[few] += 1
        else:
            self.laws[node] = law

    def _expected(self, prompts: int, each: float, ends: frozenset[int]) -> dict[Node, float]:
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
                    if i not in ends:
                        following.append(((p, (*prefix, i)), n * prob))
            level = following
        return out


@dataclass(frozen=True, slots=True, eq=False)
class _Mean:
    """What repeats of a question have in common.

    Parameters
    ----------
    ids, logprobs : (K,)
        Tokens that every one has, most likely first, and the means of their log-probabilities.
    variance : (K,) float64 or None
        Of a single log-probability; None for a question that was asked once.
    furthest : float
        The furthest that a single one is from its mean.
    missing : (float, float)
        The least and the most that all other tokens have together.
    """

    ids: Ints
    logprobs: Floats
    variance: Floats | None
    furthest: float
    missing: tuple[float, float]


def _mean(tops: list[Top], most: int) -> _Mean:
    told = [dict(zip(t.ids, t.logprobs, strict=True)) for t in tops]
    common = [i for i in tops[0].ids if all(i in t for t in told)]
    x = np.array([[t[i] for i in common] for t in told]).reshape(len(told), len(common))
    if not common:
        return _Mean(np.zeros(0, np.int64), np.zeros(0), None, 0.0, (0.0, 1.0))
    mean = x.mean(axis=0)
    order = np.argsort(-mean, kind="stable")
    missing = 1 - np.exp(x).sum(axis=1)
    # who has fewer tokens to tell than were asked for has told them all
    whole = len(common) == max(len(t.ids) for t in tops) < most
    return _Mean(
        np.array(common, dtype=np.int64)[order],
        mean[order],
        x.var(axis=0, ddof=1)[order] if len(x) > 1 else None,
        float(np.abs(x - mean).max()),
        (0.0, 0.0) if whole else (float(missing.min()) - MISSING, float(missing.max()) + MISSING),
    )


def _spread(means: Iterable[_Mean]) -> float:
    """Standard deviation of a single log-probability from its mean."""
    total = weight = 0.0
    for m in means:
        if m.variance is not None:
            p = np.exp(m.logprobs)
            total += float(p @ m.variance)
            weight += float(p.sum())
    return math.sqrt(total / weight) if weight else 0.0
