"""The most that an exact rule can accept, beside what an engine accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from conformance import wire
from conformance.bench.intervals import Measured, clustered_rate, clustered_ratio
from conformance.bench.measure import Run, Timed
from conformance.bench.models import Models, exact_model
from conformance.bench.plan import Cell
from conformance.contract import Capabilities
from conformance.decoding import Decoding, Dialect
from conformance.law import Floats, warp
from conformance.tinylm import TinyLlama

MOST_WORK = 4e11  # multiplications spent on one cell's laws
UNKNOWN = "the most that could be accepted is not known: "


@dataclass(frozen=True, slots=True)
class Most:
    """Mean of sum min(p, q) where a proposal was verified.

    Parameters
    ----------
    most : Measured or None
        The mean.
    beyond : Measured or None
        How much more than that was accepted at the same places.
    why : str
        Why it is not known.
    """

    most: Measured | None
    beyond: Measured | None = None
    why: str = ""


def most(cell: Cell, run: Run, capabilities: Capabilities, models: Models) -> Most:
    """The most that could be accepted in a cell, or why it is not known."""
    full = [c for c in run.calls if c.arm == "speculative" and c.kind == "full"]
    if any(c.get("rounds") is None for call in full for c in call.completions):
        return Most(None)
    why = _unknown(cell, capabilities, models)
    if why:
        return Most(None, why=UNKNOWN + why)
    assert models.pair.draft is not None
    target, why = exact_model(models.pair.target)
    draft, why_not = exact_model(models.pair.draft)
    if target is None or draft is None:
        reason = f"target: {why}" if target is None else f"draft: {why_not}"
        return Most(None, why=UNKNOWN + reason)
    if target.shape.vocab_size != draft.shape.vocab_size:
        return Most(None, why=UNKNOWN + "the vocabularies differ")
    return most_acceptable(target, draft, full, cell.decoding, capabilities.dialect)


def _unknown(cell: Cell, capabilities: Capabilities, models: Models) -> str:
    if cell.decoding.processors:
        return "the decoding looks back, with penalties or masks"
    if capabilities.draft != "model" or models.pair.draft is None:
        return "the draft is no model of its own"
    if capabilities.low_precision:
        return "the engine computes in low precision"
    return "" if capabilities.verification == "token" else "its rounds are not of single proposals"


def most_acceptable(
    target: TinyLlama,
    draft: TinyLlama,
    calls: Sequence[Timed],
    decoding: Decoding,
    dialect: Dialect,
) -> Most:
    """Mean of sum min(p, q) over the prefixes at which a proposal was verified.

    No exact rule that verifies one token after the other can accept more, and rejection sampling
    accepts just that on average. Laws are float64. As many requests are used as `MOST_WORK` pays
    for, in the order in which they were asked.
    """
    hits: list[float] = []
    tried: list[float] = []
    kept: list[float] = []
    work = 0.0
    parameters = _parameters(target) + _parameters(draft)
    for call in calls:
        for prompt, completion in zip(call.prompts, call.completions, strict=True):
            work += parameters * (len(prompt) + len(completion["tokens"]))
            if work > MOST_WORK and hits:
                break
            at = _verified(completion)
            tokens = completion["tokens"]
            if len(at) == 0 or not 0 <= min(tokens) <= max(tokens) < target.shape.vocab_size:
                continue  # no law exists after an id that is no token
            p, q = (
                warp(_logits(model, prompt, tokens, at), decoding, dialect)
                for model in (target, draft)
            )
            hits.append(float(np.minimum(p, q).sum()))
            tried.append(float(len(at)))
            kept.append(float(_accepted(completion)))
    if not hits:
        return Most(None, why="no proposal was verified")
    chance, places = np.array(hits), np.array(tried)
    beyond = clustered_ratio(np.array(kept) - chance, places)
    return Most(clustered_rate(chance, places), beyond)


def _verified(completion: wire.Json) -> np.ndarray:
    """Output indices at which a proposal was verified."""
    at = [t for t, _ in _places(completion)]
    return np.array(at, dtype=np.int64)


def _accepted(completion: wire.Json) -> int:
    """How many of these were accepted."""
    return sum(kept for _, kept in _places(completion))


def _places(completion: wire.Json) -> Iterator[tuple[int, bool]]:
    """Output index of every verified proposal, and whether it was accepted; what a block has
    beyond the end of the answer is left out, since its prefix was not told.
    """
    begin, end = 0, len(completion["tokens"])
    for k, n in completion["rounds"]:
        for j in range(min(n + 1, k)):
            if begin + j < end:
                yield begin + j, j < n
        begin += n + 1


def _logits(
    model: TinyLlama, prompt: Sequence[int], tokens: Sequence[int], at: np.ndarray
) -> Floats:
    """Logits after the prompt and the first ``at`` tokens. [n, V]"""
    whole = np.array([[*prompt, *tokens[:-1]]], dtype=np.int64)
    return np.asarray(model.logits(whole)[0][len(prompt) - 1 + at])


def _parameters(model: TinyLlama) -> float:
    s = model.shape
    kv = s.kv_heads * s.head_dim
    layer = 2 * s.hidden * s.hidden + 2 * s.hidden * kv + 3 * s.hidden * s.intermediate
    return float(s.layers * layer + s.hidden * s.vocab_size)
