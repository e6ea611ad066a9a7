"""Engines in low precision: rounding is measured on the control arm, and is no departure."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import in_process
import numpy as np
import pytest
import torch

from conformance.adapters.reference import ReferenceEngine, faulty
from conformance.contract import ModelPair
from conformance.decide import decide
from conformance.decoding import Decoding
from conformance.gather import Gathered
from conformance.plan import PROFILES, Case, RunPlan, make_plan
from conformance.precision import beyond_rounding, measured_noise
from conformance.result import CaseResult
from conformance.tinylm import TinyLlama, round_to
from conformance.verdict import Finding, Verdict

GREEDY, PLAIN, FILTERED = Decoding(greedy=True), Decoding(), Decoding(top_k=24)
# what bfloat16 does to a logit of size 8 to 16: an error of up to 1/32, and another one each time
# the same logit is computed with other kernels or another batch
ROUNDING = 0.03


class Rounds(TinyLlama):
    """Logits with an error that depends on the prefix, the token, and on who asks."""

    who = 0

    def advance(self, *fed, **more):  # type: ignore[no-untyped-def]
        exact = super().advance(*fed, **more)
        # a hash of the exact logits: the same prefix always has the same error
        phase = exact * 1e4 + self.who
        return exact + ROUNDING * np.sin(phase)


def rounding(engine: ReferenceEngine) -> ReferenceEngine:
    """An engine in process whose arithmetic is that of low precision."""
    load = engine.load

    def load_rounded(probe: ModelPair) -> None:
        load(probe)
        engine._target.__class__ = Rounds

    engine.load = load_rounded  # type: ignore[method-assign]
    return engine


def as_bfloat16(case: Case) -> Case:
    # weights are not rounded here, only logits
    claims = replace(case.capabilities, precision="lower", reproducible=False)
    return replace(case, capabilities=claims)


@cache
def plan_of(profile: str, alpha: float = 1e-6) -> RunPlan:
    asked = [as_bfloat16(c) for c in in_process.cases("mid", (GREEDY, PLAIN, FILTERED))]
    return make_plan(asked, PROFILES[profile], alpha=alpha)


def judged(name: str | None, plan: RunPlan, case: Case) -> CaseResult:
    arms = {}
    for arm in case.sampled_arms:
        engine = rounding(faulty(name) if name else ReferenceEngine())
        # the two arms verify with other shapes, so that they round in their own ways
        Rounds.who = 1 if arm == "speculative" else 2
        arms[arm] = in_process.gather_runs(engine, case.asked(arm), arm, [plan])[0]
    return decide(plan, Gathered(case, arms), explain=False)


@pytest.mark.parametrize("seed", range(2))
def test_rounding_is_not_a_departure(seed: int) -> None:
    """At an alpha that would see it: the law itself is off, in either arm in its own way."""
    plan = in_process.with_seed(plan_of("standard", alpha=0.05), seed)
    greedy, plain, filtered = (judged(None, plan, c) for c in plan.cases)
    assert greedy.verdict.verdict is Verdict.EXACT
    assert "rounding in lower, measured on the control arm" in greedy.verdict.why
    for result in (plain, filtered):
        assert result.verdict.verdict in (Verdict.EXACT, Verdict.INCONCLUSIVE)


def test_in_single_precision_the_same_engine_is_not_exact() -> None:
    """The float32 band does not explain such rounding: greedy decoding shows it at once."""
    case = in_process.cases("mid", [GREEDY])[0]
    plan = make_plan([case], PROFILES["standard"])
    result = judged(None, plan, plan.cases[0])
    assert result.verdict.verdict is not Verdict.EXACT


@pytest.mark.parametrize("name", ["resample-from-p", "stale-cache"])
def test_faults_are_still_found(name: str) -> None:
    plan = plan_of("standard")
    found = {judged(name, plan, c).verdict.verdict for c in plan.cases[1:]}
    assert Verdict.NOT_EXACT in found


def test_greedy_faults_are_still_found() -> None:
    plan = plan_of("standard")
    assert judged("accept-all", plan, plan.cases[0]).verdict.verdict is Verdict.NOT_EXACT


def test_the_noise_is_what_the_control_arm_shows() -> None:
    plan = plan_of("standard")
    case = plan.cases[0]
    Rounds.who = 2
    control = in_process.gather_runs(rounding(ReferenceEngine()), case, "control", [plan])[0]
    noise = measured_noise(case, control)
    assert ROUNDING < noise <= 2 * ROUNDING  # two logits, each off by ROUNDING at most, twice
    exact = in_process.gather_runs(ReferenceEngine(), case, "control", [plan])[0]
    assert measured_noise(case, exact) == case.oracle.probe.tolerance


def test_without_a_control_arm_nothing_can_be_said() -> None:
    plan = plan_of("smoke")
    case = plan.cases[1]
    case = replace(case, capabilities=replace(case.capabilities, control=False), rounding=None)
    spec = in_process.gather_runs(ReferenceEngine(), case, "speculative", [plan])[0]
    result = decide(plan, Gathered(case, {"speculative": spec}))
    assert result.verdict.verdict is Verdict.ERROR
    assert "needs a control arm and greedy" in result.verdict.why


def test_a_law_that_no_rounding_explains() -> None:
    plan = plan_of("smoke")
    case = plan.cases[0]
    spec = in_process.gather_runs(ReferenceEngine(), case, "speculative", [plan])[0]
    wrong = replace(spec, tokens=(spec.tokens + 1) % 32)
    result = decide(plan, Gathered(case, {"speculative": spec, "control": wrong}))
    assert result.verdict.verdict is Verdict.ERROR
    assert "is no rounding: the declared law is wrong" in result.verdict.why


def test_departing_as_far_as_the_control_arm_is_no_departure() -> None:
    """P-values of two arms that the same rounding moves: the difference rejects at its level."""
    rng = np.random.default_rng(0)
    from scipy import stats

    level, n, alarms = 0.01, 20_000, 0
    z = rng.standard_normal((n, 2)) + 4.0  # far beyond the level by themselves
    p = stats.norm.sf(z)
    for mine, control in p:
        found = [
            Finding("PIT by p", "all tokens", "speculative", 9, mine, rejected=True),
            Finding("PIT by p", "all tokens", "control", 9, control, rejected=bool(control < 0.01)),
        ]
        beyond, _ = beyond_rounding(found, level)
        alarms += len(beyond)
    low, high = in_process.clopper_pearson(alarms, n, 0.999)
    assert low <= level <= high
    found = [
        Finding("PIT by p", "all tokens", "speculative", 9, 1e-40, rejected=True),
        Finding("PIT by p", "all tokens", "control", 9, 0.3),
    ]
    assert beyond_rounding(found, 1e-8)[0] == found[:1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_are_rounded_as_torch_rounds_them(dtype: str) -> None:
    w = np.random.default_rng(1).standard_normal(4096).astype(np.float32)
    wanted = torch.from_numpy(w).to(getattr(torch, dtype)).float().numpy()
    assert np.array_equal(round_to(w, dtype), wanted)  # type: ignore[arg-type]
    assert round_to(w, "float32") is w
