"""Draft tokens, seeds and the arrays a verifier is given: the same in either process.

Blocks are numbered through a law; a *chunk* is a run of whole calls. Everything in a chunk follows
from (run seed, law, chunk number).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from conformance.law import Floats
from conformance.reference import Ints
from conformance.verifier.contract import VerifierCapabilities
from conformance.verifier.grid import Law, Spec

CALL_NUMBERS = 4_000_000  # probabilities one call may carry: 32 MB
CHUNK_NUMBERS = 64_000_000  # and one chunk, call by call
CHUNK_ROWS = 16_384
CHUNK_CALLS = 1024
SIBLINGS = 2  # children of every inner node of a draft tree
DEPTH = 2


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some blocks of one law.

    Parameters
    ----------
    law : str
        Its name.
    number : int
        Counted through the law.
    rows, batch : int
        Blocks in all, and in one call; the last call may be smaller.
    """

    law: str
    number: int
    rows: int
    batch: int

    @property
    def calls(self) -> int:
        """Calls it takes."""
        return -(-self.rows // self.batch)


def numbers_per_row(spec: Spec, tree: bool) -> int:
    """Probabilities that one block is described by."""
    nodes = tree_shape(spec)[0].size if tree else spec.block
    return (2 * nodes + 1) * spec.vocab


def chunks(spec: Spec, rows: int, claims: VerifierCapabilities) -> list[Chunk]:
    """Cut the blocks of a law into chunks."""
    each = numbers_per_row(spec, claims.tree)
    batch = max(1, min(spec.batch, claims.max_batch, CALL_NUMBERS // each))
    most = min(CHUNK_ROWS, max(1, CHUNK_NUMBERS // each), batch * CHUNK_CALLS)
    size = max(1, most // batch) * batch
    return [
        Chunk(spec.name, i, min(size, rows - begin), batch)
        for i, begin in enumerate(range(0, rows, size))
    ]


class Sampler:
    """Inverse-CDF sampling from the rows of a table, one search a token; never a token of law 0.

    Parameters
    ----------
    table : (..., V) float64
        Laws.
    """

    def __init__(self, table: Floats) -> None:
        flat = table.reshape(-1, table.shape[-1])
        self._cdf = np.cumsum(flat, axis=1)
        self._last = flat.shape[1] - 1 - np.argmax(flat[:, ::-1] > 0, axis=1)  # [rows]

    def draw(self, row: Ints, u: Floats) -> Ints:
        """One token for each row number and uniform. [B], [B] -> [B]"""
        out = np.empty(len(row), dtype=np.int64)
        for r in np.unique(row):
            mine = row == r
            cdf = self._cdf[r]
            found = np.searchsorted(cdf, u[mine] * cdf[-1], side="right")
            out[mine] = np.minimum(found, self._last[r])
        return out


def stream(run: int, law: Law, what: str, number: int) -> np.random.Generator:
    """The generator of one chunk, for one purpose."""
    name = zlib.crc32(f"{law.spec.name} {what}".encode())
    return np.random.default_rng([run, name, number])


def call_seeds(run: int, law: Law, chunk: Chunk) -> Ints:
    """A seed in [0, 2**31) for every call, distinct within a law. [calls]"""
    begin = chunk.number * CHUNK_ROWS
    offset = zlib.crc32(f"{run} {law.spec.name} seeds".encode())
    # multiplication by an odd number is one-to-one modulo 2**31
    return np.asarray(((begin + np.arange(chunk.calls)) * 1_000_003_021 + offset) % 2**31)


def proposals(run: int, law: Law, sampler: Sampler, chunk: Chunk) -> Ints:
    """The draft tokens of a chunk of chains. [rows, K]"""
    k, c = law.spec.block, law.spec.contexts
    u = stream(run, law, "draft", chunk.number).random((chunk.rows, k))
    x = np.zeros((chunk.rows, k), dtype=np.int64)
    previous = np.zeros(chunk.rows, dtype=np.int64)
    for i in range(k):
        previous = sampler.draw(i * c + law.context(i, previous), u[:, i])
        x[:, i] = previous
    return x


def given_laws(law: Law, x: Ints) -> tuple[Floats, Floats]:
    """What a verifier of chains is told of some blocks. [B, K + 1, V], [B, K, V]"""
    k = law.spec.block
    at = np.stack(
        [law.context(i, x[:, i - 1] if i else x[:, 0]) for i in range(k + 1)], axis=1
    )  # [B, K + 1]
    steps = np.arange(k + 1)
    return law.target[steps, at], law.draft[steps[:k], at[:, :k]]


# --- trees ----------------------------------------------------------------------------------------


def tree_shape(spec: Spec) -> tuple[Ints, Ints]:
    """Parents and depths of the nodes of a full tree, parents first. [N], [N]"""
    parents: list[int] = []
    depths: list[int] = []
    level = [-1]
    for depth in range(min(DEPTH, spec.block)):
        begin = len(parents)
        parents += [p for p in level for _ in range(SIBLINGS)]
        depths += [depth] * (len(parents) - begin)
        level = list(range(begin, len(parents)))
    return np.array(parents), np.array(depths)


def tree_proposals(run: int, law: Law, sampler: Sampler, chunk: Chunk) -> Ints:
    """The draft tokens of a chunk of trees. [rows, N]

    Siblings are independent draws from the draft's law; where that is one-hot they are the certain
    token and the ones after it, for certain as well.
    """
    parents, depths = tree_shape(law.spec)
    c, v = law.spec.contexts, law.spec.vocab
    u = stream(run, law, "draft", chunk.number).random((chunk.rows, len(parents)))
    x = np.zeros((chunk.rows, len(parents)), dtype=np.int64)
    for n, (parent, depth) in enumerate(zip(parents, depths, strict=True)):
        above = x[:, max(parent, 0)]
        x[:, n] = sampler.draw(int(depth) * c + law.context(int(depth), above), u[:, n])
        if law.spec.certain:
            x[:, n] = (x[:, n] + n % SIBLINGS) % v
    return x


def given_tree(law: Law, x: Ints) -> tuple[Floats, Floats]:
    """What a verifier of trees is told. [B, N + 1, V], [B, N, V]"""
    parents, depths = tree_shape(law.spec)
    p = [law.target[0, np.zeros(len(x), dtype=np.int64)]]
    q = []
    for n, (parent, depth) in enumerate(zip(parents, depths, strict=True)):
        above = law.context(int(depth), x[:, max(parent, 0)])
        if law.spec.certain:  # later siblings are as certain as the first
            one_hot = np.zeros((len(x), law.spec.vocab))
            one_hot[np.arange(len(x)), x[:, n]] = 1.0
            q.append(one_hot)
        else:
            q.append(law.draft[depth, above])
        p.append(law.target[depth + 1, law.context(int(depth) + 1, x[:, n])])
    return np.stack(p, axis=1), np.stack(q, axis=1)
