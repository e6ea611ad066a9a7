"""Plots of evidence: readable at 60 tests and at p = 1e-300, bounded, and told in words."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from conformance.errors import ReportError
from conformance.reports.details import AcceptanceModel, AcceptedModel, TrajectoryModel
from conformance.reports.forest import (
    Mark,
    Row,
    acceptance_summary,
    effect_rows,
    forest_svg,
)
from conformance.reports.gallery import drawn, pictures
from conformance.reports.model import CaseModel, FindingModel, IntervalModel
from conformance.reports.plots_evidence import (
    crossing,
    p_values_summary,
    p_values_svg,
    trajectories_summary,
    trajectories_svg,
)
from conformance.verdict import Verdict

SVG = "{http://www.w3.org/2000/svg}"


def finding(test: str = "chi-square", p: float | None = 0.5, **changes: Any) -> FindingModel:
    values: dict[str, Any] = {
        "test": test, "scope": "output index 0", "arm": "speculative", "n": 100, "p_value": p,
        "adjusted_p": None, "level": 1e-9, "rejected": p is not None and p <= 1e-9,
        "statistic": None, "df": None, "effect": {}, "detectable": None, "detectable_unit": "",
        "message": "",
    }  # fmt: skip
    return FindingModel.model_validate(values | changes)


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text")]


def course(values: list[float], arm: str = "speculative", needed: float = 8.0) -> TrajectoryModel:
    tokens = [100 * (i + 1) for i in range(len(values))]
    return TrajectoryModel.model_validate(
        {"arm": arm, "tokens": tokens, "log10_e": values, "needed": needed}
    )


SIXTY = [
    finding(f"test {i % 12}", p, scope=f"output index {i // 12}")
    for i, p in enumerate([*(0.9**i for i in range(58)), 1e-300, 0.0])
]


def test_sixty_tests_are_one_picture() -> None:
    svg = p_values_svg(SIXTY)
    shown = texts(svg)
    assert {f"test {i}" for i in range(12)} <= set(shown)
    assert "1e-300" in shown
    assert {"rejected", "level", "speculative arm"} <= set(shown)
    assert len(svg) < 20_000
    assert p_values_svg(SIXTY) == svg
    ticks = [one for one in shown if one[0] in "01" and "test" not in one]
    assert len(ticks) >= 4


def test_p_values_in_words() -> None:
    said = p_values_summary([*SIXTY[:5], finding("support", None, rejected=True, level=0.0)])
    assert said.startswith("6 tests, 1 rejected, 1 of them by proof; smallest p 0.66 (test 4,")
    told = p_values_summary([finding(level=0.0, p=0.2), finding(p=0.3)])
    assert told.endswith("level 1e-09; 1 more for information only.")
    assert p_values_summary([]) == "0 tests, 0 rejected."


def test_what_is_no_p_value_is_refused() -> None:
    with pytest.raises(ReportError, match="no p-values"):
        p_values_svg([finding(p=1.5)])


def test_nothing_to_draw_can_be_drawn() -> None:
    assert p_values_svg([]).startswith("<svg")
    assert trajectories_svg([course([])]).startswith("<svg")
    assert forest_svg([("x", [])], [], "nothing").startswith("<svg")


def test_the_course_says_where_it_crosses() -> None:
    up, flat = course([1.0, 7.9, 8.0, 30.0, 12.0]), course([-0.2, -0.4], arm="control")
    assert crossing(up) == 300
    assert crossing(flat) is None
    said = trajectories_summary([up, flat])
    assert "speculative arm: crosses the needed 10^8.0 by 300 tokens and reaches 10^30.0" in said
    assert "control arm: at most 10^0.0 in 200 tokens, 10^8.0 needed" in said
    svg = trajectories_svg([up, flat])
    assert {"speculative arm", "control arm", "rejects above"} <= set(texts(svg))
    assert trajectories_summary([course([])]).endswith("speculative arm: nothing was looked at.")


@pytest.mark.parametrize(
    "changes",
    [{"tokens": [1]}, {"log10_e": [1e300, 1.0]}, {"needed": 1e300}, {"tokens": [1, 10**400]}],
)
def test_impossible_courses_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ReportError, match="e-process"):
        trajectories_svg([course([1.0, 2.0]).model_copy(update=changes)])


def test_a_forest_shows_zero_and_marks() -> None:
    rows = [Row("all tokens", 0.06, 0.05, 0.07, (0.02,)), Row("bonus", 0.0, -0.1, 0.1, (None,))]
    svg = forest_svg([("leak", rows)], [Mark("caught beyond", "|")], "s", as_percent=True)
    assert {"all tokens", "bonus", "caught beyond", "leak", "0%"} <= set(texts(svg))
    with pytest.raises(ReportError, match="cannot be drawn"):
        forest_svg([("leak", [Row("x", 1e300, 0, 0)])], [], "s")


def test_of_very_many_effects_those_far_from_zero_are_shown() -> None:
    def leak(scope: str, size: float) -> FindingModel:
        interval = IntervalModel(estimate=size, low=size - 0.01, high=size + 0.01, confidence=0.95)
        return finding("draft leak", scope=scope, effect={"leak": interval})

    many = [leak("whole grid", 0.0), *(leak(f"law {i}", 0.001 * i) for i in range(60))]
    shown = [row.label for _, row in effect_rows(many, "leak")]
    assert len(shown) == 18
    assert shown[0] == "whole grid"
    assert "law 59" in shown
    assert "law 1" not in shown


@pytest.mark.parametrize(
    ("rate", "verified", "says"),
    [
        (0.75, True, "as expected of it"),
        (0.60, True, "fewer than expected"),
        (0.90, True, "more than expected"),
        (0.40, False, "also those after a rejection"),
    ],
)
def test_acceptance_in_words(rate: float, verified: bool, says: str) -> None:
    at = AcceptedModel(
        place="all proposals", proposals=1000, accepted=int(1000 * rate), rate=rate,
        low=rate - 0.03, high=rate + 0.03, rejection=0.75, matching=0.3, likeliest=None,
    )  # fmt: skip
    assert says in acceptance_summary(AcceptanceModel(verified=verified, places=[at]))


def test_every_picture_has_its_numbers(case_of: Any) -> None:
    case: CaseModel = case_of(Verdict.NOT_EXACT)
    found = list(pictures(case, "1"))
    titles = [picture.title for picture in found]
    assert titles[:3] == [
        "Every test at once",
        "Evidence as tokens come in (e-process)",
        "Acceptance, observed and predicted",
    ]
    assert len(titles) == 8
    for picture in found[1:]:  # the first one's are the findings
        assert picture.rows
        assert all(len(row) == len(picture.head) for row in picture.rows)
    assert all(drawn(picture).svg for picture in found)
    assert all(picture.summary and picture.hint for picture in found)
