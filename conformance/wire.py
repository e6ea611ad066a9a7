"""What parent and worker process say to each other: one JSON object a line.

Plain data only. What an engine answers is turned into integers here, in the worker, or refused;
the parent never unpickles anything.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conformance.contract import Capabilities, Completion, EngineCard, ModelPair, Request
from conformance.decoding import Decoding, Dialect
from conformance.errors import BadAnswerError

Json = dict[str, Any]


def describe(card: EngineCard, capabilities: Capabilities) -> Json:
    """Card and capabilities as plain data."""
    return {"card": asdict(card), "capabilities": asdict(capabilities)}


def read_description(data: Json) -> tuple[EngineCard, Capabilities]:
    """The inverse of `describe`."""
    raw = dict(data["capabilities"])
    dialect = raw.pop("dialect")
    dialect["order"] = tuple(dialect["order"])
    return EngineCard(**data["card"]), Capabilities(**raw, dialect=Dialect(**dialect))


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
    tokens = _integers(answer.tokens, f"tokens of answer {i}")
    wanted = request.max_new_tokens
    if len(tokens) != wanted:
        fault = "nothing" if not tokens else f"{len(tokens)} tokens"
        raise BadAnswerError(
            f"answer {i} has {fault} where {wanted} tokens were asked for and no end-of-sequence "
            "token exists"
        )
    rounds = None
    if answer.rounds is not None and request.speculate:
        rounds = [_integers(pair, f"rounds of answer {i}") for pair in answer.rounds]
        for pair in rounds:
            if len(pair) != 2 or not 0 <= pair[1] <= pair[0]:
                raise BadAnswerError(
                    f"answer {i} has a round {pair}; (drafted, accepted) with accepted <= drafted "
                    "is wanted"
                )
        emitted = sum(accepted + 1 for _, accepted in rounds)
        # every block emits its accepted tokens and one more; only the last may be cut, or stop
        # at its last accepted token
        if not wanted <= emitted or emitted - (rounds[-1][1] + 1 if rounds else 0) >= wanted:
            raise BadAnswerError(
                f"answer {i} reports rounds {rounds} that emit {emitted} tokens, but has {wanted}"
            )
    return {"tokens": tokens, "rounds": rounds}


def _integers(values: object, what: str) -> list[int]:
    try:
        return [operator.index(v) for v in values]  # type: ignore[attr-defined]
    except TypeError as exc:
        raise BadAnswerError(f"{what} must be whole numbers: {exc}") from exc
