"""Bundles that were made to do harm: nothing is started, read or filled up, and all are found out.

Each of them has a manifest that fits.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bundles import copy, edit_report, evidence_file, reseal, wrong
from click.testing import CliRunner
from hidden import NAME
from watched import watched

from conformance.cli import main
from conformance.evidence import SHAPE
from conformance.reports import stages
from conformance.reports.verify import verify_bundle

pytestmark = pytest.mark.long  # run by 'make test-bundles', and by CI

Json = Any
SAMPLED = "reference_mid_temp"


def write_run(folder: Path, data: Json) -> None:
    """As the suite would have written it, if that can be; so that it comes as far as it can."""
    text = json.dumps(data)
    with contextlib.suppress(ValueError):
        text = stages.as_text(stages.RunFile.model_validate_json(text))
    (folder / "run.json").write_text(text)
    reseal(folder)


# --- absurd numbers -------------------------------------------------------------------------------

KEY = "reference / mid / temperature=1"
ABSURD: dict[str, Callable[[Json], object]] = {
    "requests": lambda r: r["stages"].append({KEY: 10**9}),
    "requests as many as allowed": lambda r: r["stages"].append({KEY: 10**7}),
    "requests of the first stage": lambda r: r["stages"].__setitem__(0, {KEY: 10**7}),
    "no requests": lambda r: r["stages"].append({KEY: -5}),
    "fifty stages": lambda r: r.update(stages=[{}] + [{KEY: 500 + i} for i in range(49)]),
    "a thousand stages": lambda r: r.update(stages=[{}] * 1000),
    "no stage": lambda r: r.update(stages=[]),
    "tiny alpha": lambda r: r.update(alpha=1e-300),
    "tinier alpha": lambda r: r.update(alpha=5e-324),
    "alpha nearly 1": lambda r: r.update(alpha=1 - 1e-16),
    "no alpha": lambda r: r.update(alpha=0.0),
    "negative alpha": lambda r: r.update(alpha=-1e-6),
    "NaN": lambda r: r.update(alpha=float("nan")),
    "infinity": lambda r: r.update(alpha=float("inf")),
    "negative seed": lambda r: r.update(seed=-1),
    "huge seed": lambda r: r.update(seed=10**4000),
    "jobs": lambda r: r.update(jobs=10**9),
    "negative jobs": lambda r: r.update(jobs=-1),
    "thousand engines": lambda r: _engines(r, 1000),
    "more engines": lambda r: _engines(r, 1001),
    "thousands of decodings": lambda r: r.update(
        decodings=[f"temperature={1 + i / 1000}" for i in range(4000)]
    ),
    "many more decodings": lambda r: r.update(
        decodings=[f"temperature={1 + i / 10**6}" for i in range(200_000)]
    ),
    "hot": lambda r: r.update(decodings=["temperature=1e308"]),
    "cold": lambda r: r.update(decodings=["temperature=1e-308"]),
    "a decoding that is none": lambda r: r.update(decodings=["temperature=nan"]),
    "long name": lambda r: _renamed(r, "x" * 10 * 2**20),
    "long decoding": lambda r: r.update(decodings=["temperature=1," + " " * 10 * 2**20]),
    "long profile": lambda r: r.update(profile="x" * 10 * 2**20),
    "no such probe": lambda r: r.update(probe="../../../etc"),
    "probe": lambda r: r.update(probe="worked-example"),
    "negative batch": lambda r: r["described"]["reference"]["capabilities"].update(max_batch=-2),
    "described": lambda r: r["described"].update(reference={}),
    "described as a list": lambda r: r["described"]["reference"].update(capabilities=[]),
    "order": lambda r: r["described"]["reference"]["capabilities"]["dialect"].update(order=[[]]),
    "patterns": lambda r: r.update(expectations=[_expected("*a" * 5000 + "*b")]),
    "many patterns": lambda r: r.update(expectations=[_expected(f"*{i}") for i in range(5000)]),
    "unknown field": lambda r: r.update(hook="os.system"),
}


def _engines(run: Json, n: int) -> None:
    one = run["described"]["reference"]
    run["engines"] = [f"engine-{i}" for i in range(n)]
    run["described"] = dict.fromkeys(run["engines"], one)


def _renamed(run: Json, name: str) -> None:
    run["engines"] = [name]
    run["described"] = {name: run["described"]["reference"]}


def _expected(case: str) -> Json:
    return {"case": case, "reason": "x", "link": "javascript:alert(1)", "expires": "2999-01-01"}


def hostile_runs(small: Path, folder: Path) -> list[Path]:
    """Each of them as a bundle."""
    made = []
    for i, change in enumerate(ABSURD.values()):
        bundle = copy(small, folder / str(i))
        data = json.loads((bundle / "run.json").read_text())
        change(data)
        write_run(bundle, data)
        made.append(bundle)
    return made


BOUNDED = """
import json, resource, sys
from pathlib import Path
from conformance.reports import stages
from conformance.reports.verify import verify_bundle
sys.setrecursionlimit(1000)
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
for path in sys.argv[2:]:
    found = verify_bundle(Path(path))
    print(json.dumps([path, found.agrees, [c.detail[:300] for c in found.checks]]), flush=True)
