"""Evidence of a verifier: the tokens it emitted, law by law, in one Parquet file.

A row is a block: of a law, of an edge case, or of the first calls made again. Blocks come in chunks
from several processes, so a file that is gone on from may have gaps; what is judged of a law ends
at the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from conformance import columns
from conformance.parquet import ROWS_AT_ONCE, Meta, Shape, read_table, write_table
from conformance.reference import Ints

LAW, EDGE, AGAIN = KINDS = ("law", "edge", "again")
MOST_RUNS = 100_000
TOKENS = columns.listed("tokens", pa.int32())
SHAPE = Shape(
    "verifier",
    pa.schema(
        [
            columns.text("kind"),
            columns.text("name"),
            columns.whole("row"),
            columns.whole("call"),
            TOKENS,
        ]
    ),
)


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive blocks of one law or edge case.

    Parameters
    ----------
    kind, name : str
        ``"law"``, ``"edge"`` or ``"again"``, and of which.
    begin : int
        Number of the first.
    tokens : (n, K + 1) int64
        What was emitted.
    """

    kind: str
    name: str
    begin: int
    tokens: Ints

    @property
    def end(self) -> int:
        """Number of the block after them."""
        return self.begin + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Stored:
    """What a file holds, in the order it came.

    Parameters
    ----------
    rows : tuple of Rows
        The blocks.
    run, law_seed : int
        What draft tokens, seeds and laws follow from.
    batch : mapping of str to int
        Blocks a call carried, by law.
    refused : mapping of str to str
        Laws and edge cases the verifier refused out loud, and how.
    seconds : float
        Time inside the verifier, up to the end of this file.
    case, arm : str
        Whose it is.
    """

    rows: tuple[Rows, ...]
    run: int
    law_seed: int
    batch: Mapping[str, int]
    refused: Mapping[str, str]
    seconds: float
    case: str = ""
    arm: str = ""

    @property
    def size(self) -> int:
        """Blocks in all."""
        return sum(len(r.tokens) for r in self.rows)

    @property
    def sha256(self) -> str:
        """Checksum of all that is judged, whatever order it came in."""
        digest = hashlib.sha256()
        for r in joined(self.rows):
            of = "" if r.kind == AGAIN else r.name  # always of the first law
            digest.update(f"{r.kind} {of} {r.begin} {r.tokens.shape}".encode())
            digest.update(np.ascontiguousarray(r.tokens, dtype="<i8").tobytes())
        told = (self.run, self.law_seed, sorted(self.batch.items()), sorted(self.refused.items()))
        digest.update(str(told).encode())
        return digest.hexdigest()

    def save(self, path: Path, begin: int = 0, more: Mapping[str, Any] | None = None) -> None:
        """Write the file, or leave what was there.

        Parameters
        ----------
        path : Path
            Where.
        begin : int
            Blocks that were saved before these.
        more : mapping, optional
            What else the file is to say of itself.

        Raises
        ------
        EvidenceError
            If it cannot be written.
        """
        meta = {
            "case": self.case,
            "arm": self.arm,
            "begin": begin,
            "run": self.run,
            "law_seed": self.law_seed,
            "batch": dict(self.batch),
            "refused": dict(self.refused),
            "seconds": self.seconds,
            "sha256": self.sha256,
        }
        groups = (_columns(r, self.batch) for whole in self.rows for r in _cut(whole))
        write_table(path, SHAPE, groups, meta | dict(more or {}))


