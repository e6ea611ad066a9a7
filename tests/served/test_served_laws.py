"""A control server that tells its likeliest tokens, truly, falsely, and not at all."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from imitated import Plain, Telling, judged, name

from conformance.adapters import openai_http as transport
from conformance.adapters.openai_logprobs import Top
from conformance.decoding import Decoding
from conformance.errors import EvidenceError, UnknownEngineError
from conformance.gather import evidence_path
from conformance.planned import PlannedTest
from conformance.runner import Settings, prepare
from conformance.served.decide import judge_again
from conformance.served.evidence import load_served
from conformance.served.judge import findings
from conformance.served.laws import LAWS, load_laws
from conformance.served.plan import (
    BY,
    EVERYWHERE,
    LAW_GATE,
    LAW_GATE_TESTS,
    TOLD,
    forecast_lines,
)
from conformance.served.server import ARMS
from conformance.served.target import target
from conformance.served.words import BY_LAW, CLAIM, MISMATCH
from conformance.verdict import Verdict

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(
        not any(__import__("importlib").util.find_spec(n) for n in transport.LIBRARIES),
        reason="no HTTP library is installed",
    ),
]
OWNERS = ("vllm", "sglang", "llamacpp")


def by_law(result, arm="speculative"):
    return [f for f in result.findings if f.scope.endswith(BY) and f.arm == arm and f.test != TOLD]


def assert_shown_as_found(result):
    """The pictures of the bets end where the findings are."""
    bets = [f for f in result.findings if f.test == "e-process" and f.arm != "control"]
    shown = {t.arm: t for t in result.trajectories}
    assert set(shown) == {"both", "speculative", "control"}
    for bet in bets:
        course = shown[bet.arm]
        assert course.log10_e[-1] == pytest.approx(bet.statistic / math.log(10))
        assert course.needed == pytest.approx(-math.log10(bet.level))
        assert list(course.tokens) == sorted(course.tokens)
        assert len(course.tokens) > 10


def told(result):
    return next(f for f in result.findings if f.test == TOLD)


@pytest.mark.parametrize("owner", OWNERS)
def test_the_law_is_had_from_every_kind_of_server(start, pair, tmp_path, owner):
    spec, control = start(Telling(owner, drafts=True)), start(Telling(owner, drafts=False))
    asked, (result,) = judged(tmp_path, name(spec, control, pair))
    assert result.verdict.verdict is Verdict.EXACT, result.verdict
    relative, law = result.verdict.ruled_out
    assert relative.startswith(f"{CLAIM}: ")
    assert law.startswith(f"{BY_LAW}: ")
    first, *rest = by_law(result)
    assert [f.test for f in rest] == ["chi-square", "chi-square", "sharpening", "e-process"]
    assert 0 < first.detectable < 0.25
    planned = {(t.test, t.scope, t.arm) for t in result.case.tests}
    assert {(f.test, f.scope, f.arm) for f in by_law(result)} <= planned
    assert all(f.level == asked.level for f in by_law(result))
    # the control arm has the law, spends no alpha, and has a level of its own
    gate = by_law(result, "control")
    assert len(gate) == LAW_GATE_TESTS
    assert all(f.p_value > LAW_GATE / LAW_GATE_TESTS and f.level == 0 for f in gate)
    assert "at 2" not in told(result).message
    again = judge_again(asked, result.case, tmp_path)
    assert (again.verdict, again.findings) == (result.verdict, result.findings)
    assert again.trajectories == result.trajectories
    assert_shown_as_found(result)


def test_it_is_asked_for_without_decoding_and_of_the_control_arm_alone(start, pair, tmp_path):
    spec, control = start(Telling(drafts=True)), start(Telling())
    _, (result,) = judged(
        tmp_path, name(spec, control, pair), decodings=(Decoding(temperature=0.5, top_k=2),)
    )
    assert result.verdict.verdict is Verdict.EXACT, result.verdict
    assert not any("logprobs" in c.body for c in spec.posts())
    asked = [c.body for c in control.posts() if "logprobs" in c.body]
    assert {(b["temperature"], b["top_k"], b["top_p"]) for b in asked} == {(1.0, -1, 1.0)}
    assert {b["max_tokens"] for b in asked} == {1, 8}
    # after the first token, by the prompt's ids
    longer = [b["prompt"] for b in asked if isinstance(b["prompt"], list)]
    assert longer
    assert all(p[:2] == [100, 101] and set(p[2:]) <= {0, 1, 2} for p in longer)


def test_a_decoding_in_the_question_where_the_server_says_so(start, pair, tmp_path):
    spec, control = start(Telling(drafts=True)), start(Telling())
    typed = name(spec, control, pair, processed="yes", logprobs=3)
    judged(tmp_path, typed, decodings=(Decoding(temperature=0.5, top_p=0.9),))
    asked = [c.body for c in control.posts() if "logprobs" in c.body]
    assert {b["logprobs"] for b in asked} == {3}
    assert {(b["temperature"], b["top_p"]) for b in asked[1:]} == {(0.5, 0.9)}


def test_a_bet_on_the_law_ends_it_earlier_than_one_on_the_arms(start, pair, tmp_path):
    spec, control = start(Telling(drafts=True, sharp=1.5)), start(Telling())
    typed = name(spec, control, pair)
    _, (without,) = judged(tmp_path / "a", f"{typed},logprobs=no", profile="standard")
    asked, (result,) = judged(tmp_path, typed, profile="standard")
    assert without.verdict.verdict is result.verdict.verdict is Verdict.NOT_EXACT
    assert result.arms[0].requests < without.arms[0].requests / 2
    bet = next(f for f in by_law(result) if f.test == "e-process")
    assert bet.rejected
    assert judge_again(asked, result.case, tmp_path).verdict == result.verdict


def test_log_probabilities_that_are_not_those_of_plain_sampling_are_not_used(start, pair, tmp_path):
    """And it is said, whatever the arms say of each other."""
    spec, control = start(Telling(drafts=True)), start(Telling(told=1.5))
    asked, (result,) = judged(tmp_path, name(spec, control, pair))
    assert result.verdict.verdict is Verdict.EXACT, result.verdict
    assert MISMATCH in result.verdict.why
    assert len(result.verdict.ruled_out) == 1
    assert not any(f.rejected for f in by_law(result))
    assert all(f.message.startswith("not counted") for f in by_law(result))
    assert judge_again(asked, result.case, tmp_path).verdict == result.verdict
    # a departure of both arms alike, from what temperature was asked: only this sees it
    both = start(Telling(drafts=True, sharp=2.0)), start(Telling(sharp=2.0, told=0.5))
    _, (wrong,) = judged(tmp_path / "b", name(*both, pair))
    assert wrong.verdict.verdict is Verdict.EXACT
    assert MISMATCH in wrong.verdict.why


def test_noise_is_measured_and_allowed(start, pair, tmp_path):
    spec, control = start(Telling(drafts=True)), start(Telling(noise=0.03))
    _, (result,) = judged(tmp_path, name(spec, control, pair))
    assert result.verdict.verdict is Verdict.EXACT, result.verdict
    first = by_law(result)[0]
    allowed = float(first.message.rpartition("noise allowed: ")[2].split()[0])
    assert 0.03 < allowed < 0.12
    _, (exact,) = judged(tmp_path / "b", name(spec, start(Telling()), pair))
    assert first.detectable > by_law(exact)[0].detectable


def test_where_answers_end_no_law_is_held_against_them(start, pair, tmp_path):
    """Also where the answers that told the law did not show it: places after it are left out."""
    spec, control = start(Telling(drafts=True)), start(Telling())
    asked, (result,) = judged(tmp_path, name(spec, control, pair))
    laws = load_laws(evidence_path(tmp_path, result.case, LAWS))
    assert laws.ends == (2,)
    told_more = [((p, (2,)), Top((0, 1), (-0.6, -0.8))) for p in (0, 1)]
    told_more += [((p, (2, 0)), Top((0, 1), (-0.6, -0.8))) for p in (0, 1)]
    more = replace(
        laws,
        ends=(),
        nodes=(*laws.nodes, *(node for node, _ in told_more)),
        tops=(*laws.tops, *(top for _, top in told_more)),
        stages=(*laws.stages, *[1] * 4),
    )
    arms = {arm: load_served(evidence_path(tmp_path, result.case, arm)) for arm in ARMS}
    found = [list(findings(asked, result.case, arms, True, told)) for told in (laws, more)]
    whole, other = (
        next(f for f in fs if f.scope == f"{EVERYWHERE}{BY}" and f.arm == "speculative")
        for fs in found
    )
    assert (whole.n, whole.df) == (other.n, other.df)


# --- what is told wrongly -------------------------------------------------------------------------


def every(change):
    return lambda pairs: [change(t, x) for t, x in pairs]


NONSENSE = {
    "not a number": (every(lambda t, x: (t, math.nan)), "not a number"),
    "infinite": (every(lambda t, x: (t, math.inf)), "above 0"),
    "text": (every(lambda t, x: (t, "high")), "no number"),
    "true": (every(lambda t, x: (t, True)), "no number"),
    "huge": (every(lambda t, x: (t, 10**400)), "above 0"),
    "positive": (every(lambda t, x: (t, 0.5)), "above 0"),
    "too much": (every(lambda t, x: (t, -0.1)), "add up to 2.7"),
    "nothing": (every(lambda t, x: (t, -(10**400))), "add up to "),
    "no id": (every(lambda t, x: ("a", x)), "no token id"),
    "negative id": (every(lambda t, x: (-1, x)), "no token id"),
    "twice": (lambda pairs: [pairs[0], pairs[0]], "twice"),
    "none": (lambda pairs: [], "0 likeliest"),
    "too many": (lambda pairs: [(t, -9.0) for t in range(90)], "90 likeliest"),
}


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("how", NONSENSE)
def test_nonsense_leaves_a_case_without_the_law(start, pair, tmp_path, owner, how):
    spoil, said = NONSENSE[how]
    if owner == "vllm" and how == "twice":
        pytest.skip("an object has no key twice")
    spec = start(Telling(owner, drafts=True))
    control = start(Telling(owner, drafts=False, spoil=spoil))
    asked = prepare(Settings((name(spec, control, pair),), (Decoding(),)))
    (case,) = asked.cases
    assert case.error is None
    assert case.met.logprobs == 0
    assert said in case.met.no_law
    assert not any(t.scope.endswith(BY) for t in case.tests)
    # whoever asked for them by number is told at once
    typed = name(spec, control, pair, logprobs=5)
    (refused,) = prepare(Settings((typed,), (Decoding(),))).cases
    assert "cannot be had" in refused.error


def test_nonsense_that_comes_later_leaves_the_comparison_of_the_arms(start, pair, tmp_path):
    seen = iter(range(10**6))
    control = Telling(spoil=lambda pairs: pairs if next(seen) < 20 else [("x", 0.0)])
    spec, plain = start(Telling(drafts=True)), start(control)
    asked, (result,) = judged(tmp_path, name(spec, plain, pair))
    assert result.verdict.verdict is Verdict.EXACT
    assert len(result.verdict.ruled_out) == 1
    assert "no token id" in result.verdict.why
    assert judge_again(asked, result.case, tmp_path).verdict == result.verdict


def test_a_server_that_tells_nothing_is_judged_as_before(start, pair, tmp_path):
    spec, control = start(Plain(drafts=True)), start(Plain())
    _, (result,) = judged(tmp_path, name(spec, control, pair))
    assert result.verdict.verdict is Verdict.EXACT
    assert "log-probabilities were not used" in result.verdict.why
    assert not any(t.scope.endswith(BY) for t in result.case.tests)
    telling = start(Telling())
    _, (off,) = judged(tmp_path / "b", name(spec, telling, pair, logprobs="no"))
    assert "option logprobs says not to" in off.verdict.why
    assert not any("logprobs" in c.body for c in telling.posts())


# --- on disk --------------------------------------------------------------------------------------


def test_laws_on_disk(start, pair, tmp_path):
    spec, control = start(Telling(drafts=True)), start(Telling())
    asked, (result,) = judged(tmp_path, name(spec, control, pair))
    path = evidence_path(tmp_path, result.case, LAWS)
    kept = load_laws(path)
    assert kept.case == result.case.id
    assert kept.reasons == ("",)
    assert set(kept.stages) == {1}
    assert load_laws(path).sha256 == kept.sha256
    wrong = replace(kept, tops=(replace(kept.tops[0], logprobs=(-0.1,)), *kept.tops[1:]))
    wrong.save(path)
    with pytest.raises(EvidenceError, match="do not fit together"):
        load_laws(path)
    replace(kept, texts=("other", "prompts")).save(path)
    with pytest.raises(EvidenceError, match="another plan"):
        judge_again(asked, result.case, tmp_path)
    path.write_bytes(b"PAR1 nothing")
    with pytest.raises(EvidenceError, match="cannot read"):
        load_laws(path)


def test_they_are_asked_for_once(start, pair, tmp_path):
    spec, control = start(Telling(drafts=True)), start(Telling())
    typed = name(spec, control, pair)
    _, (result,) = judged(tmp_path, typed)
    before = sum("logprobs" in c.body for c in control.posts())
    _, (again,) = judged(tmp_path, typed)
    assert sum("logprobs" in c.body for c in control.posts()) == before + 1  # who is there
    assert again.findings == result.findings


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("logprobs=0", "option logprobs"),
        ("logprobs=2001", "option logprobs"),
        ("logprobs=many", "option logprobs"),
        ("processed=maybe", "option processed"),
        ("processed=yes,logprobs=no", "option processed"),
    ],
)
def test_what_was_typed_wrongly_is_said(typed, why):
    with pytest.raises(UnknownEngineError, match=why):
        target(f"served,url=http://a/v1,control=http://b/v1,{typed}")


def test_the_law_is_in_the_forecast(start, pair):
    spec, control = start(Telling(drafts=True)), start(Telling())
    typed = name(spec, control, pair)
    asked = prepare(Settings((typed, f"{typed},logprobs=no"), (Decoding(),)))
    law, none = ("\n".join(forecast_lines(case, asked)) for case in asked.cases)
    assert f"{BY_LAW}: off by TV 0.09" in law
    assert "requests more, mostly of one token" in law
    assert "not used: option logprobs says not to ask" in none


def test_penalties_leave_the_plain_law_behind(start, pair):
    """They are asked for, and the arms compared."""
    spec, control = start(Telling(drafts=True)), start(Telling())
    penalty, mask = Decoding(presence_penalty=0.5), Decoding(banned=(1,))
    asked = prepare(Settings((name(spec, control, pair),), (penalty, mask)))
    assert [c.refusal for c in asked.cases] == [None, "banned"]
    assert not asked.cases[0].by_law
    typed = name(spec, control, pair, processed="yes")
    assert prepare(Settings((typed,), (penalty,))).cases[0].by_law


def test_tests_of_the_law_are_planned(start, pair):
    spec, control = start(Telling(drafts=True)), start(Telling())
    filtered, greedy = Decoding(top_k=2), Decoding(greedy=True)
    asked = prepare(Settings((name(spec, control, pair),), (Decoding(), filtered, greedy)))
    tests = [[t for t in c.tests if t.scope.endswith(BY)] for c in asked.cases]
    assert [len(t) for t in tests] == [5, 6, 0]
    assert PlannedTest("support", f"tokens outside the law{BY}", "both") in tests[1]
