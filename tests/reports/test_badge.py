"""The badge: one file, readable without colour, and what shields.io takes."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from datetime import date

import pytest

from conformance.reports import Report
from conformance.reports.badge import (
    COLOURS,
    LABEL_COLOUR,
    message,
    render_badge_json,
    render_badge_svg,
)
from conformance.reports.expectations import apply_expectations
from conformance.reports.model import CaseModel, Expectation
from conformance.verdict import Verdict

SVG = "{http://www.w3.org/2000/svg}"
Cases = Callable[..., CaseModel]
Reports = Callable[..., Report]


def test_it_says_the_verdict_and_how_many(
    report: Report, case_of: Cases, report_of: Reports
) -> None:
    assert message(report) == "NOT EXACT, 2 of 7"
    exact = report_of([case_of(Verdict.EXACT)] * 3 + [case_of(Verdict.NOT_SUPPORTED)])
    assert message(exact) == "EXACT, 3 of 3"
    assert message(report_of([])) == "nothing was judged"


def test_an_expected_failure_is_added_and_turns_nothing_green(
    case_of: Cases, report_of: Reports
) -> None:
    entry = Expectation(
        case="*", reason="r", link="https://example.org/1", expires=date(2030, 1, 1)
    )
    cases = [case_of(Verdict.NOT_EXACT), case_of(Verdict.EXACT, "greedy")]
    marked, found = apply_expectations(cases, [entry], date(2029, 1, 1))
    badge = report_of(marked, expectations=found, exit_code=0)
    assert message(badge) == "NOT EXACT, 1 of 2 (1 expected)"
    assert COLOURS[Verdict.NOT_EXACT] in render_badge_svg(badge)
    assert json.loads(render_badge_json(badge))["isError"] is True


def test_the_picture_needs_nothing_else_and_has_a_title(report: Report) -> None:
    text = render_badge_svg(report)
    root = ET.fromstring(text)
    assert root.tag == f"{SVG}svg"
    title = "speculative decoding: NOT EXACT, 2 of 7"
    assert root.get("role") == "img"
    assert root.get("aria-label") == title
    first = root[0]
    assert (first.tag, first.text) == (f"{SVG}title", title)
    assert {e.tag for e in root.iter()} == {
        SVG + tag for tag in ("svg", "title", "rect", "path", "g", "text")
    }
    assert not re.search(r"(?<!xmlns=\")https?:|href|@import|@font-face|<style|url\(| id=", text)
    assert [e.text for e in root.iter(f"{SVG}text")] == [
        "speculative decoding",
        "NOT EXACT, 2 of 7",
    ]
    # nothing overlaps, whatever the font: each text is fitted into its own part
    path = next(root.iter(f"{SVG}path")).get("d", "")
    middle = int(path.removeprefix("M3 0H").split("v")[0])
    places = [
        (int(e.get("x", "0")), int(e.get("textLength", "0"))) for e in root.iter(f"{SVG}text")
    ]
    (x0, w0), (x1, w1) = places
    assert 0 < x0 < x0 + w0 < middle < x1 < x1 + w1 < int(root.get("width", "0"))
    # and is given about the room that its letters take at 11 pixels
    assert 5.5 < w0 / len("speculative decoding") < 8
    assert 5.5 < w1 / len("NOT EXACT, 2 of 7") < 8


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", [*COLOURS.values(), LABEL_COLOUR])
def test_white_text_is_readable(colour: str) -> None:
    assert 1.05 / (_luminance(colour) + 0.05) >= 4.5


@pytest.mark.parametrize("verdict", list(Verdict))
def test_each_verdict_is_in_words_and_in_a_colour_of_its_own(
    verdict: Verdict, case_of: Cases, report_of: Reports
) -> None:
    badge = report_of([case_of(verdict)], verdict=verdict)
    assert COLOURS[verdict] in render_badge_svg(badge)
    assert len(set(COLOURS.values())) == len(Verdict)
    content = json.loads(render_badge_json(badge))
    assert content["schemaVersion"] == 1
    assert set(content) == {"schemaVersion", "label", "message", "color", "labelColor", "isError"}
    assert re.fullmatch("[0-9a-f]{6}", content["color"])
    assert content["isError"] is (verdict is not Verdict.EXACT)
    if verdict is not Verdict.NOT_SUPPORTED:
        assert verdict.value in content["message"]
