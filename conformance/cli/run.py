"""``conformance run``: sample, judge, report."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import click

from conformance.cli.options import run_options, settings_from


@click.command("run")
@run_options
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("conformance-report"),
    show_default=True,
    help="Folder for report.html, report.json, report.md, junit.xml and the evidence.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress bars; the summary alone.")
def run_command(out: Path, quiet: bool, **options: Any) -> None:
    """Judge engines. Exit status: 0 EXACT, 1 NOT EXACT, 2 anything else.

    ENGINE is a built-in name (see 'conformance engines'), package.module:Class, or
    path/to/file.py:Class.
    """
    from rich.console import Console  # noqa: PLC0415

    from conformance.cli.terminal import Bars, print_summary  # noqa: PLC0415
    from conformance.reports.build import build_report, case_model  # noqa: PLC0415
    from conformance.reports.bundle import write_bundle  # noqa: PLC0415
    from conformance.runner import run_planned  # noqa: PLC0415

    settings = settings_from(**options)
    console = Console()
    # evidence of an earlier run was drawn from another build; it must not be judged as this one's
    shutil.rmtree(out / "evidence", ignore_errors=True)
    with Bars(console, quiet) as bars:
        finished = run_planned(settings, out, bars.planned, bars.progress, bars.result)
    report = build_report(
        finished.plan,
        [case_model(r) for r in finished.results],
        seconds=finished.seconds,
        jobs=settings.jobs,
        command=["conformance", *sys.argv[1:]],
    )
    files = write_bundle(report, out)
    print_summary(console, report, files)
    sys.exit(report.exit_code)
