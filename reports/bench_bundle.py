"""Write a measurement as a folder: ``bench.json``, ``bench.html`` and ``bench.md``."""

from __future__ import annotations

from pathlib import Path

from conformance.errors import ReportError
from conformance.reports.bench_markdown import render_bench_markdown
from conformance.reports.bench_model import BenchReport, write_bench
from conformance.reports.writing import replace_text


def write_bench_bundle(report: BenchReport, folder: Path) -> dict[str, Path]:
    """Write all three files; whatever else is in the folder is left alone.

    Returns
    -------
    dict of str to Path
        The files by format: ``"json"``, ``"html"``, ``"markdown"``.

    Raises
    ------
    ReportError
        If the folder cannot be written.
    """
    # the plots need matplotlib, which is slow to import
    from conformance.reports.bench_html import render_bench_html  # noqa: PLC0415

    files = {"html": folder / "bench.html", "markdown": folder / "bench.md"}
    texts = {"html": render_bench_html(report), "markdown": render_bench_markdown(report)}
    json_file = write_bench(report, folder)
    try:
        for kind, path in files.items():
            replace_text(path, texts[kind])
    except OSError as exc:
        raise ReportError(f"cannot write to {folder}: {exc.strerror or exc}") from exc
    return {"json": json_file, **files}
