"""The steps of an engine, one by one, so that a fault can be one of them done wrong.

The reference engine does the bookkeeping (prefixes, caches, batches) and leaves to `Steps` what
engines get wrong: the random streams, how a proposal is drawn, how a block is verified, what stays
in the cache, and what is answered. The defaults are the exact algorithm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from conformance.contract import Request
from conformance.decoding import Decoding, Dialect
from conformance.ends import end_of
from conformance.law import Bools, Floats
from conformance.processors import History, apply
from conformance.reference import EXACT, Ints, Rule, draw, verify
from conformance.tinylm import Cache

Round = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Block:
    """All that is known when B blocks of K proposals are verified.

    Parameters
    ----------
    p : (B, K + 1, V) float64
        Target laws at the proposals and after them.
    q : (B, K, V) float64
        Laws the proposals were drawn from.
    drafts : (B, K) int64
        The proposals.
    proposing, coins : (B, K) float64
        Uniforms that drew the proposals, and uniforms that decide acceptance.
    last : (B,) float64
        Uniforms for the recovered or bonus token.
    extra : (B, E) float64
        More uniforms, where `Steps.extra` asks for them.
    target_logits, draft_logits : (B, K + 1, V), (B, K, V) float64
        What p and q were made from.
    decoding : Decoding
        What was asked.
    start : (B,) int64
        Output index of the block's first token.
    prompts : (B, L) int64
        The requests' prompts.
    before : (B,) int64
        The token before the block.
    dialect : Dialect or None
        How the decoding is applied; None for the default.
    further : (B,) bool or None
        Which blocks are of answers beyond their request's first; None for none.
    told, draft_told : (B, K + 1, V), (B, K, V) float64, or None
        Log-probabilities to be returned, and what they would be of the draft; None where they are
        not asked for.
    """

    p: Floats
    q: Floats
    drafts: Ints
    proposing: Floats
    coins: Floats
    last: Floats
    extra: Floats
    target_logits: Floats
    draft_logits: Floats
    decoding: Decoding
    start: Ints
    prompts: Ints
    before: Ints
    dialect: Dialect | None = None
    further: Bools | None = None
    told: Floats | None = None
    draft_told: Floats | None = None

    @property
    def k(self) -> int:
        """Proposals a block."""
        return int(self.drafts.shape[1])

    @property
    def index(self) -> Ints:
        """Output index of every position of the blocks. [B, K + 1]"""
        return np.asarray(self.start[:, None] + np.arange(self.k + 1))


@dataclass(frozen=True, slots=True)
class Emitted:
    """What B blocks emit.

    Parameters
    ----------
    tokens : (B, K + 1) int64
        Padded with -1.
    accepted : (B,) int64
        How many of them are proposals.
    drafted : (B,) int64 or None
        How many proposals the block really had; K by default.
    """

    tokens: Ints
    accepted: Ints
    drafted: Ints | None = None


def law_told(block: Block, emitted: Emitted) -> Floats:
    """The log-probabilities of what blocks emit, each at its own place. [B, K + 1]"""
    assert block.told is not None
    return looked_up(block.told, emitted)


def looked_up(told: Floats, emitted: Emitted, shift: int = 0) -> Floats:
    """A table's numbers, [B, n, V], for the tokens emitted, from so many places on. [B, K + 1]"""
    x = np.maximum(emitted.tokens, 0)
    place = np.clip(np.arange(x.shape[1]) + shift, 0, told.shape[1] - 1)
    return np.asarray(told[np.arange(len(x))[:, None], place, x])


@dataclass(frozen=True, slots=True)
class Written:
    """Everything B requests generated, before it is answered.

    Parameters
    ----------
    tokens : (B, room) int64
        Generated tokens; at least `wanted` plus `Steps.spare` of each row are valid.
    rounds : list of list of (int, int)
        ``(drafted, accepted)`` of every block; a block has ``accepted + 1`` tokens.
    wanted : int
        Tokens the requests asked for.
    prompts : (B, L) int64
        Prompts.
    seeds : tuple of int
        Seeds.
    vocab : int
        Vocabulary size.
    """

    tokens: Ints
    rounds: list[list[Round]]
    wanted: int
    prompts: Ints
    seeds: tuple[int, ...]
    vocab: int


@dataclass(frozen=True, slots=True)
class Filled:
    """Rows of a batch whose blocks have been written to the target's cache.

    Parameters
    ----------
    rows, length : (b,) int64
        Which they are, and how many tokens each has by now.
    lost : (b,) int64
        Proposals of the block that were rejected.
    window : int or None
        Tokens that the target sees, if its window slides.
    """

    rows: Ints
    length: Ints
    lost: Ints
    window: int | None


Answer = tuple[list[int], list[Round]]
# Above the seed of a stream, of 64 bits at most, is the number of the answer that draws from it.
ANSWER_BIT = 64


def each_its_own(seed: int, answers: int) -> tuple[int, ...]:
    """A stream for each of the answers to a request. [answers]"""
    return tuple(seed + (number << ANSWER_BIT) for number in range(answers))


def answer_number(seed: int) -> int:
    """Which answer to its request draws from a stream."""
    return seed >> ANSWER_BIT


