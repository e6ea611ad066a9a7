"""What the first screen says, and what was not asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from conformance.adapters.reference import ReferenceEngine
from conformance.decoding import Decoding
from conformance.faults import FAULTS
from conformance.faults.threads import threads
from conformance.forms import FORMS
from conformance.plan import PROFILES, Case, RunPlan, make_plan
from conformance.questions import NEVER_ASKED
from conformance.reports import Report
from conformance.reports.details import UnaskedModel
from conformance.reports.html import render_html
from conformance.reports.model import CaseModel, FindingModel
from conformance.reports.story import (
    causes,
    diagnosis_words,
    kill_table,
    short_why,
    sizes,
    unasked_groups,
    weakest_certificates,
)
from conformance.reports.unasked import unasked
from conformance.reports.wording import worst_first
from conformance.verdict import Verdict
from conformance.verifier.contract import VerifierCapabilities
from conformance.verifier.plan import verifier_case

Cases = Callable[..., CaseModel]
Reports = Callable[..., Report]


def test_causes_that_fit_come_first(case_of: Cases, report_of: Reports) -> None:
    told = case_of(Verdict.NOT_EXACT).diagnosis
    assert told is not None
    near = told.model_copy(update={"standing": "nearest", "fault": "lenient"})
    none = told.model_copy(update={"standing": "unexplained", "fault": ""})
    report = report_of(
        [
            case_of(Verdict.NOT_EXACT, str(i), diagnosis=d)
            for i, d in enumerate([near, near, told, none])
        ]
    )
    found = causes(report)
    assert [(c.diagnosis.fault, len(c.cases)) for c in found] == [("raw-q", 1), ("lenient", 2)]
    again = told.model_copy(update={"standing": "nearest"})
    cases = [case_of(Verdict.NOT_EXACT, str(i), diagnosis=d) for i, d in enumerate([again, told])]
    (one,) = causes(report_of(cases))
    assert (one.diagnosis.standing, len(one.cases)) == ("fits", 2)
    assert [c.decoding for c in worst_first(cases)] == ["1", "0"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {},
            "Favoured over exactness by 10^281 to 1 and over lenient, the next best, by 10^11 to 1",
        ),
        ({}, "The evidence fits it (p = 0.4"),
        ({"standing": "nearest"}, "the evidence does not fit it: look for something like it"),
        ({"standing": "unexplained", "fault": ""}, "No fault in the catalogue explains"),
        ({"standing": "not compared", "fault": ""}, "Only an engine that drafts with"),
    ],
)
def test_a_diagnosis_in_words(changes: dict[str, Any], says: str, case_of: Cases) -> None:
    told = case_of(Verdict.NOT_EXACT).diagnosis
    assert told is not None
    assert says in diagnosis_words(told.model_copy(update=changes))


def test_the_table_says_why_in_short(case_of: Cases) -> None:
    case = case_of(Verdict.NOT_EXACT)
    assert short_why(case) == "Likely cause: raw-q, a raw softmax is declared."
    assert short_why(case.model_copy(update={"diagnosis": None})).startswith("Chi-square at output")
    passed = case_of(Verdict.EXACT)
    assert short_why(passed) == passed.why


def test_sizes_are_what_is_surely_not_zero(case_of: Cases) -> None:
    found = sizes(case_of(Verdict.NOT_EXACT))
    assert found[0] == ("Leans to the draft", "6.1%", "95%: 5.2% to 7%, all tokens")
    assert [title for title, *_ in sizes(case_of(Verdict.EXACT))] == ["Divergence, nats a token"]


def test_of_several_passes_the_weakest_is_told(case_of: Cases, report_of: Reports) -> None:
    lines = [
        ["a first token off by total variation 0.117 or more", "3.5% or more of the draft leaking"],
        ["a first token off by total variation 0.12 or more"],
        ["0.45% of the greedy tokens, or more, not being the argmax"],
    ]
    passed = [case_of(Verdict.EXACT, str(i), ruled_out=ls) for i, ls in enumerate(lines)]
    failed = case_of(Verdict.INCONCLUSIVE, ruled_out=["a first token off by total variation 0.9"])
    told = weakest_certificates(report_of([*passed, failed]))
    assert (told[0].line, told[0].cases) == (lines[1][0], 2)
    assert len(told) == 3
    assert not any("0.9" in c.line for c in told)


def test_kill_table(report: Report) -> None:
    table = kill_table(report.measured.kills)
    assert table.columns == [("engine", "standard")]
    (first, cells, by), (second, none, _) = table.rows
    assert (first, second) == ("lenient", "disabled")
    assert cells[0] is not None
    assert none[0] is not None
    assert (cells[0].key, none[0].key) == ("all", "none")
    assert by == "draft leak, e-process"


def test_threads_become_links() -> None:
    assert threads("") == []
    named = [pair for fault in FAULTS.values() for pair in threads(fault.seen)]
    linked = [address for _, address in named if address]
    assert len(linked) > 30
    assert all(
        a.startswith("https://github.com/") and a.rpartition("/")[2].isdigit() for a in linked
    )
    for hostile in ("vllm #1/../../x", "javascript:x #1", "vllm #1\n#2x", "vllm #99999999"):
        assert all(a is None or a.endswith("/1") for _, a in threads(hostile))


# --- questions not asked --------------------------------------------------------------------------


def plan_of(*decodings: str, **claims: Any) -> RunPlan:
    engine = ReferenceEngine()
    capable = replace(engine.capabilities, **claims)
    asked = [Decoding.parse(d) for d in decodings]
    made = [
        Case("reference", "mid", d, engine.card, capable, refusal=capable.refuses(d)) for d in asked
    ]
    return make_plan(made, PROFILES["smoke"])


def told_of(plan: RunPlan, case_of: Cases, verdict: Verdict, **changes: Any) -> list[UnaskedModel]:
    case = plan.cases[0]
    shown = case_of(verdict, str(case.decoding), id=case.id, **changes)
    return unasked(replace(plan, cases=(case,)), [shown])


def by_status(found: list[UnaskedModel], status: str) -> dict[str, str]:
    return {one.question: one.why for one in found if one.status == status}


def test_what_is_not_claimed(probe_cache: object, case_of: Cases) -> None:
    plan = plan_of("temperature=1,min_p=0.1", min_p=False)
    found = by_status(told_of(plan, case_of, Verdict.NOT_SUPPORTED), "not claimed")
    assert found == {"decoding temperature=1,min_p=0.1": "the engine does not claim min_p"}
    plan = plan_of("temperature=1", control=False, verification="any", max_batch=1)
    found = by_status(told_of(plan, case_of, Verdict.EXACT, findings=[]), "not claimed")
    assert list(found) == [
        "comparison with the same engine, not speculating",
        "first, later and bonus tokens of a block, each by itself",
        "several requests at once",
    ]
    plan = plan_of("temperature=1", draft="none")
    found = by_status(told_of(plan, case_of, Verdict.EXACT, findings=[]), "not claimed")
    assert list(found) == ["tests that look towards the draft"]


def test_what_was_refused_or_failed(probe_cache: object, case_of: Cases) -> None:
    plan = plan_of("temperature=1")
    refused = by_status(told_of(plan, case_of, Verdict.NOT_SUPPORTED, why="no, sir"), "refused")
    assert refused == {"decoding temperature=1": "no, sir"}
    failed = by_status(told_of(plan, case_of, Verdict.ERROR, why="it died"), "not reached")
    assert failed == {"every test of temperature=1": "it died"}


def empty(test: str, scope: str, message: str) -> FindingModel:
    return FindingModel(
        test=test, scope=scope, arm="speculative", n=0, p_value=None, adjusted_p=None, level=1e-9,
        rejected=False, statistic=None, df=None, effect={}, detectable=None, detectable_unit="",
        message=message,
    )  # fmt: skip


def test_what_was_not_reached(probe_cache: object, case_of: Cases) -> None:
    why = "not judged: no prefix was reached often enough"
    findings = [
        *(
            empty(test, f"output index {t}", why)
            for t in (5, 6, 7)
            for test in ("chi-square", "KL")
        ),
        empty("draft leak", "bonus", "not judged: no token tells draft from target there"),
        empty(
            "PIT by p", "all tokens", "p = 0.2, for information only (sampling was stopped early)"
        ),
    ]
    found = told_of(plan_of("temperature=1"), case_of, Verdict.NOT_EXACT, findings=findings)
    assert by_status(found, "not reached") == {
        "chi-square and KL: output indices 5, 6 and 7": "no prefix was reached often enough",
        "draft leak: bonus": "no token tells draft from target there",
        "every test that needs the planned number of samples": "sampling was stopped as soon as a "
        "departure was certain",
    }
    # every planned test without an answer is somewhere in the list
    questions = " ".join(by_status(found, "not reached"))
    assert all(f.scope.split()[-1] in questions for f in findings[:7])


def test_what_this_run_left_out(probe_cache: object, case_of: Cases) -> None:
    found = told_of(plan_of("temperature=0.7,top_p=0.9"), case_of, Verdict.EXACT, findings=[])
    assert list(by_status(found, "not in this run")) == [
        "greedy decoding", "temperature 1 without filters", "top-k", "min-p",
        "typical, epsilon and eta cut-offs", "stop strings", "the roads to greedy decoding",
        "a grammar", "returned log-probabilities", "stop tokens",
        "a least length", "the repetition penalty", "presence and frequency penalties",
        "logit bias", "banned or allowed tokens",
        *(form.about for form in FORMS.values() if form.about),
    ]  # fmt: skip


def test_what_no_run_asks(probe_cache: object, case_of: Cases) -> None:
    found = told_of(plan_of("greedy"), case_of, Verdict.EXACT, findings=[])
    never = by_status(found, "not asked by this suite")
    assert "several devices, other devices" in never
    assert "the engine around the rule" not in never
    assert never == {q.what: q.why for q in NEVER_ASKED if "engine" in q.tiers}


def test_verifiers_have_a_list_of_their_own(probe_cache: object, case_of: Cases) -> None:
    engine = ReferenceEngine()
    case = verifier_case("v", engine.card, VerifierCapabilities(), False)
    plan = RunPlan((case,), PROFILES["smoke"], 1e-6, 0)
    findings = [
        empty("edge", "coin of 0", "not asked: no injected uniforms"),
        empty("law", "zipf", "refused by the verifier: too large"),
    ]
    shown = case_of(Verdict.EXACT, id=case.id, findings=findings)
    found = unasked(plan, [shown])
    assert by_status(found, "not claimed") == {"edge: coin of 0": "no injected uniforms"}
    assert by_status(found, "refused") == {"law: zipf": "too large"}
    assert not by_status(found, "not in this run")
    assert "the engine around the rule" in by_status(found, "not asked by this suite")


def test_a_relative_claim_says_so(case_of: Cases, report_of: Reports) -> None:
    case = case_of(Verdict.EXACT)
    relative = case.model_copy(update={"claim": "relative"})
    assert "relative to plain sampling" not in render_html(report_of([case]))
    assert render_html(report_of([relative])).count("relative to plain sampling") == 2


def test_equal_reasons_are_one_entry(probe_cache: object, case_of: Cases) -> None:
    plan = plan_of("temperature=1", "temperature=0.7", verification="any")
    shown = [case_of(Verdict.EXACT, str(c.decoding), id=c.id, findings=[]) for c in plan.cases]
    (entry,) = [one for one in unasked(plan, shown) if one.status == "not claimed"]
    assert entry.cases == [c.id for c in plan.cases]


def test_the_page_lists_every_one(report: Report) -> None:
    html = render_html(report)
    assert report.not_asked
    for entry in report.not_asked:
        assert entry.question in html
        assert entry.why in html
    assert [status for status, *_ in unasked_groups(report)] == [
        "not claimed", "not reached", "not asked by this suite",
    ]  # fmt: skip
    old = render_html(report.model_copy(update={"not_asked": None}))
    assert old.count("written by a version that did not list it") == 2
