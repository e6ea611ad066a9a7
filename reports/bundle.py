"""Write a report as a folder that people, CI systems and programs can read."""

from __future__ import annotations

from pathlib import Path

from conformance.errors import ReportError
from conformance.reports.badge import render_badge_json, render_badge_svg
from conformance.reports.junit import render_junit
from conformance.reports.manifest import FILE, seal
from conformance.reports.markdown import render_markdown
from conformance.reports.model import Report, dump_json
from conformance.reports.writing import replace_text

FILES = {
    "json": "report.json",
    "html": "report.html",
    "markdown": "report.md",
    "junit": "junit.xml",
    "badge": "badge.svg",
    "badge-json": "badge.json",
}


def render(report: Report) -> dict[str, str]:
    """Every file that follows from a report, by its name."""
    # the plots need matplotlib, which everybody who only imports the model should not wait for
    from conformance.reports.html import render_html  # noqa: PLC0415

    return {
        FILES["html"]: render_html(report),
        FILES["markdown"]: render_markdown(report),
        FILES["junit"]: render_junit(report),
        FILES["badge"]: render_badge_svg(report),
        FILES["badge-json"]: render_badge_json(report),
        FILES["json"]: dump_json(report),
    }


def write_bundle(report: Report, folder: Path) -> dict[str, Path]:
    """Write ``report.json``, ``report.html``, ``report.md``, ``junit.xml``, ``badge.svg``,
    ``badge.json`` and ``manifest.json`` into a folder.

    Everything is rendered before anything is written, and each file replaces its predecessor in
    one step, so that a reader never sees half a file. The last is ``report.json``: where it is, the
    bundle is complete.

    Parameters
    ----------
    report : Report
        What to write.
    folder : Path
        Where; created where missing. Other files in it are left alone.

    Returns
    -------
    dict of str to Path
        The files by format: ``"json"``, ``"html"``, ``"markdown"``, ``"junit"``, ``"badge"``,
        ``"badge-json"``, ``"manifest"``.

    Raises
    ------
    ReportError
        If the folder cannot be written.
    """
    texts = render(report)
    *others, last = texts
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in others:
            replace_text(folder / name, texts[name])
        seal(folder, texts)
        replace_text(folder / last, texts[last])
    except OSError as exc:
        raise ReportError(f"cannot write report to {folder}: {exc.strerror or exc}") from exc
    return {kind: folder / name for kind, name in FILES.items()} | {"manifest": folder / FILE}
