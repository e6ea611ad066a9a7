"""A bundle that comes as a zip file, as CI systems hand them out."""

from __future__ import annotations

import shutil
import stat
import zipfile
from pathlib import Path, PurePosixPath

from conformance.errors import ReportError

MOST_FILES = 20_000
MOST_BYTES = 8 * 2**30  # unpacked, all files together
LARGEST_FILE = 2 * 2**30
CHUNK = 2**20
MANIFEST = "manifest.json"


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
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as exc:
        raise ReportError(f"cannot unpack {archive}: {exc}") from exc
    inside = [folder, *(p for p in sorted(folder.iterdir()) if p.is_dir())]
    found = [p for p in inside if (p / MANIFEST).is_file()]
    if len(found) != 1:
        raise ReportError(f"{archive} has no bundle in it: no {MANIFEST}")
    return found[0]


def _safe(archive: Path, entry: zipfile.ZipInfo) -> str:
    name = entry.filename
    parts = PurePosixPath(name).parts
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if (
        not parts
        or name.startswith("/")
        or ".." in parts
        or any(c in name for c in "\\:\0")
        or kind not in (0, stat.S_IFREG, stat.S_IFDIR)
    ):
        raise ReportError(f"{archive} has an entry that must not be unpacked: {name!r:.200}")
    return name


def _write(
    file: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path, archive: Path, left: int
) -> int:
    limit = min(left, LARGEST_FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    with file.open(entry) as source, path.open("xb") as target:
        shutil.copyfileobj(_Bounded(source, limit, archive), target, CHUNK)
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
