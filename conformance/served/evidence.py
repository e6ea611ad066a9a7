"""What an arm of a served case answered, on disk: enough to judge it again without the server."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from conformance import columns
from conformance.law import Floats
from conformance.parquet import Meta, Shape, read_table, write_table
from conformance.statistics.tables import Ints
from conformance.statistics.tree import ABSENT

WIDEST = 4096  # symbols of an answer; more than are ever asked for
SYMBOLS = columns.listed("symbols")
SHAPE = Shape(
    "served",
    pa.schema(
        [
            columns.whole("request"),
            columns.whole("prompt"),
            columns.whole("seed", nullable=True),
            SYMBOLS,
            columns.whole("length"),
            columns.whole("drafted", nullable=True),
            columns.whole("accepted", nullable=True),
            columns.whole("batch"),
            columns.real("seconds"),
        ]
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class ServedEvidence:
    """One arm, in the order asked.

    Parameters
    ----------
    symbols : (N, T) int64
        Symbols of each answer: ids or code points, -1 for its end, -2 after it or after a cut.
    prompt, seeds : (N,) int64
        The prompt and the seed of each request; seed -1 for none.
    counts : (N, 2) int64 or None
        Tokens drafted and accepted, where answers tell.
    total : (int, int) or None
        The same for the whole arm, where the server's metrics tell.
    planned : int
        Requests planned.
    seconds : float
        Time waited for the server, all arms together.
    unit : str
        ``"token"`` or ``"character"``.
    texts : tuple of str
        The prompts.
    batch : (N,) int64 or None
        Number of the round each was asked in, all arms together. None: all in one.
    batch_seconds : (N,) float64 or None
        How long that round took.
    case, arm : str
        Whose it is, as its file says.
    """

    symbols: Ints
    prompt: Ints
    seeds: Ints
    counts: Ints | None
    total: tuple[int, int] | None
    planned: int
    seconds: float
    unit: str
    texts: tuple[str, ...]
    batch: Ints | None = None
    batch_seconds: Floats | None = None
    case: str = ""
    arm: str = ""

    @property
    def drafts(self) -> tuple[int, int] | None:
        """Tokens drafted and accepted in all."""
        if self.counts is None:
            return self.total
        drafted, accepted = (int(n) for n in self.counts.sum(axis=0))
        return drafted, accepted

    @property
    def rounds(self) -> tuple[Ints, Floats]:
        """Number and seconds of the round of each request. [N], [N]"""
        n = len(self.symbols)
        if self.batch is None or self.batch_seconds is None:
            return np.zeros(n, np.int64), np.full(n, self.seconds)
        return self.batch, self.batch_seconds

    @property
    def sha256(self) -> str:
        """Checksum of all that is judged."""
        digest = hashlib.sha256()
        for array in (self.symbols, self.prompt, self.seeds, self.counts):
            block = np.zeros((0, 2), np.int64) if array is None else array
            digest.update(str(block.shape).encode())
            digest.update(np.ascontiguousarray(block, dtype="<i8").tobytes())
        digest.update(json.dumps([self.total, self.planned, self.unit, self.texts]).encode())
        return digest.hexdigest()

    def save(self, path: Path, begin: int = 0, more: Mapping[str, Any] | None = None) -> None:
        """Write the file in one step, its checksum in it.

        Parameters
        ----------
        path : Path
            Where.
        begin : int
            Number of the first request; not 0 where this is a part of an arm.
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
            "planned": self.planned,
            "width": self.symbols.shape[1],
            "unit": self.unit,
            "total": self.total,
            "sha256": self.sha256,
            "prompts": self.texts,
        }
        write_table(path, SHAPE, [_columns(self, begin)], meta | dict(more or {}))


def load_served(path: Path, most: int | None = None, begin: int = 0) -> ServedEvidence:
    """Read an arm's evidence.

    Parameters
    ----------
    path : Path
        The file.
    most : int, optional
        Rows it may have.
    begin : int
        The request it must begin with; not 0 for a part.

    Raises
    ------
    EvidenceError
        If the file is missing, damaged, too large, or its checksum is another's.
    """
    return read_served(path, most, begin)[0]


def read_served(path: Path, most: int | None = None, begin: int = 0) -> tuple[ServedEvidence, Meta]:
    """The same, and what the file says of itself."""
    return read_table(path, SHAPE, lambda table, meta: (_made(table, meta, begin), meta), most)


