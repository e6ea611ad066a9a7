"""Which block, and which place in it, every token came from, as the engine's rounds tell it."""

from __future__ import annotations

import numpy as np

from conformance.evidence import Evidence
from conformance.law import Bools, Floats
from conformance.tinylm import Tokens

PLAIN, FIRST, LATER, BONUS = range(4)


def block_places(evidence: Evidence) -> tuple[Tokens, Tokens, Bools] | None:
    """Place every token in its block; None without rounds.

    Returns
    -------
    kind : (N, T) int64
        `PLAIN` (no proposal was made there), `FIRST` or `LATER` (a proposal was verified there:
        the first of its block or a later one), or `BONUS`.
    position : (N, T) int64
        Position in the block, from 0.
    accepted : (N, T) bool
        Whether the proposal was accepted; False at a recovered, bonus or plain token.
    """
    if evidence.rounds is None:
        return None
    n, length = evidence.tokens.shape
    rounds = evidence.rounds[np.argsort(evidence.rounds[:, 0], kind="stable")]
    request, drafted, kept = rounds.T
    size = kept + 1
    # where each block begins: what its request's earlier blocks emitted
    ends = np.cumsum(size)
    before = ends - size
    first = np.searchsorted(request, request, side="left")
    begin = before - before[first]
    block = np.repeat(np.arange(len(size)), size)
    position_of = np.arange(int(size.sum())) - np.repeat(before, size)
    row, at = request[block], begin[block] + position_of
    inside = (at < length) & (row < n)
    row, at, block, place = row[inside], at[inside], block[inside], position_of[inside]
    kind = np.full((n, length), PLAIN, dtype=np.int64)
    position = np.zeros((n, length), dtype=np.int64)
    accepted = np.zeros((n, length), dtype=bool)
    verified = place < drafted[block]
    kind[row, at] = np.where(
        verified, np.where(place == 0, FIRST, LATER), np.where(drafted[block] > 0, BONUS, PLAIN)
    )
    position[row, at] = place
    accepted[row, at] = place < kept[block]
    return kind, position, accepted


def slanted(u: Floats, first: Bools) -> tuple[Floats, Bools]:
    """Arrange the first tokens of blocks so that neighbours along the first axis are a block of one
    request and the next block of the request before.

    Parameters
    ----------
    u : (N, T) float64
        A number for every token.
    first : (N, T) bool
        The first tokens of blocks.

    Returns
    -------
    u : (B, N + B) float64
        Entry (k, c) belongs to block k of request c - k.
    there : (B, N + B) bool
        Whether there is such a block.
    """
    number = np.cumsum(first, axis=1) - 1  # of the block, at its first token
    n, blocks = len(u), int(number.max(initial=-1)) + 1
    request, index = np.nonzero(first)
    block = number[request, index]
    out, there = np.zeros((blocks, n + blocks)), np.zeros((blocks, n + blocks), dtype=bool)
    out[block, request + block] = u[request, index]
    there[block, request + block] = True
    return out, there
