"""Faults of forking: what the several answers to one request wrongly share, or lose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.faults.fault import NO_THREAD, Fault
from conformance.faults.steps import ANSWER_BIT, Block, Emitted, Steps, judged, streams
from conformance.law import Floats
from conformance.reference import Ints


def _one_stream(seed: int, answers: int) -> tuple[int, ...]:
    return (seed,) * answers


def _of_first(seeds: tuple[int, ...]) -> tuple[int, ...]:
    """The streams that the first answers to the same requests draw from."""
    return tuple(s & (1 << ANSWER_BIT) - 1 for s in seeds)


def _drafts_alike(seeds: tuple[int, ...], blocks: int, width: int) -> Floats:
    u, k = streams(seeds, blocks, width), width // 2
    u[..., :k] = streams(_of_first(seeds), blocks, width)[..., :k]
    return u


def _forked_late(seeds: tuple[int, ...], blocks: int, width: int) -> Floats:
    """The first block is made before the fork."""
    u = streams(seeds, blocks, width)
    u[:, 0] = streams(_of_first(seeds), 1, width)[:, 0]
    return u


def _first_alone(b: Block) -> Emitted:
    """Only first answers are verified; in the others every proposal is accepted."""
    if b.further is None or not b.further.any():
        return judged(b)
    return judged(replace(b, coins=np.where(b.further[:, None], -1.0, b.coins)))


def _cache_of_first(rows: Ints, first: Ints) -> Ints:
    """The fork copies no cache: all answers write to that of the first, and read from it."""
    return first[rows]


SIBLINGS: tuple[Fault, ...] = (
    Fault(
        "answers-alike",
        "all answers to one request draw from one random stream",
        "sglang #28805; tokenspeed #1613; vllm #10852",
        "answers to one request are copies",
        "engine",
        lambda _: Steps(forked=_one_stream),
        needs="form",
    ),
    Fault(
        "answers-draft-alike",
        "the proposals of all answers to one request are drawn from one random stream",
        "",
        "answers to one request go together, each by itself is right",
        "engine",
        lambda _: Steps(uniforms=_drafts_alike),
        needs="form",
        note=NO_THREAD,
    ),
    Fault(
        "answers-forked-late",
        "a request is forked after its first block, which all its answers share",
        "",
        "the first tokens of answers to one request",
        "engine",
        lambda _: Steps(uniforms=_forked_late),
        needs="form",
        note=NO_THREAD,
    ),
    Fault(
        "answers-first-verified",
        "proposals are verified in the first answer to a request alone, and accepted in the others",
        "",
        "answers beyond the first",
        "engine",
        lambda _: Steps(verify=_first_alone),
        needs="form",
        note=NO_THREAD,
    ),
    Fault(
        "answers-share-cache",
        "answers to one request go on in the cache of the first, which is not copied",
        "",
        "answers to one request, as soon as they differ",
        "engine",
        lambda _: Steps(slots=_cache_of_first),
        needs="form",
        note=NO_THREAD,
    ),
)
