"""``conformance merge``: the evidence of several runs together."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from conformance.reports.merge import Merge, Merged


@click.command("merge")
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--alpha",
    type=click.FloatRange(1e-15, 1, min_open=False, max_open=True),
    default=1e-6,
    show_default=True,
    help="False-alarm probability of all merges there will ever be of these runs and later ones.",
)
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def merge_command(runs: tuple[Path, ...], alpha: float, as_json: bool) -> None:
    """Add up the evidence of several runs: of every night, say.

    RUNS are folders that 'conformance run' left, each with a --seed of its own, or zips of them.
    A departure that is too small for one night shows in many; a false alarm has the probability
    ALPHA once, and not every night, as long as no run is left out. Exit status: 0 no departure
    found, 1 NOT EXACT, together or a run by itself, 2 an ERROR in a run, or nothing to merge. No
    merge is a pass: passes are the runs' own.
    """
    import tempfile  # noqa: PLC0415

    from conformance.reports.merge import merge  # noqa: PLC0415
    from conformance.reports.verify.unpack import unpack  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as scratch:
        folders = []
        for number, run in enumerate(runs):
            place = Path(scratch) / str(number)
            place.mkdir()
            folders.append(run if run.is_dir() else unpack(run, place))
        found = merge(folders, alpha)
    if as_json:
        click.echo(json.dumps([_plain(m) for m in found.cases], indent=2))
    else:
        from rich.console import Console  # noqa: PLC0415

        _show(Console(highlight=False), found, alpha)
    sys.exit(found.exit_code)


def _plain(m: Merged) -> dict[str, Any]:
    leak = m.leak
    return {
        "case": m.case,
        "runs": m.runs,
        "verdicts": [v.value for v in m.verdicts],
        "versions": m.versions,
        "tokens": m.tokens,
        "log10_e": [value / math.log(10) for value in m.course],
        "needed": m.needed / math.log(10),
        "not_exact": m.rejected,
        "gained_as": m.gained_as,
        "leak": None if leak is None else [leak.estimate, leak.low, leak.high],
    }


def _show(console: Console, found: Merge, alpha: float) -> None:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from conformance.cli.terminal import plain  # noqa: PLC0415
    from conformance.reports.text import counted  # noqa: PLC0415

    table = Table()
    table.add_column("case", overflow="fold")
    for name in ("runs", "tokens", "bet", "needs", "draft leak, 95 %"):
        table.add_column(name, justify="right")
    for m in found.cases:
        bet = Text(_power(m.course[-1]), "bold red" if m.rejected else "")
        leak = m.leak
        share = "–" if leak is None else f"{leak.estimate:.2%}\n({leak.low:.2%} to {leak.high:.2%})"
        case = plain(m.case.replace(" / ", "\n"))
        table.add_row(case, f"{len(m.runs)}", f"{m.tokens:,}", bet, _power(m.needed), share)
    console.print(table)
    for m in found.cases:
        own = sum(v.value == "NOT EXACT" for v in m.verdicts)
        if m.rejected:
            at = next(i for i, value in enumerate(m.course) if value >= m.needed)
            words = (
                f"{m.case}: NOT EXACT after {counted(at + 1, 'run')} together, {own} of which said "
                f"so by themselves. The bet gained most as: {m.gained_as}."
            )
            console.print(plain(words))
        if len(m.versions) > 1:
            console.print(plain(f"{m.case}: several versions, {', '.join(m.versions)}."))
    for night in found.alone:
        console.print(plain(f"{night.folder} is NOT EXACT by itself; its report says where."))
    for night in found.failed:
        console.print(plain(f"{night.folder} has an ERROR: not all of it was judged."))
    wrong, runs = sum(m.rejected for m in found.cases), counted(len(found.nights), "run")
    if wrong:
        verdict = Text(f"NOT EXACT: {wrong} of {counted(len(found.cases), 'case')}.", "bold red")
    elif found.alone:
        verdict = Text(f"NOT EXACT: {len(found.alone)} of {runs}.", "bold red")
    elif found.failed:
        verdict = Text(f"No departure found in {runs} together, as far as judged.", "bold yellow")
    else:
        verdict = Text(f"No departure found in {runs} together.", "bold green")
    console.print(verdict)
    console.print(
        f"A bet is what 1 became that was staked against the law; it may be looked at after every "
        f"run, and gains what it needs with probability {alpha:g} at most, over all cases and "
        "runs, where every run was exact and none is left out."
    )


def _power(log_e: float) -> str:
    return f"10^{log_e / math.log(10):.1f}"