"""
ROOM = 4 * 2**30  # address space; an untouched bundle takes 2 of it
PATIENCE = 400  # seconds, not to wait for ever


def bounded(bundles: list[Path], cache: Path) -> dict[str, tuple[bool, list[str]]]:
    """Verify in a process that has little memory and ends."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", BOUNDED, str(ROOM), *map(str, bundles)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=os.environ | {"CONFORMANCE_CACHE": str(cache), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {
        path: (agrees, told) for path, agrees, told in map(json.loads, done.stdout.splitlines())
    }


def test_absurd_numbers_take_neither_time_nor_memory(small, tmp_path, probe_cache) -> None:
    asked = hostile_runs(small, tmp_path)
    found = bounded([small, *asked], probe_cache)
    assert found[str(small)][0]
    accepted = [name for name, b in zip(ABSURD, asked, strict=True) if found[str(b)][0]]
    assert accepted == []
    starved = [
        name
        for name, b in zip(ABSURD, asked, strict=True)
        if any("MemoryError" in line for line in found[str(b)][1])
    ]
    assert starved == []


# --- JSON -----------------------------------------------------------------------------------------

DEEP = 200_000
JSON = {
    "deep": "[" * DEEP + "]" * DEEP,
    "deep objects": '{"a":' * DEEP + "1" + "}" * DEEP,
    "a string": '"' + "x" * 2**20 + '"',
    "nothing": "",
    "null": "null",
    "NaN": '{"alpha": NaN}',
    "a large number": "1" * 5000,
    "surrogates": '{"\\ud800": "\\udfff"}',
    "bytes": "\x00\x01",
}


@pytest.mark.parametrize("name", JSON)
@pytest.mark.parametrize("file", ["run.json", "report.json"])
def test_json_that_is_made_to_break_readers(name, file, forged) -> None:
    folder = forged("small")
    (folder / file).write_text(JSON[name])
    reseal(folder)
    assert wrong(folder)


@pytest.mark.parametrize("name", JSON)
def test_a_manifest_that_is_made_to_break_readers(name, forged) -> None:
    folder = forged("small")
    (folder / "manifest.json").write_text(JSON[name])
    assert any(line.startswith("manifest") for line in wrong(folder))


def test_run_json_with_a_name_twice(forged) -> None:
    folder = forged("small")
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text.replace('"seed": 0', '"seed": 1,\n  "seed": 0', 1))
    reseal(folder)
    assert any("run.json is not as it was written" in line for line in wrong(folder))


