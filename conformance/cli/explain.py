"""``conformance explain``: the worked example, with anybody's numbers."""

from __future__ import annotations

import click


@click.command("explain")
@click.option("--target", "-p", required=True, help="The target's law, for example 0.3,0.7")
@click.option("--draft", "-q", required=True, help="The draft's law, for example 0.6,0.4")
@click.option("--tokens", help="Names of the tokens, with commas; A, B, ... by default.")
def explain_command(target: str, draft: str, tokens: str | None) -> None:
    """Work out one step of speculative sampling: accept, reject, recover."""
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from conformance.explain import explain, parse_law, sentences  # noqa: PLC0415

    names = [n.strip() for n in tokens.split(",")] if tokens else None
    e = explain(parse_law(target), parse_law(draft), names)
    table = Table()
    table.add_column("token")
    for heading in ("q", "p", "min(1, p/q)", "accepted", "recovered as", "recovered", "emitted"):
        table.add_column(heading, justify="right")
    rejected = max(e.rejected, 0.0)
    for i, name in enumerate(e.tokens):
        numbers = (
            e.q[i], e.p[i], e.accept[i], e.kept[i], e.recovered[i] if rejected > 1e-12 else 0.0,
            e.emitted[i] - e.kept[i], e.emitted[i],
        )  # fmt: skip
        table.add_row(Text(name), *(f"{abs(x):.4g}" if abs(x) > 1e-12 else "0" for x in numbers))
    Console().print(table)
    for line in sentences(e):
        click.echo(line)