def first_answers(e: ServedEvidence, n: int) -> ServedEvidence:
    """The first n answers of an arm."""
    batch, seconds = e.rounds
    return replace(
        e,
        symbols=e.symbols[:n],
        prompt=e.prompt[:n],
        seeds=e.seeds[:n],
        counts=None if e.counts is None or n == 0 else e.counts[:n],
        batch=batch[:n],
        batch_seconds=seconds[:n],
    )


def continued(first: ServedEvidence, then: ServedEvidence) -> ServedEvidence:
    """Evidence of one arm in two parts, the second after the first."""
    counts = None
    if first.counts is not None or then.counts is not None:
        counts = np.concatenate(
            [
                np.zeros((len(e.symbols), 2), np.int64) if e.counts is None else e.counts
                for e in (first, then)
            ]
        )
    (batch, seconds), (batch_2, seconds_2) = first.rounds, then.rounds
    return replace(
        then,
        symbols=np.concatenate([first.symbols, then.symbols]),
        prompt=np.concatenate([first.prompt, then.prompt]),
        seeds=np.concatenate([first.seeds, then.seeds]),
        counts=counts,
        seconds=first.seconds + then.seconds,
        batch=np.concatenate([batch, batch_2]),
        batch_seconds=np.concatenate([seconds, seconds_2]),
    )


def _columns(e: ServedEvidence, begin: int) -> list[pa.Array]:
    n = len(e.symbols)
    batch, seconds = e.rounds
    nothing = np.full(n, e.counts is None)
    counts = np.zeros((n, 2), np.int64) if e.counts is None else e.counts
    there = e.symbols != ABSENT
    each = there.sum(axis=1)
    return [
        columns.ints(np.arange(begin, begin + n)),
        columns.ints(e.prompt),
        columns.ints(e.seeds, e.seeds == -1),
        columns.lists(columns.ints(e.symbols[there]), each, SYMBOLS),
        columns.ints(each),
        *(columns.ints(counts[:, i], nothing) for i in (0, 1)),
        columns.ints(batch),
        columns.floats(seconds),
    ]


def _made(table: pa.Table, meta: Meta, begin: int) -> ServedEvidence:
    n = columns.consecutive(table["request"], columns.count(meta, "begin"), begin)
    width, planned = columns.count(meta, "width"), columns.count(meta, "planned")
    if width > WIDEST or planned < begin + n:
        raise ValueError(f"answers of {width:,} symbols, {begin + n:,} of {planned:,} planned")
    symbols = columns.padded(table["symbols"], width, ABSENT)
    if not np.array_equal(columns.numbers(table["length"]), (symbols != ABSENT).sum(axis=1)):
        raise ValueError("a length is not that of the symbols")
    texts = meta.get("prompts")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("its prompts are no texts")
    prompt, seeds = columns.numbers(table["prompt"]), columns.numbers(table["seed"], missing=-1)
    if (
        min(prompt.min(initial=0), seeds.min(initial=-1) + 1) < 0
        or prompt.max(initial=-1) >= len(texts)
        or symbols.min(initial=0) < ABSENT
    ):
        raise ValueError("a prompt, a seed or a symbol is none")
    batch, seconds = columns.numbers(table["batch"]), columns.reals(table["seconds"])
    columns.timed(batch, seconds)
    made = ServedEvidence(
        symbols=symbols,
        prompt=prompt,
        seeds=seeds,
        counts=columns.pairs(table["drafted"], table["accepted"]),
        total=_total(meta.get("total")),
        planned=planned,
        seconds=columns.total(batch, seconds),
        unit=columns.words(meta, "unit"),
        texts=tuple(texts),
        batch=batch,
        batch_seconds=seconds,
        case=columns.words(meta, "case"),
        arm=columns.words(meta, "arm"),
    )
    if made.sha256 != meta.get("sha256"):
        raise ValueError("it is not what was written: its checksum is another")
    return made


def _total(said: object) -> tuple[int, int] | None:
    if said is None:
        return None
    if not isinstance(said, list) or len(said) != 2 or {type(n) for n in said} != {int}:
        raise ValueError("its total is no pair of counts")
    drafted, accepted = said
    return drafted, accepted
