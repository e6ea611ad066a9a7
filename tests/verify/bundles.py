"""Bundles of real runs, made once for the tests of ``conformance verify``, and what to do to them.

A forger is taken to be thorough: whatever is changed, manifest, checksums and pages are made anew.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from hidden import NAME, Hidden, texts

from conformance.adapters.reference import reference
from conformance.cli import main
from conformance.contract import Capabilities, EngineCard
from conformance.decoding import Decoding
from conformance.described import Described
from conformance.evidence import Evidence, read_evidence
from conformance.probes import load_probe
from conformance.reports import stages
from conformance.reports.build import build_report, case_model
from conformance.reports.bundle import render, write_bundle
from conformance.reports.manifest import FILE as MANIFEST
from conformance.reports.manifest import seal
from conformance.reports.model import Report, dump_json, load_report
from conformance.reports.verify import Status, Verification, verify_bundle
from conformance.reports.verify.replay import Replay
from conformance.runner import Settings, prepare
from conformance.served.decide import judge_served
from conformance.served.plan import ServedCase
from conformance.served.server import Met

DIFFICULT = Path(__file__).with_name("difficult.py")
RARELY = f"{Path(__file__).parent.parent / 'rarely.py'}:Rarely"
SAMPLED = ("-d", "temperature=1")
BOTH = (*SAMPLED, "-d", "greedy")


def difficult(name: str) -> str:
    """An engine of ``difficult.py``, as typed."""
    return f"{DIFFICULT}:{name}"


# --- making ---------------------------------------------------------------------------------------


def run(folder: Path, *words: str | Path) -> Path:
    """A bundle, by the command line."""
    asked = ["run", *map(str, words), "--profile", "smoke", "--jobs", "2", "--quiet"]
    done = CliRunner().invoke(main, [*asked, "--out", str(folder)])
    assert (folder / "report.json").exists(), done.output
    return folder


def resume(folder: Path) -> Path:
    """The same, with samples added."""
    done = CliRunner().invoke(main, ["run", "--resume", str(folder), "--quiet"])
    assert (folder / "report.json").exists(), done.output
    return folder


def served(
    folder: Path, seed: int = 0, engine: Any = None, decoding: Decoding | None = None
) -> Path:
    """A bundle of a server that is imitated."""
    prompts = texts(8, 32)
    asked = (decoding or Decoding(temperature=0.8),)
    settings = Settings((NAME,), asked, profile="smoke", seed=seed)
    card, claims = EngineCard("served"), Capabilities(draft="none", processes=1)
    met = Met("1", "hidden", "vllm")
    plan = prepare(settings, {NAME: Described(card, claims, met=met, prompts=tuple(prompts))})
    stages.begin_stage(stages.Resumed(settings), plan, folder)
    cases = [c for c in plan.cases if isinstance(c, ServedCase)]
    pair = load_probe("mid").pair
    results = judge_served(
        plan, cases, folder, source=lambda case: Hidden(engine or reference(), pair, prompts)
    )
    models = [case_model(r) for r in results]
    write_bundle(build_report(plan, models, seconds=1.0, jobs=1, command=["conformance"]), folder)
    return folder


# --- forging --------------------------------------------------------------------------------------


def copy(bundle: Path, folder: Path) -> Path:
    """A bundle to be tampered with."""
    folder.mkdir(parents=True, exist_ok=True)
    return shutil.copytree(bundle, folder / "forged", symlinks=True)


def reseal(folder: Path) -> None:
    """A manifest of what is there now."""
    (folder / MANIFEST).unlink(missing_ok=True)
    seal(folder, {})


def write_report(folder: Path, report: Report) -> None:
    """A report, with pages that say the same."""
    for name, text in render(report).items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
    reseal(folder)


def edit_report(folder: Path, change: Callable[[Any], object], pages: bool = False) -> None:
    """Change what the report says; the pages too, if they are to be looked at."""
    data = json.loads((folder / "report.json").read_text())
    change(data)
    report = Report.model_validate(data)
    if pages:
        write_report(folder, report)
        return
    (folder / "report.json").write_text(dump_json(report), encoding="utf-8", newline="")
    reseal(folder)


def edit_run(folder: Path, change: Callable[[Any], object]) -> None:
    """Change what the run says it was asked."""
    data = json.loads((folder / "run.json").read_text())
    change(data)
    text = stages.as_text(stages.RunFile.model_validate_json(json.dumps(data)))
    (folder / "run.json").write_text(text)
    reseal(folder)


def evidence_file(folder: Path, words: str, arm: str = "speculative") -> Path:
    """The evidence of the case whose file's name has these words in it."""
    (path,) = (p for p in (folder / "evidence").glob(f"*.{arm}.*") if words in p.name)
    return path


def edit_evidence(
    folder: Path, words: str, change: Callable[[Evidence], Evidence], arm: str = "speculative"
) -> None:
    """Change what the engine is said to have answered, with checksums that fit, in the report as
    well.
    """
    path = evidence_file(folder, words, arm)
    before, meta = read_evidence(path)
    after = change(before)
    path.unlink()
    after.save(path, more={"error": meta["error"]} if "error" in meta else None)
    text = (folder / "report.json").read_text()
    assert before.sha256 in text
    (folder / "report.json").write_text(text.replace(before.sha256, after.sha256))
    write_report(folder, load_report(folder / "report.json"))


def rewrite(folder: Path) -> None:
    """Have the suite itself write the report that follows from what is in the folder now."""
    run_file = stages.read_run_file(folder)
    before = load_report(folder / "report.json")
    replay = Replay(folder, run_file, {c.id: c for c in before.cases})
    for _ in replay.checks():
        pass
    plan = replay.plan
    assert plan is not None
    old = {c.id: c for c in before.cases}
    report = build_report(
        plan,
        [replay.cases.get(c.id, old[c.id]) for c in plan.cases],
        seconds=before.seconds,
        jobs=run_file.jobs,
        command=before.command,
        expectations=run_file.expectations,
        created=before.created,
    )
    write_report(folder, report)


def put_report(folder: Path, data: Any) -> None:
    """A report as the suite would have written it, if it can be; else as it is."""
    text = json.dumps(data)
    with contextlib.suppress(ValueError):
        text = dump_json(Report.model_validate_json(text))
    (folder / "report.json").write_text(text, encoding="utf-8", newline="")
    reseal(folder)


# --- asking ---------------------------------------------------------------------------------------


def wrong(folder: Path, expected: str | None = None) -> list[str]:
    """What verification finds wrong, a line each."""
    found = verify_bundle(folder, expected)
    return [f"{c.what}: {c.detail}" for c in found.checks if c.status is Status.DIFFERS]


def lines(found: Verification, status: Status) -> list[str]:
    """Lines of one kind."""
    return [f"{c.what}: {c.detail}" for c in found.checks if c.status is status]
