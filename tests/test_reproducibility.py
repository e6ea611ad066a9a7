"""The same seed, asked twice: what an engine claims to answer alike is asked again."""

from __future__ import annotations

from dataclasses import replace

import in_process
import numpy as np
import pytest

from conformance.adapters.reference import ReferenceEngine, faulty
from conformance.again import TEST, repeated
from conformance.arm import Arm
from conformance.asked import arm_requests
from conformance.contract import Capabilities
from conformance.decide import decide
from conformance.decoding import Decoding
from conformance.gather import Gathered
from conformance.plan import AGAIN, AGAIN_REQUESTS, PROFILES, make_plan
from conformance.verdict import Verdict


@pytest.fixture(scope="module")
def plan():
    return make_plan(in_process.cases("mid", [Decoding()]), PROFILES["smoke"])


def arms(plan, engine):
    (case,) = plan.cases
    return {
        arm: in_process.gather_runs(engine, case.asked(arm), arm, [plan])[0]
        for arm in case.sampled_arms
    }


def test_the_first_requests_are_asked_again_in_other_company(plan, tmp_path) -> None:
    (case,) = plan.cases
    assert case.sampled_arms == ("speculative", "control", AGAIN)
    first = arm_requests(plan, case, "speculative")[:AGAIN_REQUESTS]
    assert arm_requests(plan, case.asked(AGAIN), AGAIN) == first
    small = replace(case, capabilities=replace(case.capabilities, max_batch=16))
    sizes = {
        arm: [len(t.requests) for t in Arm(plan, small, arm, tmp_path).tasks()]
        for arm in ("speculative", AGAIN)
    }
    assert sizes["speculative"][0] == 16
    assert sizes[AGAIN] == [9] * 7 + [1]


def test_only_what_is_claimed(plan) -> None:
    (case,) = plan.cases
    assert not Capabilities().reproducible
    plain = replace(case, capabilities=replace(case.capabilities, reproducible=False))
    assert AGAIN not in plain.sampled_arms
    (greedy,) = in_process.cases("mid", [Decoding(greedy=True)])
    assert AGAIN not in make_plan([greedy], PROFILES["smoke"]).cases[0].sampled_arms


def test_a_right_engine_passes(plan) -> None:
    (case,) = plan.cases
    result = decide(plan, Gathered(case, arms(plan, ReferenceEngine())))
    assert result.verdict.verdict is Verdict.EXACT
    (finding,) = (f for f in result.findings if f.test == TEST)
    assert finding.n == AGAIN_REQUESTS
    assert [a.arm for a in result.arms] == ["speculative", "control"]


def test_an_ignored_seed_is_found_and_nothing_else(plan) -> None:
    (case,) = plan.cases
    found = arms(plan, faulty("unseeded"))
    result = decide(plan, Gathered(case, found))
    assert result.verdict.verdict is Verdict.NOT_EXACT
    assert "asked again with the same seed" in result.verdict.why
    assert "cause" not in result.verdict.why
    assert [f.test for f in result.findings if f.rejected] == [TEST]


def test_one_answer_in_many_is_enough(plan) -> None:
    found = arms(plan, ReferenceEngine())
    tokens = found[AGAIN].tokens.copy()
    tokens[7, 3] = (tokens[7, 3] + 1) % 32
    finding = repeated(found["speculative"], replace(found[AGAIN], tokens=tokens))
    assert finding.rejected
    assert finding.message.startswith("1 of 64 requests")
    assert np.array_equal(found["speculative"].tokens[:64], found[AGAIN].tokens)
