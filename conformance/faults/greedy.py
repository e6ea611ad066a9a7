"""Faults of greedy decoding: roads that do not lead there, ties, first tokens, and late ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.decoding import Decoding
from conformance.faults.fault import NO_THREAD, Fault, Span
from conformance.faults.steps import Block, Emitted, Filled, Steps, judged
from conformance.law import Floats, softmax
from conformance.reference import draw
from conformance.tinylm import Cache

TIED = 1e-9  # nats; equal rows give equal logits to the last bits
FAR = Span(1, 100_000, "the output index from which on", whole=True)
SLOTS = Span(1, 100_000, "slots", whole=True)

# --- roads ----------------------------------------------------------------------------------------


def _sampled_on(road: str) -> Steps:
    """Greedy decoding asked for by this road is sampling at temperature 1."""

    def take(decoding: Decoding) -> Decoding:
        if decoding.road == road:
            return replace(decoding, greedy=False, road="")
        return decoding.taken

    return Steps(road=take)


# --- ties and near ties ---------------------------------------------------------------------------


def _among_the_largest(within: float) -> Steps:
    """Greedy decoding draws among the tokens that are within some nats of the largest."""

    def verify(block: Block) -> Emitted:
        if not block.decoding.greedy:
            return judged(block)
        z = block.target_logits
        among = (z >= z.max(axis=-1, keepdims=True) - within) * np.isfinite(z)
        return judged(replace(block, p=among / among.sum(axis=-1, keepdims=True)))

    return Steps(verify=verify)


def _strictly_largest(block: Block) -> Emitted:
    """The largest logit must be larger than every other: of two that tie, neither is."""
    if not block.decoding.greedy:
        return judged(block)
    z = block.target_logits
    largest = z >= z.max(axis=-1, keepdims=True) - TIED
    left = np.where(largest & (largest.sum(axis=-1, keepdims=True) > 1), -np.inf, z)
    return judged(replace(block, p=_one_hot(left)))


def _one_hot(z: Floats) -> Floats:
    law: Floats = np.zeros_like(z)
    np.put_along_axis(law, z.argmax(axis=-1)[..., None], 1.0, axis=-1)
    return law


# --- first and late tokens ------------------------------------------------------------------------


def _first_sampled(block: Block) -> Emitted:
    """The first token of a greedy output is drawn at temperature 1, as a block of its own."""
    exact = judged(block)
    first = block.decoding.greedy & (block.start == 0)
    tokens, accepted = exact.tokens.copy(), exact.accepted.copy()
    tokens[first] = -1
    tokens[first, 0] = draw(softmax(block.target_logits[first, 0]), block.last[first])
    accepted[first] = 0
    return Emitted(tokens, accepted)


def _unverified_from(index: float) -> Steps:
    def verify(block: Block) -> Emitted:
        late = (block.index[:, : block.k] >= index)[..., None] & block.decoding.greedy
        p = block.p.copy()
        p[:, : block.k] = np.where(late, block.q, p[:, : block.k])
        return judged(replace(block, p=p))

    return Steps(verify=verify)


def _ring(size: float) -> Steps:
    """The target's cache has so many slots, and begins again at the first."""
    slots = int(size)

    def wrap(cache: Cache, filled: Filled) -> None:
        for row, end in zip(filled.rows, filled.length, strict=True):
            over = int(end) - slots
            for kept in (cache.keys, cache.values):
                if over > 0:
                    kept[:, row, :over] = kept[:, row, slots : slots + over]

    return Steps(cached=wrap)


def _lost_at(size: float) -> Steps:
    """What the target's cache holds is zeroed once it has so many tokens."""
    slots = int(size)

    def lose(cache: Cache, filled: Filled) -> None:
        gone = filled.rows[filled.length > slots]
        for kept in (cache.keys, cache.values):
            kept[:, gone, :slots] = 0.0

    return Steps(cached=lose)


GREEDY: tuple[Fault, ...] = (
    Fault(
        "top-one-sampled",
        "top_k = 1 is taken, and sampling goes on among all tokens",
        "",
        "every token",
        "engine",
        lambda _: _sampled_on("top-k-1"),
        needs="road",
        note="a server that drops what it does not know; " + NO_THREAD,
    ),
    Fault(
        "temperature-zero-unset",
        "a temperature of 0 is taken for none given, so that the default of 1 is used",
        "",
        "every token",
        "engine",
        lambda _: _sampled_on("temperature-0"),
        needs="road",
        note=NO_THREAD,
    ),
    Fault(
        "default-sampled",
        "plain decoding is greedy where nothing is said, speculation samples",
        "",
        "every token",
        "engine",
        lambda _: _sampled_on("temperature-unset"),
        needs="road",
        note=NO_THREAD,
    ),
    Fault(
        "do-sample-ignored",
        "the switch that turns sampling off is not handed on to speculation",
        "",
        "every token",
        "engine",
        lambda _: _sampled_on("do-sample-false"),
        needs="road",
        note=NO_THREAD,
    ),
    Fault(
        "near-argmax-drawn",
        "greedy decoding draws among all tokens whose logits are near the largest",
        "",
        "where two logits are close",
        "engine",
        _among_the_largest,
        needs="greedy",
        parameter=0.1,
        span=Span(0, 100, "how near, in nats"),
        note="a drawn exact tie is no fault (mstar #254); " + NO_THREAD + " of a wider margin",
    ),
    Fault(
        "tie-dropped",
        "of two largest logits that are equal neither counts as the largest, and another token "
        "is taken",
        "",
        "where logits tie exactly",
        "engine",
        lambda _: Steps(verify=_strictly_largest),
        needs="tie",
        note="as of a filter that keeps what is above the second largest; " + NO_THREAD,
    ),
    Fault(
        "first-token-sampled",
        "the first token of a greedy output is sampled at temperature 1",
        "",
        "output index 0 alone",
        "engine",
        lambda _: Steps(verify=_first_sampled),
        needs="greedy",
        note="the prompt is read by another path than blocks; " + NO_THREAD,
    ),
    Fault(
        "late-unverified",
        "greedy proposals are committed unchecked from some output index on",
        "",
        "accepted tokens far into the output",
        "engine",
        _unverified_from,
        needs="far",
        parameter=256,
        span=replace(FAR, meaning=FAR.meaning + " nothing is checked"),
        note=NO_THREAD,
    ),
    Fault(
        "cache-wraps",
        "the target's cache has a fixed number of slots and begins again at the first",
        "",
        "every token beyond it",
        "engine",
        _ring,
        needs="far",
        parameter=300,
        span=SLOTS,
        note=NO_THREAD,
    ),
    Fault(
        "context-lost",
        "the target's cache is emptied once it holds some number of tokens",
        "",
        "every token beyond it",
        "engine",
        _lost_at,
        needs="far",
        parameter=256,
        span=replace(SLOTS, meaning="tokens"),
        note=NO_THREAD,
    ),
)
