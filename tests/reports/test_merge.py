"""Evidence of several runs together: what one night cannot show, and no false alarm for ever."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import in_process
import numpy as np
import pytest
from click.testing import CliRunner, Result
from scipy import stats

from conformance.adapters.reference import ReferenceEngine, faulty
from conformance.cli import main
from conformance.decoding import Decoding
from conformance.errors import ReportError
from conformance.plan import PROFILES, Case, RunPlan, make_plan
from conformance.reports.merge import Merged, merge, read_night

PLAIN = Decoding()
LUCK = 1e-6  # a simulation fails by bad luck less often than this


@pytest.fixture(scope="module")
def plan() -> RunPlan:
    return make_plan(in_process.cases("mid", [PLAIN]), PROFILES["smoke"], seed=0)


def nights(
    plan: RunPlan, engine: ReferenceEngine, seeds: range, requests: int
) -> Iterator[tuple[RunPlan, Case, Any]]:
    """Evidence of runs with fewer requests than planned."""
    (case,) = plan.cases
    assert case.workload is not None
    case = replace(case, workload=replace(case.workload, requests=requests))
    plans = [in_process.with_seed(plan, seed) for seed in seeds]
    found = in_process.gather_runs(engine, case, "speculative", plans)
    yield from ((p, case, e) for p, e in zip(plans, found, strict=True))


def of(*added: tuple[RunPlan, Case, Any]) -> Merged:
    (_, case, _), *_ = added
    merged = Merged(case.id, case.oracle.probe.checksums())
    for plan, mine, evidence in added:
        night: Any = SimpleNamespace(
            folder=Path(f"seed-{plan.seed}"), report=SimpleNamespace(cases=[])
        )
        merged.add(night, plan, mine, evidence)
    return merged


# --- the bet --------------------------------------------------------------------------------------


def test_what_runs_gained_is_added_before_it_is_mixed(plan: RunPlan) -> None:
    a, b = nights(plan, faulty("lenient"), range(2), 100)
    one, other, both = of(a), of(b), of(a, b)
    assert both._bet.gains == pytest.approx(one._bet.gains + other._bet.gains)
    assert both.course[0] == pytest.approx(one.course[-1])
    # whatever their order
    assert of(b, a).course[-1] == pytest.approx(both.course[-1])
    assert both.tokens == one.tokens + other.tokens
    assert both.leak is not None
    assert one.leak is not None
    assert other.leak is not None
    low, high = sorted([one.leak.estimate, other.leak.estimate])
    assert low < both.leak.estimate < high
    assert both.leak.high - both.leak.low < one.leak.high - one.leak.low


def test_the_same_prompt_is_counted_together_whatever_its_number(plan: RunPlan) -> None:
    (a, b) = nights(plan, ReferenceEngine(), range(2), 60)
    straight = of(a, b)
    _, case, evidence = b
    assert case.workload is not None
    first, second = (0, 1)  # the prompts that are asked again and again
    assert len(case.workload.repeated_prompts) == 2
    turned = replace(
        case.workload,
        prompts=(
            case.workload.prompts[second],
            case.workload.prompts[first],
            *case.workload.prompts[2:],
        ),
    )
    swapped = np.where(evidence.prompt < 2, 1 - evidence.prompt, evidence.prompt)
    other = of(a, (b[0], replace(case, workload=turned), replace(evidence, prompt=swapped)))
    assert other.course[-1] == pytest.approx(straight.course[-1])
    mixed_up = of(a, (b[0], replace(case, workload=turned), evidence))
    assert mixed_up.course[-1] != pytest.approx(straight.course[-1])


def test_a_departure_too_small_for_a_night_shows_in_many(plan: RunPlan) -> None:
    found = list(nights(plan, faulty("lenient"), range(30), 100))
    needed = math.log(1e6)
    assert max(of(night).course[-1] for night in found) < needed
    merged = of(*found)
    assert merged.course[-1] > needed
    # the mixture loses its prior once and not every night
    assert merged.course[-1] > sum(of(night).course[-1] for night in found)


@pytest.mark.parametrize(
    ("merges", "each"), [(40, 5), pytest.param(1000, 10, marks=pytest.mark.long)]
)
def test_exact_nights_are_seldom_called_wrong(plan: RunPlan, merges: int, each: int) -> None:
    """Looked at after every night, at alpha .05."""
    crossed = 0
    for m in range(merges):
        seeds = range(1000 * (m + 1), 1000 * (m + 1) + each)
        merged = of(*nights(plan, ReferenceEngine(), seeds, 30))
        crossed += max(merged.course) >= math.log(1 / 0.05)
    print(f"{crossed} of {merges}")
    assert stats.binomtest(crossed, merges, 0.05, alternative="greater").pvalue > LUCK


# --- the command ----------------------------------------------------------------------------------


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(w) for w in words])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs of an engine that is a little wrong, and knows no better."""
    made = []
    for seed in (1, 2):
        folder = tmp_path_factory.mktemp("night") / str(seed)
        asked = ("--profile", "smoke", "-d", "temperature=1", "--seed", str(seed), "-j", "1", "-q")
        assert run("run", "faulty:lenient=0.97", *asked, "--out", folder).exit_code in (0, 2)
        made.append(folder)
    return made


