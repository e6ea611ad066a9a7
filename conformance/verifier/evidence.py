"""Evidence of a verifier: the tokens it emitted, law by law, in numpy's own format."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from conformance.errors import EvidenceError
from conformance.reference import Ints

FORMAT = 1


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
    """

    run: int
    law_seed: int
    tokens: dict[str, Ints]
    batch: dict[str, int]
    edges: dict[str, Ints]
    again: Ints | None
    refused: dict[str, str]
    seconds: float

    def _arrays(self) -> dict[str, np.ndarray]:
        arrays = {f"law {name}": _small(a) for name, a in self.tokens.items()}
        arrays |= {f"edge {name}": _small(a) for name, a in self.edges.items()}
        arrays |= {f"batch {name}": np.array(b) for name, b in self.batch.items()}
        arrays |= {f"refused {name}": np.array(why) for name, why in self.refused.items()}
        if self.again is not None:
            arrays["again"] = _small(self.again)
        return arrays | {"seeds": np.array([self.run, self.law_seed])}

    @property
    def sha256(self) -> str:
        """Checksum over the arrays, whatever their width and the compression."""
        digest = hashlib.sha256()
        for name, array in sorted(self._arrays().items()):
            whole = array if array.dtype.kind == "U" else array.astype("<i8")
            digest.update(f"{name} {whole.shape}".encode())
            digest.update(np.ascontiguousarray(whole).tobytes())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Write the file, or leave what was there."""
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            format=np.array(FORMAT),
            seconds=np.array(self.seconds),
            **self._arrays(),  # type: ignore[arg-type]
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(buffer.getvalue())
        os.replace(file.name, path)


def _small(tokens: Ints) -> np.ndarray:
    """The narrowest integers that hold them."""
    low, high = int(tokens.min(initial=-1)), int(tokens.max(initial=0))
    for kind in ("<i1", "<i2", "<i4"):
        limit = np.iinfo(kind)
        if limit.min <= low and high <= limit.max:
            return tokens.astype(kind)
    return tokens


def load_verifier_evidence(path: Path) -> VerifierEvidence:
    """Read a verifier's evidence.

    Raises
    ------
    EvidenceError
        If the file is missing, damaged or of another format.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            data = {name: file[name] for name in file.files}
        if int(data["format"]) != FORMAT:
            raise EvidenceError(f"{path} has evidence format {data['format']}, not {FORMAT}")
        run, law_seed = (int(x) for x in data["seeds"])
        return VerifierEvidence(
            run=run,
            law_seed=law_seed,
            tokens={n: a.astype(np.int64) for n, a in _named(data, "law ")},
            batch={n: int(a) for n, a in _named(data, "batch ")},
            edges={n: a.astype(np.int64) for n, a in _named(data, "edge ")},
            again=data["again"].astype(np.int64) if "again" in data else None,
            refused={n: str(a) for n, a in _named(data, "refused ")},
            seconds=float(data["seconds"]),
        )
    except EvidenceError:
        raise
    except Exception as exc:  # zip, zlib, header and key errors alike: the file is not ours
        raise EvidenceError(f"cannot read evidence {path}: {exc}") from exc


def _named(data: dict[str, np.ndarray], prefix: str) -> list[tuple[str, np.ndarray]]:
    return [(n.removeprefix(prefix), a) for n, a in data.items() if n.startswith(prefix)]
