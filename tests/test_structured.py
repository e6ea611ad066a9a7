"""Grammars whose mask changes along the output: every fault in them fails, right engines pass."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import in_process
import numpy as np
import pytest

from conformance.adapters.exact_rules import exact
from conformance.adapters.reference import ReferenceEngine, faulty
from conformance.contract import Request
from conformance.decide import decide
from conformance.decoding import Decoding, Dialect
from conformance.diagnosis.candidates import applicable
from conformance.evidence import Evidence
from conformance.faults import FAULTS
from conformance.faults.masks import MASKS
from conformance.gather import Gathered
from conformance.grammar import DEAD, automaton
from conformance.law import softmax, warp
from conformance.plan import PROFILES, Case, RunPlan, make_plan
from conformance.processors import drawn_again
from conformance.reference import draw
from conformance.suite import SUITES
from conformance.verdict import Verdict

TURNS, GREEDY, PHRASES, SENTENCE = SUITES["structured"]
CUTOFF = SUITES["cutoffs"][0], SUITES["cutoffs"][2], SUITES["cutoffs"][3]
ASKED = (*SUITES["structured"], *CUTOFF)
OTHERS = [
    FAULTS[name]
    for name in ("processors-ignored", "processors-on-bonus-only", "processors-not-on-bonus")
]


@cache
def plan_of(profile: str) -> RunPlan:
    return make_plan(in_process.cases("mid", ASKED), PROFILES[profile])


def case_of(decoding: Decoding, profile: str) -> Case:
    (case,) = (c for c in plan_of(profile).cases if c.decoding == decoding)
    return case


@cache
def arm_of(name: str, decoding: Decoding, arm: str, profile: str = "smoke") -> Evidence:
    if name == "reference":
        engine = ReferenceEngine()
    else:
        engine = exact(name[6:]) if name.startswith("exact:") else faulty(name)
    case = case_of(decoding, profile)
    return in_process.gather_runs(engine, case, arm, [plan_of(profile)])[0]


def judged(name: str, decoding: Decoding, profile: str = "smoke"):
    arms = {
        "speculative": arm_of(name, decoding, "speculative", profile),
        "control": arm_of("reference", decoding, "control", profile),
    }
    return decide(plan_of(profile), Gathered(case_of(decoding, profile), arms), explain=False)


def wanted(fault) -> list[Decoding]:
    """Questions under which it changes anything, the greedy one last."""
    mine = [d for d in ASKED if applicable(fault, d)]
    return sorted(mine, key=lambda d: (d.greedy, len(str(d))))


@pytest.mark.parametrize("decoding", SUITES["structured"], ids=lambda d: str(d)[:40])
def test_the_exact_engine_passes(decoding):
    result = judged("reference", decoding)
    assert result.verdict.verdict is Verdict.EXACT, result.verdict
    tokens = arm_of("reference", decoding, "speculative").tokens
    made = automaton(decoding.grammar, decoding.stop, 32)
    for row in tokens[:50].tolist():
        assert made.state_of(row) != DEAD


@pytest.mark.parametrize("name", ["exact:unmasked-draft", "exact:top-k-tree"])
def test_other_exact_rules_pass(name):
    result = judged(name, PHRASES)
    assert not [f for f in result.findings if f.rejected]
    if name == "exact:unmasked-draft":  # it proposes what may not come, and that is rejected
        rounds = arm_of(name, PHRASES, "speculative").rounds
        masked = arm_of("reference", PHRASES, "speculative").rounds
        assert (
            rounds[:, 2].sum() / rounds[:, 1].sum() < 0.9 * masked[:, 2].sum() / masked[:, 1].sum()
        )


@pytest.mark.parametrize("fault", [*MASKS, *OTHERS], ids=lambda f: f.name)
def test_every_fault_fails(fault):
    mine = wanted(fault)
    if not any(d in ASKED for d in mine):
        pytest.skip("asked in the suite of cut-offs alone")
    assert any(judged(fault.name, d).verdict.verdict is Verdict.NOT_EXACT for d in mine[:2])


@pytest.mark.long
@pytest.mark.parametrize("fault", [*MASKS, *OTHERS], ids=lambda f: f.name)
def test_every_fault_fails_at_standard_wherever_it_changes_the_law(fault):
    for decoding in wanted(fault):
        if decoding.greedy and fault.name == "grammar-accepts-unmasked":
            continue  # a greedy target accepts its own argmax, or nothing
        found = judged(fault.name, decoding, "standard").verdict.verdict
        assert found is Verdict.NOT_EXACT, decoding


def test_a_subtle_one_emits_nothing_forbidden():
    result = judged("grammar-accepts-unmasked", TURNS)
    support = [f for f in result.findings if f.test == "support" and f.arm == "speculative"]
    assert not support[0].rejected
    assert result.verdict.verdict is Verdict.NOT_EXACT


@pytest.mark.parametrize("decoding", SUITES["structured"], ids=lambda d: str(d)[:40])
def test_leaving_the_grammar_out_would_show_at_every_place(decoding):
    """By a total variation of .2 or more, wherever outputs go on."""
    case = case_of(decoding, "smoke")
    free = replace(decoding, grammar="")
    (without,) = in_process.cases("mid", [free])
    rng = np.random.default_rng(0)
    prompts = case.workload.prompt_array[np.arange(200) % len(case.workload.prompts)]
    tokens = np.zeros((200, 0), dtype=np.int64)
    for _ in range(8):
        law = case.oracle.target_laws(prompts, tokens).probs
        plain = without.oracle.target_laws(prompts, tokens).probs
        going_on = ~np.isin(tokens, decoding.stop).any(axis=1)
        if going_on.any():
            assert 0.5 * np.abs(law - plain)[going_on].sum(axis=1).mean() >= 0.2
        tokens = np.concatenate([tokens, draw(law, rng.random(200))[:, None]], axis=1)


def test_the_end_of_a_language_is_an_end():
    """A sentence that nothing can follow is followed by the stop token, with certainty."""
    case = case_of(SENTENCE, "smoke")
    prompts = case.workload.prompt_array[:1]
    for said, sure in (((4, 2), False), ((4, 2, 5, 20), True), ((4, 2, 29), True)):
        law = case.oracle.target_laws(prompts, np.array([said])).probs[0]
        assert (law[29] == 1) == sure
        assert law[29] > 0
    assert case.oracle.target_laws(prompts, np.array([[4]])).probs[0, 29] == 0


# --- a token drawn first, and the grammar asked afterwards ----------------------------------------


def test_drawing_again_is_the_law_that_it_says():
    """Simulated: draw from the law without the grammar, and from the masked one if need be."""
    rng = np.random.default_rng(0)
    z = np.log([0.25, 0.25, 0.2, 0.1, 0.08, 0.06, 0.04, 0.02])
    allowed = np.array([True, False, False, False, True, True, True, True])
    decoding = Decoding(top_p=0.7)
    free, masked = warp(z, decoding), warp(np.where(allowed, z, -np.inf), decoding)
    law = drawn_again(free, masked, allowed)
    assert law.sum() == pytest.approx(1)
    n = 200_000
    first = draw(np.tile(free, (n, 1)), rng.random(n))
    second = draw(np.tile(masked, (n, 1)), rng.random(n))
    drawn = np.where(allowed[first], first, second)
    assert np.abs(np.bincount(drawn, minlength=8) / n - law).max() < 0.005
    assert np.abs(law - masked).max() > 0.05


def test_without_a_filter_it_is_the_masked_law():
    z = np.random.default_rng(1).standard_normal((5, 8))
    allowed = np.arange(8) % 2 == 0
    masked = softmax(np.where(allowed, z, -np.inf))
    assert np.abs(drawn_again(softmax(z), masked, allowed) - masked).max() < 1e-12


def test_an_engine_that_draws_again_is_held_to_that_law():
    """The reference in that dialect passes, and does not in the other."""
    dialect = Dialect(grammar="resample")
    case = case_of(PHRASES, "smoke")
    claims = replace(case.capabilities, dialect=dialect)
    mine = replace(case, capabilities=claims)
    plan = replace(plan_of("smoke"), cases=(mine,))
    engine = ReferenceEngine(capabilities=claims)
    arms = {
        arm: in_process.gather_runs(engine, mine, arm, [plan])[0]
        for arm in ("speculative", "control")
    }
    assert decide(plan, Gathered(mine, arms)).verdict.verdict is Verdict.EXACT
    other = decide(plan, Gathered(replace(mine, capabilities=case.capabilities), arms))
    assert other.verdict.verdict is Verdict.INCONCLUSIVE
    assert "Law mismatch" in other.verdict.why


def test_a_stop_token_ends_a_sentence_that_is_whole():
    engine = ReferenceEngine()
    engine.load(case_of(SENTENCE, "smoke").oracle.probe.pair)
    prompt = tuple(range(8))
    requests = [Request(prompt, 8, SENTENCE, seed, spec) for seed in range(40) for spec in (0, 1)]
    lengths = {len(c.tokens) for c in engine.generate(requests)}
    assert lengths == {3, 5}
