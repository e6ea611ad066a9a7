"""Requests that are not alike: what they ask, how their answers are kept and judged, and that what
is wrong with them alone is found.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import in_process
import numpy as np
import pytest
from in_process import answered

from conformance import far
from conformance.adapters.reference import ReferenceEngine, faulty
from conformance.arm import Arm, check_planned
from conformance.asked import arm_requests, arm_seeds, evidence_path, questions
from conformance.contract import Capabilities
from conformance.decide import decide
from conformance.decoding import Decoding
from conformance.errors import EvidenceError
from conformance.evidence import Evidence, continued, first_requests, load_evidence
from conformance.forms import FORMS, LENGTHS, LONG, MIXED, PLAIN, RAGGED, TOGETHER, TWIN
from conformance.gather import Gathered
from conformance.judge import ArmJudge
from conformance.oracle import NONE
from conformance.plan import AGAIN, PROFILES, Case, RunPlan, make_plan
from conformance.probes import load_probe
from conformance.recipes import REACH, mean_tv, random_tokens
from conformance.reports.verify.again import _check_calls, judge_again
from conformance.result import CaseResult
from conformance.suite import IN_FORMS, SUITES
from conformance.uneven import apart, finding, missing, unevenness
from conformance.verdict import Verdict
from conformance.workload import Workload


@cache
def planned(form: str, decoding: str = "temperature=1", profile: str = "smoke") -> RunPlan:
    engine = ReferenceEngine()
    probe = FORMS[form].probe or "mid"
    case = Case(
        "reference", probe, Decoding.parse(decoding), engine.card, engine.capabilities, form=form
    )
    return make_plan([case], PROFILES[profile])


def case_of(form: str, decoding: str = "temperature=1") -> Case:
    return planned(form, decoding).cases[0]


def gathered(plan: RunPlan, engine: ReferenceEngine, folder: Path) -> Gathered:
    (case,) = plan.cases
    arms = {a: answered(engine, Arm(plan, case, a, folder)) for a in case.sampled_arms}
    return Gathered(case, arms)


def judged(plan: RunPlan, engine: ReferenceEngine, folder: Path) -> CaseResult:
    return decide(plan, gathered(plan, engine, folder), explain=False)


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> Gathered:
    return gathered(planned(MIXED), ReferenceEngine(), tmp_path_factory.mktemp("mixed"))


# --- what is asked --------------------------------------------------------------------------------


def test_every_length_is_asked_with_every_prompt() -> None:
    work = case_of(RAGGED).workload
    assert work is not None
    often = {(p, n) for p, n in zip(work.prompt_of, work.lengths, strict=True) if p < 4}
    assert often == {(p, n) for p in range(4) for n in range(1, 13)}


def test_prompts_go_from_one_token_to_the_end_of_the_context() -> None:
    case = case_of(LENGTHS)
    assert case.workload is not None
    long = [len(p) for p in case.workload.prompts]
    assert long[:4] == [1, 2, 64, 512 - 12]
    assert len(set(long)) > 30
    assert max(long) + case.workload.new_tokens == case.oracle.probe.recipe.context


def test_prompts_are_the_same_however_many_are_asked() -> None:
    case = case_of(RAGGED)
    more = make_plan(
        [replace(case, workload=None)], PROFILES["smoke"], requests={case.id: 600}
    ).cases[0]
    assert case.workload is not None
    assert more.workload is not None
    assert more.workload.prompts[: len(case.workload.prompts)] == case.workload.prompts
    few = case.workload.requests
    assert (more.workload.prompt_of[:few] == case.workload.prompt_of).all()
    assert (more.workload.lengths[:few] == case.workload.lengths).all()


def test_calls_have_every_size_and_end_at_the_same_places_whoever_goes_on() -> None:
    work = Workload(((1,), (1, 2)), 2080, 12, 2, RAGGED)
    calls = list(work.calls(0, 64))
    assert sorted(end - begin for begin, end in calls) == list(range(1, 65))
    assert [b for b, _ in calls] == [0, *(e for _, e in calls[:-1])]
    middle = calls[10][0]
    assert list(work.calls(middle, 64)) == calls[10:]
    assert list(work.calls(middle + 1, 64))[1:] == calls[11:]
    assert max(end - begin for begin, end in work.calls(0, 5)) == 5
    assert list(work.calls(work.requests, 64)) == []


def test_requests_that_are_alike_are_asked_as_before() -> None:
    work = Workload(((1, 2), (3, 4)), 10, 8)
    assert list(work.calls(3, 4)) == [(3, 7), (7, 10)]
    assert list(work.calls(10, 4)) == []
    assert work.speculates is None
    assert str(work) == "10 requests of 8 tokens over 2 prompts"
    assert case_of(PLAIN).id == "reference / mid / temperature=1"
    assert case_of(RAGGED).id == "reference / mid / temperature=1 / ragged"


def test_of_two_requests_one_speculates() -> None:
    case = case_of(MIXED).asked(TOGETHER)
    work = case.workload
    assert work is not None
    speculates = work.speculates
    assert speculates is not None
    assert (speculates[::2] != speculates[1::2]).all()
    assert (work.prompt_of[::2] == work.prompt_of[1::2]).all()
    assert 0.4 < speculates[::2].mean() < 0.6
    asked = arm_requests(planned(MIXED), case, TOGETHER)
    assert [r.speculate for r in asked] == speculates.tolist()
    # the other kind is another question
    assert len(set(questions(case)[:2])) == 2


def test_some_have_no_seed_where_that_is_claimed() -> None:
    case = case_of(RAGGED)
    seeds = arm_seeds(planned(RAGGED), case, "speculative")
    assert 0.3 < (seeds < 0).mean() < 0.37
    never = replace(case, capabilities=replace(case.capabilities, unseeded=False))
    assert (arm_seeds(planned(RAGGED), never, "speculative") >= 0).all()
    assert (arm_seeds(planned(PLAIN), case_of(PLAIN), "speculative") >= 0).all()


def test_what_is_not_claimed_is_refused_by_name() -> None:
    claims = Capabilities()
    assert FORMS[PLAIN].refused(claims) is None
    assert FORMS[TWIN].refused(claims) is None
    for name in (LENGTHS, RAGGED, MIXED, LONG):
        assert FORMS[name].refused(claims) == FORMS[name].words
        assert FORMS[name].refused(replace(claims, **{FORMS[name].claim: True})) is None
    assert FORMS[TWIN].refused(Capabilities(draft="lookup")) is not None
    assert set(IN_FORMS) <= set(SUITES)
    assert {form for asked in IN_FORMS.values() for form, _ in asked} == set(FORMS) - {PLAIN}


# --- laws and evidence ----------------------------------------------------------------------------


@pytest.mark.parametrize("draft", ["model", "lookup", "early-exit"])
def test_the_law_of_a_prompt_is_its_own_beside_longer_ones(draft) -> None:
    case = case_of(RAGGED)
    oracle = replace(case, capabilities=replace(case.capabilities, draft=draft)).oracle
    assert case.workload is not None
    few = [0, 1, 2, 3, 7]
    prompts, tokens = case.workload.prompt_array[few], random_tokens(oracle.probe.recipe, 5, 3)
    laws = oracle.target_laws(prompts, tokens)
    both = oracle.draft_laws(prompts, tokens, np.zeros((5, 4, 32)))
    assert both is not None
    for i, p in enumerate(few):
        own = np.array([case.workload.prompts[p]])
        alone = oracle.target_laws(own, tokens[[i]])
        assert laws.probs[i] == pytest.approx(alone.probs[0], abs=1e-12)
        draft_alone = oracle.draft_laws(own, tokens[[i]], np.zeros((1, 4, 32)))
        assert draft_alone is not None
        assert both[i] == pytest.approx(draft_alone[0], abs=1e-12)


def test_nothing_is_judged_beyond_what_was_asked_for() -> None:
    tokens = np.array([[1, 2, 2], [4, 99, 99], [5, 6, 99]])
    tree = case_of(PLAIN).oracle.tree(np.zeros(3, np.int64), tokens, np.array([2, 2, 2]))
    assert tree.valid.tolist() == [[True, True, False], [True, False, False], [True, True, False]]
    assert tree.outside == ((1, 1, 99),)


def test_lengths_are_kept_and_padding_is_not_made_up(together, tmp_path) -> None:
    found = together.arms[TOGETHER]
    assert found.lengths is not None
    path = tmp_path / "e.parquet"
    found.save(path)
    again = load_evidence(path)
    assert again.sha256 == found.sha256
    assert again.lengths is not None
    assert (again.lengths == found.lengths).all()
    halves = first_requests(found, 100)
    assert halves.lengths is not None
    assert (halves.lengths == found.lengths[:100]).all()
    row = int(np.flatnonzero(found.lengths < 12)[0])
    tokens = found.tokens.copy()
    tokens[row, -1] += 1
    replace(found, tokens=tokens).save(path)
    with pytest.raises(EvidenceError, match="longer than its length"):
        load_evidence(path)


def test_parts_of_one_length_are_continued_by_others() -> None:
    one = Evidence(
        np.array([[1, 2]]), np.zeros(1, np.int64), np.zeros(1, np.int64), None, 0.0, 2,
    )  # fmt: skip
    two = replace(one, tokens=np.array([[3, 3]]), lengths=np.array([1]))
    assert continued(one, two).asked_for.tolist() == [2, 1]
    assert continued(one, one).lengths is None


def test_answers_to_other_lengths_are_another_plan(together) -> None:
    case, found = together.case.asked(TOGETHER), together.arms[TOGETHER]
    seeds = arm_seeds(planned(MIXED), case, TOGETHER)
    check_planned(case, TOGETHER, seeds, Path("x"), found)
    with pytest.raises(EvidenceError, match="lengths"):
        check_planned(case, TOGETHER, seeds, Path("x"), replace(found, lengths=None))


def test_calls_larger_than_planned_are_refused(together) -> None:
    case, found = together.case.asked(TOGETHER), together.arms[TOGETHER]
    _check_calls(case, found)
    assert found.batch is not None
    merged = np.where(found.batch == 1, 0, found.batch)
    with pytest.raises(EvidenceError, match="larger than planned"):
        _check_calls(case, replace(found, batch=merged))


# --- unevenness -----------------------------------------------------------------------------------


def test_unevenness_is_counted() -> None:
    case = replace(case_of(RAGGED), workload=Workload(((1,), (1, 2), (3, 4)), 4, 5, 3, RAGGED))
    found = Evidence(
        tokens=np.tile([[7]], (4, 5)),
        prompt=np.array([0, 1, 2, 0]),
        seeds=np.array([5, -1, 6, 7]),
        # the last block of request 0 has three tokens of which one is used
        rounds=np.array([[0, 4, 1], [0, 4, 2], [1, 4, 0], [2, 4, 4], [3, 4, 1]]),
        seconds=0.0,
        planned=4,
        batch=np.array([0, 0, 1, 1]),
        batch_seconds=np.zeros(4),
        lengths=np.array([3, 1, 5, 2]),
    )
    seen = unevenness(case, found)
    assert seen.sizes == (2,)
    assert seen.prompts == (1, 2)
    assert seen.outputs == (1, 2, 3, 5)
    assert seen.cuts == (1,)
    assert seen.ended_apart == 1  # in call 0 two blocks and one
    assert seen.accepted_apart == 2  # 1 and 0, and 4 and 1
    assert (seen.unseeded, seen.both_seeds, seen.both_kinds) == (1, 1, 0)
    assert finding(case, found).figures["ended_apart"] == 1
    assert missing(case, found) == "calls of different sizes"
    assert missing(replace(case, form=LENGTHS), found) == ""
    alike = replace(found, rounds=None, lengths=None, batch=np.array([0, 0, 0, 1]))
    assert missing(case, alike) == "outputs of different lengths"
    assert "blocks were not told" in finding(case, alike).message
    long = replace(found, prompt=np.array([1, 2, 1, 2]), batch=np.array([0, 0, 0, 1]))
    assert missing(case, long) == "prompts of different lengths"
    blocks = np.array([[i, 4, 1] for i in range(4)])
    together = replace(found, rounds=blocks, batch=np.array([0, 0, 0, 1]))
    assert missing(case, together) == "requests of a call that are done at different times"
    mixed = missing(replace(case, form=MIXED), replace(found, batch=np.array([0, 0, 0, 1])))
    assert mixed == "calls with and without speculation together"


def test_a_pass_needs_what_it_is_about(together, monkeypatch) -> None:
    monkeypatch.setattr("conformance.decide.missing", lambda case, asked: "what is wanted")
    found = decide(planned(MIXED), together, explain=False)
    assert found.verdict.verdict is Verdict.INCONCLUSIVE
    assert "what is wanted" in found.verdict.why


def test_arms_asked_together_are_told_apart(together) -> None:
    arms = apart(together.case, together.arms)
    assert list(arms) == ["speculative", "control", AGAIN]
    assert together.case.workload is not None
    for arm in ("speculative", "control"):
        assert len(arms[arm].tokens) == arms[arm].planned == together.case.workload.requests
        assert (arms[arm].prompt == together.case.workload.prompt_of).all()
    assert arms["control"].rounds is None
    assert arms["speculative"].rounds is not None
    assert len(np.unique(arms["speculative"].rounds[:, 0])) == len(arms["speculative"].tokens)


# --- engines --------------------------------------------------------------------------------------


def test_an_answer_does_not_depend_on_what_shares_its_call() -> None:
    engine = ReferenceEngine()
    case = case_of(MIXED).asked(TOGETHER)
    engine.load(case.oracle.probe.pair)
    asked = [r for r in arm_requests(planned(MIXED), case, TOGETHER)[:40] if r.seed is not None]
    at_once = engine.generate(asked)
    for request, answer in zip(asked, at_once, strict=True):
        assert engine.generate([request])[0].tokens == answer.tokens
        assert len(answer.tokens) == request.max_new_tokens


def test_the_reference_passes_in_calls_of_all_kinds(together) -> None:
    found = decide(planned(MIXED), together, explain=False)
    assert found.verdict.verdict is Verdict.EXACT, found.verdict.why
    told = found.findings[0]
    assert told.figures["both_kinds"] > 20
    assert told.figures["different_outputs"] == 12
    arms = apart(together.case, together.arms)
    assert [a.tokens for a in found.arms] == [arms[a.arm].asked_for.sum() for a in found.arms]


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "form", "seen"),
    [
        ("moved-up", RAGGED, Verdict.NOT_EXACT),
        ("padding-seen", RAGGED, Verdict.NOT_EXACT),
        ("one-token-prompt", RAGGED, Verdict.NOT_EXACT),
        ("prompt-cut-to-fit", RAGGED, Verdict.NOT_EXACT),
        ("cut-carried-over", RAGGED, Verdict.NOT_EXACT),
        ("unseeded-alike", RAGGED, Verdict.NOT_EXACT),
        ("unseeded-as-before", RAGGED, Verdict.NOT_EXACT),
        ("seed-of-the-call", RAGGED, Verdict.NOT_EXACT),
        ("unseeded-undrawn", RAGGED, Verdict.NOT_EXACT),
        ("streams-begin-alike", TWIN, Verdict.NOT_EXACT),
        ("page-ends-lost", LONG, Verdict.NOT_EXACT),
        ("window-slides", LONG, Verdict.NOT_EXACT),
        (None, LENGTHS, Verdict.EXACT),
        (None, RAGGED, Verdict.EXACT),
        (None, TWIN, Verdict.EXACT),
        (None, LONG, Verdict.EXACT),
    ],
)
def test_each_fault_is_found_and_the_reference_passes(fault, form, seen, tmp_path) -> None:
    engine = ReferenceEngine() if fault is None else faulty(fault)
    assert judged(planned(form, profile="standard"), engine, tmp_path).verdict.verdict is seen


# --- far from the beginning -----------------------------------------------------------------------


def test_the_law_depends_on_tokens_far_back() -> None:
    target = load_probe("long").target
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 32, size=(2, max(REACH) + 30))
    law = target.logits(tokens)[:, -1]
    for back in REACH:
        changed = tokens.copy()
        changed[:, -1 - back] = (changed[:, -1 - back] + 1) % 32
        assert mean_tv(law, target.logits(changed)[:, -1]) > 0.1, back


def test_regions_are_parts_of_the_context() -> None:
    lengths = np.array(far.STARTS[LONG])
    there = far.regions(lengths, 64)
    assert (sum(r.astype(int) for r in there.values()) == 1).all()
    place = lengths[:, None] + np.arange(64)
    assert place[there["positions 256 to 511"]].min() == 256
    assert place[there["from 1024 on"]].min() == 1024
    assert all(r.any() for r in there.values())
    assert load_probe("long").recipe.context >= place.max() + 1


def test_prompts_are_padded_at_their_ends() -> None:
    found = Workload(((1, 2, 3), (4,)), 2, 1).prompt_array
    assert found.tolist() == [[1, 2, 3], [4, NONE, NONE]]


def test_judged_again_from_the_disk_it_is_the_same(together, tmp_path) -> None:
    """As ``conformance verify`` does, which has no engine."""
    plan, case = planned(MIXED), together.case
    for arm, found in together.arms.items():
        found.save(evidence_path(tmp_path, case, arm))
    again = judge_again(plan, case, tmp_path, most=0)
    here = decide(plan, together, explain=False)
    assert again.result.verdict == here.verdict
    assert again.result.findings == here.findings
    assert again.result.arms == here.arms


def test_blocks_of_requests_that_do_not_speculate_are_refused(together, tmp_path) -> None:
    plan, case = planned(MIXED), together.case
    for arm, found in together.arms.items():
        found.save(evidence_path(tmp_path, case, arm))
    found = together.arms[TOGETHER]
    assert found.rounds is not None
    plain = int(np.setdiff1d(np.arange(len(found.tokens)), found.rounds[:, 0])[0])
    made_up = np.concatenate([found.rounds, [[plain, 12, 11]]])
    forged = replace(found, rounds=made_up[np.argsort(made_up[:, 0], kind="stable")])
    forged.save(evidence_path(tmp_path, case, TOGETHER))
    with pytest.raises(EvidenceError, match="does not speculate"):
        judge_again(plan, case, tmp_path, most=0)


# --- the end of the context -----------------------------------------------------------------------


def test_the_end_of_the_context_is_its_last_places() -> None:
    there = far.at_end(np.array([500, 510, 20]), 12, 512)
    assert [np.flatnonzero(row).tolist() for row in there] == [[*range(4, 12)], [*range(12)], []]


@pytest.mark.parametrize("form", [LENGTHS, RAGGED, MIXED])
def test_where_prompts_go_to_the_end_it_is_asked_by_itself(form: str) -> None:
    (case,) = planned(form).cases
    found = {(t.test, t.arm) for t in case.tests if t.scope == far.END}
    assert found >= {("draft leak", "speculative"), ("PIT by q/p", "speculative")}


def test_the_end_is_judged_as_planned() -> None:
    plan = planned(RAGGED)
    (case,) = plan.cases
    assert case.workload is not None
    evidence = in_process.gather_calls(ReferenceEngine(), plan, case, "speculative")
    found = ArmJudge(plan, case, "speculative", evidence).findings()
    ends = {f.test: f for f in found if f.scope == far.END}
    asked = {t.test for t in case.tests if (t.scope, t.arm) == (far.END, "speculative")}
    assert set(ends) == asked
    lengths = np.array([len(p) for p in case.workload.prompts])[evidence.prompt]
    there = np.maximum(lengths + evidence.asked_for - np.maximum(lengths, 512 - far.LAST), 0)
    # but for those that leave no choice, or were set aside
    assert 0.8 * there.sum() < ends["PIT by p"].n <= there.sum()


def test_plain_requests_have_no_such_end() -> None:
    (case,) = planned(PLAIN).cases
    assert not [t for t in case.tests if t.scope == far.END]
