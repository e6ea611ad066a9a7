"""The report as one HTML file that needs nothing else, for people first.

The first screen says what was found in plain words; evidence and tables come after it. Every
text of the report passes `one_line` or `clean` and Jinja2's escaping; the only markup let through
unescaped is the SVG of `conformance.reports.plots` and this package's own style sheet and script.
A content security policy forbids the page to load anything or to run any other script.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from conformance.errors import ReportError
from conformance.reports import text
from conformance.reports.model import ArmModel, BarsModel, CaseModel, EngineModel, PitModel, Report
from conformance.reports.plots import bars_summary, bars_svg, pit_summary, pit_svg, pooled
from conformance.reports.wording import (
    LOOKS,
    engines_named,
    headline,
    meaning,
    strongest_first,
    tally,
    worst_first,
)
from conformance.text import clean, excerpt, one_line
from conformance.verdict import Verdict

_TEMPLATES = Path(__file__).parent / "templates"
_FIELD_LIMIT = 24_000
_SHOWN_BARS = 6  # tables drawn for a case; all of them are in report.json


@dataclass(frozen=True, slots=True)
class _Plot:
    """One figure: the picture, what it shows in words, and its numbers as a table."""

    title: str
    svg: Markup | None
    summary: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class _Case:
    """One case with what the template would otherwise have to look up."""

    anchor: str
    opened: bool
    model: CaseModel
    engine: EngineModel | None
    speculative: ArmModel | None
    plots: Sequence[_Plot]
    not_drawn: int


def render_html(report: Report) -> str:
    """Render a report as one self-contained HTML document.

    Parameters
    ----------
    report : Report
        What to render.

    Returns
    -------
    str
        The document.
    """
    environment = _environment()
    # our own file, and the policy admits exactly this script
    script = Markup((_TEMPLATES / "report.js").read_text(encoding="utf-8"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html.j2").render(
        report=report,
        looks=LOOKS,
        engines=engines_named(report),
        headline=headline(report),
        meaning=meaning(report),
        tally=tally(report),
        cases=_cases(report),
        script=script,
        script_hash=f"sha256-{digest}",
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters |= {
        "command_line": text.command_line,
        "count": text.count,
        "counted": text.counted,
        "duration": text.duration,
        "effect_name": text.effect_name,
        "excerpt": excerpt,
        "interval": text.interval,
        "line": one_line,
        "moment": text.moment,
        "number": text.number,
        "odds": text.odds,
        "p": text.p_text,
        "percent": text.percent,
        "spaced": lambda value: value.replace(",", ", "),  # where a line may break
        "strongest": strongest_first,
        "web_address": text.web_address,
    }
    environment.globals["rate"] = text.rate
    return environment


def _finalize(value: Any) -> Any:
    """Clean everything a template prints, so that no expression can forget to."""
    if isinstance(value, Markup):
        return value
    return clean(str(value)[:_FIELD_LIMIT])


def _cases(report: Report) -> list[_Case]:
    engines = {engine.name: engine for engine in report.engines}
    return [
        _Case(
            anchor=f"case-{i}",
            opened=i == 1 and case.verdict in (Verdict.NOT_EXACT, Verdict.ERROR),
            model=case,
            engine=engines.get(case.engine),
            speculative=next((arm for arm in case.arms if arm.arm == "speculative"), None),
            plots=[
                *(_bars(bars, f"{i}-bars-{j}") for j, bars in enumerate(case.bars[:_SHOWN_BARS])),
                *(_pit(pit, f"{i}-pit-{j}") for j, pit in enumerate(case.pit)),
            ],
            not_drawn=max(0, len(case.bars) - _SHOWN_BARS),
        )
        for i, case in enumerate(worst_first(report.cases), start=1)
    ]


def _bars(bars: BarsModel, key: str) -> _Plot:
    try:
        drawn = pooled(bars)
        svg = Markup(bars_svg(drawn, key))  # escaped by the XML serialiser in plots
    except ReportError as exc:
        # a picture that cannot be drawn must not cost the reader the verdict
        return _Plot(bars.title, None, f"Not drawn: {exc}.", (), ())
    head = ["token", "observed", "expected"]
    rows = [
        [one_line(label, 60), text.count(observed), f"{expected:,.1f}"]
        for label, observed, expected in zip(
            drawn.labels, drawn.observed, drawn.expected, strict=True
        )
    ]
    if drawn.draft is not None:
        head.append("if the draft were sampled")
        for row, value in zip(rows, drawn.draft, strict=True):
            row.append(f"{value:,.1f}")
    return _Plot(bars.title, svg, bars_summary(drawn), head, rows)


def _pit(pit: PitModel, key: str) -> _Plot:
    title = f"Probability integral transform, ordered by {one_line(pit.order, 60)}"
    try:
        svg = Markup(pit_svg(pit, key))  # escaped by the XML serialiser in plots
    except ReportError as exc:
        return _Plot(title, None, f"Not drawn: {exc}.", (), ())
    low, high = pit.band
    bins = len(pit.observed)
    rows = [
        [
            f"{i / bins:.2f} to {(i + 1) / bins:.2f}",
            text.count(value),
            "yes" if low <= value <= high else "no",
        ]
        for i, value in enumerate(pit.observed)
    ]
    return _Plot(title, svg, pit_summary(pit), ("bin", "observed", "within band"), rows)
