"""What changed between two reports, what of it is worse, and how that is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from conformance.cli import main
from conformance.errors import ReportError
from conformance.reports import Report
from conformance.reports.diff import diff_reports
from conformance.reports.diff_case import got_worse
from conformance.reports.diff_estimates import (
    Estimate,
    accepted_share,
    direction,
    each_of,
    size_change,
    z_of,
)
from conformance.reports.diff_markdown import LONGEST, render_diff
from conformance.reports.model import CaseModel, IntervalModel, dump_json
from conformance.verdict import Verdict

Cases = Callable[..., CaseModel]
Reports = Callable[..., Report]
V = Verdict


def interval(estimate: float, low: float, high: float, confidence: float = 0.95) -> IntervalModel:
    return IntervalModel(estimate=estimate, low=low, high=high, confidence=confidence)


def leaking(case: CaseModel, leak: float, half: float = 0.01) -> CaseModel:
    """The case with another draft leak, and everything else as it was."""
    found = [
        f.model_copy(update={"effect": {"leak": interval(leak, leak - half, leak + half)}})
        if f.test == "draft leak"
        else f
        for f in case.findings
    ]
    return case.model_copy(update={"findings": found})


def certified(case: CaseModel, by: float) -> CaseModel:
    found = [
        f if f.detectable is None else f.model_copy(update={"detectable": f.detectable * by})
        for f in case.findings
    ]
    return case.model_copy(update={"findings": found})


def test_a_report_is_no_different_from_itself(report: Report) -> None:
    diff = diff_reports(report, report)
    assert diff.exit_code == 0
    assert diff.counts == {
        "worse": 0, "removed": 0, "better": 0, "same": 8, "added": 0, "weaker": 0, "stronger": 0,
    }  # fmt: skip
    assert diff.headline == "Nothing got worse in 8 configurations"
    assert [diff.settings, diff.surroundings, diff.weaker, diff.matched] == [[], [], [], {}]
    assert all(e.change == "not seen to differ" for case in diff.cases for e in case.effects)
    assert sum(case.same_tokens for case in diff.cases) == 7
    assert diff_reports(report, report, strict=True).exit_code == 0


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        (V.EXACT, V.INCONCLUSIVE, "worse"),
        (V.EXACT, V.NOT_EXACT, "worse"),
        (V.EXACT, V.ERROR, "worse"),
        (V.EXACT, V.NOT_SUPPORTED, "worse"),
        (V.INCONCLUSIVE, V.EXACT, "better"),
        (V.INCONCLUSIVE, V.NOT_EXACT, "worse"),
        (V.INCONCLUSIVE, V.ERROR, "worse"),
        (V.INCONCLUSIVE, V.NOT_SUPPORTED, "worse"),
        (V.NOT_EXACT, V.EXACT, "better"),
        (V.NOT_EXACT, V.INCONCLUSIVE, "better"),
        (V.NOT_EXACT, V.ERROR, "worse"),
        (V.NOT_EXACT, V.NOT_SUPPORTED, "worse"),
        (V.ERROR, V.EXACT, "better"),
        (V.ERROR, V.INCONCLUSIVE, "better"),
        (V.ERROR, V.NOT_EXACT, "worse"),
        (V.ERROR, V.NOT_SUPPORTED, "better"),
        (V.NOT_SUPPORTED, V.EXACT, "better"),
        (V.NOT_SUPPORTED, V.INCONCLUSIVE, "better"),
        (V.NOT_SUPPORTED, V.NOT_EXACT, "worse"),
        (V.NOT_SUPPORTED, V.ERROR, "worse"),
    ],
)
def test_what_a_change_of_verdict_is(
    old: Verdict, new: Verdict, change: str, case_of: Cases, report_of: Reports
) -> None:
    diff = diff_reports(report_of([case_of(old)]), report_of([case_of(new)]))
    assert diff.cases[0].change == change
    assert diff.exit_code == int(change == "worse")
    assert diff.cases[0].said.startswith(f"{old.value} before, {new.value} now")


def test_what_is_gone_is_worse_and_what_is_new_is_told(case_of: Cases, report_of: Reports) -> None:
    kept, other = case_of(V.EXACT, "greedy"), case_of(V.NOT_EXACT)
    gone = diff_reports(report_of([kept, other]), report_of([kept]))
    assert (gone.exit_code, gone.counts["worse"], gone.counts["removed"]) == (1, 1, 1)
    assert gone.headline == ("1 configuration got worse, 1 of them gone; 1 configuration compared")
    added = diff_reports(report_of([kept]), report_of([kept, other]))
    assert (added.exit_code, added.counts["added"]) == (0, 1)
    assert "new, and NOT EXACT" in added.cases[1].said


def test_a_departure_that_grows_beyond_the_intervals_is_worse(
    case_of: Cases, report_of: Reports
) -> None:
    case = case_of(V.NOT_EXACT)
    small, close, large = (report_of([leaking(case, leak)]) for leak in (0.06, 0.08, 0.2))
    assert diff_reports(small, close).cases[0].change == "same"
    worse = diff_reports(small, large)
    assert worse.exit_code == 1
    assert "draft leak (all tokens) grew from 0.06" in worse.cases[0].said
    better = diff_reports(large, small)
    assert (better.exit_code, better.cases[0].change) == (0, "better")
    # a leak away from the draft is as large as one towards it
    assert diff_reports(small, report_of([leaking(case, -0.2)])).exit_code == 1
    assert diff_reports(report_of([leaking(case, -0.2)]), large).exit_code == 0


def test_an_exact_case_stays_exact_whatever_its_estimates(
    case_of: Cases, report_of: Reports
) -> None:
    case = case_of(V.EXACT)
    diff = diff_reports(report_of([case]), report_of([leaking(case, 0.2)]))
    assert diff.exit_code == 0
    assert "grew" in {e.change for e in diff.cases[0].effects}


def tabled(case: CaseModel, effect: str, value: IntervalModel) -> CaseModel:
    found = [
        f.model_copy(update={"effect": {effect: value}}) if f.scope == "output index 0" else f
        for f in case.findings
    ]
    return case.model_copy(update={"findings": found})


def test_tables_are_compared_over_the_same_prompts_and_kl_never_decides(
    case_of: Cases, report_of: Reports
) -> None:
    case = case_of(V.NOT_EXACT)
    small, large = interval(0.1, 0.08, 0.12), interval(0.6, 0.58, 0.62)
    for effect, code in (("tv", 1), ("kl_nats_per_token", 0)):
        old = report_of([tabled(case, effect, small)])
        new = report_of([tabled(case, effect, large)])
        diff = diff_reports(old, new)
        assert diff.exit_code == code
        (changed,) = [e for e in diff.cases[0].effects if e.change == "grew"]
        assert changed.counts is bool(code)
        other_seed = new.settings.model_copy(update={"seed": 7})
        elsewhere = new.model_copy(update={"settings": other_seed})
        there = diff_reports(old, elsewhere)
        assert there.exit_code == 0
        assert {e.change for e in there.cases[0].effects if e.effect == effect} == {None}
        assert there.comparisons < diff.comparisons


def test_weaker_is_told_and_counts_where_asked(case_of: Cases, report_of: Reports) -> None:
    case = case_of(V.EXACT)
    old, new = report_of([case]), report_of([certified(case, 1.3)])
    diff = diff_reports(old, new)
    assert (diff.exit_code, diff.counts["weaker"]) == (0, 1)
    assert diff.cases[0].weaker == [
        "total variation of the first token: a pass rules out 0.0624, before 0.048",
        "draft leak: a pass rules out 0.0156, before 0.012",
    ]
    assert diff_reports(old, new, strict=True).exit_code == 1
    assert diff_reports(new, old, strict=True).counts["stronger"] == 1
    assert diff_reports(old, report_of([certified(case, 1.05)]), strict=True).exit_code == 0


def test_fewer_samples_and_a_smaller_profile_are_weaker(case_of: Cases, report_of: Reports) -> None:
    case = case_of(V.NOT_EXACT)
    arms = [arm.model_copy(update={"planned": 500}) for arm in case.arms]
    fewer = diff_reports(report_of([case]), report_of([case.model_copy(update={"arms": arms})]))
    assert fewer.cases[0].weaker == ["1,000 requests were planned, before 4,608"]
    old = report_of([case])
    smoke = old.settings.model_copy(update={"profile": "smoke", "delta": 0.25, "alpha": 1e-3})
    diff = diff_reports(old, report_of([case], settings=smoke), strict=True)
    assert {c.name for c in diff.settings} == {"profile", "alpha", "delta"}
    assert diff.exit_code == 1
    assert "smoke promises" in diff.weaker[0]


def test_a_relative_claim_is_weaker_than_an_absolute_one(
    case_of: Cases, report_of: Reports
) -> None:
    old, new = (report_of([case_of(V.EXACT, claim=c)]) for c in ("absolute", "relative"))
    assert diff_reports(old, new).cases[0].weaker == [
        "held to plain sampling of the same server, before to a law that was computed"
    ]
    assert diff_reports(old, new, strict=True).exit_code == 1
    assert diff_reports(new, old, strict=True).exit_code == 0
    assert diff_reports(new, old).counts["stronger"] == 1


def test_versions_and_machine_are_told(case_of: Cases, report_of: Reports) -> None:
    old = report_of([case_of(V.EXACT)])
    engines = [
        e.model_copy(update={"version": "5.1", "environment": {"torch": "2.9"}})
        for e in old.engines
    ]
    new = old.model_copy(update={"engines": engines, "environment": {"python": "3.13"}})
    diff = diff_reports(old, new)
    assert ("version of transformers", "5.0.1", "5.1") in [
        (c.name, c.old, c.new) for c in diff.surroundings
    ]
    told = {c.name: (c.old, c.new) for c in diff.surroundings}
    assert told["torch, under transformers"] == ("–", "2.9")
    assert told["python"] == ("3.12.4", "3.13")
    assert diff.settings == []


def test_acceptance_is_told_and_is_never_worse(case_of: Cases, report_of: Reports) -> None:
    case = case_of(V.EXACT)
    less = case.speculation.model_copy(update={"accepted": 2000})
    diff = diff_reports(
        report_of([case]), report_of([case.model_copy(update={"speculation": less})]), strict=True
    )
    assert diff.cases[0].acceptance is not None
    assert diff.cases[0].acceptance.change == "shrank"
    assert diff.exit_code == 0


def named(name: str, *cases: CaseModel) -> list[CaseModel]:
    return [
        c.model_copy(update={"engine": name, "id": f"{name} / {c.probe} / {c.decoding}"})
        for c in cases
    ]


def test_options_of_an_engine_are_seen_through(case_of: Cases, report_of: Reports) -> None:
    case = case_of(V.EXACT)
    plain, option, other = (
        report_of(named(n, case)) for n in ("eng:m", "eng:m,dtype=bfloat16", "eng:other")
    )
    assert diff_reports(plain, option).matched == {"eng:m": "eng:m,dtype=bfloat16"}
    with pytest.raises(ReportError, match="no case in common"):
        diff_reports(plain, other)
    # two candidates are one too many, and a name that both have is that engine
    two = report_of(named("eng:m,a=1", case) + named("eng:m,a=2", case))
    with pytest.raises(ReportError, match="no case in common"):
        diff_reports(plain, two)
    both = report_of(named("eng:m", case) + named("eng:m,a=1", case))
    assert diff_reports(plain, both).matched == {}


def test_a_renamed_engine_is_matched_by_its_names(case_of: Cases, report_of: Reports) -> None:
    case = case_of(V.EXACT)
    old = report_of(named("a/my_engine.py:E,x=1", case))
    new = report_of(named("b/my_engine.py:E,y=2", case))
    diff = diff_reports(old, new, match=["a/my_engine.py:E,x=1=b/my_engine.py:E,y=2"])
    assert diff.matched == {"a/my_engine.py:E,x=1": "b/my_engine.py:E,y=2"}
    assert diff.cases[0].change == "same"
    for wrong in ("a=b", "a/my_engine.py:E,x=1", "=", "a/my_engine.py:E,x=1=c"):
        with pytest.raises(ReportError, match="is not OLDNAME=NEWNAME"):
            diff_reports(old, new, match=[wrong])
    with pytest.raises(ReportError, match="twice"):
        diff_reports(old, new, match=["a/my_engine.py:E,x=1=b/my_engine.py:E,y=2"] * 2)


def test_what_cannot_be_compared(case_of: Cases, report_of: Reports) -> None:
    one = report_of([case_of(V.EXACT)])
    for old, new in ((one, report_of([])), (report_of([]), report_of([]))):
        with pytest.raises(ReportError, match="no case in common"):
            diff_reports(old, new)
    with pytest.raises(ReportError, match="twice"):
        diff_reports(one, report_of([case_of(V.EXACT)] * 2))
    for confidence in (0.5, 1.0, float("nan")):
        with pytest.raises(ReportError, match="confidence must be"):
            diff_reports(one, one, confidence=confidence)


def test_numbers_that_mean_nothing_are_not_compared(case_of: Cases, report_of: Reports) -> None:
    case = case_of(V.NOT_EXACT)
    for bad in (interval(0.1, 0.2, 0.0), interval(0.1, 0, 1, 1.0), interval(0.1, 0, 1, 0.0)):
        found = [f.model_copy(update={"effect": {"leak": bad}}) for f in case.findings]
        other = report_of([case.model_copy(update={"findings": found})])
        assert diff_reports(report_of([case]), other).exit_code == 0
        assert diff_reports(other, other).exit_code == 0


def test_numbers_that_no_run_has_are_an_error_with_a_name(
    case_of: Cases, report_of: Reports
) -> None:
    case = case_of(V.EXACT)
    for field, bad in (("tokens", 10**400), ("planned", 10**400)):
        arms = [arm.model_copy(update={field: bad}) for arm in case.arms]
        hostile = report_of([case.model_copy(update={"arms": arms})])
        with pytest.raises(ReportError, match="cannot be compared"):
            diff_reports(report_of([case]), hostile)
    huge = interval(1e308, -1e308, 1e308)
    other = report_of([tabled(case, "tv", huge)])
    assert diff_reports(other, other).exit_code == 0


FINITE = st.floats(-2, 2, allow_nan=False).map(lambda x: round(x, 6))
WIDTH = st.floats(0, 0.5).map(lambda x: round(x, 6))
ESTIMATES = st.builds(
    lambda e, a, b, n: Estimate(interval(e, e - a, e + b), n),
    FINITE, WIDTH, WIDTH, st.integers(1, 10**6),
)  # fmt: skip


@given(ESTIMATES, ESTIMATES, st.sampled_from([0.95, 0.999, 0.999999]))
def test_comparing_two_estimates_is_antisymmetric(
    a: Estimate, b: Estimate, confidence: float
) -> None:
    there, back = size_change(a, b, confidence), size_change(b, a, confidence)
    assert (there.estimate, there.low, there.high) == pytest.approx(
        (-back.estimate, -back.high, -back.low), abs=1e-12
    )
    assert there.low <= there.estimate <= there.high
    assert direction(size_change(a, a, confidence)) == "not seen to differ"
    wider = size_change(a, b, 1 - (1 - confidence) / 10)
    assert wider.low <= there.low
    assert wider.high >= there.high


@given(ESTIMATES, ESTIMATES)
def test_overlapping_intervals_may_differ_and_one_inside_the_other_does_not(
    a: Estimate, b: Estimate
) -> None:
    """Of two normal estimates: the interval of the difference is that of the textbook."""
    half = 0.1
    x, y = (interval(abs(e.value.estimate) + 1, 0, 0) for e in (a, b))
    x, y = (interval(v.estimate, v.estimate - half, v.estimate + half) for v in (x, y))
    found = size_change(Estimate(x, 1), Estimate(y, 1), 0.95)
    assert found.high - found.low == pytest.approx(2 * half * 2**0.5)
    assert found.estimate == pytest.approx(y.estimate - x.estimate)


def test_an_interval_that_is_a_point_is_not_taken_for_certainty() -> None:
    point = Estimate(interval(0.0, 0.0, 0.0), 400)
    other = Estimate(interval(0.03, 0.01, 0.05), 100)
    found = size_change(point, other, 0.95)
    # 0.02 on one side, half of it on the other, for four times as many judgements
    assert found.low == pytest.approx(0.03 - (0.02**2 + 0.01**2) ** 0.5)


def test_many_comparisons_share_the_confidence() -> None:
    assert each_of(0.999, 100) == pytest.approx(1 - 1e-5)
    assert each_of(0.999, 0) == 0.999
    assert z_of(0.95) == pytest.approx(1.959964, abs=1e-6)


def test_the_share_accepted_counts_each_block_once() -> None:
    # Wilson's interval for 30 of 100, as in the textbooks
    found = accepted_share(accepted=120, drafted=400, blocks=100, confidence=0.95)
    assert (found.low, found.high) == pytest.approx((0.2189, 0.3958), abs=1e-4)
    assert accepted_share(10, 10, 5, 0.95).high == 1.0
    assert accepted_share(0, 10, 5, 0.95).low == 0.0


PAIR = st.tuples(st.sampled_from(list(V)), st.sampled_from([0.0, 0.06, 0.3]))
SIDE = st.dictionaries(st.sampled_from(["greedy", "temperature=1", "top_k=8"]), PAIR, min_size=1)


@settings(max_examples=60, deadline=None)
@given(old=SIDE, new=SIDE)
def test_better_one_way_is_worse_the_other_way(
    old: dict[str, tuple[Verdict, float]], new: dict[str, tuple[Verdict, float]], make: Any
) -> None:
    a, b = make(old), make(new)
    if not old.keys() & new.keys():
        with pytest.raises(ReportError):
            diff_reports(a, b)
        return
    there, back = (
        {c.new_id or c.old_id: c for c in diff_reports(*p).cases} for p in ((a, b), (b, a))
    )
    assert there.keys() == back.keys()
    swapped = {"removed": "added", "added": "removed"}
    for name, case in there.items():
        other = back[name]
        if case.change in swapped:
            assert other.change == swapped[case.change]
        if case.change == "better":
            assert other.change == "worse"
        if case.change == "same":
            assert other.change == "same"
        # what is worse both ways is never good news
        if case.change == other.change == "worse":
            kinds = {case.old, case.new}
            assert V.NOT_EXACT in kinds
            assert kinds <= {V.NOT_EXACT, V.ERROR, V.NOT_SUPPORTED}
        grew = {(e.effect, e.scope) for e in case.effects if e.change == "grew"}
        assert grew == {(e.effect, e.scope) for e in other.effects if e.change == "shrank"}
    assert diff_reports(a, a).exit_code == 0


@pytest.fixture(scope="module")
def make(
    case_of: Callable[..., CaseModel], report_of: Callable[..., Report]
) -> Callable[[dict[str, tuple[Verdict, float]]], Report]:
    def of(side: dict[str, tuple[Verdict, float]]) -> Report:
        return report_of([leaking(case_of(v, d), leak) for d, (v, leak) in side.items()])

    return of


def test_nothing_is_worse_than_itself_but_a_departure_that_grew() -> None:
    for verdict in V:
        assert not got_worse(verdict, verdict)
        assert got_worse(verdict, verdict, larger=True) is (verdict is V.NOT_EXACT)


def save(report: Report, path: Path) -> Path:
    path.write_text(dump_json(report), encoding="utf-8")
    return path


def invoke(*words: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(main, ["diff", *map(str, words)])


def test_the_command(report: Report, case_of: Cases, report_of: Reports, tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    save(report, tmp_path / "bundle" / "report.json")
    lone = save(report_of([case_of(V.EXACT), report.cases[0]]), tmp_path / "lone.json")
    same = invoke(tmp_path / "bundle", tmp_path / "bundle", "--speed")
    assert same.exit_code == 0, same.output
    assert "Nothing got worse in 8 configurations." in same.output
    assert "1.13 ms" in same.output
    worse = invoke(lone, tmp_path / "bundle", "--markdown", tmp_path / "out.md")
    assert worse.exit_code == 1
    assert "EXACT before, NOT EXACT now" in worse.output
    first = (tmp_path / "out.md").read_text(encoding="utf-8").splitlines()[0]
    assert first == "## ❌ 1 configuration got worse; 2 configurations compared (6 added)"
    data = json.loads(invoke(lone, tmp_path / "bundle", "--json").output)
    assert (data["exit_code"], data["counts"]["worse"]) == (1, 1)


def test_the_command_cannot_compare(report: Report, tmp_path: Path) -> None:
    path = save(report, tmp_path / "report.json")
    (tmp_path / "bad.json").write_text("{", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    for words in (
        (path, tmp_path / "none"),
        (path, tmp_path / "bad.json"),
        (tmp_path / "empty", path),
        (path, path, "--match", "a=b"),
        (path, path, "--confidence", "2"),
        (path, path, "--markdown", tmp_path / "none" / "x.md"),
    ):
        result = invoke(*words)
        assert result.exit_code == 2, words
        assert "Error" in result.output
        assert "Traceback" not in result.output


def test_markdown_fits_a_comment_whatever_the_reports(case_of: Cases, report_of: Reports) -> None:
    cases = [
        leaking(case_of(V.NOT_EXACT, f"temperature={i}", why="漢" * 900), 0.01) for i in range(400)
    ]
    old = report_of(cases)
    new = report_of([leaking(c, 0.5) for c in cases])
    text = render_diff(diff_reports(old, new), speed=True)
    assert len(text.encode()) <= LONGEST < 65_536
    assert text.count("<details>") == text.count("</details>")
    assert "more |" in text


@pytest.mark.parametrize(
    "hostile",
    ["<script>alert(1)</script>", "a|b\n# c", "](javascript:alert(1))", "@someone", "``` x", "$x$",
     "\x1b[31m", "https://e.example"],
)  # fmt: skip
def test_markdown_keeps_its_shape(hostile: str, case_of: Cases, report_of: Reports) -> None:
    def of(text: str) -> str:
        cases = [
            case_of(V.EXACT, engine=text, id=text, why=text),
            case_of(V.NOT_EXACT, "x", engine=text, id=text, why=text, probe=text),
        ]
        bad = [c.model_copy(update={"verdict": V.ERROR, "error": text}) for c in cases[:1]] + cases[
            1:
        ]
        old = report_of(cases, tool_version=text, environment={text: "1"})
        return render_diff(diff_reports(old, report_of(bad)), speed=True)

    def kinds(markdown: str) -> list[str]:
        tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
        return [t.type for token in tokens for t in (token, *(token.children or []))]

    text = of(hostile)
    assert [k for k in kinds(text) if "text" not in k] == [
        k for k in kinds(of("plain")) if "text" not in k
    ]
    assert "\x1b" not in text
    assert "@s" not in text
    assert not re.search(r"(?<!\\)://", text)
    assert not re.search(r"<(?!/?(details|summary)>)", text)
