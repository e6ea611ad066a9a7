"""How held-out faults are made: over the reference engine's steps, its batches, or round it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformance.adapters.reference import Batch, ReferenceEngine
from conformance.contract import Capabilities, Completion, Request
from conformance.faults.steps import Block, Emitted, Steps, judged
from conformance.law import Bools, Floats
from conformance.reference import Ints, acceptance, draw, residual
from conformance.tinylm import Tokens

ROWS = 64  # requests a call, as most adapters have it
CLAIMS = Capabilities(draft="model", max_batch=ROWS, verification="token")
Around = Callable[["Wrapped", Sequence[Request]], list[Completion]]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A fault: what it does, and a fresh engine that does it."""

    summary: str
    make: Callable[[], ReferenceEngine]


FAULTS: dict[str, HeldOut] = {}


class Wrapped(ReferenceEngine):
    """Something goes wrong round the batches."""

    def __init__(self, around: Around) -> None:
        super().__init__(capabilities=CLAIMS)
        self.around = around

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer requests."""
        if not requests[0].speculate:
            return super().generate(requests)
        return self.around(self, requests)

    def plainly(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer them rightly."""
        return super().generate(requests)


def fault(name: str, summary: str, steps: Steps | None = None, batch: type[Batch] = Batch) -> None:
    """Enter an engine whose steps, or whose batches, are wrong."""
    FAULTS[name] = HeldOut(
        summary, lambda: ReferenceEngine(steps or Steps(), capabilities=CLAIMS, batch=batch)
    )


def seeing(wrong: Callable[[Batch, Tokens, Block], Emitted]) -> type[Batch]:
    """Batches whose verification also sees the batch and which of its rows are verified."""

    class Seeing(Batch):
        def _block(self, rows: Tokens, u: Floats, extra: Floats) -> None:
            self.steps = replace(self.steps, verify=lambda b: wrong(self, rows, b))
            super()._block(rows, u, extra)

    return Seeing


def changed(change: Callable[[Block], Block]) -> Steps:
    """Right verification of something wrong."""
    return Steps(verify=lambda b: judged(change(b)))


def accepting(b: Block, where: Bools) -> Block:
    """Proposals are accepted for certain where `where` holds. [B, 1] or [B, K]"""
    return replace(b, coins=np.where(where, -1.0, b.coins))


def recovering(b: Block, law: Callable[[Block, Ints, Ints], Floats], u: Floats) -> Emitted:
    """Right acceptance, then a replacement from another law or by another uniform."""
    e = judged(b)
    rows = np.flatnonzero(e.accepted < b.k)
    at = e.accepted[rows]
    e.tokens[rows, at] = draw(law(b, rows, at), u[rows])
    return e


def right_residual(b: Block, rows: Ints, at: Ints) -> Floats:
    """[b, V]"""
    return residual(b.p[rows, at], b.q[rows, at])


def normal(weights: Floats) -> Floats:
    """Weights that sum to 1."""
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def verdicts(b: Block, passed: Bools) -> Emitted:
    """Go on as long as `passed` holds, [B, K]; replacement and bonus are right."""
    return judged(replace(b, coins=np.where(passed, -1.0, 2.0)))


def ratios(b: Block) -> Floats:
    """min(1, p/q) of every proposal. [B, K]"""
    a = acceptance(b.p[:, : b.k], b.q)
    return np.asarray(np.take_along_axis(a, b.drafts[..., None], axis=-1)[..., 0])
