"""The pages of a bundle: each must say what ``report.json`` says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from conformance.reports.bundle import FILES, render
from conformance.reports.model import Report
from conformance.reports.verify.check import Check, agrees, differs

# Where the plots were drawn by another version of the library, they are other bytes.
_PLOT = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
LARGEST = 64 * 2**20


def check_pages(folder: Path, report: Report) -> Iterator[Check]:
    """Render the report again, and compare."""
    for name, text in render(report).items():
        if name == FILES["json"]:
            continue
        path = folder / name
        try:
            if path.stat().st_size > LARGEST:
                yield differs(name, f"is larger than {LARGEST:,} bytes")
                continue
            told = path.read_bytes().decode("utf-8")
        except (OSError, UnicodeError) as exc:
            yield differs(name, f"cannot be read: {exc}")
            continue
        if told == text:
            yield agrees(name, "says what report.json says")
        elif _PLOT.sub("", told) == _PLOT.sub("", text):
            yield agrees(name, "says what report.json says; its plots were not compared")
        else:
            yield differs(name, "does not say what report.json says")
