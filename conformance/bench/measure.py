"""Timing one cell: the arms in turn, on the same prompts with the same seeds.

A repeat asks every arm once. Which of the two arms that are compared goes first alternates, so that
a machine that drifts slows both alike; the draft alone is asked at a random place. Requests of an
engine that cannot tell when a token was there are joined by requests for a single token, whose
time is that of the first token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from conformance import wire
from conformance.bench.asking import Answer, Asker
from conformance.bench.plan import FEWEST_REPEATS, Cell, Settings
from conformance.bench.prompts import Prompt, Prompts
from conformance.contract import ModelPair, Request
from conformance.errors import BadAnswerError

Arm = Literal["speculative", "control", "draft"]
SLACK = 1e-3  # seconds by which clocks of two processes may differ
Kind = Literal["full", "first"]


@dataclass(frozen=True, slots=True)
class Timed:
    """One call.

    Parameters
    ----------
    arm : {'speculative', 'control', 'draft'}
        What was asked; ``"draft"`` is the draft model alone, not speculating.
    kind : {'full', 'first'}
        Whether all tokens were asked for, or one.
    repeat : int
        Which repeat of the cell.
    seconds : float
        As seen from outside.
    inside : float or None
        As the engine's process says.
    completions : tuple of dict
        The answers.
    prompts : tuple of tuple of int
        What was asked.
    """

    arm: Arm
    kind: Kind
    repeat: int
    seconds: float
    inside: float | None
    completions: tuple[wire.Json, ...]
    prompts: tuple[Prompt, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Where an arm's answers come from."""

    arm: Arm
    asker: Asker
    pair: ModelPair

    @property
    def vocab(self) -> int:
        """Ids that may be asked about."""
        return self.pair.vocab_size


@dataclass(frozen=True, slots=True)
class Run:
    """The calls of a cell that count, and how it was decided how many there would be."""

    calls: tuple[Timed, ...]
    repeats: int
    streamed: bool


def measure(
    cell: Cell,
    sources: Sequence[Source],
    prompts: Prompts,
    settings: Settings,
    progress: Callable[[int, int], None],
) -> Run:
    """Warm up, decide how many repeats fit, and time them.

    Parameters
    ----------
    cell : Cell
        What is measured.
    sources : sequence of Source
        The arms.
    prompts : Prompts
        What is asked.
    settings : Settings
        How often.
    progress : callable
        Told how many rounds are done, and of how many.

    Raises
    ------
    ConformanceError
        If a call fails: what an engine does after a failure is not measured.
    """
    rng = np.random.default_rng([settings.seed, 5, cell.batch, cell.prompt_length or 0])
    streamed, taken = True, 0.0
    total = settings.warmup + settings.repeats
    for i in range(settings.warmup):
        # numbers of their own: a prompt that was warmed up with may be known already
        number = settings.repeats + i
        calls = list(_repeat(cell, sources, prompts, settings, number, streamed, rng))
        if i == 0:
            streamed = all("times" in c for call in calls for c in call.completions)
        taken = sum(call.seconds for call in calls)
        progress(i + 1, total)
    if not streamed and settings.warmup == 1:  # not warmed up for single tokens yet
        number = settings.repeats + 1
        calls = list(_repeat(cell, sources, prompts, settings, number, streamed, rng))
        taken = sum(call.seconds for call in calls)
    repeats = settings.repeats
    if taken > 0:
        repeats = max(FEWEST_REPEATS, min(repeats, int(settings.seconds / taken)))
    total = settings.warmup + repeats
    timed: list[Timed] = []
    for i in range(repeats):
        timed += _repeat(cell, sources, prompts, settings, i, streamed, rng)
        progress(settings.warmup + i + 1, total)
    return Run(tuple(timed), repeats, streamed)


def _repeat(
    cell: Cell,
    sources: Sequence[Source],
    prompts: Prompts,
    settings: Settings,
    number: int,
    streamed: bool,
    rng: np.random.Generator,
) -> Iterator[Timed]:
    asked = prompts.batch(number, cell.batch)
    short = prompts.alike(asked, number)
    for source in _order(sources, number, rng):
        # the time of the first token before or after the whole, whichever the coin says
        kinds: list[Kind] = ["full"] if streamed else ["full", "first"]
        if not streamed and rng.random() < 0.5:
            kinds.reverse()
        for kind in kinds:
            given = asked if kind == "full" else short
            requests = _requests(cell, source, given, kind, settings, number)
            answer = _possible(source.asker.ask(source.pair, requests))
            yield Timed(
                source.arm, kind, number, answer.seconds, answer.inside, answer.completions, given
            )


def _possible(answer: Answer) -> Answer:
    """Refuse a process's word for a time that our own clock says has not passed."""
    told = [c["times"][-1] for c in answer.completions if c.get("times")]
    longest = max(told, default=0.0)
    longest = longest if answer.inside is None else max(longest, answer.inside)
    if longest > answer.seconds + SLACK:
        raise BadAnswerError(
            f"the engine's process tells of {longest:.6g} seconds, of a call that took "
            f"{answer.seconds:.6g}"
        )
    return answer


def _order(sources: Sequence[Source], number: int, rng: np.random.Generator) -> list[Source]:
    """The compared arms in alternating order, the draft anywhere between."""
    compared = [s for s in sources if s.arm != "draft"]
    if number % 2:
        compared.reverse()
    for source in sources:
        if source.arm == "draft":
            compared.insert(int(rng.integers(len(compared) + 1)), source)
    return compared


def _requests(
    cell: Cell,
    source: Source,
    prompts: Sequence[Prompt],
    kind: Kind,
    settings: Settings,
    number: int,
) -> list[Request]:
    """Requests of one call; arms differ in `speculate` alone."""
    tokens = settings.new_tokens if kind == "full" else 1
    # distinct among all requests of an arm, and the same in every arm
    begin = int(np.random.default_rng([settings.seed, 6]).integers(2**30))
    begin += (2 * number + (kind == "first")) * len(prompts)
    return [
        Request(
            # the draft alone may have fewer words; which ones it reads does not change its pace
            tuple(min(t, source.vocab - 1) for t in prompt),
            tokens,
            cell.decoding,
            None if cell.decoding.greedy else begin + i,
            source.arm == "speculative",
            times=True,
        )
        for i, prompt in enumerate(prompts)
    ]
