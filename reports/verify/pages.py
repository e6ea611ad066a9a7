"""The pages of a bundle: each must say what ``report.json`` says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from conformance.errors import ReportError
from conformance.reports.bundle import FILES, render
from conformance.reports.manifest import read_plain
from conformance.reports.model import Report
from conformance.reports.verify.check import Check, agrees, differs, stated

LARGEST = 64 * 2**20
DRAWS = "matplotlib"
_PLOT = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
# What our plots are made of: shapes and words, with no address but one within the plot, nothing
# that runs, and nothing that could cover or restyle the page around it.
_HARMLESS = re.compile(
    r"</(?:svg|title|g|defs|clipPath|path|rect|use|text|tspan)>"
    r"|<(?:svg|title|g|defs|clipPath|path|rect|use|text|tspan)"
    r"(?: (?:xmlns|viewBox|role|aria-label|id|d|x|y|width|height|transform|clip-path)="
    r'"[^"<>]*"| href="#[^"<>]*"| style="(?!.*(?:url|position|import|\\))[^"<>]*")* ?/?>'
)


def check_pages(folder: Path, report: Report) -> Iterator[Check]:
    """Render the report again, and compare."""
    for name, text in render(report).items():
        if name == FILES["json"]:
            continue
        try:
            told = read_plain(folder / name, LARGEST).decode("utf-8")
        except (ReportError, UnicodeError) as exc:
            yield differs(name, f"cannot be read: {exc}")
            continue
        if told == text:
            yield agrees(name, "says what report.json says")
        elif name == FILES["html"] and _PLOT.sub("<svg/>", told) == _PLOT.sub("<svg/>", text):
            yield _plots(name, told, report)
        else:
            yield differs(name, "does not say what report.json says")


def _plots(name: str, told: str, report: Report) -> Check:
    """The line of a page of which only the plots differ: another version of the library draws
    others.
    """
    theirs, ours = report.environment.get(DRAWS), version(DRAWS)
    tags = (tag for plot in _PLOT.findall(told) for tag in _TAG.findall(plot))
    if theirs in (None, ours) or not all(map(_HARMLESS.fullmatch, tags)):
        return differs(name, "its plots do not show what report.json says")
    return stated(
        name,
        f"says what report.json says, but its plots were not compared: they were drawn by {DRAWS} "
        f"{theirs}, and this is {ours}",
    )
