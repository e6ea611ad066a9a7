"""The kill matrix itself: every fault is asked where it shows, and rows are gone on from."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kill_matrix
import measure
import naming
import numpy as np
import places
import pytest
import share_check
from kill_matrix import Asked, Killed, Run, Task, whole_at_least
from naming import Named
from scipy import stats

from conformance.cause import Cause
from conformance.diagnosis.candidates import UNANSWERABLE
from conformance.faults import FAULTS, rule_faults
from conformance.reports.measured import SURE, KillRow, Measured, measured
from conformance.runner import Settings, asked
from conformance.suite import IN_FORMS, SUITES
from conformance.verdict import Verdict

LADDER = Asked("engine", "standard", ladder=((1 / 16, 6), (0.25, 24), (1.0, 3)))


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
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """What was run. `strict` survives a sixteenth, `lenient` every other quarter as well."""
    tasks: list[Task] = []

    def one(task: Task) -> Run:
        tasks.append(task)
        lives = task.share < 0.25 and task.name == "strict"
        lives |= task.share < 1 and task.name == "lenient" and task.seed % 2 == 1
        verdict = Verdict.INCONCLUSIVE if lives else Verdict.NOT_EXACT
        return Run(verdict, () if lives else ("KL",), ())

    monkeypatch.setattr(kill_matrix, "one", one)
    monkeypatch.setattr(kill_matrix, "ProcessPoolExecutor", ThreadPoolExecutor)
    return tasks


def rows_of(faults: list[str], before: list[Killed] | None = None) -> list[Killed]:
    return list(kill_matrix.matrix(LADDER, faults, before=before or []))[-1]


def test_the_smallest_share_that_kills_often_enough_is_enough(ran: list[Task]) -> None:
    (row,) = rows_of(["typical"])
    assert (row.share, row.runs, row.killed) == (1 / 16, 6, 6)
    assert {t.share for t in ran} == {1 / 16}


def test_who_survives_a_share_is_run_with_more(ran: list[Task]) -> None:
    (row,) = rows_of(["strict"])
    assert (row.share, row.runs, row.killed) == (0.25, 24, 24)
    small = [t for t in ran if t.share < 0.25]
    assert len(small) < 6  # no more than it takes to see that it is of no use


def test_in_the_end_all_of_the_requests_are_asked(ran: list[Task]) -> None:
    (row,) = rows_of(["lenient"])
    assert (row.share, row.runs, row.killed) == (1.0, 3, 3)
    assert len({(t.share, t.seed) for t in ran}) == len(ran)


def test_of_whom_no_kill_is_promised_is_asked_with_all_at_once(ran: list[Task]) -> None:
    (row,) = rows_of(["disabled"])
    assert (row.share, row.runs) == (1.0, 2)
    assert len(ran) == 2


def test_what_was_run_before_is_not_run_again(ran: list[Task]) -> None:
    before = [
        Killed("engine", "lenient", "standard", 1.0, runs=2, killed=2),
        Killed("engine", "strict", "standard", 0.25, runs=23, killed=23),
        Killed("engine", "typical", "standard", 1 / 16, runs=6, killed=6),
    ]
    kept = kill_matrix.from_rows(json.loads(json.dumps(kill_matrix.as_rows(before))))
    assert kept == before
    found = rows_of(["lenient", "strict", "typical"], kept)
    assert [(r.share, r.runs, r.killed) for r in found] == [
        (1.0, 3, 3),
        (0.25, 24, 24),
        (1 / 16, 6, 6),
    ]
    assert [(t.name, t.seed - 1000, t.share) for t in ran] == [
        ("lenient", 2, 1.0),
        ("strict", 23, 0.25),
    ]


# --- from a share to the whole --------------------------------------------------------------------


def test_the_bound_of_the_whole_is_that_of_independent_parts() -> None:
    assert whole_at_least(0, 12, 1 / 16) == whole_at_least(0, 0, 1.0) == 0
    assert whole_at_least(10, 10, 1.0) == pytest.approx(0.01 ** (1 / 10))
    assert whole_at_least(10, 10, 0.25) == pytest.approx(1 - (1 - 0.01**0.1) ** 4)
    assert whole_at_least(9, 10, 0.25) < whole_at_least(10, 10, 0.25) < SURE


def test_the_bound_is_seldom_above_the_truth() -> None:
    rng = np.random.default_rng(0)
    for rate in (0.1, 0.4, 0.8):
        truth = 1 - (1 - rate) ** 16
        found = [whole_at_least(k, 12, 1 / 16) for k in rng.binomial(12, rate, size=2000)]
        assert np.mean(np.array(found) > truth) < 0.02


@pytest.mark.long
@pytest.mark.parametrize("name", ["lenient=0.8", "strict=0.8"])
def test_a_larger_share_kills_as_often_as_the_smaller_promises(name: str) -> None:
    (row,) = share_check.compared([name], "standard", (1 / 16, 1 / 4), 24, jobs=1)
    assert 0 < row.killed[0] < row.runs, "neither always nor never: nothing would be compared"
    # bad luck this often or less
    assert stats.binom.cdf(row.killed[1], row.runs, row.promised) > 1e-4, row


# --- the cause ------------------------------------------------------------------------------------


def test_what_counts_as_named() -> None:
    row = Named("lenient=0.98", "standard", 0.25)
    row.add(Cause("fits", "lenient"))
    row.add(Cause("fits", "accept-all", alike=("lenient",)))
    row.add(Cause("nearest", "lenient"))
    row.add(Cause("fits", "strict"))
    row.add(Cause("unexplained"))
    row.add(None)
    assert (row.explained, row.fits, row.near) == (5, 2, 1)
    assert row.said == {"strict": 1, "unexplained": 1}
    assert json.loads(json.dumps(naming.as_row(row)))["said"] == dict(row.said)


def test_a_cause_is_asked_of_all_but_those_without_one() -> None:
    names = set(naming.askable())
    assert {"lenient", "tail-lost=0.005", "stop-ignored", "top-one-sampled"} <= names
    assert not names & {"disabled", "length-leak", "moved-up", "logprobs-zero", "coarse-uniforms"}


# --- what is told of it ---------------------------------------------------------------------------


def test_the_page_is_what_reports_carry() -> None:
    assert measure.PAGE.read_text(encoding="utf-8") == measure.page(measured())


def test_every_fault_of_the_catalogue_is_in_the_table() -> None:
    """At both tiers; at the audit, where what survives takes long, those that are promised, and of
    whole engines at least the rules, since a fault that the standard kills the audit kills too.
    """
    asked_of: dict[tuple[str, str], set[str]] = {}
    for k in measured().kills:
        asked_of.setdefault((k.tier, k.profile), set()).add(k.fault)
    bare = kill_matrix.bare()
    assert asked_of["engine", "standard"] == set(places.catalogue())
    assert asked_of["verifier", "standard"] == set(bare)
    assert asked_of["verifier", "audit"] == {f for f in bare if places.promised(f, "verifier")}
    audited = asked_of["engine", "audit"]
    assert {f for f in rule_faults() if places.promised(f)} <= audited
    assert all(places.promised(f) for f in audited)


def test_what_is_promised_is_killed() -> None:
    """As surely as can be shown; with all of the requests always."""
    for k in measured().kills:
        if places.promised(k.fault, k.tier):
            assert k.whole is not None
            assert k.whole >= SURE or k.killed == k.runs, k.fault


def test_the_whole_killed_as_often_as_its_shares_promised() -> None:
    rows = measured().shares
    assert any(0 < r.killed[0] < r.runs for r in rows)
    for r in rows:
        assert stats.binom.cdf(r.killed[1], r.runs, r.promised) > 1e-4, r.fault


def test_those_of_which_no_kill_is_promised_stand_apart() -> None:
    def row(fault: str, killed: int) -> KillRow:
        return KillRow(
            tier="engine", profile="standard", fault=fault, share=1 / 16, runs=12, killed=killed,
            passed=0, low=0, high=1, whole=whole_at_least(killed, 12, 1 / 16), explained=0,
            named=0, by=[],
        )  # fmt: skip

    page = "\n".join(measure.kills([row("lenient", 12), row("disabled", 0), row("moved-up", 3)]))
    assert "profile standard: 1 of 2 faults are killed with probability 0.999 at least" in page
    told = page[page.index("No kill is promised") :]
    assert "| disabled | law | 1/16 | 0/12 | 0.0000 |" in told
    assert FAULTS["disabled"].note in told
    assert "| moved-up | batches | 1/16 | 3/12 |" in page


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
