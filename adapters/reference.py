"""The reference engine: the exact algorithm, batched, through the same contract as everyone else.

It also carries the deliberately wrong engines of `conformance.faults`: they differ in one of the
`Steps` and in nothing else. Its control arm is plain sampling, whatever the fault.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from conformance._version import __version__
from conformance.contract import Capabilities, Completion, EngineCard, ModelPair, Request
from conformance.decoding import PROCESSORS, Decoding, Dialect
from conformance.errors import EngineLoadError
from conformance.faults import parse_fault
from conformance.faults.steps import EXACT_STEPS, Block, Steps, Written
from conformance.law import Floats, warp
from conformance.processors import History
from conformance.reference import draw
from conformance.tinylm import Cache, TinyLlama, Tokens

PROPOSALS = 4


class Batch:
    """B sequences that advance block by block, each at its own pace.

    Parameters
    ----------
    target, draft : TinyLlama
        The models.
    steps : Steps
        How each step is done.
    requests : list of Request
        Alike in all but prompt and seed.
    k : int
        Proposals a block; 0 is plain sampling.
    dialect : Dialect
        How the decoding is applied.
    """

    def __init__(
        self,
        target: TinyLlama,
        draft: TinyLlama,
        steps: Steps,
        requests: list[Request],
        k: int,
        dialect: Dialect,
    ) -> None:
        self.dialect = dialect
        self.target, self.draft, self.steps, self.k = target, draft, steps, k
        self.decoding, self.wanted = requests[0].decoding, requests[0].max_new_tokens
        self.seeds = tuple(r.seed or 0 for r in requests)
        self.prompts = np.array([r.prompt for r in requests], dtype=np.int64)
        self.size, self.prompt_length = self.prompts.shape
        self.until = self.prompt_length + self.wanted + steps.spare(self.wanted, k)
        room = self.until + k + 1
        self.tokens = np.zeros((self.size, room), dtype=np.int64)
        self.tokens[:, : self.prompt_length] = self.prompts
        self.length = np.full(self.size, self.prompt_length)
        # how far the cache of the target, and of the draft, has slipped against the tokens
        self.slip = [np.zeros(self.size, dtype=np.int64) for _ in range(2)]
        slack = [k * self.wanted if gap else 0 for gap in (steps.gap, steps.draft_gap)]
        self.room = [min(room + s, target.shape.context) for s in slack]
        self.caches = [
            self._prefill(model, self.prompts, size)
            for model, size in zip((target, draft), self.room, strict=True)
        ]
        self.rounds: list[list[tuple[int, int]]] = [[] for _ in requests]
        # rejected proposals that are counted all the same; nothing unless a fault has it so
        self.ghosts = np.zeros((self.size, target.shape.vocab_size), dtype=np.int64)
        self.began, self.timed = time.perf_counter(), any(r.times for r in requests)
        self.times = np.zeros((self.size, room))  # when each token was there, since then

    @staticmethod
    def _prefill(model: TinyLlama, prompts: Tokens, room: int) -> Cache:
        distinct, back = np.unique(prompts, axis=0, return_inverse=True)
        cache = model.new_cache(len(distinct), room)
        model.advance(distinct, cache, np.zeros(len(distinct), dtype=np.int64))
        return cache.repeat(back.reshape(-1))

    def run(self) -> list[Completion]:
        """Generate to the end."""
        blocks = self.until - self.prompt_length
        # every request draws from a stream of its own, so its answer depends on its seed alone
        uniforms = self.steps.uniforms(self.seeds, blocks, 2 * self.k + 1)
        extra = self._extra(blocks)
        for block in range(blocks):
            rows = np.flatnonzero(self.length < self.until)
            if rows.size == 0:
                break
            self._block(rows, uniforms[rows, block], extra[rows, block])
        written = Written(
            tokens=self.tokens[:, self.prompt_length :],
            rounds=self.rounds,
            wanted=self.wanted,
            prompts=self.prompts,
            seeds=self.seeds,
            vocab=self.target.shape.vocab_size,
        )
        return [
            Completion(
                tokens=tuple(tokens),
                rounds=tuple(rounds) if self.k else None,
                times=self._times(i, len(tokens)) if self.timed else None,
            )
            for i, (tokens, rounds) in enumerate(
                self.steps.end(answer, self.decoding) for answer in self.steps.answer(written)
            )
        ]

    def _times(self, row: int, count: int) -> list[float]:
        begin = self.prompt_length
        return [float(t) for t in self.times[row, begin : begin + count]]

    def _extra(self, blocks: int) -> Floats:
        """Further uniforms, [B, blocks, E], from streams of their own."""
        if not self.steps.extra:
            return np.zeros((self.size, blocks, 0))
        seeded = (np.random.Philox(key=s).jumped() for s in self.seeds)
        return np.stack(
            [np.random.Generator(bits).random((blocks, self.steps.extra)) for bits in seeded]
        )

    def _block(self, rows: Tokens, u: Floats, extra: Floats) -> None:
        k, end = self.k, self.length[rows]
        proposals = np.zeros((len(rows), k), dtype=np.int64)
        q = np.zeros((len(rows), k, self.target.shape.vocab_size))
        draft_logits = np.zeros_like(q)
        for i in range(k):
            # The draft never saw a block's last proposal when all were accepted: feeding the last
            # two tokens again writes what is missing and changes nothing else.
            back = min(2, self.prompt_length) if i == 0 else 1
            draft_logits[:, i] = self._logits(1, rows, end + i - back, back)[:, -1]
            q[:, i] = self._warp(draft_logits[:, [i]], rows, end + i, target=False)[:, 0]
            proposals[:, i] = self.steps.propose(q[:, i], u[:, i])
            self.tokens[rows, end + i] = proposals[:, i]
        target_logits = self._logits(0, rows, end - 1, k + 1)
        p = self._warp(target_logits, rows, end, target=True)
        if k == 0:
            self._append(rows, draw(p[:, 0], u[:, 0])[:, None])
            return
        emitted = self.steps.verify(
            Block(
                p=p,
                q=q,
                drafts=proposals,
                proposing=u[:, :k],
                coins=u[:, k : 2 * k],
                last=u[:, 2 * k],
                extra=extra,
                target_logits=target_logits,
                draft_logits=draft_logits,
                decoding=self.decoding,
                start=end - self.prompt_length,
                prompts=self.prompts[rows],
                before=self.tokens[rows, end - 1],
                dialect=self.dialect,
            )
        )
        drafted = np.full(len(rows), k) if emitted.drafted is None else emitted.drafted
        if self.steps.counts_rejected:
            row, at = np.nonzero(np.arange(k) >= emitted.accepted[:, None])
            np.add.at(self.ghosts, (rows[row], proposals[row, at]), 1)
        self._record(rows, emitted.tokens, drafted, emitted.accepted)

    def _warp(self, logits: Floats, rows: Tokens, end: Tokens, target: bool) -> Floats:
        """Laws at n places from `end` on. [b, n, V]"""
        if self.decoding.processors:
            history = self._history(rows, end, logits.shape[1])
            logits = self.steps.process(logits, history, self.decoding, target)
        return warp(logits, self.decoding, self.dialect)

    def _history(self, rows: Tokens, end: Tokens, n: int) -> History:
        """What is before each of n places from `end` on."""
        at = end[:, None] + np.arange(n)  # [b, n]
        return History(
            self._counted(rows, at, self.dialect.repetition_over),
            self._counted(rows, at, self.dialect.presence_over),
            at - self.prompt_length,
        )

    def _counted(self, rows: Tokens, at: Tokens, over: str) -> Tokens:
        first = 0 if over == "all" else self.prompt_length
        window = self.dialect.penalty_window
        begin = first if window is None else np.maximum(at - window, first)[..., None]
        place = np.arange(self.tokens.shape[1])
        counted = (place >= begin) & (place < at[..., None])  # [b, n, room]
        one_hot = self.tokens[rows, :, None] == np.arange(self.target.shape.vocab_size)
        seen = counted.astype(np.int64) @ one_hot.astype(np.int64)  # [b, n, V]
        return np.asarray(seen + self.ghosts[rows, None])

    def _record(self, rows: Tokens, tokens: Tokens, drafted: Tokens, accepted: Tokens) -> None:
        """Write down what the blocks emitted, and let the caches slip where a fault has them."""
        self._append(rows, tokens)
        for row, *counts in zip(rows, drafted.tolist(), accepted.tolist(), strict=True):
            self.rounds[row].append((counts[0], counts[1]))
        for which, gap in enumerate((self.steps.gap, self.steps.draft_gap)):
            if gap is not None:
                slipped = self.slip[which][rows] + gap(accepted, self.k)
                # neither before the cache's first slot nor so far that a block would not fit
                last = self.room[which] - self.length[rows] - self.k
                self.slip[which][rows] = np.clip(slipped, 2 - self.length[rows], last)

    def _append(self, rows: Tokens, tokens: Tokens) -> None:
        """Append each row's tokens, [b, m] padded with -1."""
        end, now = self.length[rows], time.perf_counter() - self.began
        for i in range(tokens.shape[1]):
            alive = tokens[:, i] >= 0
            self.tokens[rows[alive], end[alive] + i] = tokens[alive, i]
            self.times[rows[alive], end[alive] + i] = now
        self.length[rows] = end + (tokens >= 0).sum(axis=1)

    def _logits(self, which: int, rows: Tokens, start: Tokens, count: int) -> Floats:
        """Feed `count` tokens from `start` to the target (0) or the draft (1). [b, count, V]"""
        model = (self.target, self.draft)[which]
        fed = self.tokens[rows[:, None], start[:, None] + np.arange(count)]
        return model.advance(fed, self.caches[which], start + self.slip[which][rows], rows=rows)


