"""``conformance engines`` and ``conformance schema``."""

from __future__ import annotations

import json

import click

from conformance.text import one_line


@click.command("engines")
def engines_command() -> None:
    """List the engines that are built in or registered, and whether they are installed."""
    from importlib.metadata import entry_points  # noqa: PLC0415

    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from conformance import launch  # noqa: PLC0415
    from conformance.builtin import BUILTINS, VERIFIERS  # noqa: PLC0415
    from conformance.resolve import ENTRY_POINTS  # noqa: PLC0415

    table = Table()
    for heading in ("engine", "what it is", "version", "speculates with", "decodings"):
        table.add_column(heading, overflow="fold")
    for name, builtin in BUILTINS.items():
        for method in builtin.methods:
            full = f"{name}:{method}" if method else name
            here = builtin.installed or launch.environment(name)
            version, draft, claims = _ask(full) if here else (None, "", "")
            missing = launch.missing(name) or "not installed"
            if not builtin.own_environment:
                missing = f"not installed (pip install 'specdec-conformance[{name}]')"
            table.add_row(*map(Text, (full, builtin.summary, version or missing, draft, claims)))
    for name, verifier in VERIFIERS.items():
        version, method, claims = _ask(name) if verifier.installed else (None, "", "")
        missing = f"not installed (pip install 'specdec-conformance[{verifier.requires}]')"
        table.add_row(*map(Text, (name, verifier.summary, version or missing, method, claims)))
    for point in entry_points(group=ENTRY_POINTS):
        version, draft, claims = _ask(point.name)
        row = (point.name, point.value, version, draft, claims)
        table.add_row(*(Text(one_line(cell)) for cell in row))
    console = Console()
    console.print(table)
    console.print("Your own: package.module:Class or path/to/file.py:Class", highlight=False)


def _ask(name: str) -> tuple[str, str, str]:
    """Version, method and claimed decodings, from the engine in its own process."""
    from conformance.errors import ConformanceError  # noqa: PLC0415
    from conformance.verifier import VerifierCapabilities  # noqa: PLC0415
    from conformance.verifier.gather import describe  # noqa: PLC0415

    try:
        card, claimed, *_ = describe(name)
    except ConformanceError as exc:
        return f"cannot be loaded: {exc}", "", ""
    if isinstance(claimed, VerifierCapabilities):
        rule = "greedy" if claimed.greedy else card.rule
        return card.version, card.method, f"a verifier: {rule}"
    from conformance.decoding import FILTERS  # noqa: PLC0415

    words = [w for w in ("greedy", "sampling", *FILTERS) if getattr(claimed, w)]
    return card.version, card.method, ", ".join(words)


@click.command("schema")
@click.option("--protocol", is_flag=True, help="That of the host protocol's messages instead.")
@click.option("--bench", is_flag=True, help="That of bench.json instead.")
def schema_command(protocol: bool, bench: bool) -> None:
    """Print the JSON Schema of report.json."""
    if protocol and bench:
        raise click.UsageError("give either --protocol or --bench")
    if bench:
        from conformance.reports.bench_model import bench_schema  # noqa: PLC0415

        click.echo(json.dumps(bench_schema(), indent=2))
        return
    if protocol:
        from conformance.wire import json_schema as protocol_schema  # noqa: PLC0415

        click.echo(json.dumps(protocol_schema(), indent=2, ensure_ascii=False))
        return
    from conformance.reports.model import json_schema  # noqa: PLC0415

    click.echo(json.dumps(json_schema(), indent=2))
