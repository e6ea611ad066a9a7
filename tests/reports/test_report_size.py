"""However many cases there are, the page stays small, and says what it leaves out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conformance.reports import Report
from conformance.reports.html import render_html
from conformance.reports.model import CaseModel
from conformance.verdict import Verdict

LIMIT = 2_000_000


@pytest.fixture(scope="module")
def pages() -> dict[int, str]:
    return {}


def page(
    n: int,
    pages: dict[int, str],
    case_of: Callable[..., CaseModel],
    report_of: Callable[..., Report],
) -> str:
    """A report of n cases; every fourth is wrong. Each has as many findings as a real one."""
    if n not in pages:
        cases = []
        for i in range(n):
            case = case_of(Verdict.NOT_EXACT if i % 4 == 0 else Verdict.EXACT, f"temperature=0.{i}")
            cases.append(case.model_copy(update={"findings": case.findings * 8}))
        pages[n] = render_html(report_of(cases))
    return pages[n]


def test_fifteen_cases_are_drawn_whole(
    pages: dict[int, str], case_of: Callable[..., CaseModel], report_of: Callable[..., Report]
) -> None:
    html = page(15, pages, case_of, report_of)
    assert len(html.encode()) < LIMIT
    assert html.count("<svg ") == 15 * 8
    assert "are not drawn, to keep this page small" not in html


def test_a_hundred_cases_are_still_small(
    pages: dict[int, str], case_of: Callable[..., CaseModel], report_of: Callable[..., Report]
) -> None:
    html = page(100, pages, case_of, report_of)
    assert len(html.encode()) < LIMIT
    assert html.count('<details class="case card') == 100
    assert html.count("are not drawn, to keep this page small") > 0
    # those that need attention are drawn first, and what is wrong comes before what passed
    drawn, _, rest = html.partition("are not drawn, to keep this page small")
    assert drawn.count("<svg ") >= 40
    assert "<svg " not in rest
    # what is left out is counted, case by case
    assert html.count("weaker findings of this case can be found") == 100
    assert html.count("✗ rejected") >= 25 * 6
