"""Held-out faults across requests: shared random numbers, and what happens round the batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from held_out_making import (
    FAULTS,
    Around,
    HeldOut,
    Wrapped,
    fault,
)

from conformance.contract import Completion, Request
from conformance.faults.steps import Steps, streams
from conformance.law import Floats

# --- random numbers across requests ---------------------------------------------------------------


def stratified(columns: slice) -> Steps:
    """Requests of a batch share out [0, 1): each uniform is right by itself, together too even."""

    def uniforms(seeds: tuple[int, ...], blocks: int, width: int) -> Floats:
        u = streams(seeds, blocks, width)
        n = len(seeds)
        order = np.argsort(u, axis=0).argsort(axis=0)
        u[:, :, columns] = ((order + u) / n)[:, :, columns]
        return u

    return Steps(uniforms=uniforms)


def latin(columns: slice) -> Steps:
    """As `stratified`, with jitter of its own, so that every uniform really is one."""

    def uniforms(seeds: tuple[int, ...], blocks: int, width: int) -> Floats:
        u = streams(seeds, blocks, width)
        jitter = streams(tuple(s + 2**40 for s in seeds), blocks, width)
        order = u.argsort(axis=0).argsort(axis=0)
        u[:, :, columns] = ((order + jitter) / len(seeds))[:, :, columns]
        return u

    return Steps(uniforms=uniforms)


def overlapping(seeds: tuple[int, ...], blocks: int, width: int) -> Floats:
    """One stream, of which every request skips one block's numbers, not all its blocks'."""
    u = streams(seeds[:1], len(seeds) + blocks, width)[0]
    return np.stack([u[i : i + blocks] for i in range(len(seeds))])


def shared_columns(columns: slice) -> Steps:
    """All rows of a batch use the first row's numbers for something."""

    def uniforms(seeds: tuple[int, ...], blocks: int, width: int) -> Floats:
        u = streams(seeds, blocks, width)
        u[:, :, columns] = u[:1, :, columns]
        return u

    return Steps(uniforms=uniforms)


def low_bits(bits: int) -> Steps:
    """Seeds are cut to a few bits."""
    return Steps(uniforms=lambda s, n, w: streams(tuple(x % 2**bits for x in s), n, w))


