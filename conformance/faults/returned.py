"""Faults in what is said of the tokens: their log-probabilities. The tokens are right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from conformance.faults.fault import NO_THREAD, Fault
from conformance.faults.steps import Block, Emitted, Steps, law_told, looked_up
from conformance.law import Bools, Floats, softmax
from conformance.reference import residual


def _accepted(block: Block, emitted: Emitted) -> Bools:
    return np.asarray(np.arange(block.k + 1) < emitted.accepted[:, None])


def _recovered(block: Block, emitted: Emitted) -> Bools:
    last = np.arange(block.k + 1) == emitted.accepted[:, None]
    return np.asarray(last & (emitted.accepted < block.k)[:, None])


def _bonus(block: Block, emitted: Emitted) -> Bools:
    last = np.arange(block.k + 1) == emitted.accepted[:, None]
    return np.asarray(last & (emitted.accepted == block.k)[:, None])


Place = Callable[[Block, Emitted], Bools]


def _constant(value: float, where: Place | None = None) -> Steps:
    def told(block: Block, emitted: Emitted) -> Floats:
        right = law_told(block, emitted)
        there = np.ones_like(right, dtype=bool) if where is None else where(block, emitted)
        return np.where(there, value, right)

    return Steps(logprobs=told)


def _draft(block: Block, emitted: Emitted) -> Floats:
    assert block.draft_told is not None
    there = _accepted(block, emitted)
    return np.where(there, looked_up(block.draft_told, emitted), law_told(block, emitted))


def _one_before(block: Block, emitted: Emitted) -> Floats:
    assert block.told is not None
    return looked_up(block.told, emitted, -1)


def _shifted(block: Block, emitted: Emitted) -> Floats:
    """Right numbers, each with the token after its own."""
    right = law_told(block, emitted)
    return np.concatenate([right[:, :1], right[:, :-1]], axis=1)


def _bonus_of_last(block: Block, emitted: Emitted) -> Floats:
    assert block.told is not None
    there = _bonus(block, emitted)
    return np.where(there, looked_up(block.told, emitted, -1), law_told(block, emitted))


def _raw(block: Block, emitted: Emitted) -> Floats:
    return looked_up(np.log(softmax(block.target_logits)), emitted)


def _residual(block: Block, emitted: Emitted) -> Floats:
    """Recovered tokens with what they had in the law that they were drawn from."""
    left = residual(block.p[:, :-1], block.q)
    with np.errstate(divide="ignore"):
        drawn_from = np.log(np.concatenate([left, block.p[:, -1:]], axis=1))
    there = _recovered(block, emitted)
    return np.where(there, looked_up(drawn_from, emitted), law_told(block, emitted))


RETURNED: tuple[Fault, ...] = tuple(
    Fault(
        name,
        summary,
        seen,
        "log-probabilities of " + where,
        "engine",
        make,
        needs="logprobs",
        note="" if seen else NO_THREAD,
    )
    for name, summary, seen, where, make in (
        (
            "logprobs-zero",
            "log-probabilities of all tokens of a block are 0, as if each were certain",
            "llama.cpp #27972; vllm #17876",
            "all speculated tokens",
            lambda _: _constant(0.0),
        ),
        (
            "logprobs-zero-accepted",
            "log-probabilities of accepted tokens are 0",
            "",
            "accepted tokens only",
            lambda _: _constant(0.0, _accepted),
        ),
        (
            "logprobs-nan-recovered",
            "recovered tokens have NaN for a log-probability",
            "",
            "recovered tokens only",
            lambda _: _constant(float("nan"), _recovered),
        ),
        (
            "logprobs-minus-infinity",
            "bonus tokens have minus infinity for a log-probability, that of a masked place",
            "",
            "bonus tokens only",
            lambda _: _constant(float("-inf"), _bonus),
        ),
        (
            "logprobs-of-draft",
            "accepted tokens come with the draft's log-probabilities",
            "",
            "accepted tokens only",
            lambda _: Steps(logprobs=_draft),
        ),
        (
            "logprobs-misaligned",
            "a token's log-probability is looked up in the target's law of the place before",
            "vllm #33391",
            "all places of a block but the first",
            lambda _: Steps(logprobs=_one_before),
        ),
        (
            "logprobs-shifted",
            "log-probabilities of a block come one token late",
            "",
            "all places of a block but the first",
            lambda _: Steps(logprobs=_shifted),
        ),
        (
            "logprobs-bonus-misaligned",
            "a bonus token's log-probability is looked up where the last proposal was",
            "",
            "bonus tokens only",
            lambda _: Steps(logprobs=_bonus_of_last),
        ),
        (
            "logprobs-raw",
            "speculation returns log-probabilities of the logits as they are, plain generation "
            "those after temperature and filters",
            "",
            "all speculated tokens",
            lambda _: Steps(logprobs=_raw),
        ),
        (
            "logprobs-of-residual",
            "recovered tokens come with their log-probability in the residual they were drawn from",
            "",
            "recovered tokens only",
            lambda _: Steps(logprobs=_residual),
        ),
    )
)
