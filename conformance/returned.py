"""Log-probabilities as an engine returned them, in plain data: one number a token.

JSON has no NaN and no infinities. An engine that returns one is to be told so, and not to be taken
for one that broke the contract; so these travel by their names.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from numbers import Real

from conformance.errors import BadAnswerError

LARGEST = 1e300  # beyond it is infinite
NAMES = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
Said = float | str


def check(values: object, i: int, length: int, wanted: int) -> list[Said] | None:
    """What answer `i` says of its tokens; None where it says nothing.

    Parameters
    ----------
    values : object
        As the engine, or its process, gave them.
    i : int
        Number of the answer, for messages.
    length : int
        Tokens it has, up to its end; more numbers than that are not looked at.
    wanted : int
        Numbers to return: after an end they are 0, and no token's.

    Raises
    ------
    BadAnswerError
        If they are no numbers, or too few.
    """
    if values is None:
        return None
    what = f"logprobs of answer {i}"
    try:
        if isinstance(values, str | dict):
            raise TypeError(f"they are {type(values).__name__}")
        listed: list[object] = list(itertools.islice(values, length))  # type: ignore[call-overload]
    except TypeError as exc:
        raise BadAnswerError(f"{what} must be numbers: {exc}") from exc
    if len(listed) < length:
        raise BadAnswerError(f"{what}: {len(listed)} numbers came with {length} tokens")
    return [_one(value, what) for value in listed] + [0.0] * (wanted - length)


def _one(value: object, what: str) -> Said:
    number = NAMES.get(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, Real):
        raise BadAnswerError(f"{what} must be numbers, not {value!r:.100}")
    plain = float(number)
    if math.isnan(plain):
        return "nan"
    if abs(plain) > LARGEST:
        return "inf" if plain > 0 else "-inf"
    return plain


def numbers(said: Sequence[Said]) -> list[float]:
    """As numbers."""
    return [NAMES[value] if isinstance(value, str) else value for value in said]
