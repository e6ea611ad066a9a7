"""``conformance bench``: what speculation costs and saves, apart from whether it is exact."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from conformance.bench.plan import Settings
    from conformance.reports.bench_model import BenchReport

MOST_BATCH, MOST_LENGTH, MOST_TOKENS, MOST_REPEATS = 4096, 10**6, 10**5, 10_000
FOLDER = click.Path(file_okay=False, exists=True, path_type=Path)


def _numbers(most: int) -> Callable[[click.Context, click.Parameter, str], tuple[int, ...]]:
    """Reads whole numbers with commas between, from 1 to `most`."""

    def read(context: click.Context, option: click.Parameter, value: str) -> tuple[int, ...]:
        words = value.split(",")
        if not all(re.fullmatch(r"\s*[0-9]{1,9}\s*", w) for w in words):
            raise click.BadParameter(f"{value!r} is not a list of whole numbers, as in 1,4")
        numbers = tuple(dict.fromkeys(int(w) for w in words))
        if not all(1 <= n <= most for n in numbers):
            raise click.BadParameter(f"numbers must be from 1 to {most:,}")
        return numbers

    return read


@click.command("bench")
@click.argument("engines", metavar="ENGINE...", nargs=-1, required=True)
@click.option(
    "-d",
    "--decoding",
    "decodings",
    multiple=True,
    metavar="CONFIG",
    help="As for 'run'; may be given several times. Default: temperature 1, and greedy.",
)
@click.option(
    "--batch",
    "batches",
    metavar="N,N,...",
    callback=_numbers(MOST_BATCH),
    default="1,4",
    show_default=True,
    help="Requests that one call hands over.",
)
@click.option(
    "--prompt-length",
    "prompt_lengths",
    metavar="N,N,...",
    callback=_numbers(MOST_LENGTH),
    default="16,64,256",
    show_default=True,
    help="Lengths of random prompts, in tokens.",
)
@click.option(
    "--new-tokens",
    type=click.IntRange(2, MOST_TOKENS),
    default=64,
    show_default=True,
    help="Tokens that every request generates.",
)
@click.option(
    "--prompts",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help='Your workload, one JSON object a line: {"prompt": [ids]} or {"text": "..."}. It '
    "takes the place of random prompts.",
)
@click.option(
    "--models",
    nargs=2,
    type=FOLDER,
    metavar="TARGET DRAFT",
    help="Folders of your own models, in the Hugging Face layout. Default: a tiny probe, on which "
    "speed says little.",
)
@click.option("--probe", metavar="NAME", help="A probe instead of the method's own.")
@click.option(
    "--repeats",
    type=click.IntRange(1, MOST_REPEATS),
    default=30,
    show_default=True,
    help="Pairs of calls in every setting. 29 give a 90 % tail, 299 a 99 % tail.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="A setting that would take longer has fewer repeats, 6 at least.",
)
@click.option(
    "--warmup",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    help="Rounds that are thrown away first.",
)
@click.option(
    "--beside",
    type=FOLDER,
    metavar="DIR",
    help="What 'conformance run' left: its verdicts are shown beside the numbers.",
)
@click.option(
    "--memory/--no-memory",
    default=True,
    show_default=True,
    help="Measure memory with the draft and without.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of everything.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    help="Seconds an engine may take for one call.",
)
@click.option(
    "--python",
    metavar="PATH",
    help="The Python of the virtual environment that the engines are installed in, as for 'run'.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("conformance-bench"),
    show_default=True,
    help="Folder for bench.html, bench.json and bench.md; may be that of an exactness report.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress bar; the summary alone.")
def bench_command(out: Path, quiet: bool, **options: Any) -> None:
    """Measure speed and cost. Exit status: 0 if something was measured and nothing failed, else 2.

    Says whether speculation pays, never whether it is exact: that is for 'conformance run'.
    """
    from rich.console import Console  # noqa: PLC0415

    from conformance.bench.asking import WorkerAsker  # noqa: PLC0415
    from conformance.bench.run import run_bench  # noqa: PLC0415
    from conformance.cli.bench_terminal import Bar, print_bench  # noqa: PLC0415
    from conformance.reports.bench_bundle import write_bench_bundle  # noqa: PLC0415
    from conformance.reports.bench_model import write_bench  # noqa: PLC0415

    settings = _settings(**options)
    console = Console()
    kept: list[BenchReport] = []

    def keep(report: BenchReport) -> None:
        kept[:] = [report]
        write_bench(report, out)

    try:
        with Bar(console, settings, quiet) as bar:
            report = run_bench(
                settings,
                lambda engine: WorkerAsker(engine, settings.timeout, settings.python),
                keep,
                bar,
                ("conformance", *sys.argv[1:]),
            )
    except KeyboardInterrupt:
        if not kept:
            click.echo("Interrupted before anything was measured.", err=True)
            sys.exit(130)
        files = write_bench_bundle(kept[0], out)
        print_bench(console, kept[0], files)
        click.echo("Interrupted. What was measured until then is kept.", err=True)
        sys.exit(130)
    files = write_bench_bundle(report, out)
    print_bench(console, report, files)
    states = {c.status for c in report.cells}
    sys.exit(0 if "measured" in states and "error" not in states else 2)


def _settings(
    engines: tuple[str, ...],
    decodings: tuple[str, ...],
    models: tuple[Path, Path] | None,
    **fields: Any,
) -> Settings:
    from conformance.bench.plan import DEFAULT_DECODINGS, Settings, check  # noqa: PLC0415
    from conformance.cli.options import check_names  # noqa: PLC0415
    from conformance.decoding import parse_decodings  # noqa: PLC0415

    check_names(engines)
    parsed = parse_decodings(decodings) if decodings else DEFAULT_DECODINGS
    settings = Settings(tuple(dict.fromkeys(engines)), parsed, models=models or None, **fields)
    check(settings)
    return settings
