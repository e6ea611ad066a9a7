"""Options that several commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import click

Command = Callable[..., Any]


def run_options(command: Command) -> Command:
    """What decides a plan."""
    decorators = [
        click.argument("engines", metavar="ENGINE...", nargs=-1),
        click.option(
            "-d",
            "--decoding",
            "decodings",
            multiple=True,
            metavar="CONFIG",
            help="'greedy' or for example 'temperature=0.7,top_p=0.8'; may be given several times. "
            "Default: greedy, temperature 1, temperature 0.7 with top_p 0.8, top_k 8, and the "
            "worked example where the method has a draft model.",
        ),
        click.option(
            "--suite",
            "suites",
            type=click.Choice(
                [
                    "law",
                    "greedy",
                    "ends",
                    "stop-strings",
                    "processors",
                    "cutoffs",
                    "structured",
                    "logprobs",
                    "lengths",
                    "batches",
                    "streams",
                    "long",
                    "all",
                ]
            ),
            multiple=True,
            default=("law",),
            show_default=True,
            help="What is asked: sampling itself; the roads to greedy decoding, ties and long "
            "outputs; stop tokens and least lengths; penalties, biases and masks; further "
            "filters, and several together; grammars; log-probabilities returned; prompts and "
            "outputs of any length; calls whose requests differ; a draft that is the target; "
            "long contexts. May be given several times; what --decoding gives is asked instead.",
        ),
        click.option(
            "--profile",
            type=click.Choice(["smoke", "standard", "audit"]),
            default="standard",
            show_default=True,
            help="How small a departure a pass must rule out; decides how many samples are drawn.",
        ),
        click.option("--probe", metavar="NAME", help="Probe to use instead of the method's own."),
        click.option(
            "--alpha",
            type=float,
            default=1e-6,
            show_default=True,
            help="False-alarm probability of the whole run, at most.",
        ),
        click.option(
            "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of everything."
        ),
        click.option(
            "-j",
            "--jobs",
            type=click.IntRange(1),
            default=os.cpu_count() or 1,
            show_default="processors",
            help="Worker processes.",
        ),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            default=300.0,
            show_default=True,
            help="Seconds an engine may take for one batch.",
        ),
        click.option(
            "--python",
            metavar="PATH",
            help="The Python of the virtual environment that the engines are installed in. "
            "Default: the environment that 'conformance setup' made, else this one.",
        ),
    ]
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def settings_from(
    engines: tuple[str, ...], decodings: tuple[str, ...], suites: tuple[str, ...], **fields: Any
) -> Any:  # a Settings; its module is heavy and is imported only here
    """Turn options into settings, parsing the decodings."""
    from conformance.decoding import DEFAULT_DECODINGS, parse_decodings  # noqa: PLC0415
    from conformance.runner import Settings  # noqa: PLC0415
    from conformance.suite import named  # noqa: PLC0415

    if not engines:
        raise click.UsageError("Missing argument 'ENGINE...'.")
    check_names(engines)
    parsed = parse_decodings(decodings) if decodings else DEFAULT_DECODINGS
    return Settings(engines=engines, decodings=parsed, suites=named(suites), **fields)


def check_names(engines: tuple[str, ...]) -> None:
    """Refuse a name that gives a secret away.

    Raises
    ------
    UnknownEngineError
        If an address in it has a user or a password.
    """
    from conformance.errors import UnknownEngineError  # noqa: PLC0415

    for name in engines:
        if re.search(r"//[^/\s]*@", name):
            raise UnknownEngineError(
                "an engine's name goes into reports: take the user and the password out of its "
                "address, and give a key in CONFORMANCE_API_KEY"
            )
