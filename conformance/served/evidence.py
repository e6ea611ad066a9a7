"""What an arm of a served case answered, on disk: enough to judge it again without the server."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from conformance.errors import EvidenceError
from conformance.statistics.tables import Ints

FORMAT = 1


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

    @property
    def drafts(self) -> tuple[int, int] | None:
        """Tokens drafted and accepted in all."""
        if self.counts is None:
            return self.total
        drafted, accepted = (int(n) for n in self.counts.sum(axis=0))
        return drafted, accepted

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

    def save(self, path: Path) -> None:
        """Write the file in one step, its checksum in it."""
        buffer = io.BytesIO()
        none = np.zeros((0, 2), np.int64)
        np.savez_compressed(
            buffer,
            format=np.array(FORMAT),
            symbols=self.symbols,
            prompt=self.prompt,
            seeds=self.seeds,
            counts=none if self.counts is None else self.counts,
            counted=np.array(self.counts is not None),
            total=none if self.total is None else np.array([self.total]),
            planned=np.array(self.planned),
            seconds=np.array(self.seconds),
            unit=np.array(self.unit),
            texts=np.frombuffer(json.dumps(self.texts).encode(), dtype=np.uint8),
            sha256=np.array(self.sha256),
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(buffer.getvalue())
        os.replace(file.name, path)


def load_served(path: Path) -> ServedEvidence:
    """Read an arm's evidence.

    Raises
    ------
    EvidenceError
        If the file is missing, damaged, or its checksum is another's.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            data = {name: file[name] for name in file.files}
        if int(data["format"]) != FORMAT:
            raise EvidenceError(f"{path} has evidence format {data['format']}, not {FORMAT}")
        total = data["total"].tolist()
        evidence = ServedEvidence(
            symbols=data["symbols"].astype(np.int64),
            prompt=data["prompt"].astype(np.int64),
            seeds=data["seeds"].astype(np.int64),
            counts=data["counts"].astype(np.int64) if bool(data["counted"]) else None,
            total=(int(total[0][0]), int(total[0][1])) if total else None,
            planned=int(data["planned"]),
            seconds=float(data["seconds"]),
            unit=str(data["unit"]),
            texts=tuple(json.loads(data["texts"].tobytes())),
        )
    except EvidenceError:
        raise
    except Exception as exc:  # zip, zlib, header and key errors alike: the file is not ours
        raise EvidenceError(f"cannot read evidence {path}: {exc}") from exc
    n = len(evidence.symbols)
    if evidence.symbols.ndim != 2 or evidence.prompt.shape != (n,) or evidence.seeds.shape != (n,):
        raise EvidenceError(f"{path}: symbols, prompts and seeds do not fit together")
    if evidence.sha256 != str(data["sha256"]):
        raise EvidenceError(f"{path} is not what was written: its checksum is another")
    return evidence
