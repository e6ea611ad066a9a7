"""Held-out faults of suites cutoffs, structured, processors and logprobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from held_out_making import changed, normal, recovering
from held_out_suites_making import engine, fault, first_true, of_drafts, only, shortened

from conformance.adapters.reference import Batch
from conformance.decoding import Decoding
from conformance.faults.probabilities import rounded
from conformance.faults.steps import Block, Emitted, Steps, judged, law_told, looked_up
from conformance.grammar import DEAD
from conformance.law import Bools, Floats, warp
from conformance.processors import History, apply
from conformance.reference import Ints, residual
from conformance.tinylm import Tokens

# --- cutoffs --------------------------------------------------------------------------------------


def without(b: Block, *filters: str) -> Floats:
    """The target's laws without some filters."""
    return warp(b.target_logits, b.decoding.without(filters), b.dialect)


def entropy(law: Floats) -> Floats:
    """In nats. [..., V] -> [..., 1]"""
    return -(law * np.log(np.maximum(law, 1e-300))).sum(axis=-1, keepdims=True)


def keeping(law: Floats, kept: Bools) -> Floats:
    """What is kept, and always the likeliest, normalised."""
    return normal(np.where(kept | (law == law.max(axis=-1, keepdims=True)), law, 0.0))


def typical_unfiltered(b: Block) -> Block:
    """The entropy that tokens are compared with is that before the other filters."""
    if b.decoding.typical_p is None:
        return b
    p = without(b, "typical_p")
    free = warp(b.target_logits, b.decoding.unfiltered, b.dialect)
    away = np.where(p > 0, np.abs(-np.log(np.maximum(p, 1e-300)) - entropy(free)), np.inf)
    order = away.argsort(axis=-1)
    ranked = np.take_along_axis(p, order, axis=-1)
    kept = np.zeros(p.shape, dtype=bool)
    before = ranked.cumsum(axis=-1) - ranked
    np.put_along_axis(kept, order, before < b.decoding.typical_p, axis=-1)
    return replace(b, p=normal(np.where(kept, p, 0.0)))


def eta_alone(b: Block) -> Block:
    """The cut-off is sqrt(eta) exp(-entropy), without the least of that and eta."""
    if b.decoding.eta_cutoff is None:
        return b
    p = without(b, "eta_cutoff")
    return replace(b, p=keeping(p, p >= np.sqrt(b.decoding.eta_cutoff) * np.exp(-entropy(p))))


def min_p_of_draft(b: Block) -> Block:
    """Min-p takes the draft's largest probability."""
    if b.decoding.min_p is None:
        return b
    p, q = (
        warp(z, b.decoding.unfiltered, b.dialect) for z in (b.target_logits, b.draft_logits)
    )  # fmt: skip
    most = np.concatenate([q, q[:, -1:]], axis=1).max(axis=-1, keepdims=True)
    kept = (p >= b.decoding.min_p * most) | (p == p.max(axis=-1, keepdims=True))
    z = np.where(kept, b.target_logits, -np.inf)
    return replace(b, p=warp(z, b.decoding.without(("min_p",)), b.dialect))


def joint(b: Block) -> Block:
    """Top-p looks at all tokens, beside top-k and not after it."""
    if b.decoding.top_k is None or b.decoding.top_p is None:
        return b
    of_k, of_p = without(b, "top_p"), without(b, "top_k")
    return replace(b, p=normal(np.where(of_p > 0, of_k, 0.0)))


for _name, _where, _summary, _change in (
    ("typical-unfiltered", "typical_p=0.6",
     "typical_p takes the entropy before the other filters", typical_unfiltered),
    ("eta-alone", "eta", "an eta cut-off is never that of eta itself", eta_alone),
    ("min-p-of-draft", "min_p", "min-p takes the draft's largest probability", min_p_of_draft),
    ("joint-top-k-top-p", "top_k", "top-p looks at what top-k has removed", joint),
):  # fmt: skip
    fault(_name, "cutoffs", _where, _summary, engine(changed(_change)))


# --- structured -----------------------------------------------------------------------------------


def unmasked(b: Block) -> Floats:
    """The target's laws without the grammar."""
    return warp(b.target_logits, replace(b.decoding, grammar=""), b.dialect)


def masked_residual(b: Block) -> Emitted:
    """A replacement is drawn from the residual of the law without the mask, masked afterwards."""
    free = unmasked(b)

    def left(b: Block, rows: Ints, at: Ints) -> Floats:
        p = b.p[rows, at]
        w = np.where(p > 0, residual(free[rows, at], b.q[rows, at]), 0.0)
        mass = w.sum(axis=-1, keepdims=True)
        return np.where(mass > 0, w / np.where(mass > 0, mass, 1.0), p)

    return recovering(b, left, b.last)


