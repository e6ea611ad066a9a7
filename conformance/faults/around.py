"""Faults around the law: what is done to logits before they are warped, and where outputs end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.decoding import Decoding
from conformance.faults.fault import NO_THREAD, Fault
from conformance.faults.steps import Answer, Steps, blocks_until
from conformance.law import Floats
from conformance.processors import History, apply

# --- processors -----------------------------------------------------------------------------------


def _ignored(logits: Floats, history: History, decoding: Decoding, target: bool) -> Floats:
    return logits


def _on_draft_only(logits: Floats, history: History, decoding: Decoding, target: bool) -> Floats:
    return logits if target else apply(logits, history, decoding)


def _on_bonus_only(logits: Floats, history: History, decoding: Decoding, target: bool) -> Floats:
    done = apply(logits, history, decoding)
    if target:
        done[:, :-1] = logits[:, :-1]
    return done


def _not_on_bonus(logits: Floats, history: History, decoding: Decoding, target: bool) -> Floats:
    done = apply(logits, history, decoding)
    if target:
        done[:, -1] = logits[:, -1]
    return done


def _from_block_start(logits: Floats, history: History, decoding: Decoding, target: bool) -> Floats:
    """The target's places all have the history, and the index, of the block's first."""
    if target:
        history = replace(
            history,
            repetition=history.repetition[:, :1],
            presence=history.presence[:, :1],
            index=history.index[:, :1],
        )
    return apply(logits, history, decoding)


def _without_prompt(logits: Floats, history: History, decoding: Decoding, target: bool) -> Floats:
    return apply(logits, replace(history, repetition=history.presence), decoding)


def _without_output(logits: Floats, history: History, decoding: Decoding, target: bool) -> Floats:
    """Nothing of the output is ever counted."""
    prompt = history.repetition - history.presence
    return apply(logits, replace(history, repetition=prompt, presence=0 * prompt), decoding)


def _penalty_added(logits: Floats, history: History, decoding: Decoding, target: bool) -> Floats:
    """A repetition penalty that divides negative logits too, which makes repeats likelier."""
    factor = decoding.repetition_penalty or 1.0
    seen = np.broadcast_to(history.repetition > 0, logits.shape)
    divided = np.where(seen, logits / factor, logits)
    return apply(divided, history, replace(decoding, repetition_penalty=None))


def _without_minimum(logits: Floats, history: History, decoding: Decoding, target: bool) -> Floats:
    return apply(logits, history, replace(decoding, min_new_tokens=0))


# --- ends -----------------------------------------------------------------------------------------


def _places(answer: Answer, decoding: Decoding) -> list[tuple[int, bool]]:
    """Output indices of stop tokens, and whether each is the last token of its block."""
    tokens, rounds = answer
    last = set((np.cumsum([accepted + 1 for _, accepted in rounds]) - 1).tolist())
    found = range(decoding.min_new_tokens, len(tokens))
    return [(t, t in last) for t in found if tokens[t] in decoding.stop]


def _ended_at(answer: Answer, end: int | None) -> Answer:
    if end is None:
        return answer
    tokens, rounds = answer
    return tokens[: end + 1], rounds[: blocks_until(rounds, end)]


def _never(answer: Answer, decoding: Decoding) -> Answer:
    return answer


def _overlooked_inside(answer: Answer, decoding: Decoding) -> Answer:
    return _ended_at(answer, next((t for t, last in _places(answer, decoding) if last), None))


def _overlooked_last(answer: Answer, decoding: Decoding) -> Answer:
    return _ended_at(answer, next((t for t, last in _places(answer, decoding) if not last), None))


def _block_kept(answer: Answer, decoding: Decoding) -> Answer:
    """The output ends, after the block that the stop token is in."""
    tokens, rounds = answer
    places = _places(answer, decoding)
    if not places:
        return answer
    kept = rounds[: blocks_until(rounds, places[0][0])]
    return tokens[: sum(accepted + 1 for _, accepted in kept)], kept


def _first_id_only(answer: Answer, decoding: Decoding) -> Answer:
    first = replace(decoding, stop=decoding.stop[:1]) if decoding.stop else decoding
    return _ended_at(answer, next((t for t, _ in _places(answer, first)), None))


AROUND: tuple[Fault, ...] = (
    Fault(
        "processors-ignored",
        "penalties, biases, masks and least lengths are taken, and nothing is done with them",
        "",
        "wherever they would change the law",
        "engine",
        lambda _: Steps(process=_ignored),
        needs="processor",
        note=NO_THREAD,
    ),
    Fault(
        "processors-on-draft-only",
        "the draft's logits are processed, the target's are not",
        "tensorrt-llm #17701",
        "every token",
        "engine",
        lambda _: Steps(process=_on_draft_only),
        needs="processor",
    ),
    Fault(
        "processors-on-bonus-only",
        "the target's logits are processed at the bonus position only",
        "vllm #42744",
        "accepted and recovered tokens, not bonus tokens",
        "engine",
        lambda _: Steps(process=_on_bonus_only),
        needs="processor",
    ),
    Fault(
        "processors-not-on-bonus",
        "the target's logits are processed at the proposals and not at the bonus position",
        "sglang #10617",
        "bonus tokens only",
        "engine",
        lambda _: Steps(process=_not_on_bonus),
        needs="processor",
    ),
    Fault(
        "penalty-at-block-start",
        "the target's penalties count what was there when the block began, at all of its positions",
        "sglang #33643",
        "later positions of a block",
        "engine",
        lambda _: Steps(process=_from_block_start),
        needs="history",
    ),
    Fault(
        "penalty-counts-rejected",
        "rejected proposals stay counted as if they had been emitted",
        "mlx-lm #1175",
        "after the first rejection",
        "engine",
        lambda _: Steps(counts_rejected=True),
        needs="history",
    ),
    Fault(
        "penalty-without-output",
        "penalties count the prompt and never what was generated",
        "",
        "later output indices",
        "engine",
        lambda _: Steps(process=_without_output),
        needs="history",
        note=NO_THREAD,
    ),
    Fault(
        "penalty-without-prompt",
        "the repetition penalty counts what was generated and not the prompt",
        "",
        "first output indices most",
        "engine",
        lambda _: Steps(process=_without_prompt),
        needs="repetition",
        note=NO_THREAD,
    ),
    Fault(
        "penalty-sign",
        "the repetition penalty divides negative logits as well, so that they grow",
        "",
        "tokens that have occurred and are unlikely",
        "engine",
        lambda _: Steps(process=_penalty_added),
        needs="repetition",
        note=NO_THREAD,
    ),
    Fault(
        "minimum-at-block-start",
        "whether a stop token is still held back is decided once for a whole block",
        "",
        "output indices about the least length",
        "engine",
        lambda _: Steps(process=_from_block_start),
        needs="minimum",
        note=NO_THREAD,
    ),
    Fault(
        "minimum-ignored",
        "stop tokens are not held back among the first tokens",
        "",
        "first output indices",
        "engine",
        lambda _: Steps(process=_without_minimum),
        needs="minimum",
        note=NO_THREAD,
    ),
    Fault(
        "stop-ignored",
        "nothing ends an output but its length",
        "",
        "after stop tokens",
        "engine",
        lambda _: Steps(end=_never),
        needs="stop",
        note=NO_THREAD,
    ),
    Fault(
        "stop-inside-block",
        "a stop token that was accepted is overlooked; only the last token of a block can end",
        "transformers #47912",
        "after stop tokens inside a block",
        "engine",
        lambda _: Steps(end=_overlooked_inside),
        needs="stop",
    ),
    Fault(
        "stop-at-block-end",
        "a stop token that is recovered or a bonus is overlooked; only an accepted one ends",
        "",
        "after stop tokens at the end of a block",
        "engine",
        lambda _: Steps(end=_overlooked_last),
        needs="stop",
        note=NO_THREAD,
    ),
    Fault(
        "stop-keeps-block",
        "the rest of the block that a stop token is in is kept",
        "transformers #48039",
        "after stop tokens inside a block",
        "engine",
        lambda _: Steps(end=_block_kept),
        needs="stop",
    ),
    Fault(
        "stop-first-id",
        "only the first of several stop tokens ends the output",
        "",
        "after the other stop tokens",
        "engine",
        lambda _: Steps(end=_first_id_only),
        needs="stops",
        note=NO_THREAD,
    ),
)
