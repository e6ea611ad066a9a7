"""Held-out faults of the forms: ragged and mixed calls, several answers, lengths, streams, long."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from held_out_making import accepting, normal, seeing
from held_out_suites_making import (
    CLAIMS,
    Around,
    Flagged,
    Flagging,
    engine,
    fault,
    only,
    shortened,
)
from numpy.typing import NDArray

from conformance.adapters.reference import Batch, ReferenceEngine
from conformance.contract import Completion, Request
from conformance.faults.steps import Block, Emitted, Steps, answer_number, judged, streams
from conformance.law import Floats
from conformance.reference import draw
from conformance.tinylm import Cache, Tokens

# --- several answers ------------------------------------------------------------------------------


def first_differ(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """The first tokens of answers to one request are drawn without putting back."""
    if b.start.any():
        return judged(b)
    number = np.array([answer_number(batch.seeds[row]) for row in rows])
    request = batch.first[rows]
    free = np.ones((batch.size, b.p.shape[-1]), dtype=bool)
    p, found = b.p.copy(), judged(b)
    for answer in range(1, int(number.max(initial=0)) + 1):
        before, mine = number == answer - 1, number == answer
        free[request[before], found.tokens[before, 0]] = False
        left = p[mine, 0] * free[request[mine]]
        enough = left.sum(axis=-1, keepdims=True) > 0
        p[mine, 0] = normal(np.where(enough, left, p[mine, 0]))
        now = judged(replace(b, p=p))
        found.tokens[mine], found.accepted[mine] = now.tokens[mine], now.accepted[mine]
    return found


def as_finished(out: list[Completion], requests: Sequence[Request]) -> list[Completion]:
    """Answers to one request come in the order in which they were done."""
    done, left = [], iter(out)
    for r in requests:
        done += sorted((next(left) for _ in range(r.answers)), key=lambda a: len(a.rounds or ()))
    return done


fault("answers-first-differ", "batches", "several mid temperature=1",
      "answers to one request begin with different tokens",
      engine(batch=seeing(first_differ)))  # fmt: skip
fault("answers-as-finished", "batches", "several mid temperature=1",
      "answers to one request come in the order in which they are done",
      lambda: Around(as_finished))  # fmt: skip


# --- ragged and mixed -----------------------------------------------------------------------------


def least_accepted(b: Block) -> Emitted:
    """All rows keep as many proposals as the least of them accepts, and draw the next from p."""
    e = judged(b)
    least = int(e.accepted.min())
    rows = np.flatnonzero(e.accepted > least)
    e.tokens[rows, least] = draw(b.p[rows, least], b.last[rows])
    e.tokens[:, least + 1 :] = -1
    return Emitted(e.tokens, np.minimum(e.accepted, least))


def whole_pages(requests: list[Request]) -> list[Request]:
    """A prompt of whole pages of 16 is found in the prefix cache, and its last token is not fed."""
    return [
        replace(r, prompt=r.prompt[:-1]) if r.speculate and len(r.prompt) % 16 == 0 else r
        for r in requests
    ]


def few_seeds(requests: list[Request]) -> list[Request]:
    """A request without a seed is given one of 1,024."""
    return [
        replace(r, seed=2**33 + secrets.randbelow(1024)) if r.seed is None and r.speculate else r
        for r in requests
    ]


class PlainPadded(ReferenceEngine):
    """In calls of both kinds, plain requests have token 0 for a proposal, which is rejected."""

    def __init__(self) -> None:
        class Padded(Batch):
            both = False

            def _warp(self, logits: Floats, rows: Tokens, end: Tokens, target: bool) -> Floats:
                p = super()._warp(logits, rows, end, target)
                if self.k or not self.both:
                    return p
                p[..., 0] *= 1e-12
                return normal(p)

        super().__init__(capabilities=CLAIMS, batch=Padded)
        self.padded = Padded

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer requests."""
        self.padded.both = len({r.speculate for r in requests}) > 1
        return super().generate(requests)


fault("least-accepted", "batches", "ragged temperature=1",
      "rows keep what the least of them accepts, and draw the next token from p",
      engine(Steps(verify=least_accepted)))  # fmt: skip
fault("whole-pages", "batches", "ragged temperature=1",
      "a prompt of whole pages is read without its last token",
      engine(Steps(called=whole_pages)))  # fmt: skip
fault("unseeded-10-bits", "batches", "ragged temperature=1",
      "requests without a seed have one of 1,024",
      engine(Steps(called=few_seeds)))  # fmt: skip
fault("plain-padded", "batches", "mixed", "beside speculation, plain requests never say token 0",
      PlainPadded)  # fmt: skip


# --- lengths --------------------------------------------------------------------------------------


def short_block(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """An output's last block is as short as it may be; its bonus is looked up where a whole block
    has it.
    """
    length = np.clip(batch.each[rows] - b.start - 1, 0, b.k)
    return shortened(b, judged(only(b, length)), length, np.full(len(rows), b.k))


def context_end(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """Proposals for the context's last four places are not verified."""
    at = batch.length[rows][:, None] + np.arange(b.k)
    return judged(accepting(b, at >= batch.target.shape.context - 4))


fault("short-block-bonus", "lengths", "temperature=1",
      "the bonus token of a block that the end shortens is looked up where a whole one has it",
      engine(batch=seeing(short_block)))  # fmt: skip
fault("context-end-unverified", "lengths", "temperature=1",
      "proposals for the context's last four places are not verified",
      engine(batch=seeing(context_end)))  # fmt: skip


# --- streams, long, sliding -----------------------------------------------------------------------


def bonus_again(seeds: tuple[int, ...], blocks: int, width: int) -> Floats:
    """The number that draws a block's last token draws the next block's first proposal too."""
    u = streams(seeds, blocks, width)
    u[:, 1:, 0] = u[:, :-1, -1]
    return u


class Clamped(Flagged):
    """A table of 1,024 positions; further ones are the last."""

    def _rotate(self, x: NDArray[np.floating], at: Tokens) -> NDArray[np.floating]:
        return super()._rotate(x, np.minimum(at, 1023) if self.speculating else at)


class WidePrompt(Flagged):
    """Prompts are read without the window, what follows with it."""

    def advance(
        self,
        tokens: Tokens,
        cache: Cache,
        start: Tokens,
        layers: int | None = None,
        rows: NDArray[np.intp] | None = None,
        window: Tokens | None = None,
    ) -> Floats:
        """Feed tokens."""
        if self.speculating and tokens.shape[1] > 8:
            window = np.full(len(tokens), 2**31)
        return super().advance(tokens, cache, start, layers, rows, window)


fault("last-draws-next", "streams", "", "a block's last number draws the next block's first token",
      engine(Steps(uniforms=bonus_again)))  # fmt: skip
fault("positions-clamped", "long", "long", "positions from 1,024 on are all the same",
      engine(batch=Flagging, model=Clamped))  # fmt: skip
fault("prompt-sees-all", "long", "sliding", "prompts are read without the sliding window",
      engine(batch=Flagging, model=WidePrompt))  # fmt: skip
