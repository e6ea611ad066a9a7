"""Stopping early: a wrong engine at once, an exact one never, a wrong dialect not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import in_process
import numpy as np
import pytest

from conformance.adapters.reference import ReferenceEngine, faulty
from conformance.betting import Bet, Ledger, course, looks
from conformance.decide import decide
from conformance.decoding import Decoding
from conformance.evidence import Evidence, first_requests
from conformance.gather import Gathered
from conformance.judge import ArmJudge
from conformance.plan import PROFILES, RunPlan, make_plan
from conformance.verdict import Verdict
from conformance.watch import Watch

STEP = 64


@pytest.fixture(scope="module")
def plan(probe_cache: Path) -> RunPlan:
    return make_plan(in_process.cases("mid", [Decoding()]), PROFILES["standard"])


def arms(plan: RunPlan, speculative: ReferenceEngine, control: ReferenceEngine) -> dict:
    case = plan.cases[0]
    return {
        arm: in_process.gather_runs(engine, case, arm, [plan])[0]
        for arm, engine in (("speculative", speculative), ("control", control))
    }


def feed(watch: Watch, found: dict[str, Evidence]) -> int | None:
    """Batches of both arms in turn; the requests of an arm after which the case was settled."""
    for begin in range(0, len(found["speculative"].tokens), STEP):
        for arm, e in found.items():
            watch.add(arm, e.tokens[begin : begin + STEP], e.prompt[begin : begin + STEP])
            if watch.settled():
                return begin + STEP
    return None


def test_a_wrong_engine_is_stopped_at_once(plan: RunPlan) -> None:
    (case,) = plan.cases
    assert case.workload is not None
    found = arms(plan, faulty("accept-all"), ReferenceEngine())
    at = feed(Watch(plan, case), found)
    assert at is not None
    assert at <= 0.1 * case.workload.requests


def test_an_exact_engine_is_not_stopped(plan: RunPlan) -> None:
    (case,) = plan.cases
    assert feed(Watch(plan, case), arms(plan, ReferenceEngine(), ReferenceEngine())) is None


def test_a_departure_of_both_arms_is_left_to_the_planned_end(plan: RunPlan) -> None:
    """Plain sampling that departs too speaks against the declared dialect, not the speculation."""
    (case,) = plan.cases
    hot = replace(case, decoding=Decoding(temperature=1.5))
    engine = ReferenceEngine()
    other = replace(plan, cases=(hot,))
    found = {a: in_process.gather_runs(engine, hot, a, [other])[0] for a in case.arms}
    assert feed(Watch(plan, case), found) is None
    alone = {"speculative": found["speculative"], "control": arms(plan, engine, engine)["control"]}
    assert feed(Watch(plan, case), alone) is not None  # and it is the control arm that decides


def test_the_stop_can_be_recomputed_from_the_evidence(plan: RunPlan) -> None:
    """Judged again, the evidence of a stopped case rejects, by the e-process and nothing else."""
    (case,) = plan.cases
    found = arms(plan, faulty("lenient=0.8"), ReferenceEngine())
    at = feed(Watch(plan, case), found)
    assert at is not None
    kept = {a: first_requests(e, at) for a, e in found.items()}
    result = decide(plan, Gathered(case, kept, stopped=True))
    assert result.verdict.verdict is Verdict.NOT_EXACT, result.error
    assert {f.test for f in result.findings if f.rejected} <= {"e-process", "support"}
    assert "stopped" in result.verdict.why
    informative = [f for f in result.findings if f.test == "chi-square" and f.p_value is not None]
    assert informative
    assert all(f.level == 0 for f in informative)


def test_a_stop_without_a_reason_is_an_error(plan: RunPlan) -> None:
    """Whatever goes wrong, evidence cut short is never called EXACT."""
    (case,) = plan.cases
    found = arms(plan, ReferenceEngine(), ReferenceEngine())
    kept = {a: first_requests(e, 128) for a, e in found.items()}
    assert decide(plan, Gathered(case, kept, stopped=True)).verdict.verdict is Verdict.ERROR


def test_batches_change_nothing(plan: RunPlan) -> None:
    (case,) = plan.cases
    (found,) = in_process.gather_runs(faulty("lenient=0.9"), case, "speculative", [plan])
    judge = ArmJudge(plan, case, "speculative", found)
    whole = judge.reading.ledger
    bet = Bet()
    for begin in range(0, len(found.tokens), 100):
        part = case.oracle.tree(
            found.prompt[begin : begin + 100], found.tokens[begin : begin + 100]
        )
        ledger = Ledger(part.prompt, judge.repeated)
        for chunk in case.oracle.chunks(judge.prompts, part):
            at = part.instances(chunk.begin, chunk.begin + len(chunk.logits))
            ledger.add(part, chunk, at, np.ones(len(at), bool))
        bet.take(ledger, 0, len(part.prompt))
    at_once = Bet()
    at_once.take(whole, 0, len(found.tokens))
    assert bet.log_e == pytest.approx(at_once.log_e, abs=1e-6)
    assert max(value for _, value in course(whole)) >= at_once.log_e - 1e-9


def test_looks_cover_every_request_once() -> None:
    ends = list(looks(1000))
    assert [b for b, _ in ends[1:]] == [e for _, e in ends[:-1]]
    assert (ends[0][0], ends[-1][1]) == (0, 1000)
    assert len(ends) < 40


def test_a_failure_in_the_diagnosis_takes_nothing_from_the_verdict(
    plan: RunPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    (case,) = plan.cases

    def fails(*_: object) -> str:
        raise ZeroDivisionError("no such luck")

    monkeypatch.setattr("conformance.decide.diagnose", fails)
    result = decide(plan, Gathered(case, arms(plan, faulty("accept-all"), ReferenceEngine())))
    assert result.verdict.verdict is Verdict.NOT_EXACT
    assert "could not be looked for (ZeroDivisionError: no such luck)" in result.verdict.why


def test_lost_requests_are_an_error(plan: RunPlan) -> None:
    """Fewer answers than planned, and no reason given: never a verdict on the rest."""
    (case,) = plan.cases
    found = arms(plan, ReferenceEngine(), ReferenceEngine())
    found["control"] = first_requests(found["control"], 1800)
    result = decide(plan, Gathered(case, found))
    assert result.verdict.verdict is Verdict.ERROR
    assert "have no answer" in result.verdict.why
