"""The reference engine: the exact algorithm, batched, through the same contract as everyone else.

It also carries the deliberately wrong engines of `conformance.faults`: they differ in one of the
`Steps` and in nothing else. Its control arm is plain sampling, whatever the fault.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from conformance._version import __version__
from conformance.adapters.reference_laws import Laws
from conformance.contract import Capabilities, Completion, EngineCard, ModelPair, Request
from conformance.decoding import PROCESSORS, ROADS, Decoding, Dialect
from conformance.errors import EngineLoadError
from conformance.faults import parse_fault
from conformance.faults.steps import (
    EXACT_STEPS,
    Answer,
    Block,
    Filled,
    Steps,
    Written,
    answer_number,
)
from conformance.grammar import START
from conformance.law import Floats
from conformance.reference import draw
from conformance.tinylm import Cache, TinyLlama, Tokens

PROPOSALS = 4
SPAN = 128  # tokens


class Batch(Laws):
    """B sequences that advance block by block, each at its own pace.

    Parameters
    ----------
    target, draft : TinyLlama
        The models.
    steps : Steps
        How each step is done.
    requests : list of Request
        Of one decoding, and all speculating or none.
    k : int
        Proposals a block; 0 is plain sampling.
    dialect : Dialect
        How the decoding is applied.
    raw : bool
        Whether the log-probabilities returned are those of the logits as they are.
    """

    def __init__(
        self,
        target: TinyLlama,
        draft: TinyLlama,
        steps: Steps,
        requests: list[Request],
        k: int,
        dialect: Dialect,
        raw: bool = False,
    ) -> None:
        self.dialect = dialect
        self.target, self.draft, self.steps, self.k = target, draft, steps, k
        self.decoding = steps.road(requests[0].decoding)
        self.seeds, self.first = _forked(requests, steps)
        requests = [r for r in requests for _ in range(r.answers)]
        self.further = np.array([answer_number(s) > 0 for s in self.seeds])
        self.size = len(requests)
        self.each = np.array([r.max_new_tokens for r in requests], dtype=np.int64)
        self.wanted = int(self.each.max())
        self.prompt_length = np.array([len(r.prompt) for r in requests], dtype=np.int64)
        # shorter ones are followed by what is never read
        self.prompts = np.zeros((self.size, int(self.prompt_length.max())), dtype=np.int64)
        for row, r in enumerate(requests):
            self.prompts[row, : len(r.prompt)] = r.prompt
        spare = np.array([steps.spare(n, k) for n in self.each.tolist()], dtype=np.int64)
        self.until = self.prompt_length + self.each + spare
        room = int(self.until.max()) + k + 1
        self.tokens = np.zeros((self.size, room), dtype=np.int64)
        self.tokens[:, : self.prompts.shape[1]] = self.prompts
        self.length = self.prompt_length.copy()
        # how far the cache of the target, and of the draft, has slipped against the tokens
        self.slip = [np.zeros(self.size, dtype=np.int64) for _ in range(2)]
        slack = [k * self.wanted if gap else 0 for gap in (steps.gap, steps.draft_gap)]
        self.room = [max(room, min(room + s, target.shape.context)) for s in slack]
        self.caches = [
            self._prefill(model, size)
            for model, size in zip((target, draft), self.room, strict=True)
        ]
        self.rounds: list[list[tuple[int, int]]] = [[] for _ in requests]
        self.lost = np.zeros(self.size, dtype=np.int64)  # proposals rejected in the last block
        # of the grammar, before each row's next token
        self.state = np.full(self.size, START)
        # rejected proposals that are counted all the same; nothing unless a fault has it so
        self.ghosts = np.zeros((self.size, target.shape.vocab_size), dtype=np.int64)
        self.began, self.timed = time.perf_counter(), any(r.times for r in requests)
        self.times = np.zeros((self.size, room))  # when each token was there, since then
        self.raw, self.logprobs = raw, np.zeros((self.size, room))

    def _prefill(self, model: TinyLlama, room: int) -> Cache:
        lengths = np.concatenate([self.prompts, self.prompt_length[:, None]], axis=1)
        _, first, back = np.unique(lengths, axis=0, return_index=True, return_inverse=True)
        cache = model.new_cache(len(first), room)
        for length in np.unique(self.prompt_length[first]):
            rows = np.flatnonzero(self.prompt_length[first] == length)
            mine = self.prompts[first[rows], :length]
            model.advance(mine, cache, np.zeros(len(rows), dtype=np.int64), rows=rows)
        return cache.repeat(back.reshape(-1))

    def run(self) -> list[Completion]:
        """Generate to the end."""
        blocks = int((self.until - self.prompt_length).max())
        # every request draws from a stream of its own, so its answer depends on its seed alone
        uniforms = self.steps.uniforms(self.seeds, blocks, 2 * self.k + 1)
        extra = self._extra(blocks)
        for block in range(blocks):
            rows = np.flatnonzero(self.length < self.until)
            if rows.size == 0:
                break
            self._block(rows, uniforms[rows, block], extra[rows, block])
        answers = self.steps.handed(self._answers(), self._beyond())
        return [
            Completion(
                tokens=tuple(tokens),
                rounds=tuple(rounds) if self.k else None,
                times=self._of_tokens(self.times, i, tokens) if self.timed else None,
                logprobs=self._of_tokens(self.logprobs, i, tokens)
                if self.decoding.logprobs
                else None,
            )
            for i, (tokens, rounds) in enumerate(
                self.steps.end(answer, self.decoding) for answer in answers
            )
        ]

    def _answers(self) -> list[Answer]:
        """What is answered, worked out for requests of equal lengths together."""
        found: dict[int, Answer] = {}
        shape = np.column_stack([self.prompt_length, self.each])
        for begin, wanted in np.unique(shape, axis=0).tolist():
            rows = np.flatnonzero((shape == (begin, wanted)).all(axis=1)).tolist()
            written = Written(
                tokens=self.tokens[rows, begin:],
                rounds=[self.rounds[row] for row in rows],
                wanted=wanted,
                prompts=self.prompts[rows, :begin],
                seeds=tuple(self.seeds[row] for row in rows),
                vocab=self.target.shape.vocab_size,
            )
            found |= zip(rows, self.steps.answer(written), strict=True)
        return [found[row] for row in range(self.size)]

    def _beyond(self) -> list[list[int]]:
        """What the last block of each request had beyond the tokens asked for."""
        ends = self.prompt_length + self.each
        return [
            self.tokens[row, end:length].tolist()
            for row, (end, length) in enumerate(zip(ends, self.length, strict=True))
        ]

    def _of_tokens(self, told: Floats, row: int, tokens: list[int]) -> list[float]:
        begin = self.prompt_length[row]
        return [float(t) for t in told[row, begin : begin + len(tokens)]]

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
            draft_logits[:, i] = self._proposing(rows, end + i, 2 if i == 0 else 1)
            q[:, i] = self._warp(draft_logits[:, [i]], rows, end + i, target=False)[:, 0]
            proposals[:, i] = self.steps.propose(q[:, i], u[:, i])
            self.tokens[rows, end + i] = proposals[:, i]
        target_logits = self._logits(0, rows, end - 1, k + 1)
        p = self._warp(target_logits, rows, end, target=True)
        told = self._told(target_logits, p, rows, end, target=True)
        if k == 0:
            drawn = draw(p[:, 0], u[:, 0])[:, None]
            if told is not None:
                self._tell(rows, drawn, np.take_along_axis(told, drawn[..., None], -1)[..., 0])
            self._append(rows, drawn)
            return
        block = Block(
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
            start=end - self.prompt_length[rows],
            prompts=self.prompts[rows],
            before=self.tokens[rows, end - 1],
            dialect=self.dialect,
            further=self.further[rows],
            told=told,
            draft_told=self._told(draft_logits, q, rows, end, target=False),
        )
        emitted = self.steps.verify(block)
        if told is not None:
            self._tell(rows, emitted.tokens, self.steps.logprobs(block, emitted))
        drafted = np.full(len(rows), k) if emitted.drafted is None else emitted.drafted
        if self.steps.counts_rejected:
            row, at = np.nonzero(np.arange(k) >= emitted.accepted[:, None])
            np.add.at(self.ghosts, (rows[row], proposals[row, at]), 1)
        before = self.state[rows]
        self._record(rows, emitted.tokens, drafted, emitted.accepted)
        if self.steps.counts_rejected and self.decoding.grammar:
            last = np.take_along_axis(emitted.tokens, emitted.accepted[:, None], axis=1)
            self.state[rows] = self._onward(np.concatenate([proposals, last], axis=1), before)[
                :, -1
            ]

    def _tell(self, rows: Tokens, tokens: Tokens, told: Floats) -> None:
        """Write down what is returned with each row's tokens, [b, m] padded with -1."""
        for i in range(tokens.shape[1]):
            alive = tokens[:, i] >= 0
            self.logprobs[rows[alive], self.length[rows[alive]] + i] = told[alive, i]

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
        self.lost[rows] = self.k - accepted
        if self.steps.cached is not None:
            filled = Filled(rows, self.length[rows], self.lost[rows], self.target.shape.window)
            self.steps.cached(self.caches[0], filled)

    def _append(self, rows: Tokens, tokens: Tokens) -> None:
        """Append each row's tokens, [b, m] padded with -1."""
        end, now = self.length[rows], time.perf_counter() - self.began
        for i in range(tokens.shape[1]):
            alive = tokens[:, i] >= 0
            self.tokens[rows[alive], end[alive] + i] = tokens[alive, i]
            self.times[rows[alive], end[alive] + i] = now
            if self.decoding.grammar:
                self.state[rows[alive]] = self._onward(
                    tokens[alive, i : i + 1], self.state[rows[alive]]
                )[:, -1]
        self.length[rows] = end + (tokens >= 0).sum(axis=1)

    def _proposing(self, rows: Tokens, end: Tokens, back: int) -> Floats:
        """The draft's logits at the next place, its last `back` tokens fed again. [b, V]"""
        # before the second token there is one alone; what is fed after it is written over
        start = np.maximum(end - back, 0)
        fed = self._logits(1, rows, start, back)
        return np.asarray(fed[np.arange(len(rows)), end - 1 - start])

    def _logits(self, which: int, rows: Tokens, start: Tokens, count: int) -> Floats:
        """Feed `count` tokens from `start` to the target (0) or the draft (1). [b, count, V]"""
        model = (self.target, self.draft)[which]
        fed = self.tokens[rows[:, None], start[:, None] + np.arange(count)]
        at, slots = start + self.slip[which][rows], self.steps.slots(rows, self.first)
        out = np.zeros((len(rows), count, model.shape.vocab_size), dtype=model.dtype)
        # attention looks as far as the longest of the rows: those much shorter go by themselves
        window, seen = model.shape.window, None
        if which == 0 and window is not None and self.steps.window is not None:
            seen = self.steps.window(window, self.lost[rows])
        for mine in _alike(at // SPAN):
            out[mine] = model.advance(
                fed[mine], self.caches[which], at[mine], rows=slots[mine],
                window=None if seen is None else seen[mine],
            )  # fmt: skip
        return out


def _forked(requests: list[Request], steps: Steps) -> tuple[tuple[int, ...], Tokens]:
    """What every answer draws from, and where the first one to its request is. [B] each"""
    seeds: list[int] = []
    first: list[int] = []
    for r in requests:
        # without a seed, one that nobody knows
        seed = secrets.randbits(63) if r.seed is None else r.seed
        first += [len(seeds)] * r.answers
        seeds += steps.forked(seed, r.answers)
    return tuple(seeds), np.array(first, dtype=np.int64)


def _alike(kind: Tokens) -> list[Tokens]:
    """Which rows are of each kind. [B]"""
    return [np.flatnonzero(kind == k) for k in np.unique(kind)]


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
            greedy_roads=ROADS,
            typical_p=True,
            epsilon_cutoff=True,
            eta_cutoff=True,
            logprobs="processed",
            lengths=True,
            ragged=True,
            mixed=True,
            unseeded=True,
            several=True,
            sliding=True,
            long=True,
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
        """Answer requests; those of one configuration advance together."""
        if self._target is None or self._draft is None:
            raise EngineLoadError("generate was called before load")
        requests = self._steps.called(list(requests))
        alike: dict[tuple[Decoding, bool], list[int]] = defaultdict(list)
        for i, r in enumerate(requests):
            alike[r.decoding, r.speculate].append(i)
        answers: dict[int, list[Completion]] = {}
        began = time.perf_counter()
        for rows in alike.values():
            mine = [requests[i] for i in rows]
            k, steps = (self._proposals, self._steps) if mine[0].speculate else (0, EXACT_STEPS)
            batch = self._batch(
                self._target, self._draft, steps, mine, k, self.capabilities.dialect,
                self.capabilities.logprobs == "raw",
            )  # fmt: skip
            batch.began = began
            made = iter(batch.run())
            answers |= {i: [next(made) for _ in range(requests[i].answers)] for i in rows}
        return [answer for i in range(len(requests)) for answer in answers[i]]


def reference() -> ReferenceEngine:
    """The exact engine."""
    return ReferenceEngine()


def faulty(text: str) -> ReferenceEngine:
    """The reference engine with a fault from the catalogue, ``NAME`` or ``NAME=x``."""
    fault, _ = parse_fault(text)
    return ReferenceEngine(fault.steps(), f"faulty:{text}", f"deliberately wrong: {fault.summary}")
