"""``conformance verify``: is a bundle what it says it is?"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
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
    agrees, 1 something differs, 2 there is no bundle.
    """
    import tempfile  # noqa: PLC0415

    from rich.console import Console  # noqa: PLC0415

    from conformance.errors import ReportError  # noqa: PLC0415
    from conformance.reports.verify import verify_bundle  # noqa: PLC0415
    from conformance.reports.verify.unpack import unpack  # noqa: PLC0415

    console = Console(soft_wrap=True, highlight=False)

    def told(check: Check) -> None:
        if not as_json:
            _print(console, check)

    with tempfile.TemporaryDirectory() as scratch:
        folder = bundle if bundle.is_dir() else unpack(bundle, Path(scratch))
        if not (folder / "run.json").exists() and not (folder / "manifest.json").exists():
            raise ReportError(f"{bundle} is no bundle: it has no run.json and no manifest.json")
        found = verify_bundle(folder, sha256, told)
    if as_json:
        lines = [asdict(c) for c in found.checks]
        whole = {"agrees": found.agrees, "sha256": found.sha256, "checks": lines}
        click.echo(json.dumps(whole, indent=2))
    else:
        console.print(_summary(found), markup=False)
    sys.exit(0 if found.agrees else 1)


def _print(console: object, check: Check) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from conformance.text import one_line  # noqa: PLC0415

    assert isinstance(console, Console)
    style, sign = SIGNS[check.status]
    what, detail = one_line(check.what, LONGEST), one_line(check.detail, LONGEST)
    console.print(Text.assemble((f"{sign:>7}", style), f"  {what}: {detail}"))


def _summary(found: Verification) -> str:
    counts = {sign: sum(c.status == sign for c in found.checks) for sign in SIGNS}
    if not found.agrees:
        return (
            f"NOT VERIFIED: {counts['differs']} of {len(found.checks)} lines differ. The bundle is "
            "not what an undisturbed run left."
        )
    return (
        f"VERIFIED: {counts['agrees']} lines agree with the evidence, {counts['stated']} rest on "
        f"the run's word.\nBundle SHA-256 {found.sha256}\nThat the tokens came from the engine "
        "named is its tester's word: no file can show it."
    )
