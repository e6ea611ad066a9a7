"""What an engine says of itself, as a message: its card, its claims, and what it runs on.

It is written in the engine's own process, and nothing of it is taken on trust in ours.
"""

from __future__ import annotations

from dataclasses import MISSING, asdict, fields
from typing import Any, get_args

from conformance.contract import (
    Capabilities,
    Draft,
    EngineCard,
    Logprobs,
    Precision,
    Verification,
)
from conformance.decoding import FILTERS, PROCESSORS, ROADS, Dialect
from conformance.errors import EngineLoadError
from conformance.wire import PROTOCOL, Json, plain_text

LONGEST_FIELD = 500  # of a card
MOST_SPARE = 256
MOST_PACKAGES = 5000
# What `read_description` may raise; the last at what is nested without end.
UNREADABLE = (AttributeError, KeyError, TypeError, ValueError, RecursionError)
SWITCHES = (
    "control", "sampling", "greedy", *FILTERS, "reproducible", "lengths", "ragged", "mixed",
    "unseeded", "several", "sliding", "long",
)  # fmt: skip
ONE_OF = {
    "draft": Draft, "precision": Precision, "verification": Verification, "logprobs": Logprobs,
}  # fmt: skip
SOME_OF = {"processors": PROCESSORS, "greedy_roads": ROADS}


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
    for name in SOME_OF:
        raw[name] = tuple(_strings(raw.get(name, []), name))
    capabilities = Capabilities(**(raw | {"dialect": Dialect(**dialect)}))
    for name in SWITCHES:
        if not isinstance(getattr(capabilities, name), bool):
            raise TypeError(f"{name} must be True or False, not {raw.get(name)!r:.100}")
    _check_numbers(capabilities)
    for name, known in SOME_OF.items():
        if unknown := set(getattr(capabilities, name)) - set(known):
            raise ValueError(f"{name} are {', '.join(known)}, and not {unknown!r:.100}")
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
