"""The report as one HTML file that needs nothing else, for people first.

The first screen says what was found in plain words; evidence and tables come after it. Every
text of the report passes `one_line` or `clean` and Jinja2's escaping; the only markup let through
unescaped is the SVG of `conformance.reports.figure` and this package's own style sheet and script.
A content security policy forbids the page to load anything or to run any other script.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from conformance.faults.threads import threads
from conformance.reports import text
from conformance.reports.expectations import beside, sentences
from conformance.reports.gallery import SHOWN_BARS, Drawn, drawn, pictures
from conformance.reports.model import ArmModel, CaseModel, EngineModel, FindingModel, Report
from conformance.reports.story import (
    causes,
    diagnosis_words,
    kill_table,
    remark,
    short_why,
    sizes,
    unasked_groups,
    weakest_certificates,
)
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
# What keeps a page of a hundred cases under two megabytes: the cases that need attention come
# first, and the last ones have their numbers without drawings
_MOST_DRAWN, _TAKEN_BY_A_CASE, _LEAST_DRAWN = 1_250_000, 8_000, 200_000  # characters
_MOST_FINDINGS = 800
_FEWEST_FINDINGS = 3
_STRONGEST = 6  # findings shown before the rest is asked for; more where more rejected
_MOST_STRONGEST = 12


@dataclass(frozen=True, slots=True)
class _Case:
    """One case with what the template would otherwise have to look up."""

    anchor: str
    opened: bool
    model: CaseModel
    engine: EngineModel | None
    speculative: ArmModel | None
    pictures: Sequence[Drawn]
    undrawn: int
    more_bars: int
    strongest: Sequence[FindingModel]
    others: Sequence[FindingModel]
    left_out: int


def render_html(report: Report) -> str:
    """Render a report as one self-contained HTML document; the same report always gives the same.

    Parameters
    ----------
    report : Report
        What to render.

    Returns
    -------
    str
        The document.
    """
    # our own file, and the policy admits exactly this script
    script = Markup((_TEMPLATES / "report.js").read_text(encoding="utf-8"))
    return (
        page_environment()
        .get_template("report.html.j2")
        .render(
            report=report,
            engines=engines_named(report),
            headline=headline(report),
            meaning=meaning(report),
            tally=tally(report),
            causes=causes(report),
            certificates=weakest_certificates(report),
            expected=sentences(report.cases, report.expectations) if report.expectations else [],
            unasked=unasked_groups(report),
            kills=kill_table(report.measured.kills),
            cases=list(_cases(report)),
            script=script,
            script_hash=script_hash(script),
        )
    )


def script_hash(script: str) -> str:
    """What a content security policy names a script by."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"sha256-{digest}"


@cache
def page_environment() -> Environment:
    """The templates' environment, for every page that is made with them.

    Whatever a template prints is cleaned and escaped; `macros.html.j2` and `report.css` are there
    for other pages as well.
    """
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters |= {
        "beside": beside,
        "command_line": text.command_line,
        "count": text.count,
        "counted": text.counted,
        "diagnosed": diagnosis_words,
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
        "remark": remark,
        "short_why": short_why,
        "sizes": sizes,
        "spaced": lambda value: value.replace(",", ", "),  # where a line may break
        "threads": threads,
        "web_address": text.web_address,
    }
    environment.globals |= {"rate": text.rate, "looks": LOOKS}
    return environment


def _finalize(value: Any) -> Any:
    """Clean everything a template prints, so that no expression can forget to."""
    if isinstance(value, Markup):
        return value
    return clean(str(value)[:_FIELD_LIMIT])


def _cases(report: Report) -> Iterator[_Case]:
    engines = {engine.name: engine for engine in report.engines}
    most = max(_FEWEST_FINDINGS, _MOST_FINDINGS // max(len(report.cases), 1))
    room = max(_MOST_DRAWN - _TAKEN_BY_A_CASE * len(report.cases), _LEAST_DRAWN)
    for i, case in enumerate(worst_first(report.cases), start=1):
        possible = list(pictures(case, str(i)))
        shown = [drawn(picture) for picture in possible] if room > 0 else []
        room -= sum(len(picture.svg or "") for picture in shown)
        ordered = strongest_first(case.findings)
        rejected = sum(finding.rejected for finding in ordered)
        first = min(max(rejected, _STRONGEST), _MOST_STRONGEST, most)
        yield _Case(
            anchor=f"case-{i}",
            opened=i == 1 and case.verdict in (Verdict.NOT_EXACT, Verdict.ERROR),
            model=case,
            engine=engines.get(case.engine),
            speculative=next((arm for arm in case.arms if arm.arm == "speculative"), None),
            pictures=shown,
            undrawn=len(possible) - len(shown),
            more_bars=max(0, len(case.bars) - SHOWN_BARS) if shown else 0,
            strongest=ordered[:first],
            others=ordered[first:most],
            left_out=max(0, len(ordered) - most),
        )
