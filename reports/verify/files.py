"""The files of a bundle: all that the manifest lists, as it lists them, and none beside them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from conformance.errors import ReportError
from conformance.reports.bundle import FILES
from conformance.reports.manifest import (
    FILE,
    FOLDERS,
    MOST_FILES,
    TOP,
    Entry,
    is_half,
    of_file,
    read_manifest,
)
from conformance.reports.verify.check import Check, Status, agrees, differs, listed, stated

NEEDED = ("run.json", *sorted(FILES.values()))
DEEPEST = 8  # folders within folders


def check_files(folder: Path, expected: str | None) -> tuple[list[Check], str | None]:
    """Compare every file with the manifest.

    Parameters
    ----------
    folder : Path
        The bundle.
    expected : str or None
        What the manifest's SHA-256 must be, where that is known from elsewhere.
    """
    try:
        manifest, sha256 = read_manifest(folder)
    except ReportError as exc:
        return [differs("manifest", str(exc))], None
    checks = []
    if expected is not None:
        same = expected.strip().lower() == sha256
        told = f"SHA-256 {sha256}" if same else f"SHA-256 {sha256}, not {expected.lower()}"
        checks.append((agrees if same else differs)("bundle", told))
    there = _There(folder)
    checks += _listed(folder, manifest.files, there)
    checks += _beside(folder, set(manifest.files), there)
    if not any(c.status is Status.DIFFERS for c in checks):
        size = sum(e.size for e in manifest.files.values())
        checks.insert(0, agrees("files", f"{len(manifest.files)} files, {size:,} bytes"))
    return checks, sha256


@dataclass(slots=True)
class _There:
    """What is in a bundle's places, by its path within; links are never followed."""

    folder: Path
    files: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    halves: list[str] = field(default_factory=list)
    neither: list[str] = field(default_factory=list)  # links, pipes, devices
    too_many: bool = False

    def __post_init__(self) -> None:
        for name in (*TOP, *FOLDERS):
            if os.path.lexists(self.folder / name):
                self._take(name, self.folder / name, name in FOLDERS)

    def _take(self, name: str, path: Path, may_be_folder: bool) -> None:
        if path.is_symlink():
            self.neither.append(name)
        elif path.is_dir():
            if is_half(path.name):
                self.halves.append(name)
                return
            self.folders.add(name)
            if may_be_folder and name.count("/") < DEEPEST:
                self._inside(name, path)
        elif not path.is_file():
            self.neither.append(name)
        elif is_half(path.name):
            self.halves.append(name)
        else:
            self.files.add(name)

    def _inside(self, name: str, path: Path) -> None:
        with os.scandir(path) as entries:
            for entry in entries:
                if len(self.files) + len(self.folders) + len(self.neither) > 2 * MOST_FILES:
                    self.too_many = True
                    return
                self._take(f"{name}/{entry.name}", path / entry.name, True)


def _listed(folder: Path, files: Mapping[str, Entry], there: _There) -> Iterator[Check]:
    for name, entry in files.items():
        if name not in there.files:
            missing = "is listed and missing"
            other = name in there.folders or name in there.neither
            yield differs(f"file {name}", "is not a plain file" if other else missing)
            continue
        try:
            # a size that differs is told before anything large is read
            same = (folder / name).lstat().st_size == entry.size and of_file(folder / name) == entry
        except (OSError, ReportError) as exc:
            yield differs(f"file {name}", str(exc))
            continue
        if not same:
            yield differs(f"file {name}", "is not the file that was written: it was altered")
    for name in NEEDED:
        if name not in files:
            yield differs(f"file {name}", "is not listed")


def _beside(folder: Path, files: set[str], there: _There) -> Iterator[Check]:
    if extra := sorted(there.files - files):
        yield differs("files", f"not listed: {listed(extra)}")
    if odd := sorted(n for n in there.neither if n not in files):
        yield differs("files", f"neither file nor folder: {listed(odd)}")
    known = {parent.as_posix() for name in files for parent in PurePosixPath(name).parents}
    if empty := sorted(n for n in there.folders - known if n not in files):
        yield differs("files", f"folders in which nothing is listed: {listed(empty)}")
    if there.too_many:
        yield differs("files", f"more than {2 * MOST_FILES:,} files and folders")
    if there.halves:
        yield stated(
            "files", f"half-written by a process that was killed, not read: {listed(there.halves)}"
        )
    with os.scandir(folder) as entries:
        names = sorted(e.name for e in entries if e.name not in (*TOP, *FOLDERS, FILE))
    if names:
        yield stated("other files", f"beside the bundle, not part of it: {listed(names)}")
