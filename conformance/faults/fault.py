"""What a fault is: a name, what it stands for, and one step done wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from conformance.errors import UnknownEngineError
from conformance.faults.steps import Steps, by_rule
from conformance.reference import Rule

NO_THREAD = "no thread is known"  # a fault's note, where nobody reported it
Tier = Literal["rule", "probability", "engine"]
Needs = Literal[
    "anything", "sampling", "temperature", "filter", "warp", "processor", "history", "repetition",
    "minimum", "stop", "stops", "greedy", "road", "tie", "far",
    "grammar", "grammar and stop", "grammar and filter", "min_p", "later filter",
    "temperature and filter", "logprobs", "stop string", "form",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Span:
    """The values a fault's parameter may have.

    Parameters
    ----------
    low, high : float
        The range; `high` belongs to it.
    whole : bool
        Whole numbers only; `low` then belongs to the range as well, else it does not.
    meaning : str
        What the number is.
    """

    low: float
    high: float
    meaning: str
    whole: bool = False

    def __str__(self) -> str:
        if self.whole:
            return f"a whole number from {self.low:g} to {self.high:g}"
        return f"a number in ({self.low:g}, {self.high:g}]"

    def holds(self, value: float) -> bool:
        """Whether the value is one of them."""
        if self.whole:
            return value % 1 == 0 and self.low <= value <= self.high
        return self.low < value <= self.high


@dataclass(frozen=True, slots=True)
class Fault:
    """A catalogued departure from the exact algorithm.

    Parameters
    ----------
    name : str
        As in ``faulty:NAME``.
    summary : str
        What it does wrong, in one sentence.
    seen : str
        A public thread in which it was reported; empty where none is known.
    shows : str
        Where in the output it shows.
    tier : {'rule', 'probability', 'engine'}
        Whether it is an acceptance rule, which a bare verifier can have; the probabilities that a
        right rule is given; or the engine around them.
    make : callable
        Builds the `Rule`, or the `Steps`, from the fault's parameter.
    needs : str
        The decodings under which it changes anything: ``"anything"``, greedy ones too;
        ``"sampling"``, all but greedy; a ``"temperature"`` other than 1; a ``"filter"`` (top-k,
        top-p, min-p); a ``"warp"``, either of the last two; a ``"processor"`` of logits; one that
        looks at the ``"history"``, a penalty; the ``"repetition"`` penalty; a ``"minimum"`` of new
        tokens; a ``"stop"`` token; several of those, ``"stops"``; ``"greedy"`` ones alone; greedy
        ones asked for by a ``"road"``; greedy ones of a model whose largest logits ``"tie"``;
        those that go ``"far"``, beyond 256 tokens; a ``"grammar"``, by itself or with a stop token
        or a filter; ``"min_p"``; a ``"later filter"`` than that; a temperature with a filter; and
        ``"logprobs"``, of which the tokens tell nothing; a ``"stop string"``.
    parameter : float or None
        Its size; by default the one it has in the wild. None where there is none.
    span : Span or None
        What the parameter may be.
    visible : float or None
        A size at which it shows in a few thousand tokens, where its own takes millions.
    note : str
        What to know before expecting it to be caught.
    """

    name: str
    summary: str
    seen: str
    shows: str
    tier: Tier
    make: Callable[[float], Rule | Steps]
    needs: Needs = "sampling"
    parameter: float | None = None
    span: Span | None = None
    visible: float | None = None
    note: str = ""

    def steps(self, value: float | None = None) -> Steps:
        """The engine's steps with this fault."""
        made = self._make(value)
        return by_rule(made) if isinstance(made, Rule) else made

    def rule(self, value: float | None = None) -> Rule | None:
        """The acceptance rule; None where the fault is not in the rule."""
        made = self._make(value)
        return made if isinstance(made, Rule) else None

    def sized(self, value: float) -> Fault:
        """The same fault with another parameter.

        Raises
        ------
        UnknownEngineError
            If it takes none, or the value is out of range.
        """
        if self.span is None:
            raise UnknownEngineError(f"fault {self.name} takes no parameter, got {value:g}")
        if not self.span.holds(value):
            raise UnknownEngineError(f"fault {self.name} takes {self.span}, not {value:g}")
        return replace(self, parameter=value)

    def _make(self, value: float | None) -> Rule | Steps:
        fault = self if value is None else self.sized(value)
        return self.make(0.0 if fault.parameter is None else fault.parameter)
