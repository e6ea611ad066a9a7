"""Columns of evidence files as numpy arrays, and back.

What does not fit raises ValueError, which `conformance.parquet.read_table` turns into an
`EvidenceError` that names the file.
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from conformance.law import Bools, Floats
from conformance.parquet import Meta
from conformance.tinylm import Tokens
from conformance.wire import MOST_COUNTED

INT, FLOAT = pa.int64(), pa.float64()
LARGEST = 2**53  # of a whole number in JSON


def whole(name: str, nullable: bool = False) -> pa.Field:
    """A column of whole numbers."""
    return pa.field(name, INT, nullable=nullable)


def real(name: str) -> pa.Field:
    """A column of numbers."""
    return pa.field(name, FLOAT, nullable=False)


def text(name: str) -> pa.Field:
    """A column of strings."""
    return pa.field(name, pa.string(), nullable=False)


def listed(name: str, kind: pa.DataType = INT, nullable: bool = False) -> pa.Field:
    """A column of lists without gaps; a whole list may be missing if `nullable`."""
    return pa.field(name, pa.list_(pa.field("element", kind, nullable=False)), nullable=nullable)


# --- to columns -----------------------------------------------------------------------------------


def ints(values: Tokens, missing: Bools | None = None) -> pa.Array:
    """Whole numbers, null where `missing`. [N]"""
    return pa.array(np.ascontiguousarray(values, dtype=np.int64), INT, mask=missing)


def floats(values: Floats) -> pa.Array:
    """Numbers. [N]"""
    return pa.array(np.ascontiguousarray(values, dtype=np.float64), FLOAT)


def lists(
    values: pa.Array, lengths: Tokens, field: pa.Field, missing: Bools | None = None
) -> pa.Array:
    """Consecutive values, so many a row. [sum of lengths], [N]"""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"{offsets[-1]:,} numbers do not fit in one file")
    mask = None if missing is None else pa.array(missing)
    at = pa.array(offsets.astype(np.int32))
    return pa.ListArray.from_arrays(at, values, type=field.type, mask=mask)


def rows(matrix: Tokens, field: pa.Field) -> pa.Array:
    """Lists of equal length. [N, T]"""
    return lists(ints(matrix.ravel()), np.full(len(matrix), matrix.shape[1]), field)


def real_rows(matrix: Floats, field: pa.Field) -> pa.Array:
    """The same of numbers that need not be whole. [N, T]"""
    return lists(floats(matrix.ravel()), np.full(len(matrix), matrix.shape[1]), field)


# --- from columns ---------------------------------------------------------------------------------


def one(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    whole = column.combine_chunks()
    return whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole


def numbers(column: pa.ChunkedArray, missing: int | None = None) -> Tokens:
    """Whole numbers; nulls are `missing`, which no number may be. [N]"""
    array = one(column)
    if missing is not None:
        if missing in array.drop_null().to_numpy(zero_copy_only=False):
            raise ValueError(f"{missing} stands where nothing should")
        array = array.fill_null(missing)
    if array.null_count:
        raise ValueError("a number is missing")
    return np.array(array.to_numpy(zero_copy_only=False), dtype=np.int64)


def reals(column: pa.ChunkedArray) -> Floats:
    """Numbers. [N]"""
    return np.array(one(column).to_numpy(zero_copy_only=False), dtype=np.float64)


def lengths(column: pa.ChunkedArray) -> tuple[Tokens, pa.Array]:
    """How long every list is (0 for a null), and the values of all of them. [N], [sum]"""
    array = one(column)
    return np.diff(array.offsets.to_numpy()).astype(np.int64), array.flatten()


def matrix(column: pa.ChunkedArray, width: int) -> Tokens:
    """Lists that must all be that long. [N, width]"""
    each, values = lengths(column)
    if (each != width).any():
        wrong = int(each[each != width][0])
        raise ValueError(f"a row has {wrong} numbers where {width} are wanted")
    made = np.array(values.to_numpy(zero_copy_only=False), dtype=np.int64)
    return made.reshape(len(each), width)


def real_matrix(column: pa.ChunkedArray, width: int) -> Floats:
    """The same of numbers that need not be whole. [N, width]"""
    each, values = lengths(column)
    if (each != width).any():
        raise ValueError(f"a row has another number of numbers than {width}")
    made = np.array(values.to_numpy(zero_copy_only=False), dtype=np.float64)
    return made.reshape(len(each), width)


def padded(column: pa.ChunkedArray, width: int, fill: int) -> Tokens:
    """Lists of that length at most, the rest filled. [N, width]"""
    each, values = lengths(column)
    if (each > width).any():
        raise ValueError(f"a row has {int(each.max())} numbers where {width} are wanted at most")
    found = np.array(values.to_numpy(zero_copy_only=False), dtype=np.int64)
    if (found == fill).any():
        raise ValueError(f"{fill} stands where nothing should")
    made = np.full((len(each), width), fill, dtype=np.int64)
    made[np.arange(width) < each[:, None]] = found
    return made


def consecutive(column: pa.ChunkedArray, said: int, begin: int) -> int:
    """How many rows there are; they must be numbered from `begin` on, and be `said` to be."""
    found = numbers(column)
    if said != begin or not np.array_equal(found, np.arange(begin, begin + len(found))):
        raise ValueError(f"its rows are not those from number {begin} on")
    return len(found)


def timed(batch: Tokens, seconds: Floats) -> None:
    """Refuse batches that go back, or seconds that are none."""
    if (np.diff(batch, prepend=0) < 0).any():
        raise ValueError("its batches are not in order")
    if not np.isfinite(seconds).all() or (seconds < 0).any():
        raise ValueError("its seconds are no times")
    if (np.diff(seconds) != 0)[np.diff(batch) == 0].any():
        raise ValueError("a batch took two times")


def total(batch: Tokens, seconds: Floats) -> float:
    """Seconds of all batches."""
    return float(seconds[np.unique(batch, return_index=True)[1]].sum())


def all_or_none(column: pa.ChunkedArray) -> Tokens | None:
    """Whole numbers; None if all are null. [N]"""
    if 0 < column.null_count < len(column):
        raise ValueError("something is told of some requests and not of others")
    return None if column.null_count else numbers(column)


def pairs(drafted: pa.ChunkedArray, accepted: pa.ChunkedArray) -> Tokens | None:
    """Tokens drafted and accepted; None where nothing was told. [N, 2]"""
    first, second = all_or_none(drafted), all_or_none(accepted)
    if (first is None) != (second is None):
        raise ValueError("it counts drafted tokens without accepted ones, or the reverse")
    if first is None or second is None or len(first) == 0:
        return None
    fit(first, second, MOST_COUNTED)
    return np.column_stack([first, second])


def fit(drafted: Tokens, accepted: Tokens, most: int) -> None:
    """Refuse counts that cannot be."""
    if not ((accepted >= 0) & (accepted <= drafted) & (drafted <= most)).all():
        raise ValueError("accepted tokens must be 0 or more, and no more than were drafted")


# --- what a file says of itself -------------------------------------------------------------------


def count(meta: Meta, key: str) -> int:
    """A whole number, not negative."""
    said = meta.get(key)
    if type(said) is not int or not 0 <= said < LARGEST:
        raise ValueError(f"its {key} is {said!r:.60}, which is no count")
    return said


def seconds(meta: Meta) -> float:
    """The time it tells."""
    said = meta.get("seconds")
    if not isinstance(said, int | float) or isinstance(said, bool) or not 0 <= said < math.inf:
        raise ValueError(f"its seconds are {said!r:.60}, which is no time")
    return float(said)


def words(meta: Meta, key: str) -> str:
    """A text."""
    said = meta.get(key)
    if not isinstance(said, str):
        raise ValueError(f"its {key} is {said!r:.60}, which is no text")
    return said
