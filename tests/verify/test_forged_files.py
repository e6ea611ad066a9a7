"""Pages that say something else, and files that should not be there, or are none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from bundles import lines, reseal, wrong

from conformance.reports import manifest
from conformance.reports.verify import Status, pages, verify_bundle

pytestmark = pytest.mark.long  # run by 'make test-bundles', and by CI

HTML: dict[str, Callable[[str], str]] = {
    "a word": lambda t: t.replace("EXACT", "EXACTLY", 1),
    "a number": lambda t: t.replace("</td>", "0</td>", 1),
    "a script": lambda t: t.replace("</body>", "<script>alert(1)</script></body>", 1),
    "a handler": lambda t: t.replace("<main", '<main onclick="alert(1)"', 1),
    "a style that hides": lambda t: t.replace("</style>", ".hero{display:none}</style>", 1),
    "a hidden part": lambda t: t.replace("<main", "<main hidden", 1),
    "a comment": lambda t: t.replace("<main", "<!-- EXACT --><main", 1),
    "the policy": lambda t: t.replace("default-src 'none'", "default-src *", 1),
    "a link": lambda t: t.replace('href="#', 'href="https://example.org/#', 1),
    "a plot's number": lambda t: t.replace('<path d="M', '<path d="M 1 1 M', 1),
    "a plot's words": lambda t: t.replace("</title>", " (all well)</title>", 2),
    "a plot left out": lambda t: t[: t.index("<svg")] + t[t.index("</svg>") + 6 :],
    "a plot that covers": lambda t: t.replace(
        "</svg>", '<foreignObject style="position:fixed">EXACT</foreignObject></svg>', 1
    ),
    "a script in a plot": lambda t: t.replace("</svg>", "<script>alert(1)</script></svg>", 1),
    "the end": lambda t: t[:-8],
    "line ends": lambda t: t.replace("\n", "\r\n"),
    "a byte order mark": lambda t: "\ufeff" + t,
}


@pytest.mark.parametrize("name", HTML)
def test_a_page_that_says_something_else(name, forged) -> None:
    folder = forged("small")
    path = folder / "report.html"
    before = path.read_bytes()
    path.write_bytes(HTML[name](before.decode()).encode())
    assert path.read_bytes() != before
    reseal(folder)
    assert any(line.startswith("report.html") for line in wrong(folder))


@pytest.mark.parametrize("name", ["report.md", "junit.xml", "badge.svg", "badge.json"])
def test_other_pages(name, forged) -> None:
    folder = forged("mixed")
    path = folder / name
    text = path.read_text()
    assert "NOT EXACT" in text.upper()
    path.write_text(text.replace("NOT EXACT", "EXACT").replace("not exact", "exact"))
    reseal(folder)
    assert any(line.startswith(name) for line in wrong(folder))


def test_plots_of_another_version_are_not_compared(forged, monkeypatch) -> None:
    """Other bytes, the same shapes: said, and nothing but shapes and words may be in them."""
    folder = forged("small")
    path = folder / "report.html"
    text = path.read_text()
    monkeypatch.setattr(pages, "version", lambda name: "99.0")
    path.write_text(text.replace('<path d="M', '<path d="M 1 1 M', 1))
    reseal(folder)
    found = verify_bundle(folder)
    assert lines(found, Status.DIFFERS) == []
    assert any("its plots were not compared" in line for line in lines(found, Status.STATED))
    for name in ("a plot that covers", "a script in a plot", "a word", "a plot left out"):
        path.write_text(HTML[name](text))
        reseal(folder)
        assert any(line.startswith("report.html") for line in wrong(folder)), name


def test_a_page_that_is_no_text(forged) -> None:
    folder = forged("small")
    (folder / "report.md").write_bytes(b"\xff\xfe\x00")
    reseal(folder)
    assert any(line.startswith("report.md: cannot be read") for line in wrong(folder))


# --- files ----------------------------------------------------------------------------------------


def a_file(folder: Path) -> Path:
    return sorted((folder / "evidence").glob("*.speculative.parquet"))[0]


def test_a_file_more(forged) -> None:
    folder = forged("small")
    (folder / "evidence" / "notes.txt").write_text("x")
    assert any("not listed: evidence/notes.txt" in line for line in wrong(folder))
    reseal(folder)
    assert any("of no case that was planned: notes.txt" in line for line in wrong(folder))


def test_a_folder_more(forged) -> None:
    folder = forged("small")
    (folder / "evidence" / "old").mkdir()
    assert any("folders in which nothing is listed" in line for line in wrong(folder))


def test_files_beside_it_are_said_not_to_be_part_of_it(forged) -> None:
    folder = forged("small")
    (folder / "README.txt").write_text("EXACT!")
    found = verify_bundle(folder)
    assert found.agrees
    assert any("not part of it: README.txt" in line for line in lines(found, Status.STATED))


def test_what_a_killed_process_left_is_told_and_not_read(forged) -> None:
    folder = forged("small")
    (folder / "evidence" / f".{a_file(folder).name}.0a1b2c3d.half").write_bytes(b"PAR1")
    found = verify_bundle(folder)
    assert found.agrees
    assert any("half-written" in line for line in lines(found, Status.STATED))


@pytest.mark.parametrize("name", ["run.json", "report.json", "report.html", "evidence", "probes"])
@pytest.mark.parametrize("where", ["outside", "inside"])
def test_links(name, where, forged, tmp_path) -> None:
    """The content is the right one, and somebody else can change it."""
    folder = forged("small")
    target = tmp_path / "elsewhere" if where == "outside" else folder / "moved"
    shutil.move(folder / name, target)
    (folder / name).symlink_to(target)
    told = wrong(folder)
    assert any(name in line for line in told), told


def test_a_link_in_the_place_of_evidence(forged, tmp_path) -> None:
    folder = forged("small")
    path = a_file(folder)
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    told = wrong(folder)
    assert any(line.startswith(f"file evidence/{path.name}") for line in told)
    assert any("a symbolic link" in line for line in told)  # nor was it read


def test_a_hard_link_is_a_file(forged, tmp_path) -> None:
    folder = forged("small")
    os.link(a_file(folder), tmp_path / "other-name")
    assert wrong(folder) == []


@pytest.mark.parametrize("name", ["manifest.json", "run.json", "report.json", "report.html"])
def test_pipes_and_folders(name, forged) -> None:
    """A pipe would be waited for without end."""
    folder = forged("small")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert any("plain file" in line for line in wrong(folder))
    (folder / name).unlink()
    (folder / name).mkdir()
    assert any("plain file" in line or name in line for line in wrong(folder))


def test_a_pipe_in_the_place_of_evidence(forged) -> None:
    folder = forged("small")
    path = a_file(folder)
    path.unlink()
    os.mkfifo(path)
    os.mkfifo(folder / "evidence" / "other")
    assert any(path.name in line for line in wrong(folder))


@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "evidence/../../outside",
        "/etc/passwd",
        "evidence//x",
        "evidence/./x",
        "evidence/",
        "./run.json",
        "evidence\\x",
        "c:evidence/x",
        "evidence/\u202ex",
        "evidence/x\n",
        "evidence/x.",
        "other/x",
        "notes.txt",
        "",
        "evidence/" + "x" * 500,
    ],
)
def test_a_manifest_lists_nothing_outside(name, forged) -> None:
    folder = forged("small")
    path = folder / manifest.FILE
    found = manifest.Manifest.model_validate_json(path.read_bytes())
    entry = next(iter(found.files.values()))
    path.write_text(manifest.as_text(manifest.Manifest(files={**found.files, name: entry})))
    assert any("cannot be part of a bundle" in line for line in wrong(folder))


def test_twins_on_systems_that_fold_case(forged) -> None:
    folder = forged("small")
    path = a_file(folder)
    shutil.copyfile(path, path.with_name(path.name.upper()))
    reseal(folder)
    assert any("one on some systems" in line for line in wrong(folder))


def test_a_manifest_with_a_name_twice(forged) -> None:
    folder = forged("small")
    path = folder / manifest.FILE
    text = path.read_text()
    path.write_text(text.replace('"run.json"', '"run.json": {"size": 1}, "run.json"', 1))
    assert any(line.startswith("manifest") for line in wrong(folder))
    path.write_text(text.replace(" ", "  ", 1))
    assert any("as they are written" in line for line in wrong(folder))


def test_evidence_whose_name_begins_with_a_dot_is_sealed(tmp_path) -> None:
    """An engine is named by its file, ./engine.py; no name takes evidence out of the manifest."""
    for name in ("._engine.py_Mine_mid-1.control.parquet", "tmp_engine.control.parquet"):
        (tmp_path / "evidence").mkdir(exist_ok=True)
        (tmp_path / "evidence" / name).write_bytes(b"x")
        assert f"evidence/{name}" in list(manifest.files_in(tmp_path))


def test_the_bundle_that_was_published(forged, small) -> None:
    """With the checksum from elsewhere, even a bundle that agrees with itself is found out."""
    sha256 = verify_bundle(small).sha256
    folder = forged("small")
    assert wrong(folder, sha256) == []
    assert wrong(folder, sha256.upper()) == []
    from bundles import edit_report

    edit_report(folder, lambda r: r.update(command=["other"]), pages=True)
    assert wrong(folder) == []
    assert any(line.startswith("bundle: SHA-256") for line in wrong(folder, sha256))
