"""What engines say of their tokens: every fault in it fails, what is right passes, and the finding
names the place and what was returned instead.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cache

import in_process
import numpy as np
import pytest

from conformance import returned, wire
from conformance.adapters.exact_rules import exact
from conformance.adapters.reference import ReferenceEngine, faulty
from conformance.contract import Capabilities, Completion, Request
from conformance.decide import decide
from conformance.decoding import Decoding
from conformance.errors import BadAnswerError
from conformance.evidence import Evidence, continued, load_evidence, selected
from conformance.faults.returned import RETURNED
from conformance.gather import Gathered
from conformance.logprobs import EVERYWHERE, TEST, added, judge_logprobs
from conformance.plan import PROFILES, Case, RunPlan, make_plan
from conformance.stacked import stack_logprobs
from conformance.suite import SUITES
from conformance.verdict import CaseVerdict, Finding, Verdict

GREEDY, WARM, FILTERED, PENALISED = SUITES["logprobs"]
ASKED = (GREEDY, FILTERED, PENALISED)
CLAIMS = ReferenceEngine().capabilities
FEW = 96  # requests


@cache
def plan_of(**claims: str) -> RunPlan:
    cases = in_process.cases("mid", ASKED)
    mine = [replace(c, capabilities=replace(c.capabilities, **claims)) for c in cases]
    return make_plan(mine, PROFILES["smoke"])


def case_of(decoding: Decoding, **claims: str) -> Case:
    (case,) = (c for c in plan_of(**claims).cases if c.decoding == decoding)
    return case


@cache
def arm_of(
    name: str, decoding: Decoding, arm: str, kind: str = "processed", few: bool = True
) -> Evidence:
    """An arm of an engine: the reference, one of the faults, or another exact rule."""
    if name == "reference":
        engine = ReferenceEngine(capabilities=replace(CLAIMS, logprobs=kind))
    else:
        engine = exact(name[6:]) if name.startswith("exact:") else faulty(name)
    case = case_of(decoding)
    if few:  # enough of every kind of token
        case = replace(case, workload=replace(case.workload, requests=FEW))
    return in_process.gather_runs(engine, case, arm, [plan_of()])[0]


@dataclass(frozen=True)
class Judged:
    findings: list[Finding]
    verdict: CaseVerdict


def judged(spec, control, decoding, **claims) -> Judged:
    """By what was returned alone; the tokens are right."""
    case = case_of(decoding, **claims)
    arms = {"speculative": spec, "control": control}
    findings, found = judge_logprobs(plan_of(**claims), case, arms)
    return Judged(findings, added(CaseVerdict(Verdict.EXACT, "nothing"), found))


def of(name: str, decoding: Decoding) -> Judged:
    control = arm_of("reference", decoding, "control")
    return judged(arm_of(name, decoding, "speculative"), control, decoding)


def whole(result, arm="speculative", scope=EVERYWHERE):
    (found,) = (f for f in result.findings if (f.test, f.scope, f.arm) == (TEST, scope, arm))
    return found


@pytest.mark.parametrize("name", ["reference", "logprobs-of-draft", "lenient=0.5"])
def test_they_are_judged_beside_the_tokens(name):
    arms = {
        "speculative": arm_of(name, FILTERED, "speculative", few=False),
        "control": arm_of("reference", FILTERED, "control", few=False),
    }
    result = decide(plan_of(), Gathered(case_of(FILTERED), arms), explain=False)
    assert result.verdict.verdict is (Verdict.EXACT if name == "reference" else Verdict.NOT_EXACT)
    tokens, told = (
        [f for f in result.findings if f.rejected and (f.test == TEST) is said]
        for said in (False, True)
    )
    assert bool(tokens) == (name == "lenient=0.5")
    assert bool(told) == (name == "logprobs-of-draft")
    if told:
        assert result.verdict.why.startswith("Returned log-probabilities: ")
        assert "The tokens themselves: no departure was found" in result.verdict.why
    if name == "reference":
        assert result.verdict.ruled_out[-1].startswith("0.")


@pytest.mark.parametrize("decoding", ASKED, ids=str)
def test_right_numbers_pass_and_say_what_they_rule_out(decoding):
    for name in ("reference", "exact:without-q"):
        result = of(name, decoding)
        assert result.verdict.verdict is Verdict.EXACT, result.verdict
        assert (
            "of the returned log-probabilities, or more, being off" in result.verdict.ruled_out[-1]
        )
        found = whole(result)
        assert found.n > 0.9 * arm_of(name, decoding, "speculative").tokens.size
        assert found.detectable is not None
        assert {f.scope for f in result.findings if f.test == TEST} >= {
            EVERYWHERE, "accepted", "recovered", "bonus",
        }  # fmt: skip


@pytest.mark.parametrize("fault", RETURNED, ids=lambda f: f.name)
def test_every_fault_fails_and_only_where_it_is(fault):
    result = of(fault.name, FILTERED)
    assert result.verdict.verdict is Verdict.NOT_EXACT
    assert not whole(result, "control").rejected
    only = [p for p in ("accepted", "recovered", "bonus") if f"{p} tokens only" in fault.shows]
    if only:
        places = {f.scope: f.rejected for f in result.findings if f.test == TEST}
        assert [p for p in ("accepted", "recovered", "bonus") if places[p]] == only
        assert f"so {only[0]} tokens only" in result.verdict.why


@pytest.mark.parametrize(
    ("name", "they_are"),
    [
        ("logprobs-zero", "0, as if each were certain"),
        ("logprobs-nan-recovered", "no numbers (NaN"),
        ("logprobs-minus-infinity", "minus infinity"),
        ("logprobs-of-draft", "the draft's"),
        ("logprobs-misaligned", "those of each token at the place before its own"),
        ("logprobs-shifted", "those of the token before"),
        ("logprobs-raw", "those of the logits as they are"),
    ],
)
def test_what_was_returned_instead_is_named(name, they_are):
    assert f"; they are {they_are}" in whole(of(name, PENALISED)).message


@pytest.mark.parametrize(
    ("change", "they_are"),
    [
        (np.exp, "probabilities, not their logarithms"),
        (lambda x: x / math.log(2), "logarithms to base 2"),
        (lambda x: x / math.log(10), "logarithms to base 10"),
        (lambda x: -x, "their negatives"),
        (lambda x: np.roll(x, -1, axis=1), "those of the token after"),
    ],
)
def test_so_are_other_units(change, they_are):
    right = arm_of("reference", FILTERED, "speculative")
    spec = replace(right, logprobs=change(right.logprobs))
    result = judged(spec, arm_of("reference", FILTERED, "control"), FILTERED)
    assert f"; they are {they_are}" in whole(result).message


def test_one_wrong_number_among_thousands_is_found():
    right = arm_of("reference", FILTERED, "speculative")
    told = right.logprobs.copy()
    told[7, 3] -= 0.01
    result = judged(
        replace(right, logprobs=told), arm_of("reference", FILTERED, "control"), FILTERED
    )
    assert result.verdict.verdict is Verdict.NOT_EXACT
    assert "request 7 output index 3" in result.verdict.why
    assert whole(result).message.startswith("1 of ")


def test_rounding_is_no_fault():
    right = arm_of("reference", FILTERED, "speculative")
    single = right.logprobs.astype(np.float32).astype(np.float64)
    moved = single + 1e-4 * np.sign(np.random.default_rng(0).standard_normal(single.shape))
    result = judged(
        replace(right, logprobs=moved), arm_of("reference", FILTERED, "control"), FILTERED
    )
    assert result.verdict.verdict is Verdict.EXACT


@pytest.mark.parametrize("decoding", [FILTERED, PENALISED], ids=str)
def test_raw_ones_are_those_of_the_logits(decoding):
    arms = [arm_of("reference", decoding, arm, "raw") for arm in ("speculative", "control")]
    assert judged(*arms, decoding, logprobs="raw").verdict.verdict is Verdict.EXACT
    wrongly = judged(*arms, decoding)
    assert wrongly.verdict.verdict is Verdict.INCONCLUSIVE
    assert "declared wrongly" in wrongly.verdict.why


def test_wrong_with_speculation_and_without_is_wrong():
    arms = [arm_of("reference", FILTERED, arm) for arm in ("speculative", "control")]
    result = judged(*(replace(e, logprobs=0 * e.logprobs) for e in arms), FILTERED)
    assert result.verdict.verdict is Verdict.NOT_EXACT
    assert "with speculation and without it" in result.verdict.why


def test_wrong_without_speculation_alone_is_a_difference():
    spec, control = (arm_of("reference", FILTERED, arm) for arm in ("speculative", "control"))
    result = judged(spec, replace(control, logprobs=0 * control.logprobs), FILTERED)
    assert result.verdict.verdict is Verdict.NOT_EXACT
    assert "as declared under speculation and otherwise without" in result.verdict.why


def test_none_at_all_is_a_claim_not_kept():
    spec, control = (arm_of("reference", FILTERED, arm) for arm in ("speculative", "control"))
    result = judged(replace(spec, logprobs=None), control, FILTERED)
    assert result.verdict.verdict is Verdict.NOT_EXACT
    assert "none came" in result.verdict.why


def test_in_low_precision_the_control_arm_says_how_far_off_is_rounding():
    case = replace(case_of(FILTERED, precision="lower"), noise=0.01)
    spec, control = (arm_of("reference", FILTERED, arm) for arm in ("speculative", "control"))
    rng = np.random.default_rng(0)
    rounded = replace(
        control, logprobs=control.logprobs + rng.uniform(-0.1, 0.1, control.tokens.shape)
    )

    def rejected(off):
        moved = replace(spec, logprobs=spec.logprobs + off)
        arms = {"speculative": moved, "control": rounded}
        return any(f.rejected for f in judge_logprobs(plan_of(), case, arms)[0])

    assert not rejected(0.15)
    assert rejected(0.25)


def test_nothing_is_said_where_nothing_was_asked():
    case = replace(case_of(FILTERED), decoding=Decoding(temperature=0.7, top_p=0.8))
    assert judge_logprobs(plan_of(), case, {}) == ([], None)


# --- on the way -----------------------------------------------------------------------------------


def test_after_an_end_there_are_none():
    decoding = Decoding(stop=(3,), logprobs=True)
    request = Request((1, 2), 4, decoding, 5)
    (said,) = wire.encode_completions([Completion((1, 3), logprobs=(-1.0, -2.0))], [request])
    assert said["tokens"] == [1, 3, 3, 3]
    assert said["logprobs"] == [-1.0, -2.0, 0.0, 0.0]


def test_what_is_no_number_travels_by_its_name():
    request = Request((1, 2), 4, Decoding(logprobs=True), 5)
    (row,) = json.loads(json.dumps(wire.encode_requests([request])))
    assert row["logprobs"] is True
    assert "logprobs" not in row["decoding"]
    assert wire.decode_requests([row]) == [request]
    answer = Completion((1, 2, 3, 4), logprobs=(math.nan, -math.inf, math.inf, np.float32(-1.5)))
    said = wire.encode_completions([answer], [request])
    text = json.dumps(said, allow_nan=False)
    (read,) = wire.read_completions({"completions": json.loads(text)}, [request])
    assert read["logprobs"] == ["nan", "-inf", "inf", -1.5]
    assert np.array_equal(
        returned.numbers(read["logprobs"]), [math.nan, -math.inf, math.inf, -1.5], equal_nan=True
    )


@pytest.mark.parametrize(
    "values", [(-1.0,), (-1.0, None), (-1.0, True), ("-1", -1.0), "ab", {"a": 1}, 5]
)
def test_what_is_no_answer_is_refused(values):
    request = Request((1, 2), 2, Decoding(logprobs=True), 5)
    with pytest.raises(BadAnswerError, match="logprobs of answer 0"):
        wire.encode_completions([Completion((1, 2), logprobs=values)], [request])


def test_they_are_not_read_where_they_were_not_asked_for():
    request = Request((1, 2), 2, Decoding(), 5)
    (said,) = wire.encode_completions([Completion((1, 2), logprobs="nonsense")], [request])
    assert "logprobs" not in said
    assert Capabilities().refuses(Decoding(logprobs=True)) == "logprobs"


def test_they_are_kept_with_the_evidence(tmp_path):
    kept = replace(arm_of("logprobs-nan-recovered", FILTERED, "speculative"), case="c", arm="a")
    kept.save(tmp_path / "e.parquet")
    read = load_evidence(tmp_path / "e.parquet")
    assert np.array_equal(read.logprobs, kept.logprobs, equal_nan=True)
    assert read.sha256 == kept.sha256 != replace(kept, logprobs=0 * kept.logprobs).sha256
    plain = replace(kept, logprobs=None)
    plain.save(tmp_path / "p.parquet")
    assert load_evidence(tmp_path / "p.parquet").logprobs is None
    n = len(kept.tokens)
    halves = [selected(kept, np.arange(n) < n // 2), selected(kept, np.arange(n) >= n // 2)]
    whole_again = continued(*halves)
    assert np.array_equal(whole_again.logprobs, kept.logprobs, equal_nan=True)
    some = continued(halves[0], replace(halves[1], logprobs=None))
    assert np.isnan(some.logprobs[n // 2 :]).all()


def test_requests_without_any_are_no_numbers():
    assert stack_logprobs([None, None], 3) is None
    found = stack_logprobs([None, ["-inf", -1.0]], 3)
    assert np.isnan(found[0]).all()
    assert found[1].tolist() == [-math.inf, -1.0, 0.0]