def mirrored(seeds: tuple[int, ...], blocks: int, width: int) -> Floats:
    """Every second row has 1 less the uniforms of the row before."""
    u = streams(seeds, blocks, width)
    u[1::2] = 1 - u[: 2 * (len(u) // 2) : 2]
    return u


fault("stratified", "uniforms are stratified over the rows of a batch", stratified(slice(None)))
fault("stratified-coins", "coins are stratified over the rows of a batch", stratified(slice(4, 8)))
# the jitter of the two above is not independent of the stratum, so their uniforms are a little
# off by themselves: these two, written after the first results, are what was meant
fault("latin", "a Latin hypercube over the rows of a batch", latin(slice(None)))
fault("latin-coins", "a Latin hypercube of coins over the rows of a batch", latin(slice(4, 8)))
fault("mirrored-rows", "every second row has 1 - u", Steps(uniforms=mirrored))
fault("overlapping-streams", "the streams of consecutive requests overlap but for one block",
      Steps(uniforms=overlapping))  # fmt: skip
fault("batch-coins", "all rows of a batch throw the same coins", shared_columns(slice(4, 8)))
fault(
    "batch-last",
    "all rows of a batch draw replacements by one uniform",
    shared_columns(slice(-1, None)),
)
fault(
    "batch-draft",
    "all rows of a batch draw proposals by the same uniforms",
    shared_columns(slice(4)),
)
fault("seed-8-bits", "seeds are cut to 8 bits", low_bits(8))
fault("seed-12-bits", "seeds are cut to 12 bits", low_bits(12))
fault("seed-16-bits", "seeds are cut to 16 bits", low_bits(16))
fault("seed-20-bits", "seeds are cut to 20 bits", low_bits(20))


# --- round the batches ----------------------------------------------------------------------------


def around(name: str, summary: str, make: Callable[[], Around]) -> None:
    """Enter an engine that does something wrong round its batches; `make` gives it fresh state."""
    FAULTS[name] = HeldOut(summary, lambda: Wrapped(make()))


def reseeded(requests: Sequence[Request], seeds: Sequence[int]) -> list[Request]:
    """The same requests with other seeds."""
    return [
        r if r.seed is None else replace(r, seed=s) for r, s in zip(requests, seeds, strict=True)
    ]


def per_call() -> Around:
    return lambda e, rs: e.plainly(reseeded(rs, range(len(rs))))


def cycling(n: int) -> Around:
    count = iter(range(10**9))
    return lambda e, rs: e.plainly(reseeded(rs, [next(count) % n for _ in rs]))


def dice(requests: Sequence[Request]) -> Floats:
    """A uniform for each request that nothing else uses. [B]"""
    return np.random.default_rng([r.seed or 0 for r in requests]).random(len(requests))


def retried(unwanted: Callable[[list[Completion], Sequence[Request]], list[int]]) -> Around:
    """Some answers are thrown away, and made once more with another seed."""

    def generate(e: Wrapped, rs: Sequence[Request]) -> list[Completion]:
        out = e.plainly(rs)
        again = unwanted(out, rs)
        if again and rs[0].seed is not None:
            mine = [replace(rs[i], seed=(rs[i].seed or 0) ^ 0x2AAAAAAA) for i in again]
            for i, answer in zip(again, e.plainly(mine), strict=True):
                out[i] = answer
        return out

    return generate


def slow(share: float) -> Callable[[list[Completion], Sequence[Request]], list[int]]:
    """The requests of a batch with the most rounds, as after a timeout."""

    def unwanted(out: list[Completion], rs: Sequence[Request]) -> list[int]:
        rounds = np.array([len(a.rounds or ()) for a in out])
        return [int(i) for i in np.argsort(-rounds, kind="stable")[: int(share * len(out))]]

    return unwanted


def twins(out: list[Completion], rs: Sequence[Request]) -> list[int]:
    """Answers that begin like an earlier one of the batch to the same prompt."""
    seen: set[tuple[object, ...]] = set()
    found = []
    for i, (a, r) in enumerate(zip(out, rs, strict=True)):
        key = (r.prompt, tuple(a.tokens[:3]))
        if key in seen:
            found.append(i)
        seen.add(key)
    return found


def swapped(share: float) -> Around:
    """Neighbours get each other's answers."""

    def generate(e: Wrapped, rs: Sequence[Request]) -> list[Completion]:
        out = e.plainly(rs)
        for i in np.flatnonzero(dice(rs)[:-1] < share):
            out[i], out[i + 1] = out[i + 1], out[i]
        return out

    return generate


def copied_beginnings(share: float, n: int) -> Callable[[], Around]:
    """Some requests go on from the first n tokens that an earlier one of their prompt got."""

    def make() -> Around:
        memory: dict[tuple[int, ...], tuple[int, ...]] = {}

        def generate(e: Wrapped, rs: Sequence[Request]) -> list[Completion]:
            out = e.plainly(rs)
            u = dice(rs)
            for i, r in enumerate(rs):
                if u[i] < share and r.prompt in memory:
                    head = memory[r.prompt][:n]
                    ask = replace(r, prompt=r.prompt + head, max_new_tokens=r.max_new_tokens - n)
                    (rest,) = e.plainly([ask])
                    rounds = [(0, 0)] * n + list(rest.rounds or ())
                    out[i] = Completion((*head, *rest.tokens), rounds=rounds)
                memory[r.prompt] = tuple(out[i].tokens)
            return out

        return generate

    return make


def short_hash(bits: int) -> Callable[[], Around]:
    """The prompt is looked up in a prefix cache by a short hash; the first to come is used."""

    def make() -> Around:
        memory: dict[int, tuple[int, ...]] = {}

        def generate(e: Wrapped, rs: Sequence[Request]) -> list[Completion]:
            keys = [hash(r.prompt) % 2**bits for r in rs]
            return e.plainly(
                [
                    replace(r, prompt=memory.setdefault(k, r.prompt))
                    for k, r in zip(keys, rs, strict=True)
                ]
            )

        return generate

    return make


around("stream-per-call", "random numbers start anew with every call", per_call)
around("stream-cycle=37", "every 37th request has the same stream", lambda: cycling(37))
around("stream-cycle=1000", "every 1000th request has the same stream", lambda: cycling(1000))
around(
    "timeout-retry=0.1",
    "the slowest tenth of a batch is answered once more",
    lambda: retried(slow(0.1)),
)
around(
    "timeout-retry=0.02",
    "the slowest of a batch is answered once more",
    lambda: retried(slow(0.02)),
)
around(
    "twins-retried",
    "an answer that begins like another in the batch is made anew",
    lambda: retried(twins),
)
around("answers-swapped=0.1", "one in ten is given its neighbour's answer", lambda: swapped(0.1))
around(
    "answers-swapped=0.02", "one in fifty is given its neighbour's answer", lambda: swapped(0.02)
)
around(
    "copied-beginnings=0.1",
    "one in ten goes on from another's first 4 tokens",
    copied_beginnings(0.1, 4),
)
around("copied-beginnings=0.02", "one in fifty goes on from another's first 4 tokens",
       copied_beginnings(0.02, 4))  # fmt: skip
around(
    "copied-firsts=0.1", "one in ten goes on from another's first token", copied_beginnings(0.1, 1)
)
around("short-hash=8", "prompts are cached under a hash of 8 bits", short_hash(8))
around("short-hash=14", "prompts are cached under a hash of 14 bits", short_hash(14))