@dataclass(frozen=True, slots=True)
class VerifierEvidence:
    """Everything a verifier emitted in one case.

    Parameters
    ----------
    run, law_seed : int
        What draft tokens, seeds and laws follow from.
    tokens : dict of str to (N, K + 1) int64
        Emitted tokens by law, in the order of the blocks.
    batch : dict of str to int
        Blocks a call carried, by law.
    edges : dict of str to (R, K + 1) int64
        Answers to the edge cases that were asked.
    again : (n, K + 1) int64 or None
        The first chunk of the first law, asked once more; None where not asked.
    refused : dict of str to str
        Laws the verifier refused out loud, and how.
    seconds : float
        Time inside the verifier.
    case, arm : str
        Whose it is, as its file says.
    """

    run: int
    law_seed: int
    tokens: dict[str, Ints]
    batch: dict[str, int]
    edges: dict[str, Ints]
    again: Ints | None
    refused: dict[str, str]
    seconds: float
    case: str = ""
    arm: str = ""

    @property
    def stored(self) -> Stored:
        """As it lies on disk."""
        rows = [Rows(LAW, name, 0, tokens) for name, tokens in self.tokens.items()]
        rows += [Rows(EDGE, name, 0, tokens) for name, tokens in self.edges.items()]
        if self.again is not None:
            rows.append(Rows(AGAIN, next(iter(self.tokens), ""), 0, self.again))
        return Stored(
            rows=tuple(rows),
            run=self.run,
            law_seed=self.law_seed,
            batch=self.batch,
            refused=self.refused,
            seconds=self.seconds,
            case=self.case,
            arm=self.arm,
        )

    @property
    def sha256(self) -> str:
        """Checksum of all that is judged."""
        return self.stored.sha256

    def save(self, path: Path, more: Mapping[str, Any] | None = None) -> None:
        """Write the file, or leave what was there; see `Stored.save`."""
        self.stored.save(path, more=more)


def load_verifier_evidence(path: Path, most: int | None = None) -> VerifierEvidence:
    """Read a verifier's evidence.

    Parameters
    ----------
    path : Path
        The file.
    most : int, optional
        Blocks it may have, edge cases and repetitions among them.

    Raises
    ------
    EvidenceError
        If the file is missing, damaged, too large or of another format.
    """
    return read_verifier_evidence(path, most)[0]


def read_verifier_evidence(path: Path, most: int | None = None) -> tuple[VerifierEvidence, Meta]:
    """The same, and what the file says of itself."""
    stored, meta = read_stored(path, most)
    return assembled(stored), meta


def read_stored(path: Path, most: int | None = None, begin: int = 0) -> tuple[Stored, Meta]:
    """A file as it lies on disk, and what it says of itself.

    Raises
    ------
    EvidenceError
        As `load_verifier_evidence`.
    """
    return read_table(path, SHAPE, lambda table, meta: (_made(table, meta, begin), meta), most)


def assembled(stored: Stored) -> VerifierEvidence:
    """What is judged: of every law and edge case its blocks up to the first that is missing."""
    found: dict[str, dict[str, Ints]] = {kind: {} for kind in KINDS}
    for r in stored.rows:
        found[r.kind].setdefault(r.name, r.tokens[:0])  # in the order they came
    for r in joined(stored.rows):
        if r.begin == 0:
            found[r.kind][r.name] = r.tokens
    tokens = {name: t for name, t in found[LAW].items() if len(t)}
    return VerifierEvidence(
        run=stored.run,
        law_seed=stored.law_seed,
        tokens=tokens,
        batch={name: stored.batch[name] for name in tokens},
        edges={name: t for name, t in found[EDGE].items() if len(t)},
        again=next((t for t in found[AGAIN].values() if len(t)), None),
        refused=dict(stored.refused),
        seconds=stored.seconds,
        case=stored.case,
        arm=stored.arm,
    )


def joined(rows: Iterable[Rows]) -> Iterator[Rows]:
    """Rows in the order of their numbers, those that follow each other in one.

    Raises
    ------
    ValueError
        If one is there twice, or they have different lengths.
    """
    ordered = sorted((r for r in rows if len(r.tokens)), key=lambda r: (r.kind, r.name, r.begin))
    run: list[Rows] = []
    for r in ordered:
        if run and (r.kind, r.name) == (run[-1].kind, run[-1].name):
            if r.begin < run[-1].end:
                raise ValueError(f"block {r.begin} of {r.name} is there twice")
            if r.tokens.shape[1] != run[-1].tokens.shape[1]:
                raise ValueError(f"blocks of {r.name} have different lengths")
            if r.begin == run[-1].end:
                run.append(r)
                continue
        yield from _one(run)
        run = [r]
    yield from _one(run)


def _one(run: Sequence[Rows]) -> Iterator[Rows]:
    if len(run) == 1:
        yield run[0]
    elif run:
        yield replace(run[0], tokens=np.concatenate([r.tokens for r in run]))


