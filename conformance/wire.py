"""The host protocol's messages: what the suite and an engine's process say to each other.

One JSON object a line, plain data only (docs/host-protocol.md, ``conformance schema --protocol``).
What an engine answers is turned into integers here, in its own process, and checked again in ours.
"""

from __future__ import annotations

import itertools
import json
import math
import operator
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conformance import returned
from conformance.contract import (
    Completion,
    ModelPair,
    Request,
)
from conformance.decoding import LATER_FILTERS, PROCESSORS, Decoding
from conformance.ends import ends_of
from conformance.errors import BadAnswerError

Json = dict[str, Any]
PROTOCOL = 1
SCHEMA_PATH = Path(__file__).with_name("protocol.schema.json")
MOST_DRAFTED = 1_000_000  # in one block
MOST_COUNTED = 10**12  # in one batch
LONGEST_TIME = 1e9  # seconds


def json_schema() -> Json:
    """JSON Schema of every message, in both directions."""
    schema: Json = json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
    return schema


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


def encode_requests(requests: Sequence[Request]) -> list[Json]:
    """Requests as plain data."""
    plain = {d: _decoding(d) for d in {r.decoding for r in requests}}
    return [
        {
            "prompt": r.prompt,
            "max_new_tokens": r.max_new_tokens,
            "decoding": plain[r.decoding],
            "seed": r.seed,
            "speculate": r.speculate,
            # only where it is asked for: an engine may be older than this field
            **({"times": True} if r.times else {}),
            **({"logprobs": True} if r.logprobs else {}),
            **({"answers": r.answers} if r.answers > 1 else {}),
        }
        for r in requests
    ]


def _decoding(decoding: Decoding) -> Json:
    """A decoding as plain data; what was not asked for, and an older engine does not know, is left
    out.
    """
    data = asdict(decoding)
    said = (*decoding.processors, *decoding.filters, *(("road",) if decoding.road else ()))
    # what an older engine does not know
    later = (*PROCESSORS, *LATER_FILTERS, "road", "logprobs")
    return {k: v for k, v in data.items() if k not in later or k in said}


def decode_requests(data: Sequence[Json]) -> list[Request]:
    """The inverse of `encode_requests`."""
    return [_request(dict(row)) for row in data]


def _request(row: Json) -> Request:
    decoding = row["decoding"] | {"logprobs": row.pop("logprobs", False)}
    return Request(**(row | {"prompt": tuple(row["prompt"]), "decoding": _read(decoding)}))


def _read(data: Json) -> Decoding:
    lists = {k: tuple(v) for k, v in data.items() if isinstance(v, list)}
    if "logit_bias" in lists:
        lists["logit_bias"] = tuple((token, bias) for token, bias in lists["logit_bias"])
    return Decoding(**(data | lists))


def encode_completions(answers: object, requests: Sequence[Request]) -> list[Json]:
    """Check an engine's answers against the contract and turn them into plain data.

    Token ids outside the vocabulary pass: they are evidence, and the support test judges them.

    Raises
    ------
    BadAnswerError
        If an answer is missing or one too many, of the wrong length, not made of integers, or if
        its rounds do not account for its tokens.
    """
    if not isinstance(answers, Sequence) or isinstance(answers, str | bytes):
        raise BadAnswerError(
            f"generate returned {type(answers).__name__}, not a sequence of Completion"
        )
    wanted = [r for r in requests for _ in range(r.answers)]
    if len(answers) != len(wanted):
        several = "" if len(wanted) == len(requests) else f" for {len(wanted)} answers"
        raise BadAnswerError(f"{len(requests)} requests{several} got {len(answers)} answers")
    return [_completion(a, r, i) for i, (a, r) in enumerate(zip(answers, wanted, strict=True))]


def read_completions(answer: Json, requests: Sequence[Request]) -> tuple[Json, ...]:
    """Read completions in the parent, which takes nothing from the worker on trust.

    Raises
    ------
    BadAnswerError
        If they are not what `encode_completions` makes.
    """
    try:
        answers = [
            Completion(
                c["tokens"],
                rounds=c.get("rounds"),
                counts=c.get("counts"),
                times=c.get("times"),
                logprobs=c.get("logprobs"),
            )
            for c in answer["completions"]
        ]
    except KeyError as exc:
        raise BadAnswerError(f"the engine process's answer lacks {exc}") from exc
    except (AttributeError, TypeError) as exc:
        raise BadAnswerError(f"the engine process answered something unreadable: {exc}") from exc
    return tuple(encode_completions(answers, requests))


