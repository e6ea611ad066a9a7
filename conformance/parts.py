"""Evidence that is written as it comes: parts beside the one file, and who saves them.

``NAME.parquet`` has the first rows of an arm. ``NAME.000512.part.parquet`` has those from row 512
on, and the next part begins where it ends. When an arm is complete, or is taken up again, all
becomes the one file, and then the parts are removed. Every file comes to be in one step, so a
process may be killed anywhere between: what begins before the one file ends is stale and passed
over, and what does not begin where another ends does not count.

A case that ended as an ERROR has ``NAME.partial.parquet`` alone, with the reason. Nothing goes on
from it, and its case is not asked again.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from conformance import errors
from conformance.errors import ConformanceError, EngineFailure, EvidenceError
from conformance.parquet import HALF, Meta, sync

SUFFIX = ".parquet"
SAVE_EVERY = 2.0  # seconds
LONGEST_REASON = 20_000

Piece = TypeVar("Piece")


class Parts:
    """The files of one arm.

    Parameters
    ----------
    path : Path
        The one file, which may not be there.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.stem = path, path.name.removesuffix(SUFFIX)

    @property
    def arm(self) -> str:
        """The arm, by the file's name."""
        return self.stem.rpartition(".")[2]

    def part(self, begin: int) -> Path:
        """Where rows from this one on are kept."""
        return self.path.with_name(f"{self.stem}.{begin:06d}.part{SUFFIX}")

    @property
    def failed(self) -> Path:
        """Where they are kept after the case has failed."""
        return self.path.with_name(f"{self.stem}.partial{SUFFIX}")

    def listed(self) -> dict[int, Path]:
        """The parts that are there, stale or not, by their first row."""
        named = re.compile(rf"{re.escape(self.stem)}\.([0-9]{{6,18}})\.part{re.escape(SUFFIX)}")
        found = {
            int(m[1]): self.path.parent / m[0] for m in map(named.fullmatch, self._names()) if m
        }
        return dict(sorted(found.items()))

    def pieces(
        self, load: Callable[[Path, int], Piece], rows: Callable[[Piece], int]
    ) -> list[Piece]:
        """The one file, and the parts that continue it without a gap.

        Parameters
        ----------
        load : callable
            Reads a file that begins at a row.
        rows : callable
            How many rows that was.
        """
        found = []
        done = 0
        if os.path.lexists(self.path):
            found.append(load(self.path, 0))
            done = rows(found[-1])
        parts = self.listed()
        while done in parts:
            found.append(load(parts.pop(done), done))
            done += rows(found[-1])
        return found

    def remove(self, whole: bool = False) -> None:
        """Remove the parts, after all of them has become one file; the one file too if `whole`."""
        if gone := [*self.listed().values(), *([self.path] if whole else [])]:
            self._remove(gone)

    def sweep(self) -> None:
        """Remove what a killed process was writing."""
        mine = f".{self.stem}."
        halves = [n for n in self._names() if n.startswith(mine) and n.endswith(HALF)]
        if halves:
            self._remove(self.path.parent / name for name in halves)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path.parent)
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise EvidenceError(f"cannot read {self.path.parent}: {exc.strerror or exc}") from exc

    def _remove(self, paths: Iterable[Path]) -> None:
        path = self.path
        try:
            for path in paths:
                path.unlink(missing_ok=True)
        except OSError as exc:
            raise EvidenceError(f"cannot remove {path}: {exc.strerror or exc}") from exc
        sync(self.path.parent)


def reason(error: ConformanceError, detail: str) -> Meta:
    """A failure, for the metadata of what had come before it."""
    said = {"kind": type(error).__name__, "message": str(error), "detail": detail}
    return {"error": {key: text[:LONGEST_REASON] for key, text in said.items()}}


def failure(meta: Meta, path: Path) -> tuple[ConformanceError, str]:
    """The inverse: the error and its detail.

    Raises
    ------
    EvidenceError
        If none is told.
    """
    said = meta.get("error")
    if not isinstance(said, dict) or not all(isinstance(t, str) for t in said.values()):
        raise EvidenceError(f"cannot read evidence {path}: it does not say how its case failed")
    kind = getattr(errors, said.get("kind", ""), None)
    if not (isinstance(kind, type) and issubclass(kind, ConformanceError)):
        kind = EngineFailure
    error: ConformanceError = kind(said.get("message", ""))
    error.detail = said.get("detail", "")
    return error, error.detail


class Autosave:
    """Saves every few seconds while a block runs, in a thread of its own, and at its end.

    Parameters
    ----------
    save : callable
        Saves what has come since; called from either thread, never from both at once.
    every : float, optional
        Seconds; `SAVE_EVERY` if left out.

    A block ends with what went wrong with saving, unless it ends with something else.
    """

    def __init__(self, save: Callable[[], None], every: float | None = None) -> None:
        self._save, self._every = save, SAVE_EVERY if every is None else every
        self._end = threading.Event()
        self._wrong: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Autosave:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()
        if self._wrong is not None and value is None:
            raise self._wrong
        self._save()

    def check(self) -> None:
        """Raise what went wrong, as soon as that is known."""
        if self._wrong is not None:
            raise self._wrong

    def _run(self) -> None:
        try:
            while not self._end.wait(self._every):
                self._save()
        except BaseException as exc:  # for the thread that can tell somebody
            self._wrong = exc
