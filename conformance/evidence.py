"""Evidence: the tokens an arm produced, with what the engine said of its rounds.

One Parquet file an arm, one row a request, for anybody to open. Judging reads nothing else of the
engine, so that whoever has the evidence can recompute the verdict.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from conformance import columns
from conformance.law import Bools, Floats
from conformance.parquet import Meta, Shape, read_table, write_table
from conformance.tinylm import Tokens
from conformance.wire import MOST_DRAFTED

PAIR = pa.struct([columns.whole("drafted"), columns.whole("accepted")])
TOKENS = columns.listed("tokens")
ROUNDS = columns.listed("rounds", PAIR, nullable=True)
LOGPROBS = columns.listed("logprobs", columns.FLOAT)
ANSWER = columns.whole("answer")
SHAPE = Shape(
    "engine",
    pa.schema(
        [
            columns.whole("request"),
            columns.whole("prompt"),
            columns.whole("question", nullable=True),
            columns.whole("seed", nullable=True),
            TOKENS,
            columns.whole("length"),
            ROUNDS,
            columns.whole("drafted", nullable=True),
            columns.whole("accepted", nullable=True),
            columns.whole("batch"),
            columns.real("seconds"),
        ]
    ),
    pa.schema([LOGPROBS, ANSWER]),
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One arm of one case.

    Parameters
    ----------
    tokens : (N, T) int64
        Emitted tokens, as the engine returned them.
    prompt : (N,) int64
        Which prompt each request had.
    seeds : (N,) int64
        The seed each request was given; -1 for none.
    rounds : (M, 3) int64 or None
        ``(request, drafted, accepted)`` for every block, in the order of the requests; None where
        the engine did not report.
    seconds : float
        Time inside the engine.
    planned : int
        Requests planned; more than N where the engine failed on the way.
    counts : (N, 2) int64 or None
        Tokens drafted and accepted, of an engine that tells no rounds; only their sums mean
        anything. None where it does not count either.
    batch : (N,) int64 or None
        Number of the batch each request was answered in, never falling. None: all in one.
    batch_seconds : (N,) float64 or None
        Time inside the engine of that batch; `seconds` is the sum over batches.
    question : (N,) int64 or None
        A digest of what was asked, prompt, tokens wanted and decoding, as
        `conformance.gather.questions` makes it. None where it was not kept.
    case, arm : str
        Whose it is, as its file says.
    lengths : (N,) int64 or None
        How many tokens each request asked for; an answer goes on with its last token, to T. None
        where all asked for T.
    logprobs : (N, T) float64 or None
        Log-probabilities of the tokens, as the engine returned them; NaN where it returned none
        for a request. None where none were returned at all.
    answer : (N,) int64 or None
        Which answer to its question each one is, from 0. None where every question was given one.
    """

    tokens: Tokens
    prompt: Tokens
    seeds: Tokens
    rounds: Tokens | None
    seconds: float
    planned: int
    counts: Tokens | None = None
    batch: Tokens | None = None
    batch_seconds: Floats | None = None
    question: Tokens | None = None
    case: str = ""
    arm: str = ""
    logprobs: Floats | None = None
    lengths: Tokens | None = None
    answer: Tokens | None = None

    @property
    def answer_of(self) -> Tokens:
        """Which answer to its question each one is. [N]"""
        return np.zeros(len(self.tokens), np.int64) if self.answer is None else self.answer

    @property
    def asked_for(self) -> Tokens:
        """How many tokens each request asked for. [N]"""
        n, width = self.tokens.shape
        return np.full(n, width) if self.lengths is None else self.lengths

    @property
    def sha256(self) -> str:
        """Checksum over all that is judged, and none of the times."""
        n = len(self.tokens)
        # of no answers nothing is missing
        rounds = np.zeros((0, 3), np.int64) if n == 0 else self.rounds
        counts = None if n == 0 else self.counts
        question = np.zeros(0, np.int64) if n == 0 else self.question
        digest = hashlib.sha256()
        for array in (self.tokens, self.prompt, self.seeds, rounds, counts, question):
            block = np.zeros((0, 3), np.int64) if array is None else array
            digest.update(str(block.shape).encode())
            digest.update(np.ascontiguousarray(block, dtype="<i8").tobytes())
        told = (*(a is not None for a in (rounds, counts, question)), self.planned)
        digest.update(str(told).encode())
        if self.lengths is not None and n:
            digest.update(np.ascontiguousarray(self.lengths, dtype="<i8").tobytes())
        if self.logprobs is not None and n:  # a column that evidence once did not have
            # one NaN is like another
            plain = np.where(np.isnan(self.logprobs), np.nan, self.logprobs)
            digest.update(np.ascontiguousarray(plain, dtype="<f8").tobytes())
        if self.answer is not None and n:
            digest.update(np.ascontiguousarray(self.answer, dtype="<i8").tobytes())
        return digest.hexdigest()

    def save(self, path: Path, begin: int = 0, more: Mapping[str, Any] | None = None) -> None:
        """Write the file, or leave what was there.

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
            "width": self.tokens.shape[1],
            "sha256": self.sha256,
        }
        there = {LOGPROBS.name: self.logprobs is not None, ANSWER.name: self.answer is not None}
        extra = tuple(name for name, some in there.items() if some)
        write_table(path, SHAPE, [_columns(self, begin)], meta | dict(more or {}), extra)


def load_evidence(path: Path, most: int | None = None, begin: int = 0) -> Evidence:
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
        If the file is missing, damaged, too large, of another format, or its columns do not fit
        together.
    """
    return read_evidence(path, most, begin)[0]


