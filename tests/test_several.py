"""Several answers to one request: what is asked, how the answers are kept and judged, and that what
is wrong with them alone is found.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import in_process
import numpy as np
import pytest
from scipy import stats

from conformance import siblings, wire
from conformance.adapters.reference import ReferenceEngine, faulty
from conformance.arm import Arm, check_planned
from conformance.asked import arm_requests, arm_seeds, evidence_path, questions
from conformance.contract import Capabilities, Completion, Request
from conformance.decide import decide
from conformance.decoding import Decoding
from conformance.errors import BadAnswerError, EvidenceError
from conformance.evidence import continued, first_requests, load_evidence
from conformance.faults.siblings import SIBLINGS as FAULTS
from conformance.forms import ANSWERS, FORMS, SEED_DISTANCE, SEVERAL
from conformance.gather import Gathered
from conformance.judge import ArmJudge
from conformance.plan import AGAIN, PROFILES, Case, RunPlan, make_plan
from conformance.pool import Outcome
from conformance.recipes import RECIPES, Recipe
from conformance.reports.verify.again import judge_again
from conformance.result import CaseResult
from conformance.statistics.independence import correlation_at_lag
from conformance.verdict import Verdict
from conformance.workload import Workload

RUNS, ANSWERED = 100, 90  # of an exact engine, to count false alarms, and answers in each
SMALL = Recipe(
    "small-several", 0.25, vocab_size=8, hidden=16, intermediate=16, layers=1, heads=2, kv_heads=1,
    init=0.6, entropy=1.4,
)  # fmt: skip
SEVEN = Workload(((1,), (2,), (3,)), 7, 8, 2, SEVERAL)


@cache
def planned(decoding: str = "temperature=1", profile: str = "smoke", seed: int = 0) -> RunPlan:
    engine = ReferenceEngine()
    claims = replace(engine.capabilities, max_batch=64)
    case = Case("reference", "mid", Decoding.parse(decoding), engine.card, claims, form=SEVERAL)
    return make_plan([case], PROFILES[profile], seed=seed)


def case_of(decoding: str = "temperature=1") -> Case:
    return planned(decoding).cases[0]


def gathered(plan: RunPlan, engine: ReferenceEngine, folder: Path) -> Gathered:
    (case,) = plan.cases
    return Gathered(
        case,
        {a: in_process.answered(engine, Arm(plan, case, a, folder)) for a in case.sampled_arms},
    )


@pytest.fixture(scope="module")
def right(tmp_path_factory) -> Gathered:
    return gathered(planned(), ReferenceEngine(), tmp_path_factory.mktemp("several"))


# --- what is asked --------------------------------------------------------------------------------


def test_answers_to_one_request_stand_together() -> None:
    assert ANSWERS == (2, 5, 1, 8, 3)
    assert SEVEN.asked.tolist() == [0, 2]
    assert SEVEN.answer_of.tolist() == [0, 1, 0, 1, 2, 3, 4]
    assert SEVEN.prompt_of.tolist() == [0, 0, 1, 1, 1, 1, 1]
    assert SEVEN.whole(3).requests == SEVEN.whole(7).requests == 7
    assert SEVEN.whole(8).requests == 8
    assert SEVEN.whole(9).requests == 16
    assert str(SEVEN) == "2 requests for 1 to 8: 7 answers of 8 tokens over 3 prompts"


def test_calls_have_whole_requests() -> None:
    work = case_of().workload
    assert work is not None
    ends = {*work.asked.tolist(), work.requests}
    for most in (1, 7, 33, 64, 1000):
        calls = list(work.calls(0, most))
        assert {e for call in calls for e in call} <= ends
        assert [b for b, _ in calls] == [0, *(e for _, e in calls[:-1])]
        assert calls[-1][1] == work.requests
        asked = np.searchsorted(work.asked, calls)
        assert (asked[:, 1] - asked[:, 0]).max() == min(most, 64)
        assert list(work.calls(calls[1][0], most)) == calls[1:]


def test_neighbouring_requests_have_different_prompts() -> None:
    """So that the answer before has the same prompt only if it is to the same request."""
    work = case_of().workload
    assert work is not None
    of = work.prompt_of[work.asked]
    assert (of[1:] != of[:-1]).all()
    assert (np.bincount(work.prompt_of)[:2] >= 0.4 * work.requests).all()


def test_one_seed_a_request_and_room_to_count_up_from_it() -> None:
    plan, case = planned(), case_of()
    work = case.workload
    assert work is not None
    seeds = arm_seeds(plan, case, "speculative")
    asked = arm_requests(plan, case, "speculative")
    assert [r.answers for r in asked[:6]] == [*ANSWERS, ANSWERS[0]]
    assert sum(r.answers for r in asked) == work.requests == len(seeds)
    assert [-1 if r.seed is None else r.seed for r in asked] == seeds[work.asked].tolist()
    given = np.sort(seeds[work.asked][seeds[work.asked] >= 0])
    assert max(ANSWERS) <= np.diff(given).min() >= SEED_DISTANCE
    assert 0.3 < (seeds[work.asked] < 0).mean() < 0.4
    # another number of answers is another question
    asks = dict.fromkeys((r.prompt, r.answers) for r in asked)
    assert len(asks) == len(set(questions(case))) > len({prompt for prompt, _ in asks})


def test_what_is_asked_again_is_whole_requests(right) -> None:
    again = right.case.again
    assert again is not None
    assert again.requests == again.whole(64).requests >= 64
    plan, case = planned(), right.case
    first = arm_requests(plan, case, "speculative")
    assert arm_requests(plan, case.asked(AGAIN), AGAIN) == first[: len(again.asked)]
    seeded = right.arms[AGAIN].seeds >= 0
    told, before = right.arms[AGAIN].tokens, right.arms["speculative"].tokens[: again.requests]
    assert (told[seeded] == before[seeded]).all()
    assert (told[~seeded] != before[~seeded]).any()


def test_what_is_not_claimed_is_refused_by_name() -> None:
    assert FORMS[SEVERAL].refused(Capabilities()) == "several answers to one request"
    assert FORMS[SEVERAL].refused(Capabilities(several=True)) is None


# --- the protocol ---------------------------------------------------------------------------------


def test_a_request_says_how_many_answers_it_wants() -> None:
    one = Request((1,), 2, Decoding(), 16)
    three = replace(one, answers=3)
    plain = wire.encode_requests([one, three])
    assert "answers" not in plain[0]  # an engine may be older than this
    assert plain[1]["answers"] == 3
    assert wire.decode_requests(plain) == [one, three]


@pytest.mark.parametrize("n", [0, 1, 3, 5])
def test_another_number_of_answers_is_no_answer(n) -> None:
    requests = [Request((1,), 2, Decoding(), 16, answers=a) for a in (3, 1)]
    with pytest.raises(BadAnswerError, match=f"2 requests for 4 answers got {n} answers"):
        wire.encode_completions([Completion((1, 2))] * n, requests)
    assert len(wire.encode_completions([Completion((1, 2))] * 4, requests)) == 4


# --- evidence -------------------------------------------------------------------------------------


def test_which_answer_each_one_is_stands_in_the_file(right, tmp_path) -> None:
    found, path = right.arms["speculative"], tmp_path / "e.parquet"
    assert right.case.workload is not None
    assert (found.answer == right.case.workload.answer_of).all()
    found.save(path)
    again = load_evidence(path)
    assert again.sha256 == found.sha256
    assert (again.answer == found.answer).all()
    end = int(right.case.workload.asked[20])
    parts = first_requests(found, end), replace(found, answer=None)
    assert (continued(parts[0], parts[0]).answer_of[:end] == found.answer_of[:end]).all()
    assert continued(parts[1], parts[1]).answer is None
    assert replace(found, answer=None).sha256 != found.sha256


def test_an_interrupted_arm_goes_on_with_whole_requests(right, tmp_path) -> None:
    engine, plan = ReferenceEngine(), planned()
    engine.load(right.case.oracle.probe.pair)

    def answer(arm: Arm, calls: int) -> None:
        for task in list(arm.tasks())[:calls]:
            said = wire.encode_completions(engine.generate(task.requests), task.requests)
            assert isinstance(task.key, tuple)
            arm.take(task.key[1], Outcome(task, tuple(said), 0.1))

    first = Arm(plan, right.case, "control", tmp_path)
    answer(first, 1)
    assert right.case.workload is not None
    assert first.done == right.case.workload.asked[64]
    first.save_part()
    then = Arm(plan, right.case, "control", tmp_path)
    then.take_up()
    assert then.done == first.done
    answer(then, 10**6)
    assert then.complete
    seeded, whole = then.seeds >= 0, right.arms["control"]
    found = then.evidence()
    assert (found.tokens[seeded] == whole.tokens[seeded]).all()
    assert (found.answer == whole.answer).all()


def test_answers_are_numbered_from_the_first_on(right, tmp_path) -> None:
    found, path = right.arms["speculative"], tmp_path / "e.parquet"
    number = found.answer_of.copy()
    number[1] = 2
    replace(found, answer=number).save(path)
    with pytest.raises(EvidenceError, match="numbered from 0"):
        load_evidence(path)


def test_answers_to_requests_for_one_are_another_plan(right) -> None:
    seeds = arm_seeds(planned(), right.case, "speculative")
    found = right.arms["speculative"]
    check_planned(right.case, "speculative", seeds, Path("x"), found)
    with pytest.raises(EvidenceError, match="answers differ"):
        check_planned(right.case, "speculative", seeds, Path("x"), replace(found, answer=None))


def test_judged_again_from_the_disk_it_is_the_same(right, tmp_path) -> None:
    """As ``conformance verify`` does, which has no engine."""
    for arm, found in right.arms.items():
        found.save(evidence_path(tmp_path, right.case, arm))
    again = judge_again(planned(), right.case, tmp_path, most=0)
    here = decide(planned(), right, explain=False)
    assert again.result.verdict == here.verdict
    assert again.result.findings == here.findings


# --- judging --------------------------------------------------------------------------------------


def test_walls_stand_between_requests() -> None:
    answer = np.array([0, 0, 1, 2, 0, 1])
    rows = np.arange(1, 7)[:, None]
    assert siblings.walled(rows, answer)[:, 0].tolist() == [0, 1, 0, 2, 3, 4, 0, 5, 6]
    n = 40
    u = np.random.default_rng(0).random((n, 3))
    use = siblings.walled(np.ones((n, 3), dtype=bool), np.arange(n) % 4)
    found = correlation_at_lag(siblings.walled(u, np.arange(n) % 4), use)
    assert found is not None
    assert found.n == 3 * 3 * n // 4


def test_the_reference_passes_and_tells_what_it_answered(right) -> None:
    found = decide(planned(), right, explain=False)
    assert found.verdict.verdict is Verdict.EXACT, found.verdict.why
    told = found.findings[0]
    assert told.test == siblings.TEST
    assert right.case.workload is not None
    assert told.figures["answers"] == right.case.workload.requests
    assert told.figures["requests"] == len(right.case.workload.asked)
    assert told.figures["most_to_one"] == 8
    assert min(told.figures["further_accepted"], told.figures["further_rejected"]) > 100
    planned_tests = {(t.test, t.scope, t.arm) for t in right.case.tests}
    judged = {(f.test, f.scope, f.arm) for f in found.findings if f.level is not None and f.n}
    assert {t for t in planned_tests if "one request" in t[1]} <= judged
    assert len([t for t in planned_tests if "one request" in t[1]]) == 2 * (4 + 4)


def test_a_pass_needs_speculation_in_further_answers(right) -> None:
    found = right.arms["speculative"]
    assert siblings.missing(right.case, found) == ""
    one = siblings.missing(right.case, replace(found, answer=None))
    assert one == "several answers to one request"
    # an engine that goes on plainly once it has forked
    further = found.answer_of[found.rounds[:, 0]] > 0
    plain = found.rounds.copy()
    plain[further, 1:] = 0
    fallen = replace(found, rounds=plain)
    assert "speculation" in siblings.missing(right.case, fallen)
    result = decide(planned(), replace(right, arms=right.arms | {"speculative": fallen}), False)
    assert result.verdict.verdict is not Verdict.EXACT
    untold = replace(found, rounds=None)
    assert siblings.missing(right.case, untold) == ""
    assert "blocks were not told" in siblings.finding(right.case, untold).message


def rejecting(result: CaseResult) -> set[tuple[str, str]]:
    return {(f.test, f.scope) for f in result.findings if f.rejected and f.arm == "speculative"}


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        ("answers-alike", ("repeats", "answers to one request")),
        ("answers-draft-alike", ("correlation by id", "answers to one request")),
        ("answers-forked-late", ("repeats", "answers to one request")),
        ("answers-first-verified", ("PIT by q/p", "further answers to one request")),
        ("answers-share-cache", ("PIT by p", "further answers to one request")),
    ],
)
def test_each_fault_is_found_where_it_is(fault, where, right, tmp_path) -> None:
    """With the few requests of the smallest profile, so all the more at the others."""
    case = right.case
    arm = Arm(planned(), case, "speculative", tmp_path)
    wrong = right.arms | {"speculative": in_process.answered(faulty(fault), arm)}
    wrong.pop(AGAIN)
    result = decide(planned(), Gathered(case, wrong), explain=False)
    assert result.verdict.verdict is Verdict.NOT_EXACT
    assert where in rejecting(result)
    if fault == "answers-first-verified":
        assert ("PIT by q/p", "first answers to one request") not in rejecting(result)


def test_every_fault_of_this_kind_is_above() -> None:
    assert {f.name for f in FAULTS} == {
        mark.args[1][i][0]
        for mark in test_each_fault_is_found_where_it_is.pytestmark
        for i in range(len(mark.args[1]))
    }


@pytest.mark.long
@pytest.mark.parametrize("fault", [None, *(f.name for f in FAULTS)])
def test_at_the_standard_profile_as_well(fault, tmp_path) -> None:
    plan = planned("temperature=0.7,top_p=0.8", "standard")
    engine = ReferenceEngine() if fault is None else faulty(fault)
    found = decide(plan, gathered(plan, engine, tmp_path), explain=False).verdict.verdict
    assert found is (Verdict.EXACT if fault is None else Verdict.NOT_EXACT)


def p_values(seeds: range) -> dict[tuple[str, str], list[float]]:
    """Of the tests that compare answers to one request, in small runs of the exact engine."""
    out: dict[tuple[str, str], list[float]] = {}
    engine = ReferenceEngine()
    case = Case("reference", SMALL.name, Decoding(), engine.card, engine.capabilities, form=SEVERAL)
    plan = make_plan([case], PROFILES["smoke"])
    (case,) = plan.cases
    assert case.workload is not None
    case = replace(case, workload=case.workload.whole(ANSWERED))
    plans = [replace(plan, cases=(case,), seed=seed) for seed in seeds]
    runs = in_process.gather_runs(engine, case, "speculative", plans)
    for one, evidence in zip(plans, runs, strict=True):
        for f in ArmJudge(one, case, "speculative", evidence).findings():
            if "one request" in f.scope and f.p_value is not None:
                out.setdefault((f.test, f.scope), []).append(f.p_value)
    return out


@pytest.mark.long
def test_false_alarms_of_comparing_answers_to_one_request(monkeypatch) -> None:
    """In small runs of an exact engine no p-value is small more often than it says."""
    monkeypatch.setitem(RECIPES, SMALL.name, SMALL)
    runs, found = RUNS, p_values(range(RUNS))
    assert len(found) == 8
    rows = [
        {"test": test, "scope": scope, "runs": runs}
        | {f"at {level}": int((np.array(p) <= level).sum()) for level in (0.2, 0.05, 0.01)}
        for (test, scope), p in found.items()
    ]
    in_process.write_table("several_false_alarms", rows)
    for (test, scope), p in found.items():
        assert len(p) == runs
        for level in (0.2, 0.05, 0.01):
            hits = int((np.array(p) <= level).sum())
            # over 24 comparisons, one in a thousand
            assert stats.binom.sf(hits - 1, runs, level) > 1e-3 / 24, (test, scope, level, hits)
