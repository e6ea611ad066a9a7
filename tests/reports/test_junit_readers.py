"""JUnit XML as its readers take it: the rules of Jenkins' junit-10.xsd and of Ant, and GitLab's."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from conformance.reports import Report
from conformance.reports.expectations import apply_expectations, exit_code_of
from conformance.reports.junit import render_junit
from conformance.reports.model import CaseModel, Expectation
from conformance.verdict import Verdict

Cases = Callable[..., CaseModel]
Reports = Callable[..., Report]
# element -> attributes (True: required), and elements it may hold
RULES: dict[str, tuple[dict[str, bool], set[str]]] = {
    "testsuites": (
        {"name": False, "time": False, "tests": False, "failures": False, "errors": False},
        {"testsuite"},
    ),
    "testsuite": (
        {
            "name": True, "tests": True, "failures": True, "errors": True, "time": True,
            "timestamp": True, "hostname": True, "skipped": False,
        },
        {"properties", "testcase"},
    ),
    "properties": ({}, {"property"}),
    "property": ({"name": True, "value": True}, set()),
    "testcase": (
        {"name": True, "classname": True, "time": True},
        {"skipped", "error", "failure", "system-out"},
    ),
    "skipped": ({"message": True, "type": False}, set()),
    "failure": ({"message": True, "type": True}, set()),
    "error": ({"message": True, "type": True}, set()),
    "system-out": ({}, set()),
}  # fmt: skip
SECONDS = re.compile(r"[0-9]+\.[0-9]{3}")
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


def check(text: str) -> ET.Element:
    """Parse, and hold against the rules."""
    root = ET.fromstring(text.encode())
    assert root.tag == "testsuites"
    for element in root.iter():
        attributes, children = RULES[element.tag]
        assert set(element.keys()) <= set(attributes), element.tag
        assert {name for name, needed in attributes.items() if needed} <= set(element.keys())
        assert {child.tag for child in element} <= children, element.tag
        if element.get("time") is not None:
            assert SECONDS.fullmatch(element.get("time", ""))
    for suite in root:
        assert MOMENT.fullmatch(suite.get("timestamp", ""))
        if suite.find("properties") is not None:
            assert suite[0].tag == "properties"
        cases = suite.findall("testcase")
        assert int(suite.get("tests", "")) == len(cases)
        for tag, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            assert int(suite.get(name, "")) == sum(c.find(tag) is not None for c in cases)
        for case in cases:
            assert sum(case.find(tag) is not None for tag in ("failure", "error", "skipped")) <= 1
    for name in ("tests", "failures", "errors"):
        assert int(root.get(name, "")) == sum(int(suite.get(name, "")) for suite in root)
    names = [(c.get("classname"), c.get("name")) for c in root.iter("testcase")]
    assert len(names) == len(set(names))
    return root


def entry(**changes: Any) -> Expectation:
    values = {
        "case": "transformers/mid/temperature=1",
        "reason": "a <known> fault & its \x07 bell",
        "link": "https://example.org/issues/1",
        "expires": date(2030, 1, 31),
    }
    return Expectation.model_validate(values | changes)


@pytest.fixture
def foreseen(case_of: Cases, report_of: Reports) -> Callable[..., Report]:
    def make(one: Expectation, *verdicts: Verdict, day: date = date(2029, 1, 1)) -> Report:
        names = ["temperature=1", "greedy", "temperature=0.7"]
        cases = [case_of(v, d) for v, d in zip(verdicts, names, strict=False)]
        marked, found = apply_expectations(cases, [one], day)
        return report_of(marked, expectations=found, exit_code=exit_code_of(marked, found))

    return make


def test_it_follows_the_rules(report: Report, report_of: Reports) -> None:
    check(render_junit(report))
    check(render_junit(report_of([])))


def test_an_expected_failure_is_skipped_with_its_reason_and_the_truth(
    foreseen: Callable[..., Report],
) -> None:
    root = check(render_junit(foreseen(entry(), Verdict.NOT_EXACT, Verdict.EXACT)))
    assert (root.get("failures"), root.get("errors")) == ("0", "0")
    (skipped,) = root.iter("skipped")
    assert skipped.get("type") == "expected"
    said = skipped.get("message", "")
    assert said.startswith("NOT EXACT, expected: a <known> fault & its \\x07 bell, https://")
    assert said.endswith("until 2030-01-31")
    outputs = [e.text or "" for e in root.iter("system-out")]
    assert "NOT EXACT: Chi-square at output index 1 rejects" in outputs[0]
    assert "- draft leak, all tokens" in outputs[0]


@pytest.mark.parametrize(
    ("verdicts", "day", "kind"),
    [
        ([Verdict.NOT_EXACT], date(2029, 1, 1), "not-exact"),  # nothing else was judged
        ([Verdict.EXACT], date(2031, 1, 1), "expectation"),  # the entry has expired
    ],
)
def test_a_run_that_fails_is_red_somewhere(
    verdicts: list[Verdict], day: date, kind: str, foreseen: Callable[..., Report]
) -> None:
    report = foreseen(entry(), *verdicts, day=day)
    assert report.exit_code != 0
    (failure,) = check(render_junit(report)).iter("failure")
    assert failure.get("type") == kind
    assert f"exit status {report.exit_code}." in failure.get("message", "")


@pytest.mark.parametrize("strict", [False, True])
def test_what_passes_now_is_told(strict: bool, foreseen: Callable[..., Report]) -> None:
    report = foreseen(entry(strict=strict), Verdict.EXACT, Verdict.EXACT)
    root = check(render_junit(report))
    assert root.get("failures") == str(int(strict)) == str(report.exit_code)
    assert "passes now, remove the entry" in (next(root.iter("system-out")).text or "")


def test_what_is_not_excused_says_so(foreseen: Callable[..., Report]) -> None:
    root = check(render_junit(foreseen(entry(), Verdict.ERROR, Verdict.EXACT)))
    (error,) = root.iter("error")
    assert "not excused, NOT EXACT was expected" in (error.text or "")


def test_names_do_not_change_with_the_number_of_samples(case_of: Cases, report_of: Reports) -> None:
    few, many = (
        check(render_junit(report_of([case_of(Verdict.EXACT, workload=f"{n} requests")])))
        for n in (10, 20)
    )
    assert [c.attrib["name"] for c in few.iter("testcase")] == ["temperature=1 [mid]"]
    assert [c.attrib["name"] for c in many.iter("testcase")] == ["temperature=1 [mid]"]
    assert "20 requests" in (next(many.iter("system-out")).text or "")
