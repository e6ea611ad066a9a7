"""Write a report as a folder that people, CI systems and programs can read."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from conformance.errors import ReportError
from conformance.reports.junit import render_junit
from conformance.reports.markdown import render_markdown
from conformance.reports.model import Report, dump_json


def write_bundle(report: Report, folder: Path) -> dict[str, Path]:
    """Write ``report.json``, ``report.html``, ``report.md`` and ``junit.xml`` into a folder.

    Everything is rendered before anything is written, and each file replaces its predecessor in
    one step, so that a reader never sees half a file.

    Parameters
    ----------
    report : Report
        What to write.
    folder : Path
        Where; created where missing. Other files in it are left alone.

    Returns
    -------
    dict of str to Path
        The files by format: ``"json"``, ``"html"``, ``"markdown"``, ``"junit"``.

    Raises
    ------
    ReportError
        If the folder cannot be written.
    """
    # the plots need matplotlib, which everybody who only imports the model should not wait for
    from conformance.reports.html import render_html  # noqa: PLC0415

    contents = {
        "json": ("report.json", dump_json(report)),
        "html": ("report.html", render_html(report)),
        "markdown": ("report.md", render_markdown(report)),
        "junit": ("junit.xml", render_junit(report)),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in contents.values():
            _replace(folder / name, text)
    except OSError as exc:
        raise ReportError(f"cannot write report to {folder}: {exc.strerror or exc}") from exc
    return {kind: folder / name for kind, (name, _) in contents.items()}


def _replace(path: Path, text: str) -> None:
    """Write a text file in one visible step, with the same bytes on every platform."""
    # beside its destination, because a rename is only atomic within one file system; not with
    # tempfile, whose files nobody but their owner may read
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("x", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
