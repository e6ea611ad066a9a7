"""``conformance run --resume``: after an interruption, and with more samples."""

from __future__ import annotations

import json
from pathlib import Path

import in_process
import numpy as np
import pytest
from click.testing import CliRunner, Result

from conformance.cli import main
from conformance.evidence import first_requests, load_evidence
from conformance.plan import AGAIN, PROFILES

RARELY = "rarely.py:Rarely"  # named as seen from its folder: seeds come from the name too
SMOKE = ("-d", "temperature=1", "--profile", "smoke", "--jobs", "2", "--quiet")


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["run", *map(str, words)])


def report(folder: Path) -> dict:
    return json.loads((folder / "report.json").read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, probe_cache: Path) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    done = run("reference", *SMOKE, "--out", folder)
    assert done.exit_code == 0, done.output
    return folder


def test_nothing_to_add(finished: Path) -> None:
    again = run("--resume", finished, "--quiet")
    assert again.exit_code == 0
    assert "nothing to add" in again.output
    assert report(finished)["settings"]["stage"] == 1


def test_an_interrupted_run_ends_like_an_undisturbed_one(finished: Path, tmp_path: Path) -> None:
    """Evidence cut off in the middle, and no report: what a killed run leaves."""
    folder = tmp_path / "cut"
    folder.mkdir()
    (folder / "run.json").write_bytes((finished / "run.json").read_bytes())
    for path in (finished / "evidence").iterdir():
        part = first_requests(load_evidence(path), 100)
        part.save(folder / "evidence" / path.name)
    done = run("--resume", folder, "--quiet")
    assert done.exit_code == 0, done.output
    before, after = report(finished), report(folder)
    assert after["settings"] == before["settings"]
    for one, other in zip(before["cases"], after["cases"], strict=True):
        assert [a["sha256"] for a in one["arms"]] == [a["sha256"] for a in other["arms"]]
        assert one["findings"] == other["findings"]


def test_more_samples_settle_what_was_inconclusive(
    tmp_path: Path, probe_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    first = run(RARELY, *SMOKE, "--out", tmp_path)
    assert first.exit_code == 2, first.output
    (case,) = report(tmp_path)["cases"]
    assert case["verdict"] == "INCONCLUSIVE"
    assert "hardly seen" in case["why"]
    assert f"{case['needed'] - case['arms'][0]['requests']:,} more requests" in case["why"]
    before = {p.name: load_evidence(p) for p in (tmp_path / "evidence").iterdir()}

    more = run("--resume", tmp_path, "--quiet")
    assert more.exit_code == 0, more.output
    after = report(tmp_path)
    (settled,) = after["cases"]
    assert settled["verdict"] == "EXACT"
    assert settled["arms"][0]["requests"] == case["needed"]
    assert after["settings"]["stage"] == 2
    # the addition has an alpha of its own: half of what the first stage had
    spent = {f["level"] for f in settled["findings"] if f["level"]}
    assert list(spent) == [pytest.approx(1e-6 / 4 / after["settings"]["tests"])]
    for name, old in before.items():
        new = load_evidence(tmp_path / "evidence" / name)
        n = len(old.tokens)
        assert n < len(new.tokens) or old.arm == AGAIN  # that many, whatever the stage
        assert np.array_equal(new.tokens[:n], old.tokens)
        assert np.array_equal(new.seeds[:n], old.seeds)
        assert len(np.unique(new.seeds)) == len(new.seeds)


def test_another_build_is_not_added_to_the_first(finished: Path, tmp_path: Path) -> None:
    data = json.loads((finished / "run.json").read_text())
    card = data["described"]["reference"]["card"]
    version, card["version"] = card["version"], "0.0.0"
    (tmp_path / "run.json").write_text(json.dumps(data))
    done = run("--resume", tmp_path)
    assert done.exit_code == 2
    assert f"was version 0.0.0 and is now {version}" in done.output


@pytest.mark.parametrize(
    "damage",
    ["", "{", "[]", '{"engines": ["reference"]}', "\x00"],
)
def test_a_damaged_file_is_named(finished: Path, tmp_path: Path, damage: str) -> None:
    (tmp_path / "run.json").write_text(damage)
    done = run("--resume", tmp_path)
    assert done.exit_code == 2
    assert "run.json is damaged" in done.output


@pytest.mark.parametrize(
    ("field", "value"),
    [("profile", "none"), ("stages", []), ("decodings", ["temperature=hot"]), ("alpha", "1")],
)
def test_a_nonsensical_file_is_named(
    finished: Path, tmp_path: Path, field: str, value: object
) -> None:
    data = json.loads((finished / "run.json").read_text()) | {field: value}
    (tmp_path / "run.json").write_text(json.dumps(data))
    done = run("--resume", tmp_path)
    assert done.exit_code == 2
    assert "run.json is damaged" in done.output


def test_where_nothing_ran_there_is_nothing_to_resume(tmp_path: Path) -> None:
    done = run("--resume", tmp_path)
    assert done.exit_code == 2
    assert "there is no run to go on with" in done.output


def test_engines_and_resume_exclude_each_other(finished: Path) -> None:
    assert run("reference", "--resume", finished).exit_code == 2
    assert run().exit_code == 2


def test_stages_never_spend_more_than_alpha() -> None:
    from dataclasses import replace

    from conformance.decoding import Decoding
    from conformance.plan import make_plan

    plan = make_plan(in_process.cases("mid", [Decoding()]), PROFILES["smoke"], 1e-6)
    spent = sum(replace(plan, stage=s).level * plan.test_count for s in range(1, 40))
    assert spent <= 1e-6
    assert spent > 0.99e-6
