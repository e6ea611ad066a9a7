"""``conformance publish``: put a report on the compatibility page."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("publish")
@click.argument(
    "bundles", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("reports/published"),
    show_default=True,
    help="Folder of the published reports and their page.",
)
def publish_command(bundles: tuple[Path, ...], folder: Path) -> None:
    """Copy the report of each run in DIR, and make the compatibility page (README.md) anew."""
    from conformance.reports.published import publish  # noqa: PLC0415

    for bundle in bundles:
        click.echo(publish(bundle, folder))
