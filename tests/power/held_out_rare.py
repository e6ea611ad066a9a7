"""Held-out faults that apply rarely or somewhere, and of what is remembered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from held_out_making import (
    CLAIMS,
    FAULTS,
    ROWS,
    HeldOut,
    accepting,
    fault,
    ratios,
    seeing,
    verdicts,
)
from numpy.typing import NDArray

from conformance.adapters.reference import Batch, ReferenceEngine
from conformance.contract import ModelPair
from conformance.faults.steps import Block, Emitted, Steps, judged
from conformance.law import Floats
from conformance.tinylm import TinyLlama, Tokens

# --- rarely, or somewhere -------------------------------------------------------------------------


def some(share: float) -> Steps:
    """A block goes unverified with some probability."""
    return Steps(verify=lambda b: judged(accepting(b, b.extra[:, :1] < share)), extra=1)


def last_row(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """Only in a batch's last row."""
    return judged(accepting(b, (rows == ROWS - 1)[:, None]))


def after_two_full(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """Only after two blocks in a row that were accepted whole."""
    full = [len(r := batch.rounds[i]) > 1 and r[-1][1] == r[-2][1] == b.k for i in rows]
    return judged(accepting(b, np.array(full)[:, None]))


def after_two_empty(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """After two blocks with nothing accepted the first proposal is let through."""
    stuck = [len(r := batch.rounds[i]) > 1 and r[-1][1] == r[-2][1] == 0 for i in rows]
    first = np.arange(b.k) == 0
    return judged(accepting(b, np.array(stuck)[:, None] & first))


def first_after_full(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """After a bonus token the next proposal counts as verified."""
    full = [bool(r := batch.rounds[i]) and r[-1][1] == b.k for i in rows]
    return judged(accepting(b, np.array(full)[:, None] & (np.arange(b.k) == 0)))


def tail_unverified(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """The last token that is asked for is never checked."""
    return judged(accepting(b, b.index[:, : b.k] == batch.wanted - 1))


def compacted(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """When rows have finished, those after a gap read q of the row that was there before."""
    where = np.searchsorted(rows, np.minimum(rows, len(rows) - 1))
    gone = rows != np.arange(len(rows))
    q = np.where(gone[:, None, None], b.q[np.minimum(where, len(rows) - 1)], b.q)
    return judged(replace(b, q=q))


def crosstalk(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """One per cent of the row above is mixed into every target law."""
    return judged(replace(b, p=0.99 * b.p + 0.01 * np.roll(b.p, 1, axis=0)))


fault("some-blocks=0.02", "one block in fifty goes unverified", some(0.02))
fault("some-blocks=0.1", "one block in ten goes unverified", some(0.1))
fault("last-row", "the last row of a full batch goes unverified", batch=seeing(last_row))
fault(
    "after-two-full",
    "goes unverified after two blocks accepted whole",
    batch=seeing(after_two_full),
)
fault(
    "after-two-empty",
    "lets a proposal through after two empty blocks",
    batch=seeing(after_two_empty),
)
fault(
    "first-after-full",
    "the proposal after a bonus token goes unverified",
    batch=seeing(first_after_full),
)
fault("tail-unverified", "the last token asked for goes unverified", batch=seeing(tail_unverified))
fault("compacted-rows", "rows read another row's q once one has finished", batch=seeing(compacted))
fault("crosstalk", "1% of the neighbouring row's law", batch=seeing(crosstalk))


# --- what a kernel or a cache remembers -----------------------------------------------------------


def remembered(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """The ratio of a token is remembered by (token, length of the prefix), for one batch."""
    memory = batch.__dict__.setdefault("memory", {})
    a = ratios(b)
    for i, j in np.ndindex(*a.shape):
        key = int(b.drafts[i, j]), int(b.index[i, j])
        a[i, j] = memory.setdefault(key, a[i, j])
    return verdicts(b, b.coins < a)


def decided_before(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """A proposal after a prefix seen before in the batch is accepted, or not, as it was then."""
    memory = batch.__dict__.setdefault("memory", {})
    passed = b.coins < ratios(b)
    for i, j in np.ndindex(*passed.shape):
        end = batch.length[rows[i]] + j + 1
        key = tuple(batch.tokens[rows[i], :end].tolist())
        passed[i, j] = memory.setdefault(key, bool(passed[i, j]))
    return verdicts(b, passed)


class Turned(TinyLlama):
    """A model whose positions can be off, row by row."""

    turn: Tokens | None = None

    def _rotate(self, x: NDArray[np.floating], at: Tokens) -> NDArray[np.floating]:
        return super()._rotate(x, at if self.turn is None else at + self.turn[:, None])


class Slipping(Batch):
    """The target's position ids fall one behind with every rejection; the cache is right."""

    def _logits(self, which: int, rows: Tokens, start: Tokens, count: int) -> Floats:
        if which == 0 and self.k:
            assert isinstance(self.target, Turned)
            self.target.turn = -np.array([sum(a < d for d, a in self.rounds[i]) for i in rows])
        try:
            return super()._logits(which, rows, start, count)
        finally:
            if isinstance(self.target, Turned):
                self.target.turn = None


class Rotated(ReferenceEngine):
    """An engine whose target is `Turned`."""

    def load(self, probe: ModelPair) -> None:
        """Load both models."""
        super().load(probe)
        assert probe.draft is not None
        self._target = Turned.load(probe.target, self._dtype)


fault(
    "remembered-ratio", "ratios are remembered by token and prefix length", batch=seeing(remembered)
)
fault(
    "decided-before",
    "decisions are remembered by prefix, within a batch",
    batch=seeing(decided_before),
)
FAULTS["positions-slip"] = HeldOut(
    "position ids fall one behind with every rejection",
    lambda: Rotated(capabilities=CLAIMS, batch=Slipping),
)
