"""Bundles that come as a zip."""

from __future__ import annotations

import shutil
import stat
import struct
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from conformance.cli import main
from conformance.errors import ReportError
from conformance.reports.verify import unpack as unpacking
from conformance.reports.verify.unpack import unpack


def zipped(bundle: Path, path: Path, inside: str = "") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for one in sorted(bundle.rglob("*")):
            file.write(one, Path(inside) / one.relative_to(bundle))
    return path


@pytest.mark.parametrize("inside", ["", "conformance-report"])
def test_it_agrees_as_the_folder_does(inside, small, tmp_path) -> None:
    path = zipped(small, tmp_path / "b.zip", inside)
    done = CliRunner().invoke(main, ["verify", str(path)])
    assert done.exit_code == 0, done.output
    assert "VERIFIED" in done.output


def test_a_zip_made_by_another_tool(small, tmp_path) -> None:
    path = shutil.make_archive(str(tmp_path / "b"), "zip", small)
    assert CliRunner().invoke(main, ["verify", path]).exit_code == 0


def made(path: Path, *entries: tuple[str | zipfile.ZipInfo, bytes], **how: int) -> Path:
    with zipfile.ZipFile(path, "w", **how) as file:
        for name, data in entries:
            file.writestr(name, data)
    return path


def refused(path: Path, folder: Path) -> str:
    folder.mkdir()
    with pytest.raises(ReportError) as caught:
        unpack(path, folder)
    assert [p for p in folder.rglob("*") if p.is_symlink()] == []
    return str(caught.value)


def link(name: str, target: str) -> tuple[zipfile.ZipInfo, bytes]:
    entry = zipfile.ZipInfo(name)
    entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return entry, target.encode()


@pytest.mark.parametrize(
    "name",
    ["../outside", "a/../../outside", "/outside", "..\\outside", "c:/outside", "..", "a/.."],
)
def test_names_stay_inside(name, tmp_path) -> None:
    path = made(tmp_path / "b.zip", ("manifest.json", b"{}"), (name, b"x"))
    assert "must not be unpacked" in refused(path, tmp_path / "in")
    assert not (tmp_path / "outside").exists()
    assert not Path("/outside").exists()


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "manifest.json"])
def test_links_are_refused(target, tmp_path) -> None:
    path = made(tmp_path / "b.zip", ("manifest.json", b"{}"), link("evidence", target))
    assert "must not be unpacked" in refused(path, tmp_path / "in")


def test_a_device_is_refused(tmp_path) -> None:
    entry = zipfile.ZipInfo("evidence/null")
    entry.create_system, entry.external_attr = 3, (stat.S_IFCHR | 0o666) << 16
    path = made(tmp_path / "b.zip", ("manifest.json", b"{}"), (entry, b""))
    assert "must not be unpacked" in refused(path, tmp_path / "in")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("names", [("x", "x"), ("x", "X"), ("evidence/\u00e9", "evidence/\u00c9")])
def test_twins(names, tmp_path) -> None:
    path = made(tmp_path / "b.zip", ("manifest.json", b"{}"), *((n, b"x") for n in names))
    assert "two entries" in refused(path, tmp_path / "in")


def test_a_file_in_the_place_of_a_folder(tmp_path) -> None:
    path = made(tmp_path / "b.zip", ("manifest.json", b"{}"), ("a", b"x"), ("a/b", b"x"))
    assert "cannot unpack" in refused(path, tmp_path / "in")


