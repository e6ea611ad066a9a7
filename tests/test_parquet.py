"""Evidence files: what was written comes back, however it was cut, and what was not is refused."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import evidence_files as made
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import parquet, thrift
from conformance.errors import EvidenceError
from conformance.evidence import SHAPE, Evidence, continued, first_requests, load_evidence, selected
from conformance.pages import Chunk, decoded
from conformance.parts import Parts
from conformance.served import evidence as served
from conformance.served.evidence import load_served
from conformance.verifier.evidence import assembled, load_verifier_evidence, read_stored

TIERS: dict[str, tuple[Callable[[int], Any], Callable[..., Any]]] = {
    "engine": (made.engine, load_evidence),
    "served": (made.served, load_served),
    "verifier": (lambda n: assembled(made.verifier(n)), load_verifier_evidence),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "case-0badcafe.speculative.parquet"


def same(one: Any, other: Any) -> None:
    """Every field, times and all."""
    assert one.sha256 == other.sha256
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, dict):
            assert list(a) == list(b)
            for key, value in a.items():
                np.testing.assert_array_equal(value, b[key])
        elif isinstance(a, np.ndarray) or a is None:
            np.testing.assert_array_equal(a, b)
        else:
            assert a == pytest.approx(b) if isinstance(a, float) else a == b


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("n", [1, 2, 500])
def test_what_is_written_comes_back(tier: str, n: int, path: Path) -> None:
    make, load = TIERS[tier]
    evidence = make(n)
    evidence.save(path)
    same(evidence, load(path))
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_anybody_can_read_it(path: Path) -> None:
    """A row a request, in columns that say what they are."""
    evidence = made.engine(9)
    evidence.save(path)
    rows = pq.read_table(path).to_pylist()
    assert [r["request"] for r in rows] == list(range(9))
    assert [r["tokens"] for r in rows] == evidence.tokens.tolist()
    assert [r["seed"] for r in rows] == [None if s < 0 else s for s in evidence.seeds.tolist()]
    assert evidence.rounds is not None
    pairs = [(i, p["drafted"], p["accepted"]) for i, r in enumerate(rows) for p in r["rounds"]]
    assert pairs == list(map(tuple, evidence.rounds.tolist()))
    assert rows[0]["drafted"] is None
    about = json.loads(pq.read_metadata(path).metadata[b"conformance"])
    assert (about["format"], about["case"], about["planned"]) == (1, evidence.case, 16)
    assert about["sha256"] == evidence.sha256


@given(made.engines())
@settings(max_examples=60, deadline=None)
def test_any_evidence_comes_back(evidence: Evidence) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.speculative.parquet"
        evidence.save(path)
        back = load_evidence(path)
    assert back.sha256 == evidence.sha256
    if len(evidence.tokens):
        same(evidence, back)


def saved_in_parts(evidence: Evidence, cut: list[int], stale: set[int], folder: Path) -> Parts:
    """The first piece as the one file, the others as parts; stale parts from rows before that."""
    parts = Parts(folder / "x.speculative.parquet")
    number = np.arange(len(evidence.tokens))
    wrong = dataclasses.replace(evidence, tokens=evidence.tokens ^ 1)
    for begin in stale:
        selected(wrong, number >= begin).save(parts.part(begin), begin)
    for begin, end in itertools.pairwise(cut):
        piece = selected(evidence, (begin <= number) & (number < end))
        piece.save(parts.part(begin) if begin else parts.path, begin)
    return parts


@given(made.engines(fewest=1), st.data())
@settings(max_examples=60, deadline=None)
def test_any_split_into_parts_loads_the_same(evidence: Evidence, data: st.DataObject) -> None:
    """With any stale parts beside them, and none of what lies behind a gap."""
    n = len(evidence.tokens)
    cut = data.draw(made.cuts(n))
    behind = set(range(1, n)) - set(cut)
    stale = data.draw(st.sets(st.sampled_from(sorted(behind)))) if behind else set()
    with tempfile.TemporaryDirectory() as folder:
        parts = saved_in_parts(evidence, cut, stale, Path(folder))
        pieces = parts.pieces(
            lambda p, begin: load_evidence(p, begin=begin), lambda e: len(e.tokens)
        )
        assert [len(p.tokens) for p in pieces] == list(np.diff(cut))
        same(functools.reduce(continued, pieces), evidence)
        if len(cut) > 2:
            lost = data.draw(st.integers(1, len(cut) - 2))
            parts.part(cut[lost]).unlink()
            left = parts.pieces(lambda p, b: load_evidence(p, begin=b), lambda e: len(e.tokens))
            assert sum(len(p.tokens) for p in left) == cut[lost]
        parts.remove()
        assert parts.listed() == {}
        assert load_evidence(parts.path).sha256 == first_requests(evidence, cut[1]).sha256


@given(st.integers(1, 20), st.data())
@settings(max_examples=30, deadline=None)
def test_a_served_arm_is_the_same_however_it_was_cut(n: int, data: st.DataObject) -> None:
    evidence = made.served(n, counts=data.draw(st.booleans()))
    at = data.draw(st.integers(0, n))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.parquet"
        first = served.first_answers(evidence, at)
        first.save(path)
        assert load_served(path).sha256 == first.sha256
    rest = dataclasses.replace(
        evidence,
        **{f: getattr(evidence, f)[at:] for f in ("symbols", "prompt", "seeds", "batch")},
        batch_seconds=evidence.rounds[1][at:],
        counts=None if evidence.counts is None or at == n else evidence.counts[at:],
    )
    assert served.continued(first, rest).sha256 == evidence.sha256


@given(st.integers(1, 20), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_a_verifier_is_the_same_in_whatever_order_chunks_came(n: int, random: Any) -> None:
    whole = made.verifier(n)
    pieces = []
    for r in whole.rows:
        cut = sorted({0, len(r.tokens)} | set(random.choices(range(1, len(r.tokens) + 1), k=3)))
        pieces += [
            dataclasses.replace(r, begin=a, tokens=r.tokens[a:b])
            for a, b in itertools.pairwise(cut)
        ]
    random.shuffle(pieces)
    mixed = dataclasses.replace(whole, rows=tuple(pieces))
    assert mixed.sha256 == whole.sha256
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.parquet"
        mixed.save(path, begin=5)
        back, _ = read_stored(path, begin=5)
    assert back.sha256 == whole.sha256
    assert assembled(back).sha256 == assembled(whole).sha256
    first = next(r for r in pieces if r.name == "random-8" and r.kind == "law" and r.begin == 0)
    gap = assembled(dataclasses.replace(mixed, rows=tuple(r for r in pieces if r is not first)))
    assert "random-8" not in gap.tokens


# --- hostile files --------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", TIERS)
def test_a_file_that_was_cut_is_refused(tier: str, path: Path) -> None:
    make, load = TIERS[tier]
    make(40).save(path)
    whole = path.read_bytes()
    for keep in {*range(0, 16), *range(16, len(whole), 37), *range(len(whole) - 16, len(whole))}:
        path.write_bytes(whole[:keep])
        with pytest.raises(EvidenceError, match="cannot read evidence"):
            load(path)


@pytest.mark.parametrize("tier", TIERS)
def test_a_byte_that_was_flipped_is_seen_or_changes_nothing(tier: str, path: Path) -> None:
    make, load = TIERS[tier]
    evidence = make(40)
    evidence.save(path)
    whole = path.read_bytes()
    seen = 0
    places = range(0, len(whole), max(1, len(whole) // 700))
    for at in places:
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        try:
            found = load(path)
        except EvidenceError:
            seen += 1
        else:
            same(evidence, found)
    assert seen > 0.8 * len(places)


def rewritten(
    path: Path,
    change: Callable[[pa.Table], pa.Table] = lambda t: t,
    about: Callable[[dict[str, Any]], object] = lambda m: None,
    **options: Any,
) -> None:
    """The file with other columns, or saying other things of itself, with fitting checksums."""
    table, meta = pq.read_table(path), json.loads(pq.read_metadata(path).metadata[b"conformance"])
    about(meta)
    new, text = change(table.cast(SHAPE.schema)), json.dumps(meta)
    options = {"store_schema": False, "write_statistics": False, "compression": "zstd", **options}
    with pq.ParquetWriter(path, new.schema, **options) as writer:
        writer.write_table(new)
        writer.add_key_value_metadata(
            {"conformance": text, "conformance.sha256": hashlib.sha256(text.encode()).hexdigest()}
        )


def with_column(
    name: str, values: Any, field: pa.Field | None = None
) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        i = table.schema.get_field_index(name)
        kind = field or table.schema.field(i)
        made = values(table[name].combine_chunks()) if callable(values) else values
        return table.set_column(i, kind, pa.array(made, kind.type))

    return change


def test_rewriting_alone_changes_nothing(path: Path) -> None:
    """Or the cases below would be refused for another reason than theirs."""
    evidence = made.engine(6)
    evidence.save(path)
    rewritten(path)
    same(evidence, load_evidence(path))


INT = pa.int64()
ELEMENT = SHAPE.schema.field("tokens").type
CHANGES: dict[str, tuple[str, Callable[[pa.Table], pa.Table]]] = {
    "another type": (
        "column seed is int32",
        with_column("seed", [1] * 6, pa.field("seed", pa.int32())),
    ),
    "a null may be": (
        "column prompt",
        with_column("prompt", [0, None, 0, 0, 0, 0], pa.field("prompt", INT)),
    ),
    "a null token": (
        "column tokens",
        with_column(
            "tokens", [[1, None, 3]] * 6, pa.field("tokens", pa.list_(INT), nullable=False)
        ),
    ),
    "an extra column": (
        "its columns are",
        lambda t: t.append_column(pa.field("more", INT), pa.array([1] * 6)),
    ),
    "a missing column": ("its columns are", lambda t: t.drop_columns(["batch"])),
    "other names": (
        "its columns are",
        lambda t: t.rename_columns([n.upper() for n in t.schema.names]),
    ),
    "another order": ("its columns are", lambda t: t.select(t.schema.names[::-1])),
    "text for a number": (
        "column batch is string",
        with_column("batch", ["0"] * 6, pa.field("batch", pa.string(), nullable=False)),
    ),
    "unequal lists": ("a row has 2 numbers", with_column("tokens", [[1, 2, 3]] * 5 + [[1, 2]])),
    "a negative length": ("a length", with_column("length", [3] * 5 + [-3])),
    "a wrong length": ("longer than its length", with_column("length", [2] * 6)),
    "a row twice": ("from number 0 on", with_column("request", [0, 1, 2, 2, 3, 4])),
    "rows in another order": ("from number 0 on", with_column("request", [1, 0, 2, 3, 4, 5])),
    "rows from the middle": ("from number 0 on", with_column("request", [5, 6, 7, 8, 9, 10])),
    "a negative prompt": ("negative", with_column("prompt", [-1] * 6)),
    "a negative seed": ("negative", with_column("seed", [-2] * 6)),
    "no seed as a number": ("-1 stands where", with_column("seed", [-1] * 6)),
    "accepted without drafted": ("without", with_column("accepted", [1] * 6)),
    "some counts": ("of some requests", with_column("drafted", [1, None, 1, 1, 1, 1])),
    "more accepted than drafted": (
        "accepted tokens must be",
        with_column("rounds", [[{"drafted": 1, "accepted": 2}]] * 6),
    ),
    "time that goes back": ("not in order", with_column("batch", [1, 0, 0, 0, 0, 0])),
    "no time": ("no times", with_column("seconds", [float("nan")] * 6)),
    "two times of a batch": ("two times", with_column("seconds", [0.0, 1, 1, 1, 1, 1])),
    "another token": ("checksum", with_column("tokens", lambda a: [[0, 0, 0]] * len(a))),
    "another question": ("checksum", with_column("question", [0] * 6)),
    "no rounds": ("checksum", with_column("rounds", [None] * 6)),
    "fewer rows": ("checksum", lambda t: t.slice(0, 5)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_other_columns_are_refused(what: str, path: Path) -> None:
    said, change = CHANGES[what]
    made.engine(6).save(path)
    rewritten(path, change)
    with pytest.raises(EvidenceError, match=said) as found:
        load_evidence(path)
    assert str(path) in str(found.value)


@pytest.mark.parametrize(
    ("said", "about"),
    [
        ("format 1", {"format": 2}),
        ("format 1", {"format": None}),
        ("of kind 'served'", {"tier": "served"}),
        ("planned", {"planned": -1}),
        ("planned", {"planned": 1e300}),
        ("6 requests of 5 planned", {"planned": 5}),
        ("checksum", {"planned": 12}),
        ("width", {"width": True}),
        ("2 are wanted|3 numbers where 2", {"width": 2}),
        ("from number 0", {"begin": 3}),
        ("no text", {"case": 3}),
        ("checksum", {"sha256": None}),
    ],
)
def test_other_metadata_is_refused(said: str, about: dict[str, Any], path: Path) -> None:
    made.engine(6).save(path)
    rewritten(path, about=lambda m: m.update(about))
    with pytest.raises(EvidenceError, match=said):
        load_evidence(path)


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ("as we never do it", {"compression": "gzip"}),
        ("a field 8 that we never write", {"data_page_version": "2.0"}),
        (
            "encoding",
            {"use_dictionary": False, "column_encoding": {"request": "DELTA_BINARY_PACKED"}},
        ),
    ],
)
def test_what_we_never_write_is_refused(said: str, options: dict[str, Any], path: Path) -> None:
    """Less of the library meets bytes that were made to harm it."""
    made.engine(6).save(path)
    rewritten(path, **options)
    with pytest.raises(EvidenceError, match=said):
        load_evidence(path)


def long_lists(path: Path, rows: int, length: int) -> None:
    """A small file of equal tokens, many of them."""
    e = made.engine(rows, 1, rounds=False)
    dataclasses.replace(e, tokens=np.zeros((rows, length), np.int64)).save(path)


def test_what_takes_too_much_is_refused_before_it_is_decoded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_lists(path, 2, 500_000)
    assert path.stat().st_size < 10_000
    assert load_evidence(path).tokens.shape == (2, 500_000)
    monkeypatch.setattr(parquet, "SPARE", 2**20)
    monkeypatch.setattr(pq.ParquetFile, "read", None)
    with pytest.raises(EvidenceError, match="bytes to decode"):
        load_evidence(path, most=4)


# Thrift's compact protocol, written: as much as a page's header takes


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def struct(fields: dict[int, int | dict[int, Any]], whole: int = thrift.I32) -> bytes:
    out, before = b"", 0
    for number, value in fields.items():
        nested = isinstance(value, dict)
        out += bytes([(number - before) << 4 | (thrift.STRUCT if nested else whole)])
        out += struct(value) if isinstance(value, dict) else varint((value << 1) ^ (value >> 63))
        before = number
    return out + b"\0"


def page(values: int = 6, size: int = 10, unpacked: int = 10, kind: int = 0, **about: Any) -> bytes:
    """A page of our kind, unless told otherwise."""
    inner = {5: {1: values, 2: 0, 3: 3, 4: 3}} if kind == 0 else {7: {1: values, 2: 0}}
    header = {1: kind, 2: unpacked, 3: size} | inner
    return struct(header | about.pop("header", {}), **about) + bytes(size)


def sizes(data: bytes, values: int = 6) -> list[int]:
    chunk = Chunk(("a",), values, 0, len(data))
    return list(decoded(memoryview(data + bytes(20)), chunk))


def test_pages_are_weighed_by_their_headers() -> None:
    assert sizes(page(2, 7, 9, kind=2) + page()) == [7 + 9 + 2 * 12, 10 + 10 + 6 * 12]
    assert sizes(page(2**31 - 1), 2**31 - 1) == [20 + (2**31 - 1) * 12]
    assert sizes(page(6, unpacked=2**31 - 1))[0] > 2**31


@pytest.mark.parametrize(
    ("said", "data"),
    [
        ("claims 6 values and has 2,147,483,647", page(2**31 - 1)),
        ("claims 6 values and has 0", page(6, kind=2)),
        ("claims 6 values and has 12", page() + page()),
        ("more values than it has bytes", page(11, kind=2) + page()),
        ("behind its column", page()[:-1]),
        ("does not end", page() + b"\x15"),
        ("of kind 1", page(kind=1)),
        ("is no struct", page(header={5: 3})),
        ("is no count", page(header={3: -1})),
        ("is no count", page(whole=thrift.I64)),
        ("is no count", page(header={2: 2**31 - 1}, whole=thrift.I16)[:3] + bytes(20)),
        ("too long for its type", page(header={2: 2**33})),
        ("field twice", b"\x15\x00\x05\x02\x00" + bytes(20)),
        ("encoding 5", page(header={5: {1: 6, 2: 5, 3: 3, 4: 3}})),
        ("never write", page(header={8: {1: 6}})),
        ("nested too deeply", b"\x5c" + b"\x1c" * 50),
        ("of type 11", b"\x1b\x00"),
        ("does not end", b"\x15" + b"\xff" * 12),
        ("holds too much", b"\x19\xf5" + varint(2**31)),
    ],
)
def test_pages_that_are_none_of_ours_are_refused(said: str, data: bytes) -> None:
    with pytest.raises(ValueError, match=said):
        sizes(data)


@pytest.mark.parametrize(("rows", "said"), [(7, "7 rows; 6 are the most"), (10**12, "and has 7")])
def test_more_rows_than_may_be_are_refused(rows: int, said: str, path: Path) -> None:
    """A footer can claim as many as it likes."""
    made.engine(7).save(path)
    if rows > 7:
        path.write_bytes(claiming(path.read_bytes(), rows))
    with pytest.raises(EvidenceError, match=f"it claims {rows:,} rows.*") as found:
        load_evidence(path, most=6)
    assert said in str(found.value)


def claiming(data: bytes, rows: int) -> bytes:
    """The file with another number of rows in its footer, wherever that stands there."""
    size = int.from_bytes(data[-8:-4], "little")
    body, end = data[: -8 - size], data[-8 - size : -8]
    # FileMetaData.num_rows, field 3: after the schema, a 64-bit whole number (16)
    at = end.index(b"\x16" + varint(14) + b"\x19")
    changed = end[: at + 1] + varint(2 * rows) + end[at + 2 :]
    return body + changed + len(changed).to_bytes(4, "little") + b"PAR1"


def others(path: Path) -> Iterator[tuple[str, str]]:
    yield "folder", "no regular file"
    yield "link", "a symbolic link"
    yield "dangling", "a symbolic link"
    yield "pipe", "no regular file"
    yield "nothing", "No such file"


@pytest.mark.parametrize(("what", "said"), list(others(Path())))
def test_what_is_no_file_is_refused(what: str, said: str, path: Path) -> None:
    real = path.with_name("real.parquet")
    made.engine(3).save(real)
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)  # opening it would wait for ever
    elif what != "nothing":
        path.symlink_to(real if what == "link" else "nowhere")
    with pytest.raises(EvidenceError, match=said):
        load_evidence(path)


def test_a_file_that_is_too_large_is_not_read(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**34)
    with pytest.raises(EvidenceError, match="bytes are more than"):
        load_evidence(path, most=100)


def test_a_full_disk_leaves_what_was_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = made.engine(3)
    first.save(path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet.os, "fsync", full)
    with pytest.raises(EvidenceError, match=r"cannot write .*: No space left"):
        made.engine(9).save(path)
    same(first, load_evidence(path))
    assert [p.name for p in path.parent.iterdir()] == [path.name]
