"""Servers on loopback: those that answer, and those that fail, hang or answer garbage."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace

import pytest
from http_servers import Server
from imitated import SAMPLING, Plain, judged, name

from conformance.adapters import openai_http as transport
from conformance.decoding import Decoding
from conformance.errors import EvidenceError, PlanError, UnknownEngineError
from conformance.gather import evidence_path
from conformance.plan import PROFILES
from conformance.reports.build import build_report, case_model
from conformance.reports.html import render_html
from conformance.reports.junit import render_junit
from conformance.reports.markdown import render_markdown
from conformance.runner import Settings, prepare
from conformance.served.decide import judge_again
from conformance.served.evidence import first_answers, load_served
from conformance.served.server import ARMS
from conformance.served.target import PROMPTS, target
from conformance.served.words import CLAIM, MODEL
from conformance.verdict import Verdict

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(
        not any(__import__("importlib").util.find_spec(n) for n in transport.LIBRARIES),
        reason="no HTTP library is installed",
    ),
]


def first_asks(server):
    return [c.body for c in server.posts()]


@pytest.mark.parametrize("owner", ["vllm", "sglang"])
def test_the_same_law_is_exact_relative_to_control(start, pair, tmp_path, owner):
    spec, control = start(Plain(owner, drafts=True)), start(Plain(owner))
    asked, (result,) = judged(tmp_path, name(spec, control, pair))
    assert result.verdict.verdict is Verdict.EXACT, result.verdict
    assert result.verdict.why.startswith(CLAIM)
    assert all(line.startswith(f"{CLAIM}: ") for line in result.verdict.ruled_out)
    assert result.speculation.drafted > 1000
    # a seed of its own for every request of an arm; two arms draw theirs apart, and the addresses
    # of this run are in the key of both, so that one seed in a thousand runs is in either arm
    n = result.case.workload.requests
    for server, requests in ((spec, n), (control, 2 * n)):
        bodies = first_asks(server)
        seeds = [b.get("seed", b.get("sampling_params", {}).get("sampling_seed")) for b in bodies]
        seeds = [s for s in seeds if s is not None]
        assert len(seeds) == len(set(seeds)) == requests
    assert [a.requests for a in result.arms] == [n, 2 * n]
    # and the evidence is enough to judge it again
    again = judge_again(asked, result.case, tmp_path)
    assert again.verdict == result.verdict
    assert again.findings == result.findings


def test_the_claim_stands_wherever_the_verdict_does(start, pair, tmp_path):
    spec, control = start(Plain(drafts=True)), start(Plain())
    asked, (result,) = judged(tmp_path, name(spec, control, pair))
    report = build_report(asked, [case_model(result)], seconds=1.0, jobs=1, command=["x"])
    assert report.verdict is Verdict.EXACT
    assert report.probes == []
    assert CLAIM in report.why
    html, text = render_html(report), render_markdown(report)
    assert html.count(CLAIM) >= 4  # headline, reason, case, what is ruled out
    assert CLAIM in text.splitlines()[0]
    assert CLAIM in render_junit(report)
    assert "mid" not in {c.probe for c in report.cases}


def test_another_law_is_not_exact_and_is_stopped_early(start, pair, tmp_path):
    spec, control = start(Plain(drafts=True, sharp=3.0)), start(Plain())
    asked, (result,) = judged(tmp_path, name(spec, control, pair), profile="standard")
    assert result.verdict.verdict is Verdict.NOT_EXACT
    assert "Sampling was stopped there" in result.verdict.why
    assert result.arms[0].requests < result.arms[0].planned / 4
    assert judge_again(asked, result.case, tmp_path).verdict == result.verdict


def test_text_alone_will_do_but_needs_counts(start, pair, tmp_path):
    spec, control = start(Plain("somebody")), start(Plain("somebody"))
    _, (silent,) = judged(tmp_path / "a", name(spec, control, pair))
    assert silent.case.unit == "character"
    assert silent.verdict.verdict is Verdict.INCONCLUSIVE
    assert "nothing shows that speculation happened" in silent.verdict.why

    def count(answer, body):
        return answer | {"metrics": {"speculative_decoding": {
            "num_draft_tokens": 64, "num_accepted_draft_tokens": 32}}}  # fmt: skip

    counting = start(Plain("somebody", change=count))
    _, (told,) = judged(tmp_path / "b", name(counting, control, pair))
    assert told.verdict.verdict is Verdict.EXACT, told.verdict
    wrong = start(Plain("somebody", change=count, sharp=2.5))
    _, (found,) = judged(tmp_path / "c", name(wrong, control, pair))
    assert found.verdict.verdict is Verdict.NOT_EXACT


def test_a_control_arm_that_repeats_itself_judges_nobody(start, pair, tmp_path):
    spec, control = start(Plain(drafts=True)), start(Plain(sticky=0.3))
    typed = name(spec, control, pair, concurrency=1)
    _, (result,) = judged(tmp_path, typed)
    assert result.verdict.verdict is Verdict.INCONCLUSIVE, result.verdict
    assert "does not agree with itself" in result.verdict.why


def test_a_speculative_arm_that_repeats_itself_is_not_exact(start, pair, tmp_path):
    spec, control = start(Plain(drafts=True, forget=12)), start(Plain())
    _, (result,) = judged(tmp_path, name(spec, control, pair))
    assert result.verdict.verdict is Verdict.NOT_EXACT


# --- greedy ---------------------------------------------------------------------------------------

GREEDY = (Decoding(greedy=True),)


def flip(rate):
    """Change a share of the greedy tokens, the same ones every time."""

    def change(answer, body):
        ids = answer["choices"][0]["token_ids"]
        rng = random.Random(body["prompt"])
        answer["choices"][0]["token_ids"] = [1 if rng.random() < rate else t for t in ids]
        return answer

    return change


@pytest.mark.parametrize(
    ("rate", "options", "verdict"),
    [
        (0.0, {}, Verdict.EXACT),
        (0.02, {}, Verdict.INCONCLUSIVE),
        (0.02, {"ties": 0}, Verdict.NOT_EXACT),
        (0.6, {}, Verdict.NOT_EXACT),
    ],
)
def test_greedy_answers(start, prompts, tmp_path, rate, options, verdict):
    spec, control = start(Plain(drafts=True, change=flip(rate))), start(Plain())
    typed = name(spec, control, prompts, **options)
    asked, (result,) = judged(tmp_path, typed, decodings=GREEDY)
    assert result.verdict.verdict is verdict, result.verdict
    assert judge_again(asked, result.case, tmp_path).verdict == result.verdict


# --- what goes wrong ------------------------------------------------------------------------------


def after(n, wrong):
    """A change that begins with the n-th answer."""
    seen = iter(range(10**9))

    def change(answer, body):
        return wrong(answer, body) if next(seen) >= n else answer

    return change


def hang(answer, body):
    time.sleep(2.0)
    return answer


WRONG = {
    "raises": (lambda a, b: (500, {"error": "out of memory"}), "answered 500: out of memory"),
    "garbage": (lambda a, b: (200, b"{not json"), "no JSON"),
    "no choices": (lambda a, b: {"choices": []}, "no single choice"),
    "too long": (
        lambda a, b: {"choices": [{"token_ids": [1] * 99, "finish_reason": "length"}]},
        "99 tokens where 8",
    ),
    "no ids": (lambda a, b: {"choices": [{"token_ids": ["a"]}]}, "no token ids"),
    "negative": (lambda a, b: {"choices": [{"token_ids": [-1]}]}, "no token ids"),
    "another prompt": (
        lambda a, b: a | {"usage": {"prompt_tokens": 77}},
        "not see the same prompt",
    ),
    "hangs": (hang, "did not answer within 0.5 seconds"),
    "deep": (lambda a, b: (200, b"[" * 200_000), "no JSON"),
}


@pytest.mark.parametrize("how", WRONG)
def test_what_a_server_does_wrong_is_an_error_of_its_case_alone(start, pair, tmp_path, how):
    wrong, said = WRONG[how]
    bad, spec, control = (
        start(Plain(drafts=True, change=after(12, wrong))),
        start(Plain(drafts=True)),
        start(Plain()),
    )
    names = (name(bad, control, pair, timeout=0.5), name(spec, control, pair))
    _, (failed, good) = judged(tmp_path, *names)
    assert failed.verdict.verdict is Verdict.ERROR
    assert said in failed.verdict.why
    assert good.verdict.verdict is Verdict.EXACT, good.verdict
    # what was gathered before is kept under a name that nothing goes on from
    assert not evidence_path(tmp_path, failed.case, "control").exists()
    assert list((tmp_path / "evidence").glob("*.partial.parquet"))


def test_a_control_arm_that_drafts_is_an_error(start, pair, tmp_path):
    spec, control = start(Plain(drafts=True)), start(Plain(drafts=True))
    _, (result,) = judged(tmp_path, name(spec, control, pair))
    assert result.verdict.verdict is Verdict.ERROR
    assert "say that it drafts" in result.verdict.why


def test_nobody_there_is_an_error_in_every_case(pair, tmp_path, start):
    control = start(Plain())
    gone = Server(Plain())
    gone.close()
    asked, results = judged(
        tmp_path, name(gone, control, pair, retries=0), decodings=(SAMPLING, Decoding(top_k=2))
    )
    assert [r.verdict.verdict for r in results] == [Verdict.ERROR] * 2
    assert asked.test_count == 0


def test_the_protocol_of_text_alone_has_no_top_k(start, pair, tmp_path):
    spec, control = start(Plain("somebody")), start(Plain("somebody"))
    asked = prepare(Settings((name(spec, control, pair),), (SAMPLING, Decoding(top_k=2))))
    assert [c.refusal for c in asked.cases] == [None, "top_k"]


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("served", "needs a server that speculates"),
        ("served:method", "no methods"),
        ("served,url=http://a/v1", "needs a server"),
        ("served,url=http://a/v1,control=http://a/v1", "the same server"),
        ("served,url=http://a/v1,control=http://A:80/v1/", "the same server"),
        ("served,url=http://a/v1,control=off-switch", "goes with switch"),
        ("served,url=ftp://a,control=http://b/v1", "option url"),
        ("served,url=http://a/v1,control=http://b/v1,tokens=0", "option tokens"),
        ("served,url=http://a/v1,control=http://b/v1,ties=x", "option ties"),
        ("served,url=http://a/v1,control=http://b/v1,style=chat", "option style"),
        ("served,url=http://a/v1,control=http://b/v1,temperature=1", "no option temperature"),
    ],
)
def test_what_was_typed_wrongly_is_said(typed, why):
    with pytest.raises(UnknownEngineError, match=why):
        target(typed)


def test_prompts_are_lines(prompts, tmp_path):
    base = "served,url=http://a/v1,control=http://b/v1"
    assert target(base).prompts == PROMPTS
    assert target(f"{base},prompts={prompts}").prompts[:3] == ("one two", "three four", "p 0 q")
    (tmp_path / "one.txt").write_text("only\n\n")
    for missing in ("one.txt", "none.txt"):
        with pytest.raises(PlanError, match="prompts"):
            target(f"{base},prompts={tmp_path / missing}")


# --- evidence and plans ---------------------------------------------------------------------------


def test_evidence_that_was_changed_is_refused(start, pair, tmp_path):
    spec, control = start(Plain(drafts=True)), start(Plain())
    asked, (result,) = judged(tmp_path, name(spec, control, pair))
    path = evidence_path(tmp_path, result.case, "speculative")
    kept = load_served(path)
    assert kept.sha256 == result.arms[0].sha256
    data = bytearray(path.read_bytes())
    at = data.rindex(b'"planned": ') + len('"planned": ')
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(EvidenceError, match="checksum"):
        judge_again(asked, result.case, tmp_path)
    path.write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(EvidenceError, match="cannot read"):
        load_served(path)


def test_a_run_goes_on_from_what_is_there(start, pair, tmp_path):
    spec, control = start(Plain(drafts=True)), start(Plain())
    typed = name(spec, control, pair)
    _, (result,) = judged(tmp_path, typed)
    for arm in ARMS:  # as if it had been interrupted after a third of the blocks
        path = evidence_path(tmp_path, result.case, arm)
        e = load_served(path)
        first_answers(e, len(e.symbols) // 3 // 2 * 2).save(path)
    before = len(spec.posts())
    _, (again,) = judged(tmp_path, typed)
    assert again.verdict.verdict is Verdict.EXACT
    assert again.findings == result.findings
    assert len(spec.posts()) - before < 0.75 * result.case.workload.requests
    for arm in ARMS:
        path = evidence_path(tmp_path, result.case, arm)
        e = load_served(path)
        replace(e, seeds=e.seeds[::-1]).save(path)
    _, (other,) = judged(tmp_path, typed)
    assert other.verdict.verdict is Verdict.ERROR
    assert "another plan" in other.verdict.why


def test_one_alpha_is_shared_with_engines(start, pair):
    spec, control = start(Plain(drafts=True)), start(Plain())
    asked = prepare(
        Settings((name(spec, control, pair), "reference"), (SAMPLING,), profile="smoke")
    )
    assert {c.probe for c in asked.cases} == {MODEL, "mid"}
    alone = prepare(Settings((name(spec, control, pair),), (SAMPLING,), profile="smoke"))
    assert asked.level * asked.test_count == pytest.approx(alone.level * alone.test_count)
    assert asked.test_count > alone.test_count
    assert asked.profile == PROFILES["smoke"]
    assert json.dumps([c.slug for c in asked.cases])