class ReferenceEngine:
    """Exact speculative sampling over a probe's own models.

    Parameters
    ----------
    steps : Steps
        How it does each step; the exact way unless a fault is wanted.
    name : str
        Name on the card.
    declared : str
        The rule it declares.
    capabilities : Capabilities, optional
        What it claims, where that differs.
    batch : type
        What advances alike requests; `Batch`, or a class derived from it.
    proposals : int
        Proposals a block.
    dtype : dtype
        Of the models' arithmetic.
    """

    def __init__(
        self,
        steps: Steps = EXACT_STEPS,
        name: str = "reference",
        declared: str = "exact",
        capabilities: Capabilities | None = None,
        batch: type[Batch] = Batch,
        proposals: int = PROPOSALS,
        dtype: type[np.floating] = np.float64,
    ) -> None:
        self._steps, self._batch = steps, batch
        self._proposals, self._dtype = proposals, dtype
        self.card = EngineCard(
            name=name,
            version=__version__,
            method="draft model",
            homepage="https://proceedings.mlr.press/v202/leviathan23a.html",
            rule=declared,
        )
        self.capabilities = capabilities or Capabilities(
            draft="model",
            max_batch=1024,
            verification="token",
            processors=PROCESSORS,
            reproducible=True,
        )
        self._target: TinyLlama | None = None
        self._draft: TinyLlama | None = None

    def load(self, probe: ModelPair) -> None:
        """Load both models."""
        if probe.draft is None:
            raise EngineLoadError("the reference engine needs a probe with a draft model")
        self._target = TinyLlama.load(probe.target, self._dtype)
        self._draft = TinyLlama.load(probe.draft, self._dtype)

    def close(self) -> None:
        """Forget the models."""
        self._target = self._draft = None

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer requests; those alike in shape and configuration advance together."""
        if self._target is None or self._draft is None:
            raise EngineLoadError("generate was called before load")
        alike: dict[tuple[int, int, Decoding, bool], list[int]] = defaultdict(list)
        for i, r in enumerate(requests):
            alike[len(r.prompt), r.max_new_tokens, r.decoding, r.speculate].append(i)
        answers: dict[int, Completion] = {}
        began = time.perf_counter()
        for rows in alike.values():
            mine = [requests[i] for i in rows]
            k, steps = (self._proposals, self._steps) if mine[0].speculate else (0, EXACT_STEPS)
            batch = self._batch(
                self._target, self._draft, steps, mine, k, self.capabilities.dialect
            )
            batch.began = began
            answers |= zip(rows, batch.run(), strict=True)
        return [answers[i] for i in range(len(requests))]


def reference() -> ReferenceEngine:
    """The exact engine."""
    return ReferenceEngine()


def faulty(text: str) -> ReferenceEngine:
    """The reference engine with a fault from the catalogue, ``NAME`` or ``NAME=x``."""
    fault, _ = parse_fault(text)
    return ReferenceEngine(fault.steps(), f"faulty:{text}", f"deliberately wrong: {fault.summary}")
