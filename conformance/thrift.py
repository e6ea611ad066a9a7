"""Thrift's compact protocol, as much of it as Parquet's headers need; anything else is refused.

The specification: https://github.com/apache/thrift, doc/specs/thrift-compact-protocol.md. What is
read here decides what a library in C++ is let see, so bytes that two readers could take for two
things (a field given twice, a number that is too long for its type) are refused.
"""

from __future__ import annotations

from typing import Union

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 12
BITS = {I16: 16, I32: 32, I64: 64}
DEEPEST = 10
MOST_VALUES = 500_000

Value = Union[bool, int, bytes, list["Typed"], "Fields", None]
Typed = tuple[int, Value]  # type of the protocol, value
Fields = dict[int, Typed]


class Reader:
    """Reads one struct.

    Parameters
    ----------
    data : memoryview
        Where it lies.
    at, end : int
        Where it begins, and where it must have ended.
    most : int
        Values it may hold in all.
    """

    def __init__(self, data: memoryview, at: int, end: int, most: int = MOST_VALUES) -> None:
        self.data, self.at, self.end, self.left = data, at, end, most

    def struct(self, depth: int = 0) -> Fields:
        """Its fields by number.

        Raises
        ------
        ValueError
            If it is none, or holds what Parquet's headers do not.
        """
        if depth > DEEPEST:
            raise ValueError("a header is nested too deeply")
        fields: Fields = {}
        number = 0
        while (first := self._byte()) != 0:
            step, kind = first >> 4, first & 15
            number = number + step if step else self._number(I16)
            if number in fields or number < 0:
                raise ValueError("a header has a field twice")
            # a boolean field has its value in its type
            value = kind == TRUE if kind in (TRUE, FALSE) else self._value(kind, depth)
            fields[number] = kind, value
        return fields

    def _value(self, kind: int, depth: int) -> Value:
        self.left -= 1
        if self.left < 0:
            raise ValueError("a header holds too much")
        if kind in BITS:
            return self._number(kind)
        if kind == BINARY:
            return self._bytes(self._varint())
        if kind == STRUCT:
            return self.struct(depth + 1)
        if kind == LIST:
            return self._list(depth)
        if kind in (TRUE, FALSE, BYTE):  # in a list
            return self._byte()
        if kind == DOUBLE:
            return self._bytes(8)
        raise ValueError(f"a header holds a value of type {kind}")

    def _list(self, depth: int) -> list[Typed]:
        first = self._byte()
        size, kind = first >> 4, first & 15
        size = self._varint() if size == 15 else size
        if size > self.left:
            raise ValueError("a header holds too much")
        return [(kind, self._value(kind, depth + 1)) for _ in range(size)]

    def _bytes(self, size: int) -> bytes:
        if size > self.end - self.at:
            raise ValueError("a header does not end")
        self.at += size
        return bytes(self.data[self.at - size : self.at])

    def _byte(self) -> int:
        if self.at >= self.end:
            raise ValueError("a header does not end")
        self.at += 1
        return self.data[self.at - 1]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number in a header does not end")

    def _number(self, kind: int) -> int:
        value = self._varint()
        if value >> BITS[kind]:
            raise ValueError("a number in a header is too long for its type")
        return (value >> 1) ^ -(value & 1)


def count(fields: Fields, number: int, kind: int = I32) -> int:
    """A field that is a whole number of this type, and not negative."""
    found = fields.get(number)
    if found is None or found[0] != kind or not isinstance(found[1], int) or found[1] < 0:
        raise ValueError(f"field {number} of a header is no count")
    return found[1]


def within(fields: Fields, number: int) -> Fields:
    """A field that is a struct."""
    found = fields.get(number)
    if found is None or not isinstance(found[1], dict):
        raise ValueError(f"field {number} of a header is no struct")
    return found[1]


def items(fields: Fields, number: int, kind: int = STRUCT) -> list[Value]:
    """A field that is a list of values of this type."""
    found = fields.get(number)
    if found is None or not isinstance(found[1], list) or any(k != kind for k, _ in found[1]):
        raise ValueError(f"field {number} of a header is no such list")
    return [value for _, value in found[1]]


def structs(fields: Fields, number: int) -> list[Fields]:
    """A field that is a list of structs."""
    return [value for value in items(fields, number) if isinstance(value, dict)]


def binary(fields: Fields, number: int) -> bytes:
    """A field that is a string."""
    found = fields.get(number)
    if found is None or not isinstance(found[1], bytes) or found[0] != BINARY:
        raise ValueError(f"field {number} of a header is no string")
    return found[1]


def only(fields: Fields, known: set[int], what: str) -> None:
    """Refuse a struct with other fields than these."""
    if unknown := fields.keys() - known:
        raise ValueError(f"{what} has a field {min(unknown)} that we never write")
