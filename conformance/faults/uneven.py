"""Faults that need requests that are not alike: other lengths, calls of several kinds, twins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.contract import Request
from conformance.faults.fault import NO_THREAD, Fault, Span
from conformance.faults.steps import Answer, Block, Emitted, Filled, Steps, judged, streams
from conformance.law import Floats
from conformance.reference import Ints
from conformance.tinylm import Cache

PAD = 0
# Seeds of requests are below; of those without one the reference makes up larger ones.
SEEDS = 2**31
SLOTS = Span(2, 100_000, "slots", whole=True)
KEPT = Span(2, 100_000, "tokens of prompt and output that fit", whole=True)

# --- lengths --------------------------------------------------------------------------------------


def _padded(requests: list[Request]) -> list[Request]:
    """Shorter prompts of a call get tokens in front, which are seen."""
    longest = max(len(r.prompt) for r in requests)
    return [
        replace(r, prompt=(PAD,) * (longest - len(r.prompt)) + r.prompt) if r.speculate else r
        for r in requests
    ]


def _one_token_twice(requests: list[Request]) -> list[Request]:
    return [
        replace(r, prompt=r.prompt * 2) if r.speculate and len(r.prompt) == 1 else r
        for r in requests
    ]


def _cut_to_fit(fits: float) -> Steps:
    """A prompt that leaves no room for its output and a block loses its first half."""

    def called(requests: list[Request]) -> list[Request]:
        return [
            replace(r, prompt=r.prompt[len(r.prompt) // 2 :])
            if r.speculate and len(r.prompt) + r.max_new_tokens > fits
            else r
            for r in requests
        ]

    return Steps(called=called)


def _carried_over(answers: list[Answer], beyond: list[list[int]]) -> list[Answer]:
    """What an output's last block had too much begins the next output of the batch."""
    return [
        ((before + tokens)[: len(tokens)], rounds)
        for before, (tokens, rounds) in zip([[], *beyond[:-1]], answers, strict=True)
    ]


# --- calls ----------------------------------------------------------------------------------------


def _shortest(requests: list[Request]) -> list[Request]:
    """All are done when the first one is."""
    least = min(r.max_new_tokens for r in requests)
    return [replace(r, max_new_tokens=least) if r.speculate else r for r in requests]


def _moved_up(rows: Ints, first: Ints) -> Ints:
    """When some are done the others move up, and leave their caches where they were."""
    return np.arange(len(rows))


def _one_seed(requests: list[Request]) -> list[Request]:
    return [replace(r, seed=0) if r.seed is None and r.speculate else r for r in requests]


def _seed_before(requests: list[Request]) -> list[Request]:
    """Without a seed, that of the request before."""
    out, last = [], None
    for r in requests:
        mine = last if r.seed is None and r.speculate else r.seed
        out.append(replace(r, seed=mine))
        last = r.seed if r.seed is not None else last
    return out


def _unfilled(seeds: tuple[int, ...], blocks: int, width: int) -> Floats:
    """Beside seeded requests, the last draw of those without a seed is never made: it stays 0."""
    u = streams(seeds, blocks, width)
    unseeded = np.array(seeds) >= SEEDS
    if not unseeded.all():
        u[unseeded, :, -1] = 0.0
    return u


def _seeds_of_call(requests: list[Request]) -> list[Request]:
    """All draw as the first one of the call does."""
    first = requests[0].seed
    return [replace(r, seed=first) if r.speculate and r.seed is not None else r for r in requests]


# --- kinds ----------------------------------------------------------------------------------------


def _neighbours_prompt(requests: list[Request]) -> list[Request]:
    """Beside requests that speculate, one that does not reads the logits of the row before it."""
    out = []
    for i, r in enumerate(requests):
        before = requests[i - 1]
        mixed = i > 0 and before.speculate and not r.speculate
        fits = mixed and len(before.prompt) <= len(r.prompt)
        out.append(replace(r, prompt=before.prompt) if fits else r)
    return out


def _kind_of_first(requests: list[Request]) -> list[Request]:
    """Whether a call speculates is what its first request says."""
    return [replace(r, speculate=requests[0].speculate) for r in requests]


# --- twins ----------------------------------------------------------------------------------------


def _bonus_as_first(b: Block) -> Emitted:
    """Draft and target begin their streams alike: the last draw is the block's first."""
    return judged(replace(b, last=b.proposing[:, 0]))


# --- far from the beginning -----------------------------------------------------------------------


def _page_ends_lost(size: float) -> Steps:
    """The last slot of every full page of the target's cache is empty."""
    page = int(size)

    def lose(cache: Cache, filled: Filled) -> None:
        for row, end in zip(filled.rows, filled.length, strict=True):
            at = np.arange(page - 1, int(end) - 1, page)
            for kept in (cache.keys, cache.values):
                kept[:, row, at] = 0.0

    return Steps(cached=lose)