@pytest.mark.parametrize("file", ["run.json", "report.json"])
def test_files_without_end(file, forged) -> None:
    """Holes in a file take no room on disk."""
    folder = forged("small")
    with (folder / file).open("r+b") as stream:
        stream.truncate(2**40)
    told = wrong(folder)
    assert any("is larger than" in line for line in told)
    assert any(line.startswith(f"file {file}") for line in told)


def test_reports_that_take_long_to_draw(forged) -> None:
    """A million columns: what is not right is not drawn."""
    folder = forged("small")

    def change(report: Json) -> None:
        bars = report["cases"][0]["bars"][0]
        for name, value in (("labels", "x"), ("observed", 1), ("expected", 1.0), ("draft", 1.0)):
            bars[name] = [value] * 10**6

    edit_report(folder, change)
    assert any(line.startswith("case reference") for line in wrong(folder))


# --- names that would start something -------------------------------------------------------------

MARK = "mark-of-a-started-engine"
NAMES = [
    f"exec:touch {{}}/{MARK}",
    f"exec:sh -c 'touch {{}}/{MARK}'",
    "{}/engine.py:Mine",
    "engine:Mine",
    "os:system",
    "transformers",
    "openai,url=http://127.0.0.1:9/v1,control=http://127.0.0.1:9/v1",
    NAME,
    "served,url=http://127.0.0.1:9/v1,control=http://127.0.0.1:8/v1,prompts={}/prompts.txt",
    "served,url=http://127.0.0.1:9/v1",
    "served",
    "reference:verifier",
    "faulty:lenient",
    "$(touch {}/mark-of-a-started-engine)",
    "../../../../etc/passwd",
    "\x00",
    "",
]


@pytest.mark.parametrize("described", ["as it was", "not at all", "as nothing", "as a server"])
@pytest.mark.parametrize("name", NAMES)
def test_no_name_starts_or_reads_anything(name, described, forged, tmp_path) -> None:
    (tmp_path / "engine.py").write_text(f"open({str(tmp_path / MARK)!r}, 'w')\nMine = 1\n")
    os.mkfifo(tmp_path / "prompts.txt")  # whoever reads it waits for ever
    folder = forged("small")
    name = name.format(tmp_path)
    data = json.loads((folder / "run.json").read_text())
    was = data["described"]["reference"]
    said = {
        "as it was": {name: was},
        "not at all": {},
        "as nothing": {name: {}},
        "as a server": {
            name: was | {"met": {"version": "1", "model": "m", "style": "vllm"}, "prompts": ["a"]}
        },
    }[described]
    write_run(folder, data | {"engines": [name], "described": said})
    # the report names it as well, so that it comes as far as it can
    text = (folder / "report.json").read_text()
    text = text.replace(json.dumps("reference / ")[:-1], json.dumps(f"{name} / ")[:-1])
    (folder / "report.json").write_text(text.replace('"reference"', json.dumps(name)))
    reseal(folder)
    with watched() as seen:
        assert wrong(folder)
    assert seen.outside == []
    assert seen.opened("prompts.txt") == []
    assert not (tmp_path / MARK).exists()
    assert "engine" not in sys.modules


def test_an_untouched_bundle_starts_nothing_either(mixed, served, verifiers) -> None:
    for bundle in (mixed, served, verifiers):
        with watched() as seen:
            assert verify_bundle(bundle).agrees
        assert seen.outside == []
        assert [path for path in seen.written if str(bundle) in path] == []


# --- evidence -------------------------------------------------------------------------------------


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def pickled(folder: Path, path: Path) -> None:
    path.write_bytes(pickle.dumps(Payload(folder / "unpickled")))


def numpy_pickled(folder: Path, path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, tokens=np.array([Payload(folder / "unpickled")], dtype=object))