class MasksRemembered(Batch):
    """A mask is remembered by the token before it, not by the grammar's state."""

    def _history(self, rows: Tokens, end: Tokens, n: int) -> History:
        history = super()._history(rows, end, n)
        if not self.k or history.state is None:
            return history
        memory = self.__dict__.setdefault("memory", {})
        state = history.state.copy()
        for i, at in np.ndindex(*state.shape):
            before = int(self.tokens[rows[i], end[i] + at - 1])
            if history.index[i, at] > 0 and state[i, at] != DEAD:
                state[i, at] = memory.setdefault(before, int(state[i, at]))
        return replace(history, state=state)


def free_draft(logits: Floats, history: History, decoding: Decoding, target: bool) -> Floats:
    """The draft knows no grammar."""
    return apply(logits, history if target else replace(history, state=None), decoding)


def truncated(b: Block) -> Emitted:
    """A block is cut before the first proposal that the grammar forbids; what comes there is drawn
    like a bonus token, as if nothing had been proposed.
    """
    forbidden = (of_drafts(b.p, b) == 0) & (of_drafts(unmasked(b), b) > 0)
    length = first_true(forbidden, b.k)
    return shortened(b, judged(only(b, length)), length, length)


fault("grammar-masks-residual", "structured", "temperature=1",
      "a residual is made of the law without the mask, and masked",
      engine(Steps(verify=masked_residual)))  # fmt: skip
fault("grammar-mask-remembered", "structured", "top_p",
      "masks are remembered by the token before them", engine(batch=MasksRemembered))  # fmt: skip
fault("grammar-cuts-draft", "structured", "temperature=1",
      "a proposal that the grammar forbids counts as not proposed",
      engine(Steps(process=free_draft, verify=truncated)))  # fmt: skip


# --- processors -----------------------------------------------------------------------------------


class DuplicatesLost(Batch):
    """counts[tokens] += 1 of a block: a token that is in it twice is counted once."""

    def _record(self, rows: Tokens, tokens: Tokens, drafted: Tokens, accepted: Tokens) -> None:
        super()._record(rows, tokens, drafted, accepted)
        for row, block in zip(rows, tokens, strict=True):
            ids, times = np.unique(block[block >= 0], return_counts=True)
            self.ghosts[row, ids] -= times - 1


class LastSixteen(Batch):
    """Penalties look at the last 16 tokens."""

    def _history(self, rows: Tokens, end: Tokens, n: int) -> History:
        if self.k:
            self.dialect = replace(self.dialect, penalty_window=16)
        return super()._history(rows, end, n)


def bias_late(logits: Floats, history: History, decoding: Decoding, target: bool) -> Floats:
    """A bias is added to logits that were divided by the temperature."""
    bias = tuple((token, by * decoding.temperature) for token, by in decoding.logit_bias)
    return apply(logits, history, replace(decoding, logit_bias=bias))


fault("frequency-duplicates-lost", "processors", "frequency_penalty",
      "a token that is in a block twice is counted once", engine(batch=DuplicatesLost))  # fmt: skip
fault("penalty-last-16", "processors", "greedy", "penalties look at the last 16 tokens",
      engine(batch=LastSixteen))  # fmt: skip
fault("bias-after-temperature", "processors", "temperature=0.8",
      "biases are added after the temperature", engine(Steps(process=bias_late)))  # fmt: skip


# --- logprobs -------------------------------------------------------------------------------------


def of_rejected(b: Block, e: Emitted) -> Floats:
    """A replacement comes with the number of the proposal that it replaces."""
    assert b.told is not None
    right = law_told(b, e)
    rows = np.flatnonzero(e.accepted < b.k)
    at = e.accepted[rows]
    right[rows, at] = b.told[rows, at, b.drafts[rows, at]]
    return right


def floor_of_16(b: Block, e: Emitted) -> Floats:
    """Only the 16 likeliest are kept; another token comes with the number of the last of them."""
    assert b.told is not None
    return np.maximum(law_told(b, e), np.sort(b.told, axis=-1)[..., -16])


class RowsMoved(Batch):
    """When rows are done, those after them are told from the row above."""

    def _block(self, rows: Tokens, u: Floats, extra: Floats) -> None:
        moved = rows != np.arange(len(rows))

        def told(b: Block, e: Emitted) -> Floats:
            assert b.told is not None
            above = looked_up(np.roll(b.told, 1, axis=0), e)
            return np.where(moved[:, None], above, law_told(b, e))

        if self.k:
            self.steps = replace(self.steps, logprobs=told)
        super()._block(rows, u, extra)


fault("logprobs-bfloat16", "logprobs", "temperature", "log-probabilities are rounded to bfloat16",
      engine(Steps(logprobs=lambda b, e: rounded(law_told(b, e), 8))))  # fmt: skip
fault("logprobs-of-rejected", "logprobs", "temperature",
      "a replacement has the log-probability of what it replaces",
      engine(Steps(logprobs=of_rejected)))  # fmt: skip
fault("logprobs-floor-of-16", "logprobs", "temperature",
      "what is not among the 16 likeliest has the log-probability of the last of them",
      engine(Steps(logprobs=floor_of_16)))  # fmt: skip
fault("logprobs-rows-moved", "logprobs", "temperature",
      "once rows are done, log-probabilities are those of the row above",
      engine(batch=RowsMoved))  # fmt: skip