def read_evidence(path: Path, most: int | None = None, begin: int = 0) -> tuple[Evidence, Meta]:
    """The same, and what the file says of itself."""
    return read_table(path, SHAPE, lambda table, meta: (_made(table, meta, begin), meta), most)


def _columns(e: Evidence, begin: int) -> list[pa.Array]:
    n = len(e.tokens)
    batch, seconds = _batches(e)
    nothing = np.ones(n, dtype=np.bool_)
    counts = np.zeros((n, 2), np.int64) if e.counts is None else e.counts
    question = np.zeros(n, np.int64) if e.question is None else e.question
    return [
        columns.ints(np.arange(begin, begin + n)),
        columns.ints(e.prompt),
        columns.ints(question, nothing if e.question is None else None),
        columns.ints(e.seeds, e.seeds == -1),
        columns.rows(e.tokens, TOKENS),
        columns.ints(e.asked_for),
        _round_column(e),
        *(columns.ints(counts[:, i], nothing if e.counts is None else None) for i in (0, 1)),
        columns.ints(batch),
        columns.floats(seconds),
        *([] if e.logprobs is None else [columns.real_rows(e.logprobs, LOGPROBS)]),
        *([] if e.answer is None else [columns.ints(e.answer)]),
    ]


def _round_column(e: Evidence) -> pa.Array:
    rounds = np.zeros((0, 3), np.int64) if e.rounds is None else e.rounds
    if (np.diff(rounds[:, 0]) < 0).any():
        raise ValueError("rounds must be in the order of the requests")
    pairs = pa.StructArray.from_arrays(
        [columns.ints(rounds[:, 1]), columns.ints(rounds[:, 2])], fields=list(PAIR)
    )
    each = np.bincount(rounds[:, 0], minlength=len(e.tokens))
    missing = np.full(len(e.tokens), e.rounds is None)
    return columns.lists(pairs, each, ROUNDS, missing)


def _made(table: pa.Table, meta: Meta, begin: int) -> Evidence:
    n = columns.consecutive(table["request"], columns.count(meta, "begin"), begin)
    width, planned = columns.count(meta, "width"), columns.count(meta, "planned")
    if planned < begin + n:
        raise ValueError(f"it has {begin + n:,} requests of {planned:,} planned")
    tokens = columns.matrix(table["tokens"], width)
    lengths = columns.numbers(table["length"])
    check_lengths(tokens, lengths)
    prompt, seeds = columns.numbers(table["prompt"]), columns.numbers(table["seed"], missing=-1)
    if min(prompt.min(initial=0), seeds.min(initial=-1) + 1) < 0:
        raise ValueError("a prompt, or a seed, is negative")
    batch, seconds = columns.numbers(table["batch"]), columns.reals(table["seconds"])
    columns.timed(batch, seconds)
    made = Evidence(
        tokens=tokens,
        prompt=prompt,
        seeds=seeds,
        rounds=_rounds(table["rounds"]),
        seconds=columns.total(batch, seconds),
        planned=planned,
        counts=columns.pairs(table["drafted"], table["accepted"]),
        batch=batch,
        batch_seconds=seconds,
        question=columns.all_or_none(table["question"]),
        case=columns.words(meta, "case"),
        arm=columns.words(meta, "arm"),
        lengths=uneven(lengths, width),
        logprobs=columns.real_matrix(table["logprobs"], width)
        if "logprobs" in table.column_names and n
        else None,
        answer=_answers(table),
    )
    if made.sha256 != meta.get("sha256"):
        raise ValueError("it is not what was written: its checksum is another")
    return made


def _answers(table: pa.Table) -> Tokens | None:
    if ANSWER.name not in table.column_names or table.num_rows == 0:
        return None
    answer = columns.numbers(table[ANSWER.name])
    # each begins a question, or goes on with it
    if answer[0] != 0 or not ((answer[1:] == 0) | (np.diff(answer) == 1)).all():
        raise ValueError("its answers are not numbered from 0 on")
    return several(answer)


