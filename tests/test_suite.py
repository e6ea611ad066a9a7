"""The suites around the law: their questions are hard enough, right engines pass them, and every
fault of that kind fails them.
"""

from __future__ import annotations

from functools import cache

import in_process
import numpy as np
import pytest

from conformance.adapters.exact_rules import EXACT_RULES
from conformance.adapters.exact_rules import exact as exact_engine
from conformance.adapters.reference import ReferenceEngine, faulty
from conformance.decide import decide
from conformance.decoding import Decoding
from conformance.diagnosis.candidates import applicable
from conformance.errors import PlanError
from conformance.evidence import Evidence
from conformance.faults import FAULTS
from conformance.faults.around import AROUND
from conformance.gather import Gathered
from conformance.plan import PROFILES, Case, RunPlan, make_plan
from conformance.reference import draw
from conformance.suite import SUITES, named
from conformance.verdict import Verdict

# the other suites have tests of their own
AROUND_THE_LAW = [d for name in ("ends", "processors") for d in SUITES[name]]
PROCESSED = [d for d in AROUND_THE_LAW if set(d.processors) - {"stop"}]


@cache
def plan_of(profile: str) -> RunPlan:
    return make_plan(in_process.cases("mid", AROUND_THE_LAW), PROFILES[profile])


@cache
def arm_of(name: str | None, profile: str, decoding: Decoding, arm: str) -> Evidence:
    plan = plan_of(profile)
    engine = ReferenceEngine() if name is None else faulty(name)
    return in_process.gather_runs(engine, case_of(profile, decoding), arm, [plan])[0]


def case_of(profile: str, decoding: Decoding) -> Case:
    (case,) = (c for c in plan_of(profile).cases if c.decoding == decoding)
    return case


def judged(name: str | None, profile: str, decoding: Decoding):
    arms = {
        "speculative": arm_of(name, profile, decoding, "speculative"),
        "control": arm_of(None, profile, decoding, "control"),
    }
    return decide(plan_of(profile), Gathered(case_of(profile, decoding), arms), explain=False)


@pytest.mark.parametrize("decoding", PROCESSED, ids=str)
def test_leaving_a_step_out_would_show(decoding: Decoding) -> None:
    """The law with and without the processors, at prefixes of the law's own text."""
    case = case_of("smoke", decoding)
    assert case.workload is not None
    bare = Decoding(
        **{f: getattr(decoding, f) for f in ("greedy", "temperature", "top_k", "top_p")}
    )
    (without,) = in_process.cases("mid", [bare])
    rng = np.random.default_rng(0)
    prompts = case.workload.prompt_array[np.arange(200) % len(case.workload.prompts)]
    tokens = np.zeros((200, 0), dtype=np.int64)
    distances = []
    for t in range(8):
        law = case.oracle.target_laws(prompts, tokens).probs
        # once nothing is held back any longer, what differs is where outputs end
        if t < decoding.min_new_tokens or "min_new_tokens" not in decoding.processors:
            plain = without.oracle.target_laws(prompts, tokens).probs
            distances.append(0.5 * np.abs(law - plain).sum(axis=1).mean())
        tokens = np.concatenate([tokens, draw(law, rng.random(200))[:, None]], axis=1)
    assert np.mean(distances) >= 0.2


@pytest.mark.parametrize("decoding", AROUND_THE_LAW, ids=str)
def test_the_exact_engine_passes(decoding: Decoding) -> None:
    result = judged(None, "smoke", decoding)
    assert result.verdict.verdict is Verdict.EXACT, result.verdict
    assert result.verdict.ruled_out


@pytest.mark.parametrize("name", list(EXACT_RULES))
@pytest.mark.parametrize(
    "decoding", [SUITES["ends"][1], SUITES["processors"][0], SUITES["processors"][2]], ids=str
)
def test_other_exact_rules_pass(name: str, decoding: Decoding) -> None:
    """Ends and histories are the engine's business, whatever the rule."""
    plan, case = plan_of("smoke"), case_of("smoke", decoding)
    spec = in_process.gather_runs(exact_engine(name), case, "speculative", [plan])[0]
    arms = {"speculative": spec, "control": arm_of(None, "smoke", decoding, "control")}
    result = decide(plan, Gathered(case, arms))
    assert not [f for f in result.findings if f.rejected]
    assert result.verdict.verdict is Verdict.EXACT, result.verdict


def test_outputs_end_at_every_place_of_a_block() -> None:
    """First, middle, last accepted, recovered and bonus: what the suite of ends is there for."""
    decoding = SUITES["ends"][1]
    evidence = arm_of(None, "smoke", decoding, "speculative")
    assert evidence.rounds is not None
    length = 1 + np.isin(evidence.tokens, decoding.stop).argmax(axis=1)
    ended = np.isin(evidence.tokens, decoding.stop).any(axis=1)
    places = set()
    for i in np.flatnonzero(ended):
        rounds = evidence.rounds[evidence.rounds[:, 0] == i]
        before = int((rounds[:-1, 2] + 1).sum())
        _, drafted, accepted = rounds[-1]
        place = int(length[i]) - 1 - before
        kind = "accepted" if place < accepted else "bonus" if accepted == drafted else "recovered"
        places.add((kind, place))
    assert places >= {("accepted", p) for p in range(3)} | {("recovered", p) for p in range(4)}
    assert ("bonus", 4) in places
    # a block that goes on after the end
    assert set(length[ended]) >= set(range(1, 9))


@pytest.mark.parametrize("name", [f.name for f in AROUND])
def test_faults_fail_somewhere(name: str) -> None:
    """At smoke, where a departure may be too slight for some of the questions."""
    mine = [d for d in AROUND_THE_LAW if applicable(FAULTS[name], d)]
    assert mine
    if name == "minimum-at-block-start":
        pytest.skip("takes the samples of the standard profile: the long test has it")
    order = sorted(mine, key=lambda d: (not d.greedy, len(str(d))))
    assert any(judged(name, "smoke", d).verdict.verdict is Verdict.NOT_EXACT for d in order)


@pytest.mark.long
@pytest.mark.parametrize("name", [f.name for f in AROUND])
def test_faults_fail_at_standard_whenever_they_sample(name: str) -> None:
    """Each is killed under some sampled decoding as well, or has none."""
    mine = [d for d in AROUND_THE_LAW if applicable(FAULTS[name], d) and not d.greedy]
    assert any(judged(name, "standard", d).verdict.verdict is Verdict.NOT_EXACT for d in mine)


def test_suites_by_name() -> None:
    assert named(["ends", "law", "ends"]) == ("ends", "law")
    assert named(["all"]) == tuple(SUITES)
    with pytest.raises(PlanError, match="no suite 'speed'; there are law, greedy"):
        named(["speed"])
