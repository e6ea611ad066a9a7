"""The report of a run: its model, and what is written from it.

`Report` is the contract (``report.json``, its schema in ``schema/report-1.2.json``); `load_report`
reads it back, `write_bundle` writes it as JSON, HTML, Markdown and JUnit XML. Renderers show what
the report holds and judge nothing. Every text in a report came from a model, an engine or a file,
and is untrusted wherever it is shown.

Examples
--------
>>> from conformance.reports import load_report, write_bundle
>>> Report.__name__
'Report'
"""

from __future__ import annotations

from conformance.reports.bundle import write_bundle
from conformance.reports.model import Report, load_report

__all__ = ["Report", "load_report", "write_bundle"]
