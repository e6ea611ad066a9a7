"""The kill matrix itself: every fault is asked where it shows, and rows are gone on from."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kill_matrix
import measure
import places
import pytest
from kill_matrix import Asked, Killed, Run, Task

from conformance.diagnosis.candidates import UNANSWERABLE
from conformance.faults import FAULTS
from conformance.reports.measured import KillRow, Measured, measured
from conformance.runner import Settings, asked
from conformance.suite import IN_FORMS, SUITES
from conformance.verdict import Verdict

QUARTER = Asked("engine", "standard", runs=4, share=0.25)


# --- where a fault is asked -----------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in FAULTS if n not in UNANSWERABLE])
def test_every_fault_has_a_case_in_which_it_shows(name: str) -> None:
    cases = places.asked(places.suite_of(name))
    assert any(places.shows(FAULTS[name], case) for case in cases)


def test_every_suite_has_a_fault_of_its_own() -> None:
    assert {places.suite_of(name) for name in FAULTS} == set(SUITES)
    assert set(places.FORM_OF) <= {f.name for f in FAULTS.values() if f.needs == "form"}
    assert places.suite_of("tie-dropped") == places.suite_of("near-argmax-drawn") == "greedy"
    assert places.suite_of("lenient=0.98") == "law"
    # `ends` has a processor too, of which no bonus token shows anything
    assert places.suite_of("processors-not-on-bonus") == "processors"


def test_where_it_shows_is_asked_first() -> None:
    for name, probe, form in (
        ("tie-dropped", "tied", "plain"),
        ("late-unverified", "horizon", "plain"),
        ("kind-of-the-first", "mid", "mixed"),
        ("moved-up", "mid", "ragged"),
    ):
        plan = places.plan_of("smoke", places.suite_of(name))
        first = places.ordered(plan, name)[0]
        assert (first.probe, first.form) == (probe, form)


@pytest.mark.parametrize("suite", ["law", "greedy", *IN_FORMS])
def test_a_suite_asks_what_the_command_asks(suite: str) -> None:
    mine = {c.id for c in places.asked(suite)}
    assert mine == {c.id for c in asked(Settings(("reference",), suites=(suite,)))}


def test_a_share_is_of_the_requests_alone() -> None:
    whole, share = (places.plan_of("smoke", "batches", s) for s in (1.0, 0.25))
    assert share.level == whole.level
    for a, b in zip(whole.cases, share.cases, strict=True):
        assert a.workload is not None
        assert b.workload is not None
        assert b.workload.requests == -(-a.workload.requests // 4)
        assert (b.workload.prompt_of == a.workload.prompt_of[: b.workload.requests]).all()


def test_a_fault_too_small_to_show_is_asked_at_a_larger_size_too() -> None:
    assert "tail-lost=0.005" in places.catalogue()
    assert places.promised("tail-lost=0.005")
    assert places.promised("lenient")
    assert places.promised("coarse-uniforms=6", "verifier")
    for name in ("tail-lost", "disabled", "coarse-uniforms=6"):
        assert not places.promised(name)
    for name in ("tail-lost", "disabled", "coarse-uniforms"):
        assert FAULTS[name].note


# --- rows -----------------------------------------------------------------------------------------


@pytest.fixture
def survives(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """What was run; every other run of a quarter is survived."""
    tasks: list[Task] = []

    def one(task: Task) -> Run:
        tasks.append(task)
        killed = task.share == 1 or task.seed % 2 == 0
        verdict = Verdict.NOT_EXACT if killed else Verdict.INCONCLUSIVE
        return Run(verdict, ("KL",) if killed else (), (), named=False)

    monkeypatch.setattr(kill_matrix, "one", one)
    monkeypatch.setattr(kill_matrix, "ProcessPoolExecutor", ThreadPoolExecutor)
    return tasks


def rows_of(found: Asked, faults: list[str], before: list[Killed]) -> list[Killed]:
    return list(kill_matrix.matrix(found, faults, before=before))[-1]


def test_who_survives_with_a_share_is_asked_with_all(survives: list[Task]) -> None:
    (row,) = rows_of(QUARTER, ["lenient"], [])
    assert (row.profile, row.runs, row.killed) == ("standard", 4, 4)
    assert [t.share for t in survives] == 4 * [0.25] + 4 * [1.0]


def test_of_whom_no_kill_is_promised_is_asked_with_all_at_once(survives: list[Task]) -> None:
    (row,) = rows_of(QUARTER, ["disabled"], [])
    assert row.profile == "standard"
    assert len(survives) == 4


def test_what_was_run_before_is_not_run_again(survives: list[Task]) -> None:
    before = [
        Killed("engine", "lenient", "standard", runs=3, killed=3),
        Killed("engine", "strict", "standard at 25%", runs=3, killed=3),
        Killed("engine", "typical", "standard at 25%", runs=4, killed=4),
    ]
    kept = kill_matrix.from_rows(json.loads(json.dumps(kill_matrix.as_rows(before))))
    assert kept == before
    found = rows_of(QUARTER, ["lenient", "strict", "typical"], kept)
    assert [(r.profile, r.runs, r.killed) for r in found] == [
        ("standard", 4, 4),
        ("standard", 4, 4),
        ("standard at 25%", 4, 4),
    ]
    # one run of each kind, and then all of the one that survived
    assert [(t.name, t.seed - 1000, t.share) for t in survives[:2]] == [
        ("lenient", 3, 1.0),
        ("strict", 3, 0.25),
    ]
    assert len(survives) == 2 + 4


# --- what is told of it ---------------------------------------------------------------------------


def test_the_page_is_what_reports_carry() -> None:
    assert measure.PAGE.read_text(encoding="utf-8") == measure.page(measured())


def test_every_fault_of_the_catalogue_is_in_the_table() -> None:
    """At the standard profile; at the audit, where one run takes long, those it is promised of."""
    asked_of: dict[tuple[str, str], set[str]] = {}
    for k in measured().kills:
        asked_of.setdefault((k.tier, k.profile.partition(" at ")[0]), set()).add(k.fault)
    assert asked_of["engine", "standard"] == set(places.catalogue())
    bare = set(kill_matrix.bare())
    assert asked_of["verifier", "standard"] == bare
    sure = {f for f in bare & set(FAULTS) if places.promised(f, "verifier")}
    assert asked_of["verifier", "audit"] >= sure


def test_what_is_promised_was_always_killed() -> None:
    for k in measured().kills:
        assert k.killed == k.runs or not places.promised(k.fault, k.tier), k.fault


def test_those_of_which_no_kill_is_promised_stand_apart() -> None:
    def row(fault: str, killed: int) -> KillRow:
        return KillRow(
            tier="engine", profile="standard at 25%", fault=fault, runs=4, killed=killed,
            passed=0, low=0, high=1, explained=0, named=0, by=[],
        )  # fmt: skip

    page = "\n".join(measure.kills([row("lenient", 4), row("disabled", 0), row("moved-up", 3)]))
    assert "profile standard, 25% of its requests: 7 of 8 runs of 2 faults" in page
    told = page[page.index("No kill is promised") :]
    assert "| disabled | law | 0/4 |" in told
    assert FAULTS["disabled"].note in told
    assert "| moved-up | batches | 3/4 |" in page


def test_what_was_not_measured_stays(tmp_path: Path) -> None:
    before = measured()
    nothing = measure.collect(tmp_path)
    assert measure.with_earlier(nothing, before) == before
    older = before.model_copy(update={"tool_version": "0.0.1"})
    assert measure.with_earlier(nothing, older) == nothing
    kill = before.kills[0]
    found = Measured(
        tool_version=before.tool_version, calibration=[], false_alarms=[], kills=[kill]
    )
    merged = measure.with_earlier(found, before)
    assert (merged.kills, merged.calibration) == ([kill], before.calibration)
