"""One law's evidence made ready for tests: checked for form, completed, and tied to the law.

A block that stops early is completed by our own draws from p, so that every block is a string of
the same length, and the string has exactly the product law.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from conformance.law import Bools, Floats
from conformance.reference import Ints
from conformance.statistics.pit import draft_key, mass_before, randomised
from conformance.verifier import draws
from conformance.verifier.contract import PAD, VerifierCapabilities
from conformance.verifier.grid import Law
from conformance.verifier.plan import length

SHOWN = 3


@dataclass(frozen=True, slots=True)
class Strike:
    """Something no exact verifier does, with how often it was seen and the first examples."""

    what: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LawSample:
    """The blocks of one law.

    Parameters
    ----------
    law : Law
        What they were held to.
    tokens : (N, L) int64
        Completed strings of the blocks that are well formed.
    emitted : (N,) int64
        How many of a string's tokens the verifier emitted.
    proposed : (N, K) int64
        The draft tokens.
    row : (N,) int64
        Number of the block.
    prefix : (N, L) int64
        Row of `target` that each token is held to: position times C plus context.
    strikes : tuple of Strike
        What was wrong with the others, and tokens of probability 0.
    """

    law: Law
    tokens: Ints
    emitted: Ints
    proposed: Ints
    row: Ints
    prefix: Ints
    strikes: tuple[Strike, ...]

    @property
    def target(self) -> Floats:
        """P by position and context. [L C, V]"""
        p = self.law.target[: self.tokens.shape[1]]
        return p.reshape(-1, p.shape[-1])

    @property
    def draft(self) -> Floats:
        """Q likewise; the bonus position, which has none, has that of the one before. [L C, V]"""
        q = self.law.draft[: self.tokens.shape[1] - 1]
        return np.concatenate([q, q[-1:]]).reshape(-1, q.shape[-1])

    @property
    def judged(self) -> Bools:
        """Tokens that are judged by themselves: those the verifier emitted. [N, L]

        Each is a draw from p given the past and given that it was emitted, whatever the rule, if
        only the completed string has the law: the probability of a beginning h followed by x is
        P(h, not continued) p(x | h) + P(h, continued by x), and has to be P(h) p(x | h); so
        P(h, continued by x) = P(h, continued) p(x | h). That includes block verification.
        """
        return np.asarray(np.arange(self.tokens.shape[1]) < self.emitted[:, None])

    def transforms(self, use: Bools, rng: np.random.Generator) -> dict[str, Floats]:
        """The probability integral transform of the tokens used, in both rankings."""
        prefix, token = self.prefix[use], self.tokens[use]
        p, q = self.target, self.draft
        mass, v = p[prefix, token], rng.random(len(token))
        keys = {"PIT by p": p, "PIT by q/p": draft_key(p, q)}
        return {
            name: randomised(mass_before(prefix, token, p, key), mass, v)
            for name, key in keys.items()
        }


def law_sample(
    law: Law, tokens: Ints, claims: VerifierCapabilities, run: int, batch: int
) -> LawSample:
    """Prepare the evidence of one law.

    Parameters
    ----------
    law : Law
        The law, made by this process.
    tokens : (N, W) int64
        What the verifier emitted.
    claims : VerifierCapabilities
        What it claims.
    run : int
        The run's seed, from which the draft tokens follow.
    batch : int
        Blocks a call carried.
    """
    width = length(law.spec, claims)
    proposals, u = _proposals(law, claims, run, len(tokens), width)
    end = _emitted(tokens)
    wrong = dict(_malformed(law, tokens, end, proposals, claims, width))
    bad = np.zeros(len(tokens), dtype=bool)
    strikes = []
    for what, rows in wrong.items():
        fresh = rows & ~bad
        bad |= rows
        if fresh.any():
            strikes.append(_strike(law, what, fresh, tokens, proposals, batch))
    row = np.flatnonzero(~bad)
    x, n = tokens[row][:, :width].copy(), end[row]
    prefix = _complete(law, x, n, u[row])
    possible = _possible(law, claims, width)
    seen = np.arange(width) < n[:, None]
    impossible = seen & ~possible[prefix, np.where(seen, x, 0)]
    if impossible.any():
        at = np.flatnonzero(impossible.any(axis=1))
        hit = np.zeros(len(tokens), dtype=bool)
        hit[row[at]] = True
        what = "not the argmax" if claims.greedy else "a token of probability 0"
        strikes.append(_strike(law, what, hit, tokens, proposals, batch))
    return LawSample(law, x, n, proposals[row], row, prefix, tuple(strikes))


def _proposals(
    law: Law, claims: VerifierCapabilities, run: int, rows: int, width: int
) -> tuple[Ints, Floats]:
    """Draft tokens, [N, K], and the uniforms of our own draws, [N, L]."""
    sampler = draws.Sampler(law.draft)
    make = draws.tree_proposals if claims.tree else draws.proposals
    x, u = [], []
    for chunk in draws.chunks(law.spec, rows, claims):
        x.append(make(run, law, sampler, chunk))
        u.append(draws.stream(run, law, "completion", chunk.number).random((chunk.rows, width)))
    return np.concatenate(x), np.concatenate(u)


def _emitted(tokens: Ints) -> Ints:
    """Tokens before the first padding. [N]"""
    padded = tokens == PAD
    return np.asarray(np.where(padded.any(axis=1), padded.argmax(axis=1), tokens.shape[1]))


def _malformed(
    law: Law, tokens: Ints, end: Ints, proposals: Ints, claims: VerifierCapabilities, width: int
) -> Iterator[tuple[str, Bools]]:
    """What is wrong with the form of an answer, and in which rows."""
    inside = np.arange(tokens.shape[1]) < end[:, None]
    yield "emitted nothing", np.asarray(end == 0)
    yield "a token after padding", np.asarray((~inside & (tokens != PAD)).any(axis=1))
    outside = inside & ((tokens < 0) | (tokens >= law.spec.vocab))
    yield "an id outside the vocabulary", np.asarray(outside.any(axis=1))
    yield f"more than {width} tokens", np.asarray(end > width)
    # what follows a token was verified with the laws that follow its proposal, and no others
    if claims.tree:
        gone = ~_on_path(law, tokens, end, proposals, width)
    else:
        k = proposals.shape[1]
        before_last = np.arange(k) < (end - 1)[:, None]
        gone = (before_last & (tokens[:, :k] != proposals)).any(axis=1)
    yield "went on after a token that was not proposed", gone


def _on_path(law: Law, tokens: Ints, end: Ints, proposals: Ints, width: int) -> Bools:
    """Whether all tokens but the last are a path of the tree, from its root. [N]"""
    parents, depths = draws.tree_shape(law.spec)
    reached = np.zeros(proposals.shape, dtype=bool)
    for n, (parent, depth) in enumerate(zip(parents, depths, strict=True)):
        above = reached[:, parent] if parent >= 0 else True
        reached[:, n] = above & (proposals[:, n] == tokens[:, depth])
    ok = np.ones(len(tokens), dtype=bool)
    for depth in range(width - 1):
        at = reached[:, depths == depth].any(axis=1)
        ok &= at | (end - 1 <= depth)
    return ok


def _complete(law: Law, x: Ints, n: Ints, u: Floats) -> Ints:
    """Draw, in place, the tokens after the emitted ones; the law each token is held to. [N, L]"""
    c = law.spec.contexts
    sampler = draws.Sampler(law.target)
    prefix = np.zeros(x.shape, dtype=np.int64)
    for i in range(x.shape[1]):
        previous = x[:, i - 1] if i else np.zeros(len(x), dtype=np.int64)
        prefix[:, i] = i * c + law.context(i, previous)
        open_ = n <= i
        x[open_, i] = sampler.draw(prefix[open_, i], u[open_, i])
    return prefix


def _possible(law: Law, claims: VerifierCapabilities, width: int) -> Bools:
    p = law.target[:width].reshape(-1, law.spec.vocab)
    return np.asarray(p == p.max(axis=1, keepdims=True) if claims.greedy else p > 0)


def _strike(law: Law, what: str, rows: Bools, tokens: Ints, x: Ints, batch: int) -> Strike:
    examples = tuple(
        f"law {law.spec.name}, call {r // batch}, row {r % batch}: {what}; proposed "
        f"{x[r].tolist()}, emitted {tokens[r].tolist()}"
        for r in np.flatnonzero(rows)[:SHOWN]
    )
    return Strike(what, int(rows.sum()), examples)
