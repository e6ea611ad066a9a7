"""``conformance setup``: make the virtual environment of an engine."""

from __future__ import annotations

import click


@click.command("setup")
@click.argument("engine")
@click.option("--python", metavar="PATH", help="The Python to make it with. Default: this one.")
def setup_command(engine: str, python: str | None) -> None:
    """Make the virtual environment of ENGINE, with pinned requirements.

    Engines pin what they depend on, and not alike, so each of the larger ones lives in an
    environment of its own: in $CONFORMANCE_ENGINES, or your data folder, where 'conformance run
    ENGINE' finds it. Nothing is done if it is there already with the same requirements.
    """
    from conformance.environments import make  # noqa: PLC0415

    make(engine, python, told=click.echo)
