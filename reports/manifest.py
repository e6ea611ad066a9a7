"""``manifest.json``: every file of a bundle, with its size and SHA-256.

It shows damage, and what was changed by somebody who did not write a new manifest. Its own SHA-256
names the bundle: published apart from it, it shows any change at all.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from conformance.errors import ReportError
from conformance.reports.writing import replace_text

FILE = "manifest.json"
# What belongs to a bundle; other files beside it are nobody's word about anything.
TOP = (
    "run.json", "report.json", "report.html", "report.md", "junit.xml", "badge.svg", "badge.json",
)  # fmt: skip
FOLDERS = ("evidence", "probes")
MOST_FILES = 20_000
LARGEST = 16 * 2**20  # bytes of a manifest
LONGEST_NAME = 400
CHUNK = 2**20


class Entry(BaseModel):
    """One file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    size: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """Every file, by its path within the bundle, with forward slashes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal[1] = 1
    files: dict[str, Entry] = Field(max_length=MOST_FILES)


def seal(folder: Path, texts: Mapping[str, str]) -> str:
    """Write the manifest of a bundle.

    Parameters
    ----------
    folder : Path
        The bundle.
    texts : mapping of str to str
        Files that are listed as they are here: written already, or about to be.

    Returns
    -------
    str
        SHA-256 of the manifest.
    """
    entries = {name: _of_text(text) for name, text in texts.items()}
    for name in files_in(folder):
        if name not in entries:
            entries[name] = of_file(folder / name)
    text = Manifest(files=dict(sorted(entries.items()))).model_dump_json(indent=1) + "\n"
    replace_text(folder / FILE, text)
    return hashlib.sha256(text.encode()).hexdigest()


def files_in(folder: Path) -> Iterator[str]:
    """What belongs to a bundle and is there; links are not followed."""
    yield from (name for name in TOP if os.path.lexists(folder / name))
    for top in FOLDERS:
        for here, folders, names in os.walk(folder / top):
            folders.sort()
            for name in sorted(names):
                # halves that a killed process left are nobody's evidence
                if not name.startswith(".") and not name.startswith("tmp"):
                    yield (Path(here) / name).relative_to(folder).as_posix()


def of_file(path: Path) -> Entry:
    """Size and checksum of a regular file.

    Raises
    ------
    ReportError
        If it is anything else, or cannot be read.
    """
    digest, size = hashlib.sha256(), 0
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise ReportError(f"{path} is not a plain file")
        with path.open("rb") as stream:
            while block := stream.read(CHUNK):
                digest.update(block)
                size += len(block)
    except OSError as exc:
        raise ReportError(f"cannot read {path}: {exc.strerror or exc}") from exc
    return Entry(size=size, sha256=digest.hexdigest())


def _of_text(text: str) -> Entry:
    data = text.encode()
    return Entry(size=len(data), sha256=hashlib.sha256(data).hexdigest())


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """The manifest, and its SHA-256; every name in it stays inside the bundle.

    Raises
    ------
    ReportError
        If there is none, or it is not what `seal` writes.
    """
    path = folder / FILE
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise ReportError(f"{path} is not a plain file")
        if path.stat().st_size > LARGEST:
            raise ReportError(f"{path} is larger than {LARGEST:,} bytes")
        data = path.read_bytes()
        found = Manifest.model_validate_json(data)
    except OSError as exc:
        raise ReportError(f"cannot read {path}: {exc.strerror or exc}") from exc
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        raise ReportError(f"{path} is no manifest: {first['msg']}") from exc
    for name in found.files:
        if not _inside(name):
            raise ReportError(f"{path} lists a file that cannot be part of a bundle: {name!r:.200}")
    return found, hashlib.sha256(data).hexdigest()


def _inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    if not 0 < len(name) <= LONGEST_NAME or "\\" in name or "\0" in name or ":" in name:
        return False
    if name.startswith("/") or ".." in parts or PurePosixPath(name).as_posix() != name:
        return False
    return name in TOP if len(parts) == 1 else parts[0] in FOLDERS
