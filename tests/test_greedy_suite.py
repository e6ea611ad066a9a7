"""The suite ``greedy``: roads, ties and long outputs; right engines pass, faults do not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import in_process
import numpy as np
import pytest

from conformance.adapters.exact_rules import EXACT_RULES
from conformance.adapters.exact_rules import exact as exact_engine
from conformance.adapters.reference import ReferenceEngine, faulty
from conformance.contract import Capabilities
from conformance.decide import decide
from conformance.decoding import ROADS, Decoding
from conformance.errors import InvalidDecodingError
from conformance.evidence import Evidence
from conformance.faults.greedy import GREEDY
from conformance.faults.steps import Block, Emitted, Steps, judged
from conformance.forecast import forecast
from conformance.gather import Gathered
from conformance.greedy import GreedyJudge
from conformance.plan import PROFILES, Case, RunPlan, make_plan
from conformance.probes import load_probe
from conformance.recipes import TIES
from conformance.result import CaseResult
from conformance.runner import Settings, asked
from conformance.suite import PROBES, SUITES
from conformance.tinylm import TinyLlama
from conformance.verdict import Finding, Verdict

PLAIN = Decoding(greedy=True)
ASKED = [("mid", d) for d in SUITES["greedy"]] + list(PROBES["greedy"])
# Where each fault shows, and what does not show it: the plain greedy case of the suite `law`.
SHOWN: dict[str, tuple[str, Decoding]] = {
    "top-one-sampled": ("mid", replace(PLAIN, road="top-k-1")),
    "temperature-zero-unset": ("mid", replace(PLAIN, road="temperature-0")),
    "default-sampled": ("mid", replace(PLAIN, road="temperature-unset")),
    "do-sample-ignored": ("mid", replace(PLAIN, road="do-sample-false")),
    "near-argmax-drawn": ("mid", PLAIN),
    "tie-dropped": ("tied", PLAIN),
    "first-token-sampled": ("mid", PLAIN),
    "late-unverified": ("horizon", PLAIN),
    "cache-wraps": ("horizon", PLAIN),
    "context-lost": ("horizon", PLAIN),
}
HIDDEN = sorted(name for name, where in SHOWN.items() if where != ("mid", PLAIN))


@cache
def plan() -> RunPlan:
    cases = [c for probe, d in ASKED for c in in_process.cases(probe, [d])]
    return make_plan(cases, PROFILES["standard"])


def case_of(probe: str, decoding: Decoding) -> Case:
    (case,) = (c for c in plan().cases if (c.probe, c.decoding) == (probe, decoding))
    return case


@cache
def arm_of(name: str | None, case: str, arm: str) -> Evidence:
    (mine,) = (c for c in plan().cases if c.id == case)
    engine = ReferenceEngine() if name is None else faulty(name)
    return in_process.gather_runs(engine, mine, arm, [plan()])[0]


def judge(name: str | None, probe: str, decoding: Decoding) -> CaseResult:
    case = case_of(probe, decoding)
    return decided(case, arm_of(name, case.id, "speculative"))


def decided(case: Case, spec: Evidence) -> CaseResult:
    arms = {"speculative": spec, "control": arm_of(None, case.id, "control")}
    return decide(plan(), Gathered(case, arms))


def identity(result: CaseResult, arm: str = "speculative") -> Finding:
    (found,) = (f for f in result.findings if (f.test, f.arm) == ("greedy identity", arm))
    return found


# --- what is asked --------------------------------------------------------------------------------


def test_a_road_is_read_as_it_is_written() -> None:
    for road in ROADS:
        decoding = Decoding.parse(f"greedy,road={road}")
        assert decoding.road == road
        # one of them asks for sampling, among a single token
        assert decoding.taken == (Decoding(top_k=1) if road == "top-k-1" else PLAIN)
        assert Decoding.parse(str(decoding)) == decoding
    for wrong in ("greedy,road=bus", "temperature=1,road=top-k-1", "top_k=1,road=top-k-1"):
        with pytest.raises(InvalidDecodingError, match="a road is a way to ask for greedy"):
            Decoding.parse(wrong)


def test_a_road_that_is_not_claimed_is_not_asked() -> None:
    claims = Capabilities(greedy_roads=("top-k-1",))
    assert claims.refuses(Decoding(greedy=True, road="top-k-1")) is None
    assert claims.refuses(PLAIN) is None
    refused = claims.refuses(Decoding(greedy=True, road="temperature-0"))
    assert refused == "the road temperature-0 to greedy decoding"


def test_what_the_suites_ask_is_asked_once() -> None:
    cases = asked(Settings(("reference",), suites=("law", "greedy")))
    ids = [c.id for c in cases]
    assert len(ids) == len(set(ids))
    assert {(c.probe, c.decoding) for c in cases} >= set(ASKED)
    # with a probe of their own choice people are asked what can be asked on it
    other = asked(Settings(("reference",), suites=("greedy",), probe="near"))
    assert {c.probe for c in other} == {"near"}


# --- the probes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_tied_logits_are_equal_to_the_last_bit(dtype: type[np.floating]) -> None:
    probe = load_probe("tied")
    model = TinyLlama.load(probe.folder / "target", dtype)
    tokens = np.random.default_rng(0).integers(0, 32, (8, 40))
    for logits in (model.logits(tokens), model.logits(tokens[:1, :1])):
        for equal in TIES:
            assert (logits[..., list(equal)] == logits[..., [equal[0]]]).all()
    draft = probe.draft.logits(tokens)
    assert (draft[..., 0] != draft[..., 16]).all()


def test_a_plan_promises_what_a_pass_will_certify() -> None:
    said = forecast(case_of("tied", PLAIN), plan()).greedy_rate
    assert said == pytest.approx(identity(judge(None, "tied", PLAIN)).detectable, rel=0.1)


def test_a_good_third_of_the_tokens_is_at_a_tie_and_the_long_outputs_do_not_repeat() -> None:
    figures = identity(judge(None, "tied", PLAIN)).figures
    share = figures["exact_tie"] / (figures["exact_tie"] + figures["identical"])
    assert 0.25 < share < 0.5
    far = arm_of(None, case_of("horizon", PLAIN).id, "control").tokens
    assert far.shape[1] >= 500
    late = far[:, 256:]
    for period in range(1, 129):
        assert not (late[:, period:] == late[:, :-period]).all(axis=1).any()


# --- right engines --------------------------------------------------------------------------------


@pytest.mark.parametrize(("probe", "decoding"), ASKED, ids=str)
def test_the_exact_engine_passes(probe: str, decoding: Decoding) -> None:
    result = judge(None, probe, decoding)
    assert result.verdict.verdict is Verdict.EXACT, result.verdict
    found = identity(result)
    assert found.figures["diverged"] == 0
    assert found.figures["margin_nats"] == 2 * load_probe(probe).tolerance
    assert "of single precision, measured on the probe" in found.message


def last_of_equals(block: Block) -> Emitted:
    z = block.target_logits
    law = np.zeros_like(z)
    last = z.shape[-1] - 1 - z[..., ::-1].argmax(axis=-1)
    np.put_along_axis(law, last[..., None], 1.0, axis=-1)
    return judged(replace(block, p=law))


def test_a_tie_may_be_broken_either_way() -> None:
    """Speculation takes the last of several equals, plain decoding the first: both are right."""
    case = case_of("tied", PLAIN)
    engine = ReferenceEngine(Steps(verify=last_of_equals))
    spec = in_process.gather_runs(engine, case, "speculative", [plan()])[0]
    result = decided(case, spec)
    assert result.verdict.verdict is Verdict.EXACT, result.verdict
    (apart,) = (f for f in result.findings if f.test == "two-sample")
    assert "part at" in apart.message
    assert "first at near ties, of 0 nats at most" in apart.message
    control = identity(result, "control")
    assert control.figures["exact_tie"] > 100
    # had the rows not been equal, the same choice would be a departure
    assert (spec.tokens != arm_of(None, case.id, "control").tokens).any(axis=1).mean() > 0.5


@pytest.mark.parametrize("name", list(EXACT_RULES))
def test_other_exact_rules_pass(name: str) -> None:
    """Drawing among tokens that tie, whatever the rule."""
    case = case_of("tied", replace(PLAIN, road="top-k-1"))
    spec = in_process.gather_runs(exact_engine(name), case, "speculative", [plan()])[0]
    result = decided(case, spec)
    assert result.verdict.verdict is Verdict.EXACT, result.verdict


# --- the three words ------------------------------------------------------------------------------


def test_every_token_is_one_of_three() -> None:
    """By hand: the argmax, the other one of a pair of equals, and any third."""
    case = case_of("tied", PLAIN)
    made = arm_of(None, case.id, "control")
    judge_of = GreedyJudge(plan(), case, "control", made)
    ties = np.argwhere(judge_of.near & judge_of.tied)
    i, t = map(int, ties[0])
    equal = next(group for group in TIES if made.tokens[i, t] in group)
    other = next(x for x in equal if x != made.tokens[i, t])
    third = next(x for x in range(32) if x not in equal)
    whole = judge_of.near.sum() + judge_of.judged.sum()
    for token, near, diverged in ((other, True, False), (third, False, True)):
        tokens = made.tokens[[i], : t + 1].copy()
        tokens[0, t] = token
        one = replace(made, tokens=tokens, prompt=made.prompt[[i]])
        found = GreedyJudge(plan(), case, "control", one)
        assert found.near[0, t] == near
        assert found.diverged[0, t] == diverged
        assert (found.gap[0, t] == 0) == near
    assert whole == made.tokens.size


def test_one_divergence_is_one_and_not_all_that_follows() -> None:
    case = case_of("mid", PLAIN)
    engine, made = ReferenceEngine(), arm_of(None, case.id, "control")
    engine.load(case.oracle.probe.pair)
    tokens = made.tokens.copy()
    tokens[0, 5] = (tokens[0, 5] + 1) % 32
    prompt = (*case.workload.prompts[made.prompt[0]], *tokens[0, :6].tolist())  # type: ignore[union-attr]
    (request,) = in_process.arm_requests(plan(), case, "control")[:1]
    (rest,) = engine.generate([replace(request, prompt=prompt, max_new_tokens=26)])
    tokens[0, 6:] = rest.tokens
    found = GreedyJudge(plan(), case, "control", replace(made, tokens=tokens))
    assert np.argwhere(found.diverged).tolist() == [[0, 5]]
    (_, told) = found.findings()
    assert told.message.startswith("DIVERGED at 1 of ")
    assert "request 0 output index 5" in told.message


# --- faults ---------------------------------------------------------------------------------------


def test_every_fault_has_a_place() -> None:
    assert set(SHOWN) == {f.name for f in GREEDY}


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_faults_fail_where_they_show(name: str) -> None:
    result = judge(name, *SHOWN[name])
    assert result.verdict.verdict is Verdict.NOT_EXACT, result.verdict
    assert identity(result).figures["diverged"] > 0


@pytest.mark.parametrize("name", HIDDEN)
def test_plain_greedy_decoding_would_not_have_shown_them(name: str) -> None:
    assert judge(name, "mid", PLAIN).verdict.verdict is Verdict.EXACT
