"""What parent and worker process say to each other: one JSON object a line.

Plain data only. What an engine answers is turned into integers here, in the worker, or refused;
the parent never unpickles anything.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from conformance.contract import (
    Capabilities,
    Completion,
    Draft,
    EngineCard,
    ModelPair,
    Request,
    Verification,
)
from conformance.decoding import Decoding, Dialect
from conformance.errors import BadAnswerError, EngineLoadError

Json = dict[str, Any]
LONGEST_FIELD = 500  # of a card
MOST_DRAFTED = 1_000_000  # in one block
SWITCHES = ("control", "sampling", "greedy", "top_k", "top_p", "min_p")


def describe(card: EngineCard, capabilities: Capabilities) -> Json:
    """Card and capabilities as plain data.

    Raises
    ------
    EngineLoadError
        If they are not of the contract's types.
    """
    for name, value, kind in (
        ("card", card, EngineCard),
        ("capabilities", capabilities, Capabilities),
    ):
        if not isinstance(value, kind):
            raise EngineLoadError(
                f"the engine's {name} is {type(value).__name__}, not {kind.__name__}"
            )
    return {"card": asdict(card), "capabilities": asdict(capabilities)}


def read_description(data: Json) -> tuple[EngineCard, Capabilities]:
    """The inverse of `describe`, in the parent, which takes nothing from the worker on trust.

    Raises
    ------
    KeyError, TypeError, ValueError
        If it is not what `describe` makes of a card and capabilities of the declared types.
    """
    raw = dict(data["capabilities"])
    dialect = raw.pop("dialect")
    dialect["order"] = tuple(dialect["order"])
    for name, value in data["card"].items():
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a string, not {value!r:.100}")
    card = {name: plain_text(value, LONGEST_FIELD) for name, value in data["card"].items()}
    capabilities = Capabilities(**raw, dialect=Dialect(**dialect))
    for name in SWITCHES:
        if not isinstance(getattr(capabilities, name), bool):
            raise TypeError(f"{name} must be True or False, not {raw.get(name)!r:.100}")
    if type(capabilities.max_batch) is not int:
        raise TypeError(f"max_batch must be a whole number, not {capabilities.max_batch!r:.100}")
    if capabilities.draft not in get_args(Draft):
        raise ValueError(f"draft must be one of {get_args(Draft)}, not {capabilities.draft!r:.100}")
    if capabilities.verification not in get_args(Verification):
        raise ValueError(
            f"verification must be one of {get_args(Verification)}, not "
            f"{capabilities.verification!r:.100}"
        )
    return EngineCard(**card), capabilities


def plain_text(value: object, longest: int) -> str:
    """What an engine said, as text that can be encoded, printed and stored, and not without end."""
    text = "" if value is None else str(value)
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]} [{len(text) - 2 * half:,} characters left out] {text[-half:]}"
    return text.encode("utf-8", "replace").decode()


def encode_pair(pair: ModelPair) -> Json:
    """A model pair as plain data."""
    draft = None if pair.draft is None else str(pair.draft)
    return asdict(pair) | {"target": str(pair.target), "draft": draft}


def decode_pair(data: Json) -> ModelPair:
    """The inverse of `encode_pair`."""
    draft = None if data["draft"] is None else Path(data["draft"])
    return ModelPair(**(data | {"target": Path(data["target"]), "draft": draft}))


def encode_requests(requests: Sequence[Request]) -> list[list[Any]]:
    """Requests as plain data."""
    return [
        [list(r.prompt), r.max_new_tokens, str(r.decoding), r.seed, r.speculate] for r in requests
    ]


def decode_requests(data: list[list[Any]]) -> list[Request]:
    """The inverse of `encode_requests`."""
    parsed = {text: Decoding.parse(text) for text in {row[2] for row in data}}
    return [Request(tuple(p), m, parsed[d], seed, spec) for p, m, d, seed, spec in data]


def encode_completions(answers: object, requests: Sequence[Request]) -> list[Json]:
    """Check an engine's answers against the contract and turn them into plain data.

    Token ids outside the vocabulary pass: they are evidence, and the support test judges them.

    Raises
    ------
    BadAnswerError
        If an answer is missing, of the wrong length, not made of integers, or if its rounds do
        not account for its tokens.
    """
    if not isinstance(answers, Sequence) or isinstance(answers, str | bytes):
        raise BadAnswerError(
            f"generate returned {type(answers).__name__}, not a sequence of Completion"
        )
    if len(answers) != len(requests):
        raise BadAnswerError(f"{len(requests)} requests got {len(answers)} answers")
    return [_completion(a, r, i) for i, (a, r) in enumerate(zip(answers, requests, strict=True))]


def read_completions(answer: Json, requests: Sequence[Request]) -> tuple[Json, ...]:
    """Read completions in the parent, which takes nothing from the worker on trust.

    Raises
    ------
    BadAnswerError
        If they are not what `encode_completions` makes.
    """
    try:
        answers = [Completion(c["tokens"], rounds=c["rounds"]) for c in answer["completions"]]
    except (KeyError, TypeError) as exc:
        raise BadAnswerError(f"the engine process answered something unreadable: {exc}") from exc
    return tuple(encode_completions(answers, requests))


def _completion(answer: object, request: Request, i: int) -> Json:
    if not isinstance(answer, Completion):
        raise BadAnswerError(f"answer {i} is {type(answer).__name__}, not Completion")
    wanted = request.max_new_tokens
    tokens = _integers(answer.tokens, f"tokens of answer {i}", wanted + 1)
    if len(tokens) != wanted:
        fault = "nothing" if not tokens else f"{len(tokens)} tokens"
        fault = fault if len(tokens) < wanted else "too many tokens"
        raise BadAnswerError(
            f"answer {i} has {fault} where {wanted} tokens were asked for and no end-of-sequence "
            "token exists"
        )
    rounds = None
    if answer.rounds is not None and not request.speculate:
        if any(any(pair[:1]) for pair in _pairs(answer.rounds, i, wanted)):
            raise BadAnswerError(
                f"answer {i} of the control arm reports drafted tokens: the engine speculated "
                "although Request.speculate is False"
            )
    elif answer.rounds is not None:
        rounds = _rounds(answer.rounds, i, wanted)
    return {"tokens": tokens, "rounds": rounds}


def _pairs(answered: Sequence[Sequence[int]], i: int, wanted: int) -> list[list[int]]:
    try:
        pairs = list(itertools.islice(answered, wanted + 1))
    except TypeError as exc:
        raise BadAnswerError(f"rounds of answer {i} must be pairs: {exc}") from exc
    return [_integers(pair, f"rounds of answer {i}", 3) for pair in pairs]


def _rounds(answered: Sequence[Sequence[int]], i: int, wanted: int) -> list[list[int]]:
    """What the engine says of its blocks, which has to account for its tokens."""
    rounds = _pairs(answered, i, wanted)
    for pair in rounds:
        if len(pair) != 2 or not 0 <= pair[1] <= pair[0] <= MOST_DRAFTED:
            raise BadAnswerError(
                f"answer {i} has a round {_short(pair)}; (drafted, accepted) with accepted <= "
                f"drafted <= {MOST_DRAFTED:,} is wanted"
            )
    emitted = sum(accepted + 1 for _, accepted in rounds)
    # every block emits its accepted tokens and one more; only the last may be cut, or stop
    # at its last accepted token
    if not wanted <= emitted or emitted - (rounds[-1][1] + 1 if rounds else 0) >= wanted:
        raise BadAnswerError(
            f"answer {i} reports rounds {_short(rounds)} that emit {emitted} tokens, "
            f"but has {wanted}"
        )
    return rounds


def _integers(values: object, what: str, at_most: int) -> list[int]:
    """Whole numbers, and no more than are needed to see that there are too many."""
    try:
        return [operator.index(v) for v in itertools.islice(values, at_most)]  # type: ignore[call-overload]
    except TypeError as exc:
        raise BadAnswerError(f"{what} must be whole numbers: {exc}") from exc


def _short(values: object) -> str:
    text = str(values)
    return text if len(text) <= 200 else text[:200] + "..."
