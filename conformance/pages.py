"""What the pages of a Parquet file will take to decode, from their headers alone.

The footer says how many values a column has, and every page says it again, with its size once
decompressed; a reader believes the pages. A page of a few bytes can claim two thousand million
values, or as many bytes, so each header is read here before a reader sees the file. Headers are in
Thrift's compact protocol (https://github.com/apache/thrift, doc/specs/thrift-compact-protocol.md);
their fields are in parquet.thrift (https://github.com/apache/parquet-format).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

DATA, DICTIONARY = 0, 2  # PageType
PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY = 0, 2, 3, 8  # Encoding
ENCODINGS = {PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY}
# fields of PageHeader, and of the two headers in it
TYPE, UNPACKED, PACKED, DATA_HEADER, DICTIONARY_HEADER = 1, 2, 3, 5, 7
VALUES, ENCODING = 1, 2
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 12
DEEPEST = 4
LEVELS = 4  # bytes a value takes for its two levels, while it is decoded
NUMBER = 8  # bytes of a decoded value


@dataclass(frozen=True, slots=True)
class Page:
    """One page: whether it is a dictionary, its values, and the bytes to decode it takes."""

    dictionary: bool
    values: int
    size: int


def pages(data: memoryview, begin: int, size: int) -> Iterator[Page]:
    """Every page of a column chunk; together they fill it.

    Parameters
    ----------
    data : memoryview
        The file.
    begin, size : int
        Where the chunk lies in it.

    Raises
    ------
    ValueError
        If a header is not one that a writer of ours makes, or the pages do not fill the chunk.
    """
    end = begin + size
    if begin < 0 or size < 0 or end > len(data):
        raise ValueError("a column lies outside the file")
    while begin < end:
        read = _Compact(data, begin, end)
        header = read.struct()
        packed, unpacked = _count(header, PACKED), _count(header, UNPACKED)
        kind = _count(header, TYPE)
        if kind not in (DATA, DICTIONARY):
            raise ValueError(f"a page is of kind {kind}")
        about = header.get(DATA_HEADER if kind == DATA else DICTIONARY_HEADER)
        if not isinstance(about, dict):
            raise ValueError("a page has no header of its kind")
        if _count(about, ENCODING) not in ENCODINGS:
            raise ValueError(f"a page has encoding {_count(about, ENCODING)}")
        values = _count(about, VALUES)
        if kind == DICTIONARY and values > unpacked:
            raise ValueError("a dictionary claims more values than it has bytes")
        begin = read.at + packed
        if begin > end:
            raise ValueError("a page goes on behind its column")
        yield Page(kind == DICTIONARY, values, packed + unpacked + values * (NUMBER + LEVELS))


Value = tuple[int, int] | bytes | dict[int, "Value"] | None


def _count(fields: dict[int, Value], number: int) -> int:
    found = fields.get(number)
    if not isinstance(found, tuple) or found[0] != _I32 or not 0 <= found[1] < 2**31:
        raise ValueError(f"field {number} of a page's header is no count")
    return found[1]


class _Compact:
    """As much of the protocol as a page's header needs; anything else is refused."""

    def __init__(self, data: memoryview, at: int, end: int) -> None:
        self.data, self.at, self.end = data, at, end

    def struct(self, depth: int = 0) -> dict[int, Value]:
        """Fields by number: (type, whole number), bytes unread, or a struct."""
        if depth > DEEPEST:
            raise ValueError("a page's header is nested too deeply")
        fields: dict[int, Value] = {}
        number = 0
        while (first := self._byte()) != 0:
            step, kind = first >> 4, first & 15
            number = number + step if step else self._signed()
            if number in fields:
                raise ValueError("a page's header has a field twice")
            fields[number] = self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Value:
        if kind in (_TRUE, _FALSE):
            return kind, int(kind == _TRUE)
        if kind in (_I16, _I32, _I64):
            return kind, self._signed()
        if kind == _STRUCT:
            return self.struct(depth + 1)
        skipped = {_BYTE: 1, _DOUBLE: 8}.get(kind)
        if kind == _BINARY:
            skipped = self._varint()
        if skipped is None or self.at + skipped > self.end:
            raise ValueError("a page's header cannot be read")
        self.at += skipped
        return None

    def _byte(self) -> int:
        if self.at >= self.end:
            raise ValueError("a page's header does not end")
        self.at += 1
        return self.data[self.at - 1]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number in a page's header does not end")

    def _signed(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
