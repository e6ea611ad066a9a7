"""Evidence as Parquet: written whole or not at all, and read with suspicion.

A file has one table and one JSON object of ours in its metadata, each with a checksum. Reading
takes the file into memory once, and decodes nothing before its size, the counts in its footer and
those in every page's header are within a limit: a Parquet file of a few hundred bytes can claim a
million million rows. Columns must have exactly the names and types that are wanted. Nothing is
unpickled, no extension type or schema of another library is asked for, and nothing is mapped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from conformance.errors import EvidenceError
from conformance.pages import LARGEST_FOOTER, Footer, decoded, footer

FORMAT = 1
KEY, CHECKSUM = b"conformance", b"conformance.sha256"
HALF = ".half"  # how the name of a file that is being written ends
MOST_ROWS = 50_000_000
WIDEST_ROW = 2**16  # bytes of one row, decoded
MOST_DECODED = 8 * 2**30  # bytes, of the largest file whatever its rows
SPARE = 16 * 2**20  # bytes beside the rows: footer, headers, dictionaries
MOST_CHUNKS = 20_000  # row groups times columns
LONGEST_TEXT = 16 * 2**20  # of our metadata
ROWS_AT_ONCE = 2**20  # in a row group

Meta = dict[str, Any]
Made = TypeVar("Made")


@dataclass(frozen=True)
class Shape:
    """What a kind of evidence looks like on disk.

    Parameters
    ----------
    tier : str
        ``"engine"``, ``"served"`` or ``"verifier"``; written down, and looked for.
    schema : pyarrow.Schema
        Its columns. Those of strings are read as dictionaries, never written out row by row.
    extra : pyarrow.Schema
        Columns that may come after these, each of them or not, in this order.
    """

    tier: str
    schema: pa.Schema
    extra: pa.Schema = field(default_factory=lambda: pa.schema([]))
    texts: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        texts = tuple(f.name for f in self.schema if pa.types.is_string(f.type))
        object.__setattr__(self, "texts", texts)


# --- writing --------------------------------------------------------------------------------------


def write_table(
    path: Path,
    shape: Shape,
    groups: Iterable[Sequence[pa.Array]],
    meta: Mapping[str, Any],
    extra: Sequence[str] = (),
) -> None:
    """Write a file, or leave what was there.

    Parameters
    ----------
    path : Path
        Its folder is made.
    shape : Shape
        Which kind of evidence.
    groups : iterable of sequence of pyarrow.Array
        Rows after rows: of each the columns, in the order of the schema.
    meta : mapping
        What JSON can hold.
    extra : sequence of str
        Which columns of `Shape.extra` are among them.

    Raises
    ------
    EvidenceError
        If it cannot be written (a full disk, say).
    """
    schema = pa.schema([*shape.schema, *(f for f in shape.extra if f.name in extra)])
    text = json.dumps({"format": FORMAT, "tier": shape.tier, **meta}, ensure_ascii=True).encode()
    if len(text) > LONGEST_TEXT:
        raise EvidenceError(f"cannot write {path}: {len(text):,} bytes beside the rows")
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        store_schema=False,
        write_statistics=False,
        write_page_checksum=True,
    ) as writer:
        for columns in groups:
            if len(columns[0]):
                rows = pa.table(list(columns), schema=schema)
                writer.write_table(rows, row_group_size=ROWS_AT_ONCE)
        writer.add_key_value_metadata({KEY: text, CHECKSUM: hashlib.sha256(text).hexdigest()})
    write_bytes(path, memoryview(sink.getvalue()))


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Put a whole file in its place in one step, on the disk before it is seen.

    Raises
    ------
    EvidenceError
        If it cannot be written.
    """
    half = path.with_name(f".{path.name}.{secrets.token_hex(4)}{HALF}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with half.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(half, path)
        except BaseException:
            half.unlink(missing_ok=True)
            raise
        sync(path.parent)
    except OSError as exc:
        raise EvidenceError(f"cannot write {path}: {exc.strerror or exc}") from exc


def sync(folder: Path) -> None:
    """Have what became of the names in a folder on the disk; where a system cannot, not."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# --- reading --------------------------------------------------------------------------------------


def read_table(
    path: Path, shape: Shape, make: Callable[[pa.Table, Meta], Made], most: int | None = None
) -> Made:
    """Read a file of one kind of evidence.

    Parameters
    ----------
    path : Path
        A file, and no link to one.
    shape : Shape
        What it must look like.
    make : callable
        Makes of the table, and of what the file says of itself, what is returned; whatever it
        raises says what is wrong with them.
    most : int, optional
        Rows it may have.

    Raises
    ------
    EvidenceError
        If it is missing, too large, damaged, or looks otherwise; it names the file.
    """
    rows = MOST_ROWS if most is None else min(most, MOST_ROWS)
    limit = min(SPARE + rows * WIDEST_ROW, MOST_DECODED)
    data = _whole_file(path, limit)
    try:
        return make(*_read(data, shape, rows, limit))
    except Exception as exc:  # Arrow raises what it likes at bytes that are not what they should be
        said = " ".join(str(exc).split()) or type(exc).__name__
        raise EvidenceError(f"cannot read evidence {path}: {said:.300}") from exc


def _whole_file(path: Path, limit: int) -> bytes:
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "no regular file"
            raise EvidenceError(f"cannot read evidence {path}: it is {what}")
        # a name may come to mean something else at any time: what was opened is looked at as well
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            now = os.fstat(handle)
            if not stat.S_ISREG(now.st_mode):
                raise EvidenceError(f"cannot read evidence {path}: it is no regular file")
            if now.st_size > limit:
                raise EvidenceError(
                    f"cannot read evidence {path}: {now.st_size:,} bytes are more than the "
                    f"{limit:,} that it may have"
                )
            data = file.read(now.st_size + 1)
    except OSError as exc:
        raise EvidenceError(f"cannot read evidence {path}: {exc.strerror or exc}") from exc
    if len(data) != now.st_size:
        raise EvidenceError(f"cannot read evidence {path}: it changed while it was read")
    return data


def _read(data: bytes, shape: Shape, rows: int, limit: int) -> tuple[pa.Table, Meta]:
    view = memoryview(data)
    about = footer(view)
    if about.rows > rows:
        raise ValueError(f"it claims {about.rows:,} rows; {rows:,} are the most it may have")
    meta = _meta(about.texts, shape.tier)
    _within(view, about, limit)
    file = pq.ParquetFile(
        pa.BufferReader(data),
        read_dictionary=list(shape.texts),
        pre_buffer=False,
        thrift_string_size_limit=LARGEST_FOOTER,
        thrift_container_size_limit=MOST_CHUNKS,
        page_checksum_verification=True,
    )
    _same_columns(file.schema_arrow, shape)
    table = file.read(use_threads=False)
    if table.num_rows != about.rows:
        raise ValueError(f"it claims {about.rows:,} rows and has {table.num_rows:,}")
    table.validate(full=True)
    return table, meta


def _meta(said: Mapping[bytes, bytes], tier: str) -> Meta:
    text = said.get(KEY)
    if text is None:
        raise ValueError("it does not say what it is: it is not ours")
    if hashlib.sha256(text).hexdigest().encode() != said.get(CHECKSUM):
        raise ValueError("what it says of itself is not what was written: its checksum is another")
    meta = json.loads(text)
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise ValueError(f"it is not of evidence format {FORMAT}")
    if meta.get("tier") != tier:
        raise ValueError(f"it is evidence of kind {meta.get('tier')!r:.40}, not {tier!r}")
    return meta


def _same_columns(found: pa.Schema, shape: Shape) -> None:
    """Exactly the columns wanted: names, order, types, and where a null may be."""
    more = [f for f in shape.extra if f.name in found.names]
    if found.names != [f.name for f in (*shape.schema, *more)]:
        raise ValueError(f"its columns are {found.names!s:.200}, not {shape.schema.names}")
    for wanted in (*shape.schema, *more):
        column = found.field(wanted.name)
        kind = pa.dictionary(pa.int32(), pa.string()) if wanted.name in shape.texts else wanted.type
        if column.type != kind or column.nullable != wanted.nullable:
            raise ValueError(f"its column {wanted.name} is {column.type!s:.100}, not {wanted.type}")


def _within(data: memoryview, about: Footer, limit: int) -> None:
    """Refuse what would take more than `limit` bytes to decode."""
    left = limit
    for _, chunks in about.groups:
        for chunk in chunks:
            for size in decoded(data, chunk):
                left -= size
                if left < 0:
                    raise ValueError(f"it would take more than {limit:,} bytes to decode")