def streams(seeds: tuple[int, ...], blocks: int, width: int) -> Floats:
    """Uniforms of B requests, each from a stream of its own seed. [B, blocks, width]"""
    return np.stack(
        [np.random.Generator(np.random.Philox(key=s)).random((blocks, width)) for s in seeds]
    )


def judged(block: Block, rule: Rule = EXACT) -> Emitted:
    """Verify by a rule: `conformance.reference.verify`."""
    return Emitted(*verify(block.p, block.q, block.drafts, block.coins, block.last, rule))


def by_rule(rule: Rule) -> Steps:
    """The exact steps with another acceptance rule."""
    return Steps(verify=lambda block: judged(block, rule))


def stopped(answer: Answer, decoding: Decoding) -> Answer:
    """An answer up to the first token that ends it, with the blocks that made it."""
    return up_to(answer, end_of(answer[0], decoding))


def up_to(answer: Answer, end: int | None) -> Answer:
    """An answer up to an output index, with the blocks that made it; all of it up to None."""
    tokens, rounds = answer
    if end is None:
        return answer
    return tokens[: end + 1], rounds[: blocks_until(rounds, end)]


def blocks_until(rounds: list[Round], index: int) -> int:
    """How many blocks there are up to the one with the token at an output index."""
    reach = np.cumsum([accepted + 1 for _, accepted in rounds])
    return int(np.searchsorted(reach, index + 1)) + 1


def cut(w: Written) -> list[Answer]:
    """The first `wanted` tokens, and the rounds as they were."""
    return [
        (row[: w.wanted], rounds) for row, rounds in zip(w.tokens.tolist(), w.rounds, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Steps:
    """What an engine does at each step; the exact algorithm unless told otherwise.

    Parameters
    ----------
    uniforms : callable
        ``(seeds, blocks, width) -> [B, blocks, width]``: columns are K proposals, K coins, one for
        the recovered or bonus token.
    propose : callable
        ``(q, u) -> x``, [B, V] and [B] -> [B]: one proposal a row.
    verify : callable
        `Block` -> `Emitted`.
    gap, draft_gap : callable or None
        ``(accepted, k) -> [B]``: cache slots of the target, or the draft, that are left between
        the accepted tokens and the next one. 0 is right; a rejected proposal stays in the context
        for every slot above 0, and an accepted token is overwritten for every one below.
    answer : callable
        `Written` -> one answer a request.
    extra : int
        Further uniforms a block, in `Block.extra`.
    spare : callable
        ``(wanted, k) -> tokens`` to generate beyond those asked for, where `answer` loses some.
    process : callable
        ``(logits, history, decoding, target) -> logits``, [b, n, V]: what is done to the logits of
        the target, or the draft, before they are warped.
    counts_rejected : bool
        Whether rejected proposals stay counted by penalties, and in the state of a grammar.
    logprobs : callable
        ``(block, emitted) -> [B, K + 1]``: the log-probabilities returned with what is emitted.
    end : callable
        ``(answer, decoding) -> answer``: where an answer ends.
    road : callable
        ``decoding -> decoding``: what is done where a road to greedy decoding is asked for.
    called : callable
        ``requests -> requests``: what becomes of those of one call before they are answered.
    forked : callable
        ``(seed, answers) -> seeds``: what the answers to one request draw from.
    handed : callable
        ``(answers, beyond) -> answers``: what becomes of those of a batch, when each request's last
        block had tokens beyond its end.
    slots : callable
        ``(rows, first) -> [b]``: where in the cache of a batch the answers are that are not done,
        when ``first``, [B], is where the first answer to the same request is.
    cached : callable or None
        ``(cache, filled)``: what becomes of the target's cache when blocks have been written. None
        leaves it alone.
    window : callable or None
        ``(window, lost) -> [b]``: how many tokens the target sees, of a model with a window, when
        ``lost``, [b], proposals of each row's last block were rejected. None for the window itself.
    """

    uniforms: Callable[[tuple[int, ...], int, int], Floats] = streams
    propose: Callable[[Floats, Floats], Ints] = draw
    verify: Callable[[Block], Emitted] = judged
    gap: Callable[[Ints, int], Ints] | None = None
    draft_gap: Callable[[Ints, int], Ints] | None = None
    answer: Callable[[Written], list[Answer]] = cut
    extra: int = 0
    spare: Callable[[int, int], int] = lambda wanted, k: 0
    process: Callable[[Floats, History, Decoding, bool], Floats] = (
        lambda logits, history, decoding, target: apply(logits, history, decoding)
    )
    counts_rejected: bool = False
    logprobs: Callable[[Block, Emitted], Floats] = law_told
    end: Callable[[Answer, Decoding], Answer] = stopped
    road: Callable[[Decoding], Decoding] = lambda decoding: decoding.taken
    called: Callable[[list[Request]], list[Request]] = list
    forked: Callable[[int, int], tuple[int, ...]] = each_its_own
    handed: Callable[[list[Answer], list[list[int]]], list[Answer]] = lambda answers, beyond: (
        answers
    )
    slots: Callable[[Ints, Ints], Ints] = lambda rows, first: rows
    cached: Callable[[Cache, Filled], None] | None = None
    window: Callable[[int, Ints], Ints] | None = None


EXACT_STEPS = Steps()