def _rounds(column: pa.ChunkedArray) -> Tokens | None:
    if column.null_count:
        return None
    each, pairs = columns.lengths(column)
    rounds = np.column_stack([np.repeat(np.arange(len(each)), each), *_pair(pairs.flatten())])
    columns.fit(rounds[:, 1], rounds[:, 2], MOST_DRAFTED)
    return rounds


def _pair(fields: Sequence[pa.Array]) -> list[Tokens]:
    return [np.array(f.to_numpy(zero_copy_only=False), dtype=np.int64) for f in fields]


def check_lengths(tokens: Tokens, lengths: Tokens) -> None:
    """Refuse lengths that cannot be, and tokens beyond them that are no padding. [N, T], [N]"""
    n, width = tokens.shape
    if n and not ((lengths >= 1) & (lengths <= width)).all():
        raise ValueError("a length is not that of the tokens")
    beyond = np.arange(width) >= lengths[:, None]
    if (tokens != tokens[np.arange(n), lengths - 1][:, None])[beyond].any():
        raise ValueError("an answer is longer than its length")


def uneven(lengths: Tokens, width: int) -> Tokens | None:
    """Lengths as `Evidence` has them."""
    return None if (lengths == width).all() else lengths


def several(answer: Tokens) -> Tokens | None:
    """Numbers of answers as `Evidence` has them."""
    return answer if answer.any() else None


# --- parts of evidence ----------------------------------------------------------------------------


def _batches(e: Evidence) -> tuple[Tokens, Floats]:
    n = len(e.tokens)
    if e.batch is None or e.batch_seconds is None:
        return np.zeros(n, np.int64), np.full(n, e.seconds)
    return e.batch, e.batch_seconds


def continued(first: Evidence, then: Evidence) -> Evidence:
    """Evidence of one arm gathered in two parts, the second after the first.

    It is the same whatever the parts: rounds are reported if they are for all requests, and counts
    if they are for any.
    """
    n, m = len(first.tokens), len(then.tokens)
    if n == 0 or m == 0:
        some = then if n == 0 else first
        return replace(some, planned=then.planned)
    rounds = None
    if first.rounds is not None and then.rounds is not None:
        rounds = np.concatenate([first.rounds, then.rounds + np.array([n, 0, 0])])
    counts = None
    if first.counts is not None or then.counts is not None:
        counts = np.concatenate(
            [
                np.zeros((len(e.tokens), 2), np.int64) if e.counts is None else e.counts
                for e in (first, then)
            ]
        )
    question = None
    if first.question is not None and then.question is not None:
        question = np.concatenate([first.question, then.question])
    logprobs = None
    if first.logprobs is not None or then.logprobs is not None:
        logprobs = np.concatenate(
            [
                np.full(e.tokens.shape, np.nan) if e.logprobs is None else e.logprobs
                for e in (first, then)
            ]
        )
    batch, seconds = (
        np.concatenate(both) for both in zip(_batches(first), _batches(then), strict=True)
    )
    return replace(
        then,
        logprobs=logprobs,
        lengths=uneven(np.concatenate([first.asked_for, then.asked_for]), first.tokens.shape[1]),
        answer=several(np.concatenate([first.answer_of, then.answer_of])),
        tokens=np.concatenate([first.tokens, then.tokens]),
        prompt=np.concatenate([first.prompt, then.prompt]),
        seeds=np.concatenate([first.seeds, then.seeds]),
        rounds=rounds,
        seconds=columns.total(batch, seconds),
        counts=counts,
        batch=batch,
        batch_seconds=seconds,
        question=question,
    )


def selected(evidence: Evidence, keep: Bools) -> Evidence:
    """The answers to some of the requests. `keep` is (N,) bool."""
    rounds = evidence.rounds
    if rounds is not None:
        number = np.cumsum(keep) - 1
        rounds = rounds[keep[rounds[:, 0]]]
        rounds = np.column_stack([number[rounds[:, 0]], rounds[:, 1:]])
    some = replace(
        evidence,
        tokens=evidence.tokens[keep],
        prompt=evidence.prompt[keep],
        seeds=evidence.seeds[keep],
        rounds=rounds,
        counts=None if evidence.counts is None else evidence.counts[keep],
        question=None if evidence.question is None else evidence.question[keep],
        logprobs=None if evidence.logprobs is None else evidence.logprobs[keep],
        lengths=uneven(evidence.asked_for[keep], evidence.tokens.shape[1]),
        answer=None if evidence.answer is None else several(evidence.answer[keep]),
    )
    if evidence.batch is None or evidence.batch_seconds is None:
        return some
    batch, seconds = evidence.batch[keep], evidence.batch_seconds[keep]
    return replace(some, batch=batch, batch_seconds=seconds, seconds=columns.total(batch, seconds))


def first_requests(evidence: Evidence, n: int) -> Evidence:
    """The first n answers."""
    return selected(evidence, np.arange(len(evidence.tokens)) < n)
