"""``conformance faults``: the catalogue of departures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click


@click.command("faults")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
@click.option("--markdown", is_flag=True, help="Print the page docs/faults.md.")
def faults_command(as_json: bool, markdown: bool) -> None:
    """List the deliberately wrong engines: what each does, and where it was seen.

    Run one as any engine: conformance run faulty:NAME, or faulty:NAME=x for another size.
    """
    if as_json:
        click.echo(json.dumps(list(rows()), indent=2))
        return
    if markdown:
        click.echo(page(), nl=False)
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table()
    for heading in ("fault", "size", "what it does", "seen in", "where it shows"):
        table.add_column(heading, overflow="fold")
    last = ""
    for row in rows():
        if last not in ("", row["tier"]):
            table.add_section()
        last = row["tier"]
        size = "" if row["parameter"] is None else f"{row['parameter']:g}"
        cells = (row["name"], size, row["summary"], row["seen"] or "-", row["shows"])
        table.add_row(*map(Text, cells))
    console = Console()
    console.print(table)
    console.print(
        "Run one: conformance run faulty:NAME (or faulty:NAME=x). Its range: --json.",
        highlight=False,
        markup=False,
    )


def rows() -> Iterator[dict[str, Any]]:
    """The catalogue as plain values, in its order."""
    from conformance.faults import FAULTS  # noqa: PLC0415

    for fault in FAULTS.values():
        yield {
            "name": fault.name,
            "tier": fault.tier,
            "summary": fault.summary,
            "seen": fault.seen,
            "shows": fault.shows,
            "needs": fault.needs,
            "parameter": fault.parameter,
            "range": None if fault.span is None else str(fault.span),
            "meaning": None if fault.span is None else fault.span.meaning,
            "visible": fault.visible,
            "note": fault.note,
        }


TIERS = {
    "rule": "The acceptance rule",
    "probability": "What the rule is given",
    "engine": "The engine around it",
}
NEEDS = {
    "anything": "any",
    "sampling": "any but greedy",
    "temperature": "a temperature other than 1",
    "filter": "a filter: top-k, top-p, min-p, typical, epsilon or eta",
    "warp": "a temperature other than 1, or a filter",
    "processor": "a penalty, a bias, a mask or a least length",
    "history": "a penalty",
    "repetition": "a repetition penalty",
    "minimum": "a least length",
    "stop": "stop tokens",
    "stops": "several stop tokens",
    "greedy": "greedy",
    "road": "greedy, by the roads of suite greedy",
    "tie": "greedy, on probe tied",
    "far": "greedy, on probe horizon",
    "stop string": "stop strings",
    "grammar": "a grammar",
    "grammar and stop": "a grammar and stop tokens",
    "grammar and filter": "a grammar and a filter",
    "min_p": "min-p",
    "later filter": "typical, epsilon or eta cut-off",
    "temperature and filter": "a temperature other than 1 with a filter",
    "form": "any, in suites lengths, batches, streams and long",
    "logprobs": "log-probabilities are asked for",
}


def page() -> str:
    """The documentation page of the catalogue."""
    from conformance.faults import FAULTS  # noqa: PLC0415

    lines = [
        "# Faults",
        "",
        f"The catalogue's {len(FAULTS)} deliberate departures from the exact algorithm. Run any of",
        "them as an engine: `conformance run faulty:NAME`, or `faulty:NAME=x` for another size.",
        "The control arm of each is plain sampling, and right unless a note says otherwise. How",
        "often each is caught, and by what, is in [measured.md](measured.md).",
        "",
        "*Seen in* names a public thread in which the kind was reported. This page is written by",
        "`conformance faults --markdown > docs/faults.md`.",
    ]
    for tier, title in TIERS.items():
        lines += ["", f"## {title}", "", "| fault | what it does | where it shows | decodings |"
                  " seen in |", "| --- | --- | --- | --- | --- |"]  # fmt: skip
        for row in rows():
            if row["tier"] != tier:
                continue
            name = f"`{row['name']}`"
            what = row["summary"]
            if row["parameter"] is not None:
                name = f"`{row['name']}={row['parameter']:g}`"
                what += f". x is {row['meaning']}: {row['range']}"
            seen = row["seen"] or "-"
            if row["note"]:
                what += f". Note: {row['note']}"
            cells = (name, what + ".", row["shows"], NEEDS[row["needs"]], seen)
            lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return "\n".join(lines) + "\n"
