"""An engine in another language, judged like any other: examples/table_engine.js."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.contract import Request
from conformance.decoding import DEFAULT_DECODINGS, Decoding
from conformance.errors import EngineLoadError, NotSupportedError
from conformance.gather import evidence_path
from conformance.pool import Task, Worker
from conformance.probes import load_probe
from conformance.runner import Settings, judge_cases, prepare
from conformance.verdict import Verdict

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "examples/table_engine.js"
ENGINE = f"exec:node {PROGRAM}"
RESIDUAL = "Math.max(p - q[i], 0)"

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on the PATH"),
]


@pytest.fixture
def worker(probe_cache: Path) -> Iterator[Worker]:
    made = Worker(timeout=60)
    yield made
    made.close()


def ask(probe: str, *requests: Request) -> Task:
    return Task(0, ENGINE, load_probe(probe).pair, requests)


def judge(name: str, folder: Path, profile: str, *decodings: Decoding) -> list[tuple[Verdict, str]]:
    plan = prepare(Settings((name,), decodings, profile, probe="table"))
    results = list(judge_cases(plan, folder))
    for result in results:
        for arm in result.arms:
            assert arm.requests == arm.planned or result.verdict.verdict is Verdict.NOT_EXACT
            assert evidence_path(folder, result.case, arm.arm).is_file()
    return [(r.verdict.verdict, r.verdict.why) for r in results]


def test_the_command_shown_ends_as_exact(tmp_path: Path, probe_cache: Path) -> None:
    """As typed in the documentation, from the repository's root."""
    decodings = [word for d in (*DEFAULT_DECODINGS, "min_p=0.1") for word in ("-d", str(d))]
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-P",
                "-m",
                "conformance",
                "run",
                "exec:node examples/table_engine.js",
            ),
            *("--probe", "table", "--profile", "smoke", "--out", str(tmp_path / "out"), *decodings),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out/report.json").read_bytes())
    assert [c["verdict"] for c in report["cases"]] == ["EXACT"] * 4 + ["NOT SUPPORTED"]
    assert len(list((tmp_path / "out/evidence").glob("*.parquet"))) == 8
    for name in ("report.html", "report.md", "junit.xml"):
        text = (tmp_path / "out" / name).read_text(encoding="utf-8")
        assert "exec:node examples/table_engine.js" in text.replace("\\_", "_")


@pytest.mark.long
def test_it_is_exact_at_the_standard_profile(tmp_path: Path, probe_cache: Path) -> None:
    for verdict, why in judge(ENGINE, tmp_path, "standard", *DEFAULT_DECODINGS):
        assert verdict is Verdict.EXACT, why


def test_a_faulty_copy_is_not_exact(tmp_path: Path, probe_cache: Path) -> None:
    """Recovered tokens drawn from p; the copy has a name that a shell would have to quote."""
    text = PROGRAM.read_text(encoding="utf-8")
    assert text.count(RESIDUAL) == 1
    copy = tmp_path / "it's a copy/table engine, faulty.js"
    copy.parent.mkdir()
    copy.write_text(text.replace(RESIDUAL, "p"), encoding="utf-8")
    name = f"exec:node {shlex.quote(str(copy))}"
    ((verdict, why),) = judge(name, tmp_path, "smoke", Decoding())
    assert verdict is Verdict.NOT_EXACT
    assert "Likely cause: resample-from-p" in why


def test_seeds(worker: Worker) -> None:
    requests = [Request((1, 2, 3), 40, Decoding(), seed) for seed in (0, 1, 2, 3, 2**30, 2**31 - 1)]
    first, again = (worker.generate(ask("table", *requests)).completions for _ in range(2))
    assert first == again
    assert len({tuple(c["tokens"]) for c in first}) == len(requests)
    control = worker.generate(ask("table", *(replace(r, speculate=False) for r in requests)))
    assert all(c["rounds"] is None for c in control.completions)


def test_it_refuses_what_it_cannot_do(worker: Worker) -> None:
    """Loudly; and goes on afterwards."""
    for probe, decoding, said in (
        ("mid", Decoding(), "a table knows the last token alone; use --probe table"),
        ("table", Decoding(min_p=0.1), "no min_p here"),
    ):
        outcome = worker.generate(ask(probe, Request((1, 2), 3, decoding, 1)))
        assert isinstance(outcome.error, NotSupportedError)
        assert str(outcome.error) == said
    assert worker.generate(ask("table", Request((1, 2), 3, Decoding(), 1))).error is None
    assert worker.generate(ask("worked-example", Request((1, 0), 3, Decoding(), 1))).error is None


def test_models_that_cannot_be_read(worker: Worker, tmp_path: Path) -> None:
    task = ask("table", Request((1, 2), 3, Decoding(), 1))
    absent = worker.generate(replace(task, pair=replace(task.pair, target=tmp_path)))
    assert "no such file or directory" in str(absent.error)
    assert "table_engine.js" in absent.detail
    for name in ("config.json", "model.safetensors"):
        whole = (task.pair.target / name).read_bytes()
        (tmp_path / name).write_bytes(whole.replace(b'"F32"', b'"F16"'))
    halved = worker.generate(replace(task, pair=replace(task.pair, target=tmp_path)))
    assert isinstance(halved.error, EngineLoadError)
    assert str(halved.error).endswith("is F16, not F32")


def test_the_session_shown_is_its_own(probe_cache: Path) -> None:
    """docs/host-protocol.md, line by line; only folders and tracebacks are shortened there."""
    page = (ROOT / "docs/host-protocol.md").read_text(encoding="utf-8")
    pair = load_probe("table").pair
    shown = [line for line in page.splitlines() if line[:2] in ("> ", "< ")]
    asked = [json.loads(line[2:]) for line in shown if line.startswith("> ")]
    asked[1]["probe"] |= {"target": str(pair.target), "draft": str(pair.draft)}
    done = subprocess.run(
        ["node", PROGRAM],
        input="".join(json.dumps(question) + "\n" for question in asked),
        capture_output=True,
        text=True,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for answer in answers:
        if "traceback" in answer:
            answer["traceback"] = answer["traceback"].splitlines()[0]
    assert answers == [json.loads(line[2:]) for line in shown if line.startswith("< ")]
