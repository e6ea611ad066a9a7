"""``conformance run``: sample, judge, report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from conformance.cli.options import run_options, settings_from

if TYPE_CHECKING:
    from conformance.plan import RunPlan
    from conformance.result import CaseResult


@click.command("run")
@run_options
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("conformance-report"),
    show_default=True,
    help="Folder for report.html, report.json, report.md, junit.xml, a badge and the evidence.",
)
@click.option(
    "--resume",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    metavar="DIR",
    help="Go on with the run in DIR: what an interruption left open, or more samples for what "
    "ended INCONCLUSIVE. Takes no ENGINE; everything is as it was asked for.",
)
@click.option(
    "--expectations",
    "expected",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Failures that are known, in TOML, each with a reason, a link and an expiry: they are "
    "shown, and left out of the exit status, which is 1 where an entry has expired. Default: none.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress bars; the summary alone.")
def run_command(
    out: Path, resume: Path | None, expected: Path | None, quiet: bool, **options: Any
) -> None:
    """Judge engines. Exit status: 0 EXACT, 1 NOT EXACT, 2 anything else.

    ENGINE is a built-in name (see 'conformance engines'), package.module:Class, or
    path/to/file.py:Class.
    """
    if bool(options["engines"]) == bool(resume):
        raise click.UsageError("give either engines to judge, or --resume DIR")
    if expected and resume:
        raise click.UsageError("--resume goes on with the expectations that the run began with")
    from rich.console import Console  # noqa: PLC0415

    from conformance.cli.terminal import Bars, print_summary  # noqa: PLC0415
    from conformance.reports import stages  # noqa: PLC0415
    from conformance.reports.build import build_report, case_model  # noqa: PLC0415
    from conformance.reports.bundle import write_bundle  # noqa: PLC0415
    from conformance.reports.expectations import load_expectations  # noqa: PLC0415
    from conformance.runner import run_planned  # noqa: PLC0415

    console = Console()
    if resume is None:
        expectations = load_expectations(expected) if expected else ()
        before = stages.Resumed(settings_from(**options), expectations=expectations)
        # evidence of an earlier run was drawn from another build and must not be judged as this
        # one's
        stages.clear(out)
    else:
        out, before = resume, stages.read_run(resume)
        if before.finished:
            console.print("Everything is settled; there is nothing to add.")
            sys.exit(before.finished.exit_code)

    def planned(plan: RunPlan) -> None:
        stages.begin_stage(before, plan, out)
        bars.planned(plan)

    judged = {c.id: c for c in before.settled}

    def keep(result: CaseResult) -> None:
        case = judged[result.case.id] = case_model(result, before.settings.stage)
        stages.keep_judged(case, result.case.slug, out)
        bars.result(result)

    with Bars(console, quiet) as bars:
        finished = run_planned(
            before.settings, out, planned, bars.progress, keep, settled=tuple(judged)
        )
    for lost in finished.results:
        judged.setdefault(lost.case.id, case_model(lost, before.settings.stage))
    report = build_report(
        finished.plan,
        [judged[c.id] for c in finished.plan.cases],
        seconds=finished.seconds,
        jobs=before.settings.jobs,
        command=["conformance", *sys.argv[1:]],
        expectations=before.expectations,
    )
    files = write_bundle(report, out)
    stages.forget_judged(out)
    print_summary(console, report, files)
    sys.exit(report.exit_code)