def _completion(answer: object, request: Request, i: int) -> Json:
    if not isinstance(answer, Completion):
        raise BadAnswerError(f"answer {i} is {type(answer).__name__}, not Completion")
    wanted = request.max_new_tokens
    tokens = _integers(answer.tokens, f"tokens of answer {i}", wanted + 1)
    length = wanted
    ends = ends_of(tokens, request.decoding)
    if ends:
        length = 1 + ends[0]  # an end that came too early is the law's to condemn
        # sequences keep one length: one that has ended goes on with its last token
        over = ends[-1] == len(tokens) - 1 or ends[-1] >= request.decoding.min_new_tokens
        tokens += tokens[-1:] * (wanted - len(tokens) if over else 0)
    if len(tokens) != wanted:
        may_end = request.decoding.stop or request.decoding.stop_strings
        fault = "nothing" if not tokens else f"{len(tokens)} tokens"
        fault = fault if len(tokens) < wanted else "too many tokens"
        raise BadAnswerError(
            f"answer {i} has {fault} where {wanted} tokens were asked for and no "
            + ("stop token ends it" if may_end else "end-of-sequence token exists")
        )
    rounds = None
    if answer.rounds is not None and not request.speculate:
        if any(drafted for drafted, _ in _pairs(answer.rounds, i, wanted)):
            raise BadAnswerError(
                f"answer {i} of the control arm reports drafted tokens: the engine speculated "
                "although Request.speculate is False"
            )
    elif answer.rounds is not None:
        rounds = _rounds(answer.rounds, i, length, wanted)
    read: Json = {"tokens": tokens, "rounds": rounds, "counts": _counts(answer, request, i)}
    if request.times and answer.times is not None:
        read["times"] = _times(answer.times, i, length)
    if request.logprobs:
        read["logprobs"] = returned.check(answer.logprobs, i, length, wanted)
    return read


def read_seconds(answer: Json) -> float | None:
    """How long the engine's process says that it generated; None where it does not say.

    Raises
    ------
    BadAnswerError
        If that is no time.
    """
    said = answer.get("seconds")
    return None if said is None else _seconds(said, "seconds of the answer")


def _times(values: object, i: int, wanted: int) -> list[float]:
    """When each token was there: one moment a token, and none before the one before it."""
    what = f"times of answer {i}"
    try:
        listed: list[object] = list(itertools.islice(values, wanted + 1))  # type: ignore[call-overload]
    except TypeError as exc:
        raise BadAnswerError(f"{what} must be numbers: {exc}") from exc
    times = [_seconds(value, what) for value in listed]
    if len(times) != wanted or times != sorted(times):
        raise BadAnswerError(f"{what}: one for each of {wanted} tokens is wanted, in order")
    return times


def _seconds(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadAnswerError(f"{what} must be numbers, not {value!r:.100}")
    if not (math.isfinite(value) and 0 <= value <= LONGEST_TIME):
        raise BadAnswerError(f"{what} must be seconds, not {value!r:.100}")
    return float(value)


def _counts(answer: Completion, request: Request, i: int) -> list[int] | None:
    """Drafted and accepted tokens, where the engine tells no more than that."""
    if answer.counts is None:
        return None
    counts = _integers(answer.counts, f"counts of answer {i}", 3)
    if len(counts) != 2 or not 0 <= counts[1] <= counts[0] <= MOST_COUNTED:
        raise BadAnswerError(
            f"answer {i} has counts {_short(counts)}; (drafted, accepted) with accepted <= drafted "
            f"<= {MOST_COUNTED:,} is wanted"
        )
    if not request.speculate:
        if counts[0]:
            raise BadAnswerError(
                f"answer {i} of the control arm counts drafted tokens: the engine speculated "
                "although Request.speculate is False"
            )
        return None
    return counts


def _pairs(answered: Sequence[Sequence[int]], i: int, wanted: int) -> list[list[int]]:
    try:
        if isinstance(answered, str | dict):
            raise TypeError(f"they are {type(answered).__name__}")
        listed = list(itertools.islice(answered, wanted + 1))
    except TypeError as exc:
        raise BadAnswerError(f"rounds of answer {i} must be pairs: {exc}") from exc
    pairs = [_integers(pair, f"rounds of answer {i}", 3) for pair in listed]
    for pair in pairs:
        if len(pair) != 2 or not 0 <= pair[1] <= pair[0] <= MOST_DRAFTED:
            raise BadAnswerError(
                f"answer {i} has a round {_short(pair)}; (drafted, accepted) with accepted <= "
                f"drafted <= {MOST_DRAFTED:,} is wanted"
            )
    return pairs


def _rounds(answered: Sequence[Sequence[int]], i: int, length: int, wanted: int) -> list[list[int]]:
    """What the engine says of its blocks, which has to account for its tokens: for `length` of them
    where it ended early, which an engine that overlooks an end does not.
    """
    rounds = _pairs(answered, i, wanted)
    emitted = sum(accepted + 1 for _, accepted in rounds)
    # every block emits its accepted tokens and one more; only the last may be cut, or stop
    # at its last accepted token
    if not length <= emitted or emitted - (rounds[-1][1] + 1 if rounds else 0) >= wanted:
        raise BadAnswerError(
            f"answer {i} reports rounds {_short(rounds)} that emit {emitted} tokens, "
            f"but has {length}"
        )
    return rounds


def _integers(values: object, what: str, at_most: int) -> list[int]:
    """Whole numbers, and no more than are needed to see that there are too many."""
    try:
        listed: list[object] = list(itertools.islice(values, at_most))  # type: ignore[call-overload]
        if any(isinstance(v, bool) for v in listed):
            raise TypeError("'bool' object is none")
        return [operator.index(v) for v in listed]  # type: ignore[arg-type]
    except TypeError as exc:
        raise BadAnswerError(f"{what} must be whole numbers: {exc}") from exc


def _short(values: object) -> str:
    text = str(values)
    return text if len(text) <= 200 else text[:200] + "..."
