"""Evidence: the tokens an arm produced, with what the engine said of its rounds.

One file an arm, written atomically, numpy's own format without pickling. Judging reads nothing
else of the engine, so that whoever has the evidence can recompute the verdict.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from conformance.errors import EvidenceError
from conformance.law import Bools
from conformance.tinylm import Tokens
from conformance.verdict import Speculation

FORMAT = 2
LONGEST_BLOCK = 16


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
        ``(request, drafted, accepted)`` for every block; None where the engine did not report.
    seconds : float
        Time inside the engine.
    planned : int
        Requests planned; more than N where the engine failed on the way.
    counts : (N, 2) int64 or None
        Tokens drafted and accepted, of an engine that tells no rounds; only their sums mean
        anything. None where it does not count either.
    """

    tokens: Tokens
    prompt: Tokens
    seeds: Tokens
    rounds: Tokens | None
    seconds: float
    planned: int
    counts: Tokens | None = None

    def to_bytes(self) -> bytes:
        """Serialise."""
        buffer = io.BytesIO()
        rounds = np.zeros((0, 3), np.int64) if self.rounds is None else self.rounds
        counts = np.zeros((0, 2), np.int64) if self.counts is None else self.counts
        np.savez_compressed(
            buffer,
            format=np.array(FORMAT),
            tokens=self.tokens,
            prompt=self.prompt,
            seeds=self.seeds,
            rounds=rounds,
            reported=np.array(self.rounds is not None),
            counts=counts,
            counted=np.array(self.counts is not None),
            seconds=np.array(self.seconds),
            planned=np.array(self.planned),
        )
        return buffer.getvalue()

    @property
    def sha256(self) -> str:
        """Checksum over the arrays, whatever the compression."""
        digest = hashlib.sha256()
        for array in (self.tokens, self.prompt, self.seeds, self.rounds, self.counts):
            block = np.zeros((0, 3), np.int64) if array is None else array
            digest.update(str(block.shape).encode())
            digest.update(np.ascontiguousarray(block, dtype="<i8").tobytes())
        told = (self.rounds is not None, self.counts is not None, self.planned)
        digest.update(str(told).encode())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Write the file, or leave what was there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(self.to_bytes())
        os.replace(file.name, path)


def load_evidence(path: Path) -> Evidence:
    """Read an arm's evidence.

    Raises
    ------
    EvidenceError
        If the file is missing, damaged, of another format, or its arrays do not fit together.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            data = {name: file[name] for name in file.files}
        if int(data["format"]) != FORMAT:
            raise EvidenceError(f"{path} has evidence format {data['format']}, not {FORMAT}")
        evidence = Evidence(
            tokens=data["tokens"].astype(np.int64),
            prompt=data["prompt"].astype(np.int64),
            seeds=data["seeds"].astype(np.int64),
            rounds=data["rounds"].astype(np.int64) if bool(data["reported"]) else None,
            seconds=float(data["seconds"]),
            planned=int(data["planned"]),
            counts=data["counts"].astype(np.int64) if bool(data["counted"]) else None,
        )
    except EvidenceError:
        raise
    except Exception as exc:  # zip, zlib, header and key errors alike: the file is not ours
        raise EvidenceError(f"cannot read evidence {path}: {exc}") from exc
    n = len(evidence.tokens)
    if evidence.tokens.ndim != 2 or evidence.prompt.shape != (n,) or evidence.seeds.shape != (n,):
        raise EvidenceError(f"{path}: tokens, prompts and seeds do not fit together")
    if evidence.counts is not None and evidence.counts.shape != (n, 2):
        raise EvidenceError(f"{path}: tokens and counts do not fit together")
    return evidence


def continued(first: Evidence, then: Evidence) -> Evidence:
    """Evidence of one arm gathered in two parts, the second after the first."""
    rounds: Tokens | None = None
    if len(then.tokens) == 0:
        rounds = first.rounds
    elif first.rounds is not None and then.rounds is not None:
        rounds = np.concatenate([first.rounds, then.rounds + np.array([len(first.tokens), 0, 0])])
    counts: Tokens | None = None
    if first.counts is not None and then.counts is not None:
        counts = np.concatenate([first.counts, then.counts])
    elif len(then.tokens) == 0:
        counts = first.counts
    return Evidence(
        tokens=np.concatenate([first.tokens, then.tokens]),
        prompt=np.concatenate([first.prompt, then.prompt]),
        seeds=np.concatenate([first.seeds, then.seeds]),
        rounds=rounds,
        seconds=then.seconds,
        planned=then.planned,
        counts=counts,
    )


def selected(evidence: Evidence, keep: Bools) -> Evidence:
    """The answers to some of the requests. `keep` is (N,) bool."""
    rounds = evidence.rounds
    if rounds is not None:
        number = np.cumsum(keep) - 1
        rounds = rounds[keep[rounds[:, 0]]]
        rounds = np.column_stack([number[rounds[:, 0]], rounds[:, 1:]])
    return replace(
        evidence,
        tokens=evidence.tokens[keep],
        prompt=evidence.prompt[keep],
        seeds=evidence.seeds[keep],
        rounds=rounds,
        counts=None if evidence.counts is None else evidence.counts[keep],
    )


def first_requests(evidence: Evidence, n: int) -> Evidence:
    """The first n answers."""
    return selected(evidence, np.arange(len(evidence.tokens)) < n)


def speculation_seen(evidence: Evidence) -> Speculation:
    """Count what the engine reported of its blocks."""
    if evidence.rounds is None:
        return _counted(evidence)
    drafted, accepted = evidence.rounds[:, 1], evidence.rounds[:, 2]
    blocks = drafted > 0
    return Speculation(
        reported=True,
        blocks=int(blocks.sum()),
        drafted=int(drafted.sum()),
        accepted=int(accepted.sum()),
        rejected=int((blocks & (accepted < drafted)).sum()),
        longest=int(accepted.max(initial=0)),
    )


def _counted(evidence: Evidence) -> Speculation:
    """What totals tell. How many blocks ended in a rejection they do not; one loses the rest
    of its block: as many proposals as are left to ask for, and hardly more than LONGEST_BLOCK.
    """
    if evidence.counts is None:
        return Speculation()
    drafted, accepted = (int(n) for n in evidence.counts.sum(axis=0))
    return Speculation(
        reported=True,
        drafted=drafted,
        accepted=accepted,
        rejected=(drafted - accepted) // max(1, min(evidence.tokens.shape[1], LONGEST_BLOCK)),
    )


def stack_counts(counts: Sequence[Sequence[int] | None]) -> Tokens | None:
    """Counts of N requests as one array; None if no request came with any. [N, 2]"""
    if all(c is None for c in counts):
        return None
    return np.array([c or (0, 0) for c in counts], dtype=np.int64).reshape(-1, 2)


def stack_rounds(rounds: Sequence[Sequence[Sequence[int]] | None]) -> Tokens | None:
    """Rounds of N requests as one array; None if any request came without."""
    if any(r is None for r in rounds):
        return None
    rows = [(i, d, a) for i, pairs in enumerate(rounds) for d, a in pairs or ()]
    return np.array(rows, dtype=np.int64).reshape(-1, 3)
