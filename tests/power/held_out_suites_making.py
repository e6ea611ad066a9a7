"""How the second held-out set is made: over the reference engine, with all that it claims.

Unlike in the catalogue no engine claims to answer a request alike in other company, which few real
ones do, so that nothing is killed by being asked twice alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from held_out_making import ROWS

from conformance.adapters.reference import Batch, ReferenceEngine
from conformance.contract import Completion, ModelPair, Request
from conformance.faults.steps import Block, Emitted, Steps
from conformance.law import Floats
from conformance.reference import Ints, draw
from conformance.tinylm import TinyLlama, Tokens

CLAIMS = replace(ReferenceEngine().capabilities, max_batch=ROWS, reproducible=False)
Make = Callable[[], ReferenceEngine]


@dataclass(frozen=True, slots=True)
class InSuite:
    """An engine, and where it should show.

    Parameters
    ----------
    suite : str
        The suite.
    summary : str
        What it does.
    make : callable
        A fresh engine.
    where : str
        A part of the name of the case that is asked first: its form, probe or decoding.
    """

    suite: str
    summary: str
    make: Make
    where: str = ""


FAULTS: dict[str, InSuite] = {}


def engine(
    steps: Steps | None = None,
    batch: type[Batch] = Batch,
    model: type[TinyLlama] | None = None,
) -> Make:
    """How to make one whose steps, batches or target are other ones."""

    def make() -> ReferenceEngine:
        kind = ReferenceEngine if model is None else _with(model)
        return kind(steps or Steps(), capabilities=CLAIMS, batch=batch)

    return make


def _with(model: type[TinyLlama]) -> type[ReferenceEngine]:
    class Other(ReferenceEngine):
        def load(self, probe: ModelPair) -> None:
            super().load(probe)
            self._target = model.load(probe.target, self._dtype)

    return Other


def fault(name: str, suite: str, where: str, summary: str, make: Make) -> None:
    """Enter a fault."""
    FAULTS[name] = InSuite(suite, summary, make, where)


class Around(ReferenceEngine):
    """Something happens to the answers of a call."""

    def __init__(self, after: Callable[[list[Completion], Sequence[Request]], list[Completion]]):
        super().__init__(capabilities=CLAIMS)
        self.after = after

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer requests."""
        out = super().generate(requests)
        return self.after(out, requests) if requests[0].speculate else out


class Flagged(TinyLlama):
    """A target that is told whether it is used by speculation."""

    speculating = False


class Flagging(Batch):
    """Batches that tell their target whether they speculate."""

    def __init__(self, target: TinyLlama, draft: TinyLlama, steps: Steps,
                 requests: list[Request], k: int, *rest: object) -> None:  # fmt: skip
        assert isinstance(target, Flagged)
        target.speculating = k > 0
        super().__init__(target, draft, steps, requests, k, *rest)  # type: ignore[arg-type]


def shortened(b: Block, e: Emitted, length: Ints, bonus: Ints) -> Emitted:
    """What was emitted of blocks whose first `length` proposals were the only ones, [B]: `e` is
    that of coins that reject the others, `bonus` is where the bonus token is looked up.
    """
    rows = np.flatnonzero((e.accepted == length) & (length < b.k))
    e.tokens[rows, length[rows]] = draw(b.p[rows, bonus[rows]], b.last[rows])
    return Emitted(e.tokens, e.accepted, length)


def only(b: Block, length: Ints) -> Block:
    """Coins reject all proposals from `length` on."""
    return replace(b, coins=np.where(np.arange(b.k) < length[:, None], b.coins, 2.0))


def first_true(where: Tokens | Floats, otherwise: int) -> Ints:
    """Where in each row the first is that holds. [B, K] -> [B]"""
    held = np.asarray(where, dtype=bool)
    return np.where(held.any(axis=1), held.argmax(axis=1), otherwise)


def of_drafts(law: Floats, b: Block) -> Floats:
    """A law's numbers for the proposals. [B, K]"""
    return np.asarray(np.take_along_axis(law[:, : b.k], b.drafts[..., None], axis=-1)[..., 0])
