"""A bundle that comes as a zip file, as CI systems hand them out."""

from __future__ import annotations

import io
import shutil
import stat
import struct
import zipfile
from pathlib import Path, PurePosixPath

from conformance.errors import ReportError

MOST_FILES = 20_000
MOST_BYTES = 2 * 2**30  # unpacked, all files together
LONGEST_NAME = 1000
MOST_LISTING = 16 * 2**20  # bytes of the list of entries
CHUNK = 2**20
MANIFEST = "manifest.json"
# Others may unpack a few bytes into gigabytes at one call.
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_END, _END_64 = b"PK\x05\x06", b"PK\x06\x07"
_END_SIZE, _END_64_SIZE, _LONGEST_COMMENT = 22, 20, 2**16


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a zip into an empty folder, and find the bundle in it.

    Names must stay inside, entries must be plain files, and what comes out is counted while it
    comes out, whatever the archive says of its sizes.

    Parameters
    ----------
    archive : Path
        The zip file; nothing in it is trusted.
    folder : Path
        Where to; empty.

    Returns
    -------
    Path
        The folder with the manifest: `folder`, or the one folder in it.

    Raises
    ------
    ReportError
        If it is no zip, or one that must not be unpacked.
    """
    try:
        _check_listing(archive)
        with zipfile.ZipFile(archive) as file:
            entries = file.infolist()
            if len(entries) > MOST_FILES:
                raise ReportError(f"{archive} has {len(entries):,} entries; {MOST_FILES:,} at most")
            total = 0
            seen: set[str] = set()
            for entry in entries:
                name = _safe(archive, entry)
                if entry.is_dir():
                    continue
                if name.casefold() in seen:
                    raise ReportError(f"{archive} has two entries named {name!r:.200}")
                seen.add(name.casefold())
                total += _write(file, entry, folder / name, archive, MOST_BYTES - total)
    # whatever bytes that are none of a zip's may raise, in whatever packing they claim
    except ReportError:
        raise
    except Exception as exc:
        raise ReportError(f"cannot unpack {archive}: {str(exc) or type(exc).__name__}") from exc
    inside = [folder, *(p for p in sorted(folder.iterdir()) if p.is_dir())]
    found = [p for p in inside if (p / MANIFEST).is_file()]
    if len(found) != 1:
        raise ReportError(f"{archive} has {len(found) or 'no'} bundles in it (a {MANIFEST} each)")
    return found[0]


def _check_listing(archive: Path) -> None:
    """Refuse a list of entries that would not fit in memory, before zipfile reads all of it."""
    if not stat.S_ISREG(archive.stat().st_mode):
        raise ReportError(f"{archive} is neither a folder nor a file")
    with archive.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - _END_SIZE - _END_64_SIZE - _LONGEST_COMMENT))
        tail = file.read()
    at = tail.rfind(_END)
    if at < 0 or len(tail) < at + _END_SIZE:
        raise ReportError(f"{archive} is neither a bundle's folder nor a zip of one")
    (listing,) = struct.unpack("<I", tail[at + 12 : at + 16])
    if listing > MOST_LISTING or _END_64 in tail[max(0, at - _END_64_SIZE) : at]:
        raise ReportError(f"{archive} has more entries than a bundle has files")


def _safe(archive: Path, entry: zipfile.ZipInfo) -> str:
    name = entry.filename
    parts = PurePosixPath(name).parts
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if (
        not parts
        or len(name) > LONGEST_NAME
        or name.startswith("/")
        or ".." in parts
        or any(c in name for c in "\\:\0")
        or kind not in (0, stat.S_IFREG, stat.S_IFDIR)
        or entry.compress_type not in PACKINGS
    ):
        raise ReportError(f"{archive} has an entry that must not be unpacked: {name!r:.200}")
    return name


def _write(
    file: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path, archive: Path, left: int
) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    with file.open(entry) as source, path.open("xb") as target:
        shutil.copyfileobj(_Bounded(source, left, archive), target, CHUNK)
        return target.tell()


class _Bounded:
    """A stream that ends in an error where it is longer than it may be."""

    def __init__(self, source: object, limit: int, archive: Path) -> None:
        self._read = source.read  # type: ignore[attr-defined]
        self._left, self._archive = limit, archive

    def read(self, size: int = -1) -> bytes:
        block: bytes = self._read(size)
        self._left -= len(block)
        if self._left < 0:
            raise ReportError(f"{self._archive} unpacks to more than a bundle can hold")
        return block
