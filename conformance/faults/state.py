"""Faults of state: random streams, caches, and what becomes of a block once it is verified."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, pairwise

import numpy as np

from conformance.faults.fault import NO_THREAD, Fault, Span
from conformance.faults.steps import Answer, Block, Emitted, Steps, Written, cut, judged, streams
from conformance.law import Floats
from conformance.reference import Ints, draw, residual

Seeds = tuple[int, ...]


# --- random streams -------------------------------------------------------------------------------


def _coin_reused(b: Block) -> Emitted:
    e = judged(b)
    rows = np.flatnonzero(e.accepted < b.k)
    at = e.accepted[rows]
    law = residual(b.p[rows, at], b.q[rows, at])
    e.tokens[rows, at] = draw(law, b.coins[rows, at])
    return e


def _shared_stream(b: Block) -> Emitted:
    return judged(replace(b, coins=b.proposing))


def _same_stream(seeds: Seeds, blocks: int, width: int) -> Floats:
    return np.repeat(streams((0,), blocks, width), len(seeds), axis=0)


def _unseeded(seeds: Seeds, blocks: int, width: int) -> Floats:
    fresh = np.random.SeedSequence().generate_state(len(seeds), np.uint64)
    return streams(tuple(int(s) for s in fresh), blocks, width)


def _neighbours(group: float) -> Steps:
    def uniforms(seeds: Seeds, blocks: int, width: int) -> Floats:
        n = int(group)
        return streams(tuple(seeds[i - i % n] for i in range(len(seeds))), blocks, width)

    return Steps(uniforms=uniforms)


def _restarted(seeds: Seeds, blocks: int, width: int) -> Floats:
    return np.repeat(streams(seeds, 1, width), blocks, axis=1)


# --- caches ---------------------------------------------------------------------------------------


def _stale_cache(left: float) -> Steps:
    return Steps(gap=lambda accepted, k: np.minimum(k - accepted, int(left)))


def _over_trimmed(accepted: Ints, k: int) -> Ints:
    return -(accepted < k).astype(np.int64)


def _ragged(accepted: Ints, k: int) -> Ints:
    return np.asarray(accepted.max() - accepted)


# --- answers --------------------------------------------------------------------------------------


def _blocks(w: Written, i: int) -> list[list[int]]:
    """The tokens of request i, block by block."""
    row, at, out = w.tokens[i].tolist(), 0, []
    for _, accepted in w.rounds[i]:
        out.append(row[at : at + accepted + 1])
        at += accepted + 1
    return out


def _joined(blocks: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(blocks))


def _bonus_dropped(w: Written) -> list[Answer]:
    out = []
    for i, rounds in enumerate(w.rounds):
        kept = [
            block[:drafted] if accepted == drafted else block
            for block, (drafted, accepted) in zip(_blocks(w, i), rounds, strict=True)
        ]
        # what is reported ends with the block that ends the answer
        reach = np.cumsum([accepted + 1 for _, accepted in rounds])
        last = int(np.searchsorted(reach, w.wanted))
        out.append((_joined(kept)[: w.wanted], rounds[: last + 1]))
    return out


def _boundary_repeated(w: Written) -> list[Answer]:
    out = []
    for i, rounds in enumerate(w.rounds):
        blocks = _blocks(w, i)
        again = [blocks[0]] + [before[-1:] + block for before, block in pairwise(blocks)]
        out.append((_joined(again)[: w.wanted], rounds))
    return out


def _repeats(every: float) -> Steps:
    def answer(w: Written) -> list[Answer]:
        out = cut(w)
        last: dict[tuple[int, ...], Answer] = {}
        for i, prompt in enumerate(map(tuple, w.prompts.tolist())):
            if i % int(every) == int(every) - 1 and prompt in last:
                out[i] = last[prompt]
            last[prompt] = out[i]
        return out

    return Steps(answer=answer)


def _outside(share: float) -> Steps:
    def answer(w: Written) -> list[Answer]:
        out = cut(w)
        u = streams(tuple(s + 2**40 for s in w.seeds), 1, w.wanted)[:, 0]
        for i, t in zip(*np.nonzero(u < share), strict=True):
            out[i][0][t] = w.vocab  # the first column of the padding
        return out

    return Steps(answer=answer)


def _invented_rounds(b: Block) -> Emitted:
    """Nothing is proposed that counts: one token a step, drawn from p."""
    tokens = np.full((len(b.last), b.k + 1), -1)
    tokens[:, 0] = draw(b.p[:, 0], b.last)
    return Emitted(tokens, np.zeros(len(b.last), dtype=np.int64))


def _disabled(_: float) -> Steps:
    def answer(w: Written) -> list[Answer]:
        out = []
        u = streams(tuple(s + 2**40 for s in w.seeds), 1, w.wanted)[:, 0]
        for (tokens, rounds), row in zip(cut(w), u, strict=True):
            k, told, length = rounds[0][0], [], 0
            while length < w.wanted:
                told.append((k, int(row[length] * (k + 1))))
                length += told[-1][1] + 1
            out.append((tokens, told))
        return out

    return Steps(verify=_invented_rounds, answer=answer)


def _overrun(w: Written) -> list[Answer]:
    return [(_joined(_blocks(w, i)), rounds) for i, rounds in enumerate(w.rounds)]


def _last_block_lost(w: Written) -> list[Answer]:
    out = []
    for i, rounds in enumerate(w.rounds):
        blocks = _blocks(w, i)
        whole = sum(map(len, blocks)) == w.wanted
        out.append((_joined(blocks if whole else blocks[:-1]), rounds))
    return out


def _front_lost(w: Written) -> list[Answer]:
    return [(_joined(_blocks(w, i))[-w.wanted :], rounds) for i, rounds in enumerate(w.rounds)]


STATE = (
    Fault(
        "coin-reused",
        "the number that rejected a proposal is used again to draw its replacement",
        "flashinfer #424",
        "recovered tokens",
        "engine",
        lambda _: Steps(verify=_coin_reused),
    ),
    Fault(
        "shared-stream",
        "the draft's draws and the target's coins come from one stream",
        "vllm-ascend #16370",
        "accepted and recovered tokens",
        "engine",
        lambda _: Steps(verify=_shared_stream),
    ),
    Fault(
        "restarted-stream",
        "the random stream starts anew with every block",
        "",
        "from block to block within a request",
        "engine",
        lambda _: Steps(uniforms=_restarted),
        note=NO_THREAD,
    ),
    Fault(
        "same-stream",
        "every request draws from the same stream, so equal prompts have equal answers",
        "TensorRT-LLM #19487",
        "across requests",
        "engine",
        lambda _: Steps(uniforms=_same_stream),
    ),
    Fault(
        "unseeded",
        "the seed of a request is ignored, and every answer is drawn afresh",
        "vllm #6038",
        "in the same request asked twice",
        "engine",
        lambda _: Steps(uniforms=_unseeded),
        note="the law of its output is right",
    ),
    Fault(
        "neighbours-share",
        "neighbouring rows of a batch share their random numbers",
        "TensorRT-LLM #19487",
        "across requests, between neighbours in a batch",
        "engine",
        _neighbours,
        parameter=2,
        span=Span(2, 1024, "rows that share", whole=True),
    ),
    Fault(
        "repeated-answers",
        "every n-th request gets an earlier answer to its prompt, as from a cache",
        "TensorRT-LLM #19487",
        "across requests",
        "engine",
        _repeats,
        parameter=10,
        span=Span(1, 100_000, "n", whole=True),
    ),
    Fault(
        "stale-cache",
        "rejected proposals stay in the target's cache",
        "mlx-lm #1423; mlx-lm #1109",
        "after the first rejection",
        "engine",
        _stale_cache,
        needs="anything",
        parameter=1,
        span=Span(1, 64, "how many are left after a rejection", whole=True),
    ),
    Fault(
        "over-trimmed-cache",
        "after a rejection one entry too many is cut from the target's cache",
        "",
        "after the first rejection",
        "engine",
        lambda _: Steps(gap=_over_trimmed),
        needs="anything",
        note=NO_THREAD,
    ),
    Fault(
        "ragged-batch",
        "rows that accepted fewer tokens are aligned to the longest row of the batch",
        "1Cat-vLLM #656",
        "batches, after the first block",
        "engine",
        lambda _: Steps(gap=_ragged),
        needs="anything",
    ),
    Fault(
        "bonus-dropped",
        "the bonus token is missing from the answer, though the model has seen it",
        "",
        "at block boundaries",
        "engine",
        lambda _: Steps(answer=_bonus_dropped, spare=lambda wanted, k: wanted // k + 1),
        needs="anything",
        note=NO_THREAD,
    ),
    Fault(
        "boundary-repeated",
        "the last token of a block is answered again at the beginning of the next",
        "",
        "at block boundaries",
        "engine",
        lambda _: Steps(answer=_boundary_repeated),
        needs="anything",
        note=NO_THREAD,
    ),
    Fault(
        "length-leak",
        "a block that crosses max_new_tokens is answered whole",
        "sglang #31599",
        "ends: the answer is too long",
        "engine",
        lambda _: Steps(answer=_overrun),
        needs="anything",
        note="breaks the contract, so the case ends as ERROR",
    ),
    Fault(
        "length-drop",
        "a block that crosses max_new_tokens is dropped",
        "sglang #31599",
        "ends: the answer is too short",
        "engine",
        lambda _: Steps(answer=_last_block_lost),
        needs="anything",
        note="breaks the contract, so the case ends as ERROR",
    ),
    Fault(
        "front-dropped",
        "an answer that is too long loses tokens at its beginning instead of its end",
        "sglang #31599",
        "from the first token on",
        "engine",
        lambda _: Steps(answer=_front_lost),
        needs="anything",
    ),
    Fault(
        "outside-vocabulary",
        "now and then the id of a padded column is returned",
        "vllm GHSA-8wr5-jm2h-8r4f",
        "ids outside the vocabulary",
        "engine",
        _outside,
        needs="anything",
        parameter=0.001,
        span=Span(0, 1, "how often"),
    ),
    Fault(
        "disabled",
        "speculation is off, and the rounds are invented",
        "seen in practice",
        "rounds that do not go with the tokens",
        "engine",
        _disabled,
        note="the tokens are exact; only the rounds are not",
    ),
)