def _cut(rows: Rows) -> Iterator[Rows]:
    for at in range(0, len(rows.tokens), ROWS_AT_ONCE):
        yield replace(rows, begin=rows.begin + at, tokens=rows.tokens[at : at + ROWS_AT_ONCE])


def _columns(rows: Rows, batch: Mapping[str, int]) -> list[pa.Array]:
    n, width = rows.tokens.shape
    number = np.arange(rows.begin, rows.end)
    tokens = pa.array(rows.tokens.ravel().astype(np.int32), pa.int32())
    return [
        pa.repeat(pa.scalar(rows.kind), n),
        pa.repeat(pa.scalar(rows.name), n),
        columns.ints(number),
        columns.ints(number // _blocks_a_call(rows.kind, rows.name, batch)),
        columns.lists(tokens, np.full(n, width), TOKENS),
    ]


def _blocks_a_call(kind: str, name: str, batch: Mapping[str, int]) -> int:
    """Edge cases are asked in ways of their own; they count as one call."""
    return 2**31 if kind == EDGE else batch.get(name, 2**31)


def _made(table: pa.Table, meta: Meta, begin: int) -> Stored:
    if columns.count(meta, "begin") != begin:
        raise ValueError(f"its rows are not those from number {begin} on")
    batch = _mapping(meta, "batch", int)
    if any(not 0 < n < 2**31 for n in batch.values()):
        raise ValueError("a call of no blocks")
    rows = tuple(_rows(table, batch))
    run, law_seed = (_seed(meta, key) for key in ("run", "law_seed"))
    made = Stored(
        rows=rows,
        run=run,
        law_seed=law_seed,
        batch=batch,
        refused=_mapping(meta, "refused", str),
        seconds=columns.seconds(meta),
        case=columns.words(meta, "case"),
        arm=columns.words(meta, "arm"),
    )
    if made.sha256 != meta.get("sha256"):
        raise ValueError("it is not what was written: its checksum is another")
    return made


def _seed(meta: Meta, key: str) -> int:
    said = meta.get(key)
    if type(said) is not int or said < 0:
        raise ValueError(f"its {key} is {said!r:.60}, which is no seed")
    return said


def _mapping(meta: Meta, key: str, kind: type) -> dict[str, Any]:
    said = meta.get(key)
    if not isinstance(said, dict) or any(type(value) is not kind for value in said.values()):
        raise ValueError(f"its {key} cannot be read")
    return said


def _rows(table: pa.Table, batch: Mapping[str, int]) -> Iterator[Rows]:
    if table.num_rows == 0:
        return
    number, call = columns.numbers(table["row"]), columns.numbers(table["call"])
    each, values = columns.lengths(table["tokens"])
    kinds, names = columns.one(table["kind"]), columns.one(table["name"])
    codes = [np.asarray(c.indices.to_numpy(zero_copy_only=False)) for c in (kinds, names)]
    ends = np.concatenate([[0], np.cumsum(each)])
    new = np.ones(len(number) + 1, dtype=np.bool_)
    new[1:-1] = (np.diff(number) != 1) | (np.diff(each) != 0)
    for code in codes:
        new[1:-1] |= np.diff(code) != 0
    at = np.flatnonzero(new)
    if len(at) > MOST_RUNS:
        raise ValueError("its blocks are in no order")
    flat = values.to_numpy(zero_copy_only=False)
    for a, b in pairwise(at.tolist()):
        kind, name = (c[a].as_py() for c in (kinds, names))
        if kind not in KINDS or number[a] < 0:
            raise ValueError(f"a block of kind {kind!r:.40}, number {number[a]}")
        if kind == LAW and name not in batch:
            raise ValueError(f"law {name!r:.40} has no number of blocks a call")
        if not np.array_equal(call[a:b], number[a:b] // _blocks_a_call(kind, name, batch)):
            raise ValueError(f"blocks of {name!r:.40} are in other calls than they should be")
        tokens = np.array(flat[ends[a] : ends[b]], dtype=np.int64).reshape(b - a, int(each[a]))
        yield Rows(kind, name, int(number[a]), tokens)
