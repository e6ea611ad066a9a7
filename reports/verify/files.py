"""The files of a bundle: all that the manifest lists, as it lists them, and none beside them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from conformance.errors import ReportError
from conformance.reports.manifest import FILE, Entry, files_in, of_file, read_manifest
from conformance.reports.verify.check import Check, Status, agrees, differs, listed, stated

NEEDED = ("run.json", "report.json", "report.html", "report.md", "junit.xml")


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
        same = expected.lower() == sha256
        told = f"SHA-256 {sha256}" if same else f"SHA-256 {sha256}, not {expected.lower()}"
        checks.append((agrees if same else differs)("bundle", told))
    checks += _listed(folder, manifest.files)
    checks += _beside(folder, set(manifest.files))
    if not any(c.status is Status.DIFFERS for c in checks):
        size = sum(e.size for e in manifest.files.values())
        checks.insert(0, agrees("files", f"{len(manifest.files)} files, {size:,} bytes"))
    return checks, sha256


def _listed(folder: Path, files: Mapping[str, Entry]) -> Iterator[Check]:
    for name, entry in files.items():
        if not os.path.lexists(folder / name):
            yield differs(f"file {name}", "is listed and missing")
            continue
        try:
            found = of_file(folder / name)
        except ReportError as exc:
            yield differs(f"file {name}", str(exc))
            continue
        if found != entry:
            yield differs(f"file {name}", "is not the file that was written: it was altered")
    for name in NEEDED:
        if name not in files:
            yield differs(f"file {name}", "is not listed")


def _beside(folder: Path, files: set[str]) -> Iterator[Check]:
    if extra := [name for name in files_in(folder) if name not in files]:
        yield differs("files", f"not listed: {listed(extra)}")
    known = {name.split("/")[0] for name in files} | {FILE}
    if others := sorted(p.name for p in folder.iterdir() if p.name not in known):
        yield stated("other files", f"beside the bundle, not part of it: {listed(others)}")
