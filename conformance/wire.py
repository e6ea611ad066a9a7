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
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, get_args

from conformance import returned
from conformance.contract import (
    Capabilities,
    Completion,
    Draft,
    EngineCard,
    Logprobs,
    ModelPair,
    Precision,
    Request,
    Verification,
)
from conformance.decoding import FILTERS, LATER_FILTERS, PROCESSORS, ROADS, Decoding, Dialect
from conformance.ends import ends_of
from conformance.errors import BadAnswerError, EngineLoadError

Json = dict[str, Any]
PROTOCOL = 1
SCHEMA_PATH = Path(__file__).with_name("protocol.schema.json")
LONGEST_FIELD = 500  # of a card
MOST_DRAFTED = 1_000_000  # in one block
MOST_SPARE = 256
MOST_PACKAGES = 5000
MOST_COUNTED = 10**12  # in one batch
LONGEST_TIME = 1e9  # seconds
# What `read_description` may raise; the last at what is nested without end.
UNREADABLE = (AttributeError, KeyError, TypeError, ValueError, RecursionError)
SWITCHES = (
    "control", "sampling", "greedy", *FILTERS, "reproducible", "lengths", "ragged", "mixed",
    "unseeded", "long",
)  # fmt: skip
ONE_OF = {
    "draft": Draft, "precision": Precision, "verification": Verification, "logprobs": Logprobs,
}  # fmt: skip


def json_schema() -> Json:
    """JSON Schema of every message, in both directions."""
    schema: Json = json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
    return schema


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
    return {
        "protocol": PROTOCOL,
        "card": asdict(card),
        "capabilities": asdict(capabilities),
    }


def read_environment(data: Json) -> tuple[tuple[str, str], ...]:
    """What an engine runs on, as far as it says: pairs of a name and a version.

    Raises
    ------
    One of UNREADABLE
        If it is not an object of short strings.
    """
    told = data.get("environment", {})
    if len(told) > MOST_PACKAGES:
        raise ValueError(f"an environment has {MOST_PACKAGES:,} entries at most")
    for name, version in told.items():
        if not isinstance(name, str) or not isinstance(version, str):
            raise TypeError(f"environment: {name!r:.100} must be a string")
    return tuple(
        (plain_text(name, LONGEST_FIELD), plain_text(version, LONGEST_FIELD))
        for name, version in sorted(told.items())
    )


def _strings(data: object, what: str) -> list[str]:
    if not isinstance(data, list) or not all(isinstance(x, str) for x in data):
        raise TypeError(f"{what} must be a list of strings, not {data!r:.100}")
    return data


def read_description(data: Json) -> tuple[EngineCard, Capabilities]:
    """The inverse of `describe`, in the parent, which takes nothing from the worker on trust.

    Raises
    ------
    One of UNREADABLE
        If it is not what `describe` makes of a card and capabilities of the declared types.
    """
    raw = _known(data, "capabilities", Capabilities)
    dialect = _known(raw, "dialect", Dialect) if "dialect" in raw else {}
    if "order" in dialect:
        dialect["order"] = tuple(dialect["order"])
    card = _known(data, "card", EngineCard)
    for name, value in card.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a string, not {value!r:.100}")
    card = {name: plain_text(value, LONGEST_FIELD) for name, value in card.items()}
    for name in ("processors", "greedy_roads"):
        raw[name] = tuple(_strings(raw.get(name, []), name))
    capabilities = Capabilities(**(raw | {"dialect": Dialect(**dialect)}))
    for name in SWITCHES:
        if not isinstance(getattr(capabilities, name), bool):
            raise TypeError(f"{name} must be True or False, not {raw.get(name)!r:.100}")
    _check_numbers(capabilities)
    if unknown := set(capabilities.processors) - set(PROCESSORS):
        raise ValueError(f"processors are {', '.join(PROCESSORS)}, and not {unknown!r:.100}")
    if unknown := set(capabilities.greedy_roads) - set(ROADS):
        raise ValueError(f"greedy_roads are {', '.join(ROADS)}, and not {unknown!r:.100}")
    for name, kinds in ONE_OF.items():
        if (value := getattr(capabilities, name)) not in get_args(kinds):
            raise ValueError(f"{name} must be one of {get_args(kinds)}, not {value!r:.100}")
    return EngineCard(**card), capabilities


def _check_numbers(capabilities: Capabilities) -> None:
    size, most, spare = (getattr(capabilities, n) for n in ("max_batch", "processes", "spare"))
    if type(size) is not int:
        raise TypeError(f"max_batch must be a whole number, not {size!r:.100}")
    if type(spare) is not int or not 0 <= spare <= MOST_SPARE:
        raise TypeError(f"spare must be from 0 to {MOST_SPARE}, not {spare!r:.100}")
    if most is not None and (type(most) is not int or most < 1):
        raise TypeError(f"processes must be a whole number >= 1, not {most!r:.100}")


def _known(data: Json, key: str, kind: Any) -> Json:
    """What is said under `key`; a field that `kind` has not is no claim that we understand."""
    said = data.get(key)
    if not isinstance(said, dict):
        raise TypeError(f"{key} must be an object, not {said!r:.100}")
    known = {f.name: f for f in fields(kind)}
    for name in said.keys() - known:
        raise TypeError(f"{key} has no field {name!r:.100}")
    for name, field in known.items():
        if name not in said and field.default is field.default_factory is MISSING:
            raise TypeError(f"{key} lacks {name!r}")
    return dict(said)


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