def test_what_unpacks_to_gigabytes(tmp_path, monkeypatch) -> None:
    """Nothing is believed of the sizes that the archive states."""
    monkeypatch.setattr(unpacking, "MOST_BYTES", 10 * 2**20)
    big = b"\0" * (64 * 2**20)
    path = made(tmp_path / "b.zip", ("manifest.json", big), compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 100_000
    assert "more than a bundle can hold" in refused(path, tmp_path / "in")
    written = sum(p.stat().st_size for p in (tmp_path / "in").rglob("*") if p.is_file())
    assert written <= 10 * 2**20


def test_many_files_that_unpack_to_gigabytes(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(unpacking, "MOST_BYTES", 10 * 2**20)
    each = b"\0" * 2**20
    entries = [(f"evidence/{i}", each) for i in range(20)]
    path = made(tmp_path / "b.zip", *entries, compression=zipfile.ZIP_DEFLATED)
    assert "more than a bundle can hold" in refused(path, tmp_path / "in")


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_packings_that_take_memory_at_once(packing, tmp_path) -> None:
    path = made(tmp_path / "b.zip", ("manifest.json", b"{}"), compression=packing)
    assert "must not be unpacked" in refused(path, tmp_path / "in")


@pytest.mark.parametrize("stated", [0, 5, 999])
def test_sizes_that_lie(stated, tmp_path) -> None:
    assert "cannot unpack" in refused(lying(tmp_path / "b.zip", stated), tmp_path / "in")


def test_a_size_that_is_too_large_takes_no_room(tmp_path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    unpack(lying(tmp_path / "b.zip", 2**31), folder)
    assert (folder / "manifest.json").stat().st_size == 1000


def lying(path: Path, stated: int) -> Path:
    """A file of 1,000 bytes, of which the archive says something else."""
    made(path, ("manifest.json", b"x" * 1000), compression=zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    at = data.rfind(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", stated)
    path.write_bytes(data)
    return path


def test_too_many_entries(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(unpacking, "MOST_FILES", 10)
    path = made(tmp_path / "b.zip", *((f"evidence/{i}", b"") for i in range(11)))
    assert "11 entries" in refused(path, tmp_path / "in")


@pytest.mark.parametrize("what", ["listing", "zip64"])
def test_a_list_of_entries_that_would_not_fit_in_memory(what, tmp_path) -> None:
    """It is looked at before zipfile reads all of it."""
    path = made(tmp_path / "b.zip", ("manifest.json", b"{}"))
    data = bytearray(path.read_bytes())
    at = data.rfind(b"PK\x05\x06")
    if what == "listing":
        data[at + 12 : at + 16] = struct.pack("<I", 2**31)
    else:
        data[at:at] = b"PK\x06\x07" + bytes(16)
    path.write_bytes(data)
    assert "more entries than a bundle has files" in refused(path, tmp_path / "in")


def test_a_password(tmp_path) -> None:
    path = made(tmp_path / "b.zip", ("manifest.json", b"{}"))
    data = bytearray(path.read_bytes())
    for sign, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.rfind(sign) + offset] |= 1
    path.write_bytes(data)
    assert "cannot unpack" in refused(path, tmp_path / "in")


def test_damage(small, tmp_path) -> None:
    path = zipped(small, tmp_path / "b.zip")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    assert "cannot unpack" in refused(path, tmp_path / "in")


def test_two_bundles_or_none(small, tmp_path) -> None:
    path = zipped(small, tmp_path / "b.zip", "one")
    with zipfile.ZipFile(path, "a") as file:
        file.write(small / "manifest.json", "two/manifest.json")
    assert "2 bundles" in refused(path, tmp_path / "in")
    none = made(tmp_path / "none.zip", ("readme", b""))
    assert "no bundles" in refused(none, tmp_path / "in2")


@pytest.mark.parametrize("data", [b"", b"PK", b"not a zip at all" * 100, b"PK\x05\x06"])
def test_what_is_no_zip(data, tmp_path) -> None:
    path = tmp_path / "b.zip"
    path.write_bytes(data)
    done = CliRunner().invoke(main, ["verify", str(path)])
    assert done.exit_code == 2
    assert "neither a bundle's folder nor a zip of one" in done.output


def test_a_device_is_no_zip() -> None:
    done = CliRunner().invoke(main, ["verify", "/dev/zero"])
    assert done.exit_code == 2
    assert "neither a folder nor a file" in done.output
