"""``manifest.json``: every file of a bundle, with its size and SHA-256.

It shows damage, and what was changed by somebody who did not write a new manifest. Its own SHA-256
names the bundle: published apart from it, it shows any change at all.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
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
LARGEST_FILE = 2 * 2**30  # bytes of any other file
LONGEST_NAME = 400
CHUNK = 2**20
# What the tool names its files with: the same file on every system, whatever that does with case,
# accents or separators.
_PART = re.compile(r"[A-Za-z0-9._=+-]*[A-Za-z0-9_=+-]")


class Entry(BaseModel):
    """One file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    size: int = Field(ge=0, le=LARGEST_FILE)
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
    text = as_text(Manifest(files=entries))
    replace_text(folder / FILE, text)
    return hashlib.sha256(text.encode()).hexdigest()


def files_in(folder: Path) -> Iterator[str]:
    """What belongs to a bundle and is there; links are not followed."""
    yield from (name for name in TOP if os.path.lexists(folder / name))
    for top in FOLDERS:
        for here, folders, names in os.walk(folder / top):
            folders[:] = sorted(name for name in folders if not is_half(name))
            for name in sorted(names):
                if not is_half(name):
                    yield (Path(here) / name).relative_to(folder).as_posix()


def is_half(name: str) -> bool:
    """Whether a file's name says that a process was killed while it wrote it."""
    return name.startswith(".") and name.endswith((".half", ".partial"))


def of_file(path: Path) -> Entry:
    """Size and checksum of a regular file.

    Raises
    ------
    ReportError
        If it is anything else, cannot be read, or is larger than a bundle's files are.
    """
    digest, size = hashlib.sha256(), 0
    try:
        with os.fdopen(_opened(path), "rb") as stream:
            while block := stream.read(CHUNK):
                digest.update(block)
                size += len(block)
                if size > LARGEST_FILE:
                    raise ReportError(f"{path} is larger than {LARGEST_FILE:,} bytes")
    except OSError as exc:
        raise ReportError(f"cannot read {path}: {exc.strerror or exc}") from exc
    return Entry(size=size, sha256=digest.hexdigest())


def read_plain(path: Path, largest: int) -> bytes:
    """The content of a regular file: no link is followed, and no pipe or device waited for.

    Raises
    ------
    ReportError
        If it is anything else, cannot be read, or has more bytes than `largest`.
    """
    try:
        with os.fdopen(_opened(path), "rb") as stream:
            data = stream.read(largest + 1)
    except OSError as exc:
        raise ReportError(f"cannot read {path}: {exc.strerror or exc}") from exc
    if len(data) > largest:
        raise ReportError(f"{path} is larger than {largest:,} bytes")
    return data


def _opened(path: Path) -> int:
    """A handle on a regular file."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ReportError(f"{path} is not a plain file")
    # a name may come to mean something else at any time: what was opened is looked at as well
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ReportError(f"{path} is not a plain file")
    return handle


def _of_text(text: str) -> Entry:
    data = text.encode()
    return Entry(size=len(data), sha256=hashlib.sha256(data).hexdigest())


def as_text(manifest: Manifest) -> str:
    """A manifest as it is written."""
    ordered = Manifest(files=dict(sorted(manifest.files.items())))
    return ordered.model_dump_json(indent=1) + "\n"


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """The manifest, and its SHA-256; every name in it stays inside the bundle.

    Raises
    ------
    ReportError
        If there is none, or it is not what `seal` writes.
    """
    path = folder / FILE
    data = read_plain(path, LARGEST)
    try:
        found = Manifest.model_validate_json(data)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        raise ReportError(f"{path} is no manifest: {first['msg']}") from exc
    seen: set[str] = set()
    for name in found.files:
        if not _inside(name):
            raise ReportError(f"{path} lists a file that cannot be part of a bundle: {name!r:.200}")
        if name.lower() in seen:
            raise ReportError(f"{path} lists two files that are one on some systems: {name!r}")
        seen.add(name.lower())
    if as_text(found).encode() != data:  # a name given twice, say: readers differ in which counts
        raise ReportError(f"{path} is no manifest as they are written")
    return found, hashlib.sha256(data).hexdigest()


def _inside(name: str) -> bool:
    parts = name.split("/")
    if len(name) > LONGEST_NAME or not all(map(_PART.fullmatch, parts)):
        return False
    return name in TOP if len(parts) == 1 else parts[0] in FOLDERS