def many_rows(folder: Path, path: Path) -> None:
    """A file of some kilobytes with twenty million rows."""
    del folder
    n = 20_000_000
    one = pa.array([[1] * 8], SHAPE.schema.field("tokens").type)
    table = pq.read_table(path)
    columns = []
    for field in SHAPE.schema:
        value = (
            one[0]
            if field.name == "tokens"
            else pa.scalar(0, field.type)
            if not (pa.types.is_list(field.type))
            else pa.scalar([], field.type)
        )
        columns.append(pa.repeat(value, 1000))
    few = pa.table(columns, schema=SHAPE.schema)
    with pq.ParquetWriter(path, SHAPE.schema, compression="zstd", store_schema=False) as writer:
        for _ in range(n // 1000 // 1000):
            writer.write_table(pa.concat_tables([few] * 1000), row_group_size=10**6)
        writer.add_key_value_metadata(dict(table.schema.metadata or {}))


def claims_rows(folder: Path, path: Path) -> None:
    """Bytes of the footer, each set to what is largest."""
    del folder
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[-8:-4], "little")
    for at in range(len(data) - 8 - size, len(data) - 8, 3):
        data[at] = 0xFF
    path.write_bytes(data)


def long_footer(folder: Path, path: Path) -> None:
    del folder
    data = bytearray(path.read_bytes())
    data[-8:-4] = (2**31 - 1).to_bytes(4, "little")
    path.write_bytes(data)


def empty(folder: Path, path: Path) -> None:
    del folder
    path.write_bytes(b"")


def no_end(folder: Path, path: Path) -> None:
    del folder
    with path.open("r+b") as stream:
        stream.truncate(2**36)


@pytest.mark.parametrize(
    "harm", [pickled, numpy_pickled, many_rows, claims_rows, long_footer, empty]
)
def test_evidence_that_is_made_to_do_harm(harm, forged, tmp_path) -> None:
    folder = forged("small")
    path = evidence_file(folder, SAMPLED)
    harm(tmp_path, path)
    reseal(folder)
    with watched() as seen:
        told = wrong(folder)
    assert any(line.startswith("case reference / mid / temperature=1") for line in told), told
    assert seen.outside == []
    assert not (tmp_path / "unpickled").exists()


def test_evidence_without_end(forged, tmp_path) -> None:
    folder = forged("small")
    path = evidence_file(folder, SAMPLED)
    no_end(tmp_path, path)
    told = wrong(folder)
    assert any(path.name in line for line in told)


def test_weights_that_are_made_to_do_harm(forged) -> None:
    """As long as they should be, with a header that is longer than the file."""
    folder = forged("small")
    name = "target/model.safetensors"
    path = folder / "probes" / "mid" / name
    data = bytearray(path.read_bytes())
    for header in ((2**63).to_bytes(8, "little"), (len(data) - 9).to_bytes(8, "little")):
        data[:8] = header
        path.write_bytes(data)
        told = {name: hashlib.sha256(data).hexdigest()}
        edit_report(folder, lambda r, told=told: r["probes"][0]["sha256"].update(told))
        assert any(line.startswith("probe mid: its weights are off") for line in wrong(folder))


# --- what a person sees ---------------------------------------------------------------------------

UGLY = "\x1b[2J\x1b]0;owned\x07[bold red]EXACT[/] \u202etxet <script>alert(1)</script>"


def test_text_from_a_bundle_is_made_harmless(forged) -> None:
    folder = forged("small")
    edit_report(folder, lambda r: r["cases"][0].update(id=UGLY, why=UGLY))
    edit_report(folder, lambda r: r["cases"][1].update(why=UGLY))
    (folder / "evidence" / "\x1b[31mx").write_text("x")
    done = CliRunner().invoke(main, ["verify", str(folder)])
    assert done.exit_code == 1
    assert "\x1b" not in done.output
    assert "\u202e" not in done.output
    assert "\x07" not in done.output
    assert "[bold red]EXACT[/]" in done.output  # shown, and not obeyed
    told = json.loads(CliRunner().invoke(main, ["verify", "--json", str(folder)]).output)
    assert any("not listed" in c["detail"] for c in told["checks"])
