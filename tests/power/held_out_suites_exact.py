"""Exact engines of odd habits in the newer suites, which must never be called NOT EXACT."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from held_out_making import ratios, seeing
from held_out_suites_making import (
    CLAIMS,
    InSuite,
    engine,
    first_true,
    only,
    shortened,
)
from numpy.typing import NDArray

from conformance.adapters.reference import Batch, ReferenceEngine
from conformance.contract import ModelPair
from conformance.decoding import Decoding
from conformance.faults.steps import Block, Emitted, Steps, judged, law_told
from conformance.law import Floats
from conformance.processors import History, apply
from conformance.tinylm import TinyLlama, Tokens


class Shifted(TinyLlama):
    """Positions begin at 7: rotary positions are relative."""

    def _rotate(self, x: NDArray[np.floating], at: Tokens) -> NDArray[np.floating]:
        return super()._rotate(x, at + 7)


def least_kept(b: Block) -> Emitted:
    """All rows keep as many tokens as the shortest block has: verified, so none is drawn anew."""
    e = judged(b)
    least = int(e.accepted.min())
    e.tokens[:, least + 1 :] = -1
    return Emitted(e.tokens, np.minimum(e.accepted, least))


def cut_after_unsure(b: Block) -> Emitted:
    """A block ends after a proposal whose ratio is below a half, whether what follows was likely or
    not; then a bonus token.
    """
    length = np.minimum(first_true(ratios(b) < 0.5, b.k) + 1, b.k)
    return shortened(b, judged(only(b, length)), length, length)


def draft_behind(logits: Floats, history: History, decoding: Decoding, target: bool) -> Floats:
    """The draft always has the mask of the beginning; what it proposes from is what is told."""
    if not target and history.state is not None and history.index.min() > 0:
        history = replace(history, state=np.ones_like(history.state))
    return apply(logits, history, decoding)


def stops_drafting(batch: Batch, rows: Tokens, b: Block) -> Emitted:
    """Nothing is proposed after a stop token."""
    length = np.minimum(first_true(np.isin(b.drafts, b.decoding.stop), b.k) + 1, b.k)
    return shortened(b, judged(only(b, length)), length, length)


class FreeDraft(ReferenceEngine):
    """The draft has no sliding window."""

    def load(self, probe: ModelPair) -> None:
        """Load both models."""
        super().load(probe)
        assert self._draft is not None
        self._draft.shape = replace(self._draft.shape, window=None)


EXACT: dict[str, InSuite] = {
    "positions-from-7": InSuite("batches", "positions begin at 7", engine(model=Shifted)),
    "least-kept": InSuite(
        "batches", "rows keep as many tokens as the shortest", engine(Steps(verify=least_kept))
    ),
    "cut-after-unsure": InSuite(
        "law",
        "blocks end after an unlikely proposal",
        engine(Steps(verify=cut_after_unsure)),
        "mid temperature=1",
    ),
    "draft-behind-grammar": InSuite(
        "structured", "the draft masks by the beginning", engine(Steps(process=draft_behind))
    ),
    "stops-drafting": InSuite(
        "ends",
        "nothing is proposed after a stop token",
        engine(batch=seeing(stops_drafting)),
        "temperature",
    ),
    "logprobs-float32": InSuite(
        "logprobs",
        "log-probabilities are rounded to float32",
        engine(Steps(logprobs=lambda b, e: law_told(b, e).astype(np.float32).astype(np.float64))),
    ),
    "answers-count-up": InSuite(
        "batches",
        "answers draw from the seed and those after it",
        engine(Steps(forked=lambda seed, n: tuple(range(seed, seed + n)))),
        "several",
    ),
    "draft-sees-all": InSuite(
        "long", "the draft has no window", lambda: FreeDraft(capabilities=CLAIMS), "sliding"
    ),
}
