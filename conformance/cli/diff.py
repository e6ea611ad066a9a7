"""``conformance diff``: what changed between two reports."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from conformance.reports.diff_model import DiffModel


@click.command("diff")
@click.argument("old", type=click.Path(exists=True, path_type=Path))
@click.argument("new", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--match",
    multiple=True,
    metavar="OLDNAME=NEWNAME",
    help="An engine that has another name in NEW; may be given several times. Options after a "
    "comma are seen through without it, where one engine is left on either side.",
)
@click.option("--strict", is_flag=True, help="Being weaker counts as worse.")
@click.option("--speed", is_flag=True, help="Show how fast both were, too.")
@click.option(
    "--confidence",
    type=float,
    default=0.999,
    show_default=True,
    help="With which all comparisons of estimates hold together.",
)
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
@click.option(
    "--markdown",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write Markdown that fits into a comment of a pull request.",
)
def diff_command(
    old: Path,
    new: Path,
    match: tuple[str, ...],
    strict: bool,
    speed: bool,
    confidence: float,
    as_json: bool,
    markdown: Path | None,
) -> None:
    """Compare two reports. Exit status: 0 nothing got worse, 1 something did, 2 no comparison.

    OLD and NEW are folders that 'conformance run' left, or report.json files. Worse: EXACT and now
    anything else; NOT EXACT or an ERROR and not so before; NOT EXACT as before, by more than the
    intervals allow; not supported any more; gone. A configuration that is new is told, and is not
    worse. Speed and acceptance are never part of it.
    """
    from conformance.errors import ReportError  # noqa: PLC0415
    from conformance.reports.diff import diff_reports, read_side  # noqa: PLC0415
    from conformance.reports.diff_bench import read_bench  # noqa: PLC0415
    from conformance.reports.diff_markdown import render_diff  # noqa: PLC0415

    found = diff_reports(
        read_side(old),
        read_side(new),
        match=match,
        confidence=confidence,
        strict=strict,
        benches=(read_bench(old), read_bench(new)),
    )
    if markdown is not None:
        try:
            markdown.write_text(render_diff(found, speed), encoding="utf-8")
        except OSError as exc:
            raise ReportError(f"cannot write {markdown}: {exc.strerror or exc}") from exc
    if as_json:
        click.echo(found.model_dump_json(indent=2))
    else:
        from rich.console import Console  # noqa: PLC0415

        _show(Console(), found, speed)
    sys.exit(found.exit_code)


def _show(console: Console, found: DiffModel, speed: bool) -> None:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from conformance.cli.terminal import STYLES, plain  # noqa: PLC0415
    from conformance.reports.diff_markdown import (  # noqa: PLC0415
        in_order,
        is_news,
        news_of,
        speed_cells,
        speed_sentence,
    )

    cases = in_order(found.cases)
    news = [case for case in cases if is_news(case)]
    if news:
        table = Table(show_lines=True)
        table.add_column("case", overflow="fold")
        table.add_column("change", no_wrap=True)
        table.add_column("what changed", overflow="fold", ratio=1)
        for case in news:
            name = (case.new_id or case.old_id or "").replace(" / ", "\n")
            verdicts = Text(case.change)
            for verdict in (case.old, case.new):
                shown = (verdict.value, STYLES[verdict]) if verdict else ("none", "dim")
                verdicts.append("\n").append(*shown)
            table.add_row(plain(name), verdicts, plain("\n".join(news_of(case))))
        console.print(table)
    if speed:
        table = Table("case", "arm", "before", "now", "ratio", title="time inside the engine")
        for case in cases:
            for arm in case.arms:
                table.add_row(plain(case.new_id or ""), arm.arm, *speed_cells(arm))
        console.print(table)
        for s in found.speed:
            console.print(plain(f"{s.cell}: {speed_sentence(s)}"))
    for old, new in found.matched.items():
        console.print(plain(f"{old} is compared with {new}."))
    if found.settings:
        differs = "; ".join(f"{c.name} {c.old}, now {c.new}" for c in found.settings)
        console.print(plain(f"Settings differ, so that comparing means less: {differs}."))
    for words in found.weaker:
        console.print(plain(f"Weaker as a whole: {words}."))
    style = "bold red" if found.exit_code else "bold green"
    console.print(Text(found.headline, style).append(".", "default"))
    console.print(
        f"{found.comparisons} comparisons of estimates, confidence {found.confidence:.9g} for all "
        f"of them together. Exit status {found.exit_code}.",
        highlight=False,
    )
