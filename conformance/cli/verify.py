"""``conformance verify``: is a bundle what it says it is?"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from conformance.reports.verify import Check, Verification

SIGNS = {
    "agrees": ("green", "ok"),
    "differs": ("bold red", "DIFFERS"),
    "stated": ("yellow", "word"),
}
LONGEST = 1000


@click.command("verify")
@click.argument("bundle", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--sha256",
    metavar="HEX",
    help="What the SHA-256 of the bundle's manifest must be, published apart from it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify_command(bundle: Path, sha256: str | None, as_json: bool) -> None:
    """Recompute everything a bundle claims, offline and without the engine.

    BUNDLE is the folder a run left, or a zip of it. Law, statistics, verdicts and certificates are
    worked out again from the evidence; every line says whether the bundle agrees. Exit status: 0 it
    agrees, 1 something differs, 2 there is no bundle. It is not the run's: a bundle that agrees may
    say NOT EXACT.
    """
    import tempfile  # noqa: PLC0415

    from rich.console import Console  # noqa: PLC0415

    from conformance.reports.verify import verify_bundle  # noqa: PLC0415
    from conformance.reports.verify.unpack import unpack  # noqa: PLC0415

    console = Console(soft_wrap=True, highlight=False)

    def told(check: Check) -> None:
        if not as_json:
            _print(console, check)

    with tempfile.TemporaryDirectory() as scratch:
        folder = bundle if bundle.is_dir() else unpack(bundle, Path(scratch))
        found = verify_bundle(folder, sha256, told)
    if as_json:
        click.echo(json.dumps(_plain(found), indent=2))
    else:
        _print_summary(console, found)
    sys.exit(0 if found.agrees else 1)


def _plain(found: Verification) -> dict[str, object]:
    from conformance.reports.verify.check import LIMITS  # noqa: PLC0415

    return {
        "agrees": found.agrees,
        "sha256": found.sha256,
        "verdict": found.verdict,
        "cases": found.cases,
        "untested": list(found.untested),
        "checks": [asdict(c) for c in found.checks],
        "cannot_be_seen": list(LIMITS),
    }


def _print(console: Console, check: Check) -> None:
    from rich.text import Text  # noqa: PLC0415

    from conformance.text import one_line  # noqa: PLC0415

    style, sign = SIGNS[check.status]
    what, detail = one_line(check.what, LONGEST), one_line(check.detail, LONGEST)
    console.print(Text.assemble((f"{sign:>7}", style), f"  {what}: {detail}"))


def _print_summary(console: Console, found: Verification) -> None:
    from rich.text import Text  # noqa: PLC0415

    from conformance.reports.verify.check import LIMITS, listed  # noqa: PLC0415
    from conformance.text import one_line  # noqa: PLC0415

    counts = {sign: sum(c.status == sign for c in found.checks) for sign in SIGNS}
    if not found.agrees:
        console.print(
            Text(
                f"NOT VERIFIED: {counts['differs']} of {len(found.checks)} lines differ. The "
                "bundle is not what an undisturbed run left; nothing in it should be relied on.",
                "bold red",
            )
        )
        return
    console.print(
        Text(
            f"VERIFIED: {counts['agrees']} lines agree with the evidence, {counts['stated']} rest "
            f"on the run's word. The run's verdict is {found.verdict}.",
            "bold green",
        )
    )
    if found.untested:
        names = one_line(listed(found.untested), LONGEST)
        text = f"NOT TESTED, and no pass: {len(found.untested)} of {found.cases} cases: {names}"
        console.print(Text(text, "bold yellow"))
    console.print(Text(f"Bundle SHA-256 {found.sha256}"))
    console.print(Text("What no bundle can show:\n" + "\n".join(f"- {x};" for x in LIMITS)[:-1]))
