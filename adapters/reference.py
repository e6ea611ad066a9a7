"""The reference engine: the exact algorithm, batched, through the same contract as everyone else.

It also carries the deliberately wrong engines of `conformance.faults`: they differ in the `Rule`
and in nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from conformance._version import __version__
from conformance.contract import Capabilities, Completion, EngineCard, ModelPair, Request
from conformance.decoding import Decoding
from conformance.errors import EngineLoadError
from conformance.faults import parse_fault
from conformance.law import Floats, warp
from conformance.reference import EXACT, Rule, draw, verify
from conformance.tinylm import Cache, TinyLlama, Tokens

PROPOSALS = 4


class ReferenceEngine:
    """Exact speculative sampling over a probe's own models.

    Parameters
    ----------
    rule : Rule
        The acceptance rule; the exact one unless a fault is wanted.
    name : str
        Name on the card.
    declared : str
        The rule it declares.
    """

    def __init__(
        self, rule: Rule = EXACT, name: str = "reference", declared: str = "exact"
    ) -> None:
        self._rule = rule
        self.card = EngineCard(
            name=name,
            version=__version__,
            method="draft model",
            homepage="https://proceedings.mlr.press/v202/leviathan23a.html",
            rule=declared,
        )
        self.capabilities = Capabilities(draft="model", max_batch=1024)
        self._target: TinyLlama | None = None
        self._draft: TinyLlama | None = None

    def load(self, probe: ModelPair) -> None:
        """Load both models in float64."""
        if probe.draft is None:
            raise EngineLoadError("the reference engine needs a probe with a draft model")
        self._target, self._draft = TinyLlama.load(probe.target), TinyLlama.load(probe.draft)

    def close(self) -> None:
        """Forget the models."""
        self._target = self._draft = None

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer requests; those alike in shape and configuration advance together."""
        alike: dict[tuple[int, int, Decoding, bool], list[int]] = defaultdict(list)
        for i, r in enumerate(requests):
            alike[len(r.prompt), r.max_new_tokens, r.decoding, r.speculate].append(i)
        answers: dict[int, Completion] = {}
        for rows in alike.values():
            answers |= zip(rows, self._batch([requests[i] for i in rows]), strict=True)
        return [answers[i] for i in range(len(requests))]

    def _batch(self, requests: list[Request]) -> list[Completion]:
        first = requests[0]
        k = PROPOSALS if first.speculate else 0
        # every request draws from a stream of its own, so its answer depends on its seed alone
        uniforms = np.stack(
            [
                np.random.Generator(np.random.Philox(key=r.seed or 0)).random(
                    (first.max_new_tokens, 2 * k + 1)
                )
                for r in requests
            ]
        )  # [B, blocks, K proposals + K coins + 1]
        return _Batch(self._target, self._draft, self._rule, requests, k).run(uniforms)


class _Batch:
    """B sequences that advance block by block, each at its own pace."""

    def __init__(
        self,
        target: TinyLlama | None,
        draft: TinyLlama | None,
        rule: Rule,
        requests: list[Request],
        k: int,
    ) -> None:
        if target is None or draft is None:
            raise EngineLoadError("generate was called before load")
        self.target, self.draft, self.rule, self.k = target, draft, rule, k
        self.decoding, self.wanted = requests[0].decoding, requests[0].max_new_tokens
        prompts = np.array([r.prompt for r in requests], dtype=np.int64)
        self.size, self.prompt_length = prompts.shape
        room = self.prompt_length + self.wanted + k + 1
        self.tokens = np.zeros((self.size, room), dtype=np.int64)
        self.tokens[:, : self.prompt_length] = prompts
        self.length = np.full(self.size, self.prompt_length)
        self.caches = [self._prefill(model, prompts, room) for model in (target, draft)]
        self.rounds: list[list[tuple[int, int]]] = [[] for _ in requests]

    @staticmethod
    def _prefill(model: TinyLlama, prompts: Tokens, room: int) -> Cache:
        distinct, back = np.unique(prompts, axis=0, return_inverse=True)
        cache = model.new_cache(len(distinct), room)
        model.advance(distinct, cache, np.zeros(len(distinct), dtype=np.int64))
        return cache.repeat(back.reshape(-1))

    def run(self, uniforms: Floats) -> list[Completion]:
        for block in range(self.wanted):
            rows = np.flatnonzero(self.length < self.prompt_length + self.wanted)
            if rows.size == 0:
                break
            self._block(rows, uniforms[rows, block])
        begin = self.prompt_length
        return [
            Completion(
                tokens=tuple(self.tokens[i, begin : begin + self.wanted].tolist()),
                rounds=tuple(self.rounds[i]) if self.k else None,
            )
            for i in range(self.size)
        ]

    def _block(self, rows: Tokens, u: Floats) -> None:
        k, end = self.k, self.length[rows]
        proposals = np.zeros((len(rows), k), dtype=np.int64)
        q = np.zeros((len(rows), k, self.target.shape.vocab_size))
        for i in range(k):
            # The draft never saw a block's last proposal when all were accepted: feeding the last
            # two tokens again writes what is missing and changes nothing else.
            back = min(2, self.prompt_length) if i == 0 else 1
            q[:, i] = self._law(self.draft, rows, end + i - back, back)[:, -1]
            proposals[:, i] = draw(q[:, i], u[:, i])
            self.tokens[rows, end + i] = proposals[:, i]
        p = self._law(self.target, rows, end - 1, k + 1)
        if k == 0:
            emitted, accepted = draw(p[:, 0], u[:, 0])[:, None], np.zeros(len(rows), np.int64)
        else:
            emitted, accepted = verify(p, q, proposals, u[:, k : 2 * k], u[:, 2 * k], self.rule)
        for i in range(k + 1):
            alive = emitted[:, i] >= 0
            self.tokens[rows[alive], end[alive] + i] = emitted[alive, i]
        self.length[rows] = end + accepted + 1
        if k:
            for row, count in zip(rows, accepted, strict=True):
                self.rounds[row].append((k, int(count)))

    def _law(self, model: TinyLlama, rows: Tokens, start: Tokens, count: int) -> Floats:
        fed = self.tokens[rows[:, None], start[:, None] + np.arange(count)]
        cache = self.caches[0 if model is self.target else 1]
        return warp(model.advance(fed, cache, start, rows=rows), self.decoding)


def reference() -> ReferenceEngine:
    """The exact engine."""
    return ReferenceEngine()


def faulty(text: str) -> ReferenceEngine:
    """The reference engine with a fault from the catalogue, ``NAME`` or ``NAME=x``."""
    fault, rule = parse_fault(text)
    return ReferenceEngine(rule, f"faulty:{text}", f"deliberately wrong: {fault.summary}")
