"""What a Parquet file holds and what it will take to decode, from its headers alone.

The footer says how many values a column has, and every page says it again, with its size once
decompressed. A reader believes the pages: a few bytes can claim two thousand million values, or as
many bytes. And it may not survive a footer that nobody's writer makes (pyarrow's ends the process
at some). So footer and headers are read here before it sees the file, and whatever our own writer
would not have written is refused. Fields: https://github.com/apache/parquet-format, parquet.thrift.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from conformance.thrift import (
    BINARY,
    I32,
    I64,
    Fields,
    Reader,
    binary,
    count,
    items,
    only,
    structs,
    within,
)

MAGIC = b"PAR1"
TAIL = 8  # bytes behind the footer: its length, and the magic
WRITER = b"parquet-cpp-arrow version "  # Arrow reads on behind the columns of some others
LARGEST_FOOTER = 2**26
PAGE, DICTIONARY_PAGE = 0, 2
PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY = 0, 2, 3, 8
ENCODINGS = {PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY}
UNCOMPRESSED, ZSTD = 0, 6
CODECS = {UNCOMPRESSED, ZSTD}
INT32, INT64, DOUBLE, BYTE_ARRAY = 1, 2, 5, 6
TYPES = {INT32, INT64, DOUBLE, BYTE_ARRAY}
WIDTH = 8 + 4  # bytes of a decoded value and its two levels, at most

# FileMetaData
SCHEMA, ROWS, GROUPS, TEXTS, BY = 2, 3, 4, 5, 6
# RowGroup; its columns are each a ColumnChunk, which must not lie in another file or be encrypted
COLUMNS, GROUP_ROWS = 1, 3
ABOUT = 3
# ColumnMetaData
TYPE, PATH, CODEC, VALUES, PACKED_SIZE, DATA_AT, DICTIONARY_AT = 1, 3, 4, 5, 7, 9, 11
# PageHeader, and the two headers in it
KIND, UNPACKED, PACKED, DATA_HEADER, DICTIONARY_HEADER = 1, 2, 3, 5, 7
PAGE_VALUES, ENCODING = 1, 2


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column's values of one row group, and where they lie."""

    path: tuple[str, ...]
    values: int
    begin: int
    size: int


@dataclass(frozen=True, slots=True)
class Footer:
    """What a file says of itself: rows, the columns of every row group, and texts by their keys."""

    rows: int
    groups: tuple[tuple[int, tuple[Chunk, ...]], ...]
    texts: dict[bytes, bytes]


def footer(data: memoryview) -> Footer:
    """Read a file's footer.

    Raises
    ------
    ValueError
        If there is none, or it is not one that our writer makes.
    """
    size = len(data) - TAIL - len(MAGIC)
    if size < 0 or bytes(data[:4]) != MAGIC or bytes(data[-4:]) != MAGIC:
        raise ValueError("it is no Parquet file, or was cut")
    length = int.from_bytes(data[-TAIL:-4], "little")
    if length > min(size, LARGEST_FOOTER):
        raise ValueError("its footer is longer than it")
    reader = Reader(data, len(data) - TAIL - length, len(data) - TAIL)
    said = reader.struct()
    if reader.at != reader.end:
        raise ValueError("something follows its footer")
    only(said, {1, SCHEMA, ROWS, GROUPS, TEXTS, BY, 7}, "its footer")
    if not binary(said, BY).startswith(WRITER):
        raise ValueError(f"it was written by {binary(said, BY)[:40]!r}")
    texts = {binary(t, 1): binary(t, 2) for t in structs(said, TEXTS)}
    groups = tuple(_group(g) for g in structs(said, GROUPS))
    rows = count(said, ROWS, I64)
    if rows != sum(n for n, _ in groups):
        raise ValueError(f"it claims {rows:,} rows and has {sum(n for n, _ in groups):,}")
    return Footer(rows, groups, texts)


def _group(group: Fields) -> tuple[int, tuple[Chunk, ...]]:
    only(group, {COLUMNS, 2, GROUP_ROWS, 5, 6, 7}, "a row group")
    rows = count(group, GROUP_ROWS, I64)
    if rows == 0:
        raise ValueError("a row group has no rows")
    return rows, tuple(_chunk(c) for c in structs(group, COLUMNS))


def _chunk(chunk: Fields) -> Chunk:
    only(chunk, {2, ABOUT}, "a column")
    about = within(chunk, ABOUT)
    only(about, {*range(1, 8), DATA_AT, DICTIONARY_AT, 13, 16}, "a column")
    if count(about, CODEC) not in CODECS or count(about, TYPE) not in TYPES:
        raise ValueError("a column is packed, or typed, as we never do it")
    begin = count(about, DATA_AT, I64)
    if DICTIONARY_AT in about:
        before = count(about, DICTIONARY_AT, I64)
        if not 0 < before < begin:
            raise ValueError("a dictionary does not lie before its column")
        begin = before
    path = tuple(p.decode() for p in items(about, PATH, BINARY) if isinstance(p, bytes))
    return Chunk(path, count(about, VALUES, I64), begin, count(about, PACKED_SIZE, I64))


def decoded(data: memoryview, chunk: Chunk) -> Iterator[int]:
    """Bytes it will take to decode each page of a column; together they fill it.

    Raises
    ------
    ValueError
        If a header is not one that our writer makes, if pages and column do not agree on the number
        of values, or if they do not lie where they should.
    """
    begin, end, values = chunk.begin, chunk.begin + chunk.size, 0
    if end > len(data) - TAIL:
        raise ValueError("a column lies outside the file")
    while begin < end:
        reader = Reader(data, begin, end)
        header = reader.struct()
        only(header, {KIND, UNPACKED, PACKED, 4, DATA_HEADER, DICTIONARY_HEADER}, "a page")
        kind, packed, unpacked = (count(header, n, I32) for n in (KIND, PACKED, UNPACKED))
        if kind not in (PAGE, DICTIONARY_PAGE):
            raise ValueError(f"a page is of kind {kind}")
        about = within(header, DATA_HEADER if kind == PAGE else DICTIONARY_HEADER)
        held = count(about, PAGE_VALUES)
        if count(about, ENCODING) not in ENCODINGS:
            raise ValueError(f"a page has encoding {count(about, ENCODING)}")
        if kind == DICTIONARY_PAGE and held > unpacked:
            raise ValueError("a dictionary claims more values than it has bytes")
        values += held if kind == PAGE else 0
        begin = reader.at + packed
        if begin > end:
            raise ValueError("a page goes on behind its column")
        yield packed + unpacked + held * WIDTH
    if values != chunk.values:
        raise ValueError(f"a column claims {chunk.values:,} values and has {values:,}")