def test_runs_are_added_up(folders: list[Path]) -> None:
    shown = run("merge", *folders)
    assert shown.exit_code == 0, shown.output
    assert "No departure found in 2 runs together" in shown.output
    (case,) = json.loads(run("merge", "--json", *folders).stdout)
    assert case["runs"] == [str(f) for f in folders]
    assert case["needed"] == pytest.approx(6)
    assert not case["not_exact"]
    # after the first run it is that run's own bet
    (told,) = read_night(folders[0]).report.cases
    (own,) = (t for t in told.trajectories if t.arm == "speculative")
    assert case["log10_e"][0] == pytest.approx(own.log10_e[-1])
    assert len(case["log10_e"]) == len(case["verdicts"]) == 2


def test_wrong_nights_are_told_as_such(tmp_path: Path) -> None:
    asked = ("--profile", "smoke", "-d", "temperature=1", "-d", "greedy", "-j", "1", "-q")
    for seed in ("1", "2"):
        out = tmp_path / seed
        run("run", "faulty:accept-all", *asked, "--seed", seed, "--out", out)
    found = run("merge", tmp_path / "1", tmp_path / "2")
    assert found.exit_code == 1
    words = " ".join(found.output.split())
    assert "NOT EXACT after 1 run together, 2 of which said so by themselves" in words
    assert "NOT EXACT: 1 of 1 case." in words  # greedy decoding has no bet


def test_what_a_run_finds_by_itself_stays_found(tmp_path: Path) -> None:
    """Impossible tokens are worth nothing to the bet, which goes on."""
    asked = ("--profile", "smoke", "-d", "temperature=1,top_k=8", "-j", "1", "-q", "--seed")
    for seed, engine in (("1", "faulty:outside-vocabulary"), ("2", "faulty:outside-vocabulary")):
        assert run("run", engine, *asked, seed, "--out", tmp_path / seed).exit_code == 1
    both = tmp_path / "1", tmp_path / "2"
    found = run("merge", *both)
    assert found.exit_code == 1, found.output
    assert not any(c["not_exact"] for c in json.loads(run("merge", "--json", *both).stdout))
    words = " ".join(found.output.split())
    assert "NOT EXACT: 2 of 2 runs." in words
    assert "No departure" not in words


def test_a_run_with_an_error_is_no_success(folders: list[Path], tmp_path: Path) -> None:
    broken = copied(folders[1], tmp_path / "broken")
    report = json.loads((broken / "report.json").read_text())
    report["cases"].append(report["cases"][0] | {"id": "lost", "verdict": "ERROR"})
    (broken / "report.json").write_text(json.dumps(report))
    found = run("merge", folders[0], broken)
    assert found.exit_code == 2
    assert "has an ERROR: not all of it was judged" in " ".join(found.output.split())


def copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to


def test_what_tells_nothing_new_is_refused(folders: list[Path], tmp_path: Path) -> None:
    again = copied(folders[0], tmp_path / "again")
    found = run("merge", folders[0], again)
    assert found.exit_code == 2
    assert "drew with the same seed, 1" in found.output
    # and not either when it claims another one
    record = json.loads((again / "run.json").read_text())
    (again / "run.json").write_text(json.dumps(record | {"seed": 7}))
    assert "differ" in run("merge", folders[0], again).output
    with pytest.raises(ReportError, match="has the same answers"):
        merged_twice(folders[0])


def merged_twice(folder: Path) -> None:
    night = read_night(folder)
    found = merge([folder], 0.01).cases[0]
    evidence: Any = SimpleNamespace(tokens=np.zeros((1, 1), np.int64))
    case: Any = SimpleNamespace(
        oracle=SimpleNamespace(probe=SimpleNamespace(checksums=lambda: found.probes))
    )
    found._check_new(night, case, evidence)
    found._check_new(night, case, evidence)


def test_another_probe_is_refused(folders: list[Path]) -> None:
    night = read_night(folders[1])
    found = merge([folders[0]], 0.01).cases[0]
    case: Any = SimpleNamespace(
        oracle=SimpleNamespace(probe=SimpleNamespace(checksums=lambda: {"target": "0"}))
    )
    with pytest.raises(ReportError, match="another probe"):
        found._check_new(night, case, SimpleNamespace(tokens=np.zeros(1)))  # type: ignore[arg-type]


@pytest.mark.parametrize("missing", ["run.json", "report.json"])
def test_a_run_that_has_not_ended_is_refused(
    folders: list[Path], tmp_path: Path, missing: str
) -> None:
    half = copied(folders[0], tmp_path / "half")
    (half / missing).unlink()
    found = run("merge", half)
    assert found.exit_code == 2
    assert "holds no run that has ended" in found.output


def test_damaged_evidence_is_refused(folders: list[Path], tmp_path: Path) -> None:
    broken = copied(folders[0], tmp_path / "broken")
    for path in (broken / "evidence").rglob("*speculative*"):
        path.write_bytes(path.read_bytes()[:100])
    assert run("merge", broken).exit_code == 2


def test_where_nothing_can_be_merged(tmp_path: Path) -> None:
    out = tmp_path / "greedy"
    run("run", "reference", "--profile", "smoke", "-d", "greedy", "-j", "1", "-q", "--out", out)
    found = run("merge", out)
    assert found.exit_code == 2
    assert "no run has a case to merge" in found.output