def _window(size: float) -> Steps:
    """What is further back than a window is gone from the target's cache."""
    kept_slots = int(size)

    def slide(cache: Cache, filled: Filled) -> None:
        for row, end in zip(filled.rows, filled.length, strict=True):
            for kept in (cache.keys, cache.values):
                kept[:, row, : max(int(end) - kept_slots, 0)] = 0.0

    return Steps(cached=slide)


UNEVEN: tuple[Fault, ...] = (
    Fault(
        "padding-seen",
        "shorter prompts of a call are padded in front, and attention sees the padding",
        "",
        "calls whose prompts differ in length",
        "engine",
        lambda _: Steps(called=_padded),
        needs="form",
        note=NO_THREAD,
    ),
    Fault(
        "one-token-prompt",
        "a prompt of one token is read twice",
        "",
        "prompts of one token",
        "engine",
        lambda _: Steps(called=_one_token_twice),
        needs="form",
        note=NO_THREAD,
    ),
    Fault(
        "prompt-cut-to-fit",
        "a prompt that leaves too little room for its output loses its first half",
        "",
        "prompts near the end of the context",
        "engine",
        _cut_to_fit,
        needs="form",
        parameter=504,
        span=KEPT,
        note=NO_THREAD,
    ),
    Fault(
        "cut-carried-over",
        "what the end of an output cuts off its last block begins the next output of the batch",
        "",
        "requests after one whose last block was cut",
        "engine",
        lambda _: Steps(handed=_carried_over),
        needs="form",
        note=NO_THREAD,
    ),
    Fault(
        "length-of-first-done",
        "a call is over when the first of its requests is",
        "",
        "ends: answers are too short",
        "engine",
        lambda _: Steps(called=_shortest),
        needs="form",
        note="breaks the contract, so the case ends as ERROR; " + NO_THREAD,
    ),
    Fault(
        "moved-up",
        "when requests of a batch are done, the others move up and their caches do not",
        "",
        "after the first request of a batch is done",
        "engine",
        lambda _: Steps(slots=_moved_up),
        needs="form",
        note=NO_THREAD,
    ),
    Fault(
        "unseeded-alike",
        "all requests without a seed draw from one stream",
        "",
        "across requests without a seed",
        "engine",
        lambda _: Steps(called=_one_seed),
        needs="form",
        note=NO_THREAD,
    ),
    Fault(
        "unseeded-as-before",
        "a request without a seed draws with that of the one before it",
        "",
        "across neighbours in a call",
        "engine",
        lambda _: Steps(called=_seed_before),
        needs="form",
        note=NO_THREAD,
    ),
    Fault(
        "unseeded-undrawn",
        "beside seeded requests the recovered or bonus token of one without a seed is not drawn",
        "vllm #10863",
        "requests without a seed, in calls with seeded ones",
        "engine",
        lambda _: Steps(uniforms=_unfilled),
        needs="form",
    ),
    Fault(
        "seed-of-the-call",
        "the requests of a call all draw with the seed of its first",
        "",
        "across the requests of a call",
        "engine",
        lambda _: Steps(called=_seeds_of_call),
        needs="form",
        note=NO_THREAD,
    ),
    Fault(
        "plain-beside-speculating",
        "a request that does not speculate is given the logits of one before it that does",
        "",
        "control requests in calls of both kinds",
        "engine",
        lambda _: Steps(called=_neighbours_prompt),
        needs="form",
        note="wrong in the control arm as well; " + NO_THREAD,
    ),
    Fault(
        "kind-of-the-first",
        "whether a call speculates is what its first request says",
        "",
        "calls of both kinds",
        "engine",
        lambda _: Steps(called=_kind_of_first),
        needs="form",
        note="breaks the contract, so the case ends as ERROR; " + NO_THREAD,
    ),
    Fault(
        "streams-begin-alike",
        "draft and target draw from streams that begin alike, so the bonus repeats the first draw",
        "",
        "a block's first token and its last, most where all proposals are accepted",
        "engine",
        lambda _: Steps(verify=_bonus_as_first),
        needs="form",
        note=NO_THREAD,
    ),
    Fault(
        "page-ends-lost",
        "the last slot of every full page of the target's cache is empty",
        "",
        "tokens that look at one, most in long contexts",
        "engine",
        _page_ends_lost,
        needs="form",
        parameter=16,
        span=SLOTS,
        note=NO_THREAD,
    ),
    Fault(
        "window-slides",
        "the target sees a window of tokens only, though the model has none",
        "",
        "every token beyond it",
        "engine",
        _window,
        needs="form",
        parameter=512,
        span=SLOTS,
        note=NO_THREAD,
    ),
)
