"""Sliding windows: the probe has one, its law is that of transformers' Mistral, and what is done
wrong with it is found.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import in_process
import numpy as np
import pytest

from conformance import far
from conformance.adapters.reference import ReferenceEngine, faulty
from conformance.arm import Arm
from conformance.contract import Capabilities
from conformance.decide import decide
from conformance.decoding import Decoding
from conformance.faults.windows import WINDOWS
from conformance.forms import FORMS, SLIDING, WINDOW
from conformance.gather import Gathered
from conformance.plan import PROFILES, Case, RunPlan, make_plan
from conformance.probes import load_probe
from conformance.recipes import mean_tv
from conformance.result import CaseResult
from conformance.tinylm import TinyLlama
from conformance.verdict import Verdict

LAYERS = 2


@pytest.fixture(scope="module")
def probe(probe_cache):
    return load_probe("window", probe_cache)


@pytest.fixture
def tokens():
    return np.random.default_rng(0).integers(0, 32, (64, 110))


# --- the law --------------------------------------------------------------------------------------


def test_the_law_depends_on_what_is_in_the_window_to_its_last_place(probe, tokens) -> None:
    law = probe.target.logits(tokens)[:, -1]

    def moved(back: int) -> float:
        changed = tokens.copy()
        changed[:, -1 - back] = (changed[:, -1 - back] + 1) % 32
        return mean_tv(law, probe.target.logits(changed)[:, -1])

    assert moved(WINDOW - 1) > 0.3
    # beyond it the second layer sees what the first one saw, and no further
    farthest = LAYERS * (WINDOW - 1)
    assert 0 < moved(farthest) < 0.2
    assert moved(farthest + 1) == moved(100) == 0


@pytest.mark.parametrize("window", [WINDOW - 1, WINDOW + 1, None])
def test_a_window_that_is_off_by_one_is_another_law(probe, tokens, window) -> None:
    other = TinyLlama(replace(probe.target.shape, window=window), probe.target._w)
    ours = probe.target.logits(tokens)
    assert mean_tv(ours[:, -1], other.logits(tokens)[:, -1]) > 0.3
    within = slice(0, WINDOW - 1)
    assert np.array_equal(ours[:, within], other.logits(tokens)[:, within])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("which", ["target", "draft"])
def test_same_logits_as_transformers(probe, tokens, which, attention) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    library = pytest.importorskip("transformers", reason="transformers is not installed")
    model = library.AutoModelForCausalLM.from_pretrained(
        str(probe.folder / which), dtype=torch.float64, attn_implementation=attention
    ).eval()
    assert type(model).__name__ == "MistralForCausalLM"
    with torch.inference_mode():
        theirs = model(torch.tensor(tokens[:8])).logits.numpy()
    ours = getattr(probe, which).logits(tokens[:8])
    assert np.abs(ours - theirs).max() < 1e-4
    assert ours.std() > 0.5


def test_piece_by_piece_it_is_the_same(probe, tokens) -> None:
    rows, whole = tokens[:4], probe.target.logits(tokens[:4])
    cache, at = probe.target.new_cache(4, 110), np.zeros(4, np.int64)
    for size in (30, 5, 1, 5, 40, 29):
        got = probe.target.advance(rows[:, at[0] : at[0] + size], cache, at)
        assert got == pytest.approx(whole[:, at[0] : at[0] + size], abs=1e-9)
        at += size


# --- what is asked --------------------------------------------------------------------------------


@cache
def planned(profile: str = "smoke") -> RunPlan:
    engine = ReferenceEngine()
    case = Case("reference", "window", Decoding(), engine.card, engine.capabilities, form=SLIDING)
    return make_plan([case], PROFILES[profile])


def judged(engine: ReferenceEngine, profile: str = "smoke") -> CaseResult:
    plan = planned(profile)
    (case,) = plan.cases
    arms = {a: in_process.gather_calls(engine, plan, case, a) for a in case.arms}
    return decide(plan, Gathered(case, arms), explain=False)


def test_outputs_go_on_for_several_windows(probe) -> None:
    (case,) = planned().cases
    assert case.workload is not None
    assert case.probe == "window"
    lengths = np.array([len(p) for p in case.workload.prompts])
    assert tuple(lengths) == far.STARTS[SLIDING]
    new = case.workload.new_tokens
    assert new > 2 * WINDOW
    assert lengths.min() < WINDOW < 4 * WINDOW < lengths.max() < probe.recipe.context - new
    there = far.regions(lengths, new, SLIDING)
    assert list(there) == ["positions 0 to 47", "positions 48 to 95", "from 96 on"]
    assert (sum(r.astype(int) for r in there.values()) == 1).all()
    assert {t.scope for t in case.tests if t.test == "PIT by p"} == {*there, "all tokens"}


def test_what_is_not_claimed_is_refused_by_name() -> None:
    assert FORMS[SLIDING].refused(Capabilities(long=True)) == "models with a sliding window"
    assert FORMS[SLIDING].refused(Capabilities(sliding=True)) is None


# --- judging --------------------------------------------------------------------------------------


def test_the_reference_passes() -> None:
    found = judged(ReferenceEngine())
    assert found.verdict.verdict is Verdict.EXACT, found.verdict.why
    assert any(line.startswith("from 96 on:") for line in found.verdict.ruled_out)


@pytest.mark.parametrize("fault", [f.name for f in WINDOWS])
def test_each_fault_is_found(fault) -> None:
    found = judged(faulty(fault))
    assert found.verdict.verdict is Verdict.NOT_EXACT
    rejected = {(f.test, f.scope) for f in found.findings if f.rejected}
    assert {("PIT by p", scope) for scope in far.names(SLIDING)[1:]} <= rejected
    assert not any(f.rejected for f in found.findings if f.arm == "control")


@pytest.mark.parametrize("fault", [f.name for f in WINDOWS])
def test_without_a_window_the_fault_does_nothing(fault) -> None:
    made = load_probe("mid")
    plan = make_plan(
        [replace(planned().cases[0], form="plain", probe="mid", workload=None)], PROFILES["smoke"]
    )
    (case,) = plan.cases
    arm = Arm(plan, case, "speculative", Path("none"))
    requests = arm.requests[:40]
    answers = []
    for engine in (ReferenceEngine(), faulty(fault)):
        engine.load(made.pair)
        answers.append(engine.generate(requests))
    assert answers[0] == answers[1]


@pytest.mark.long
@pytest.mark.parametrize("fault", [None, *(f.name for f in WINDOWS)])
def test_at_the_standard_profile_as_well(fault) -> None:
    engine = ReferenceEngine() if fault is None else faulty(fault)
    found = judged(engine, "standard").verdict.verdict
    assert found is (Verdict.EXACT if fault is None else Verdict.NOT_EXACT)
