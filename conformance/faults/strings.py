"""Faults of stop strings: where in a block, or across blocks, they are looked for."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from conformance.decoding import Decoding
from conformance.ends import completes, ends_of, patterns
from conformance.faults.fault import NO_THREAD, Fault
from conformance.faults.steps import Answer, Steps, blocks_until, up_to


def _cut(answer: Answer, ends: Iterable[int]) -> Answer:
    """An answer up to the first of some output indices."""
    return up_to(answer, min(ends, default=None))


def _last_of_blocks(answer: Answer) -> list[int]:
    """Output index of the last token of every block."""
    last = np.cumsum([accepted + 1 for _, accepted in answer[1]]) - 1
    return [int(t) for t in last]


def _ignored(answer: Answer, decoding: Decoding) -> Answer:
    return answer


def _at_block_end(answer: Answer, decoding: Decoding) -> Answer:
    last = set(_last_of_blocks(answer))
    return _cut(answer, (t for t in ends_of(answer[0], decoding) if t in last))


def _within_a_block(answer: Answer, decoding: Decoding) -> Answer:
    """Only the text of one block is looked at: what began in the one before is not found."""
    tokens, _ = answer
    begins = np.array([0, *(t + 1 for t in _last_of_blocks(answer))])

    def seen(t: int) -> bool:
        begin = int(begins[np.searchsorted(begins, t, side="right") - 1])
        return completes(tokens[begin : t + 1], t - begin, decoding.stop_strings)

    return _cut(answer, (t for t in ends_of(tokens, decoding) if seen(t)))


def _block_kept(answer: Answer, decoding: Decoding) -> Answer:
    """The output ends with the block in which a stop string was completed."""
    tokens, rounds = answer
    found = ends_of(tokens, decoding)
    if not found:
        return answer
    kept = rounds[: blocks_until(rounds, found[0])]
    return tokens[: sum(accepted + 1 for _, accepted in kept)], kept


def _first_listed(answer: Answer, decoding: Decoding) -> Answer:
    """Of several strings that one block completes, the one that was named first ends the output."""
    tokens, _ = answer
    found = ends_of(tokens, decoding)
    if not found:
        return answer
    last = next((t for t in _last_of_blocks(answer) if t >= found[0]), len(tokens) - 1)
    mine = [t for t in found if t <= last]

    def rank(t: int) -> int:
        strings = decoding.stop_strings
        return next(i for i, s in enumerate(strings) if completes(tokens, t, (s,)))

    return _cut(answer, [min(mine, key=rank)])


def _whole_words(answer: Answer, decoding: Decoding) -> Answer:
    """Stop strings are turned into token ids, which a text that ends inside a token never has."""
    tokens, _ = answer

    def whole(t: int) -> bool:
        return any(
            f"w{tokens[t]}" == last and completes(tokens, t, (text,))
            for text, (_, last) in zip(
                decoding.stop_strings, patterns(decoding.stop_strings), strict=True
            )
        )

    return _cut(answer, (t for t in ends_of(tokens, decoding) if whole(t)))


STRINGS: tuple[Fault, ...] = (
    Fault(
        "strings-ignored",
        "stop strings are taken, and nothing is done with them",
        "",
        "after stop strings",
        "engine",
        lambda _: Steps(end=_ignored),
        needs="stop string",
        note=NO_THREAD,
    ),
    Fault(
        "strings-at-block-end",
        "a stop string is found only where it is completed by the last token of a block",
        "transformers #48039; sglang #23802",
        "after stop strings that end inside a block",
        "engine",
        lambda _: Steps(end=_at_block_end),
        needs="stop string",
    ),
    Fault(
        "strings-within-block",
        "a stop string that begins in one block and ends in the next is not found",
        "",
        "after stop strings across blocks",
        "engine",
        lambda _: Steps(end=_within_a_block),
        needs="stop string",
        note=NO_THREAD,
    ),
    Fault(
        "strings-keep-block",
        "the rest of the block that completes a stop string is kept",
        "vllm #47616; sglang #31599",
        "after stop strings that end inside a block",
        "engine",
        lambda _: Steps(end=_block_kept),
        needs="stop string",
    ),
    Fault(
        "strings-first-listed",
        "of several stop strings that one block completes the one that was named first counts",
        "vllm #49391",
        "after blocks with two stop strings",
        "engine",
        lambda _: Steps(end=_first_listed),
        needs="stop string",
    ),
    Fault(
        "strings-as-ids",
        "stop strings are matched as token ids, so that none ends inside a token",
        "",
        "after stop strings that are part of a word",
        "engine",
        lambda _: Steps(end=_whole_words),
        needs="stop string",
        note=NO_THREAD,
    ),
)
