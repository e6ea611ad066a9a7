"""Where an output ends: at a stop token, or at the token whose text completes a stop string.

The text of token i of a probe is ``w`` and its number, and tokens are joined by spaces, as the
probes' tokenizers decode them. An output ends as soon as its text contains a stop string, be it
inside a token: ``w1`` is completed by token 12 as well. The prompt is no part of the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conformance.decoding import Decoding

MOST_STRINGS, LONGEST = 16, 64
_WORD = r"w(0|[1-9]\d{0,8})"
_WORDS = re.compile(rf"{_WORD}( {_WORD})*", re.ASCII)


def check_strings(strings: object) -> str:
    """What is wrong with stop strings; empty if nothing.

    Examples
    --------
    >>> check_strings(("w7", "w23 w5"))
    ''
    >>> check_strings(("stop",))
    "stop strings are words of a probe with a space between, as in 'w23 w5', not ('stop',)"
    """
    listed = isinstance(strings, tuple) and len(set(strings)) == len(strings) <= MOST_STRINGS
    if listed and all(
        isinstance(s, str) and len(s) <= LONGEST and _WORDS.fullmatch(s)
        for s in strings  # type: ignore[attr-defined]  # a tuple, as was asked above
    ):
        return ""
    return (
        "stop strings are words of a probe with a space between, as in 'w23 w5', not "
        f"{strings!r:.100}"
    )


@lru_cache(maxsize=64)
def patterns(strings: tuple[str, ...]) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Of every stop string the tokens before its last word, and that word.

    Examples
    --------
    >>> patterns(("w7", "w23 w5"))
    (((), 'w7'), ((23,), 'w5'))
    """
    split = [s.split(" ") for s in strings]
    return tuple((tuple(int(w[1:]) for w in words[:-1]), words[-1]) for words in split)


def completes(tokens: Sequence[int], at: int, strings: tuple[str, ...]) -> bool:
    """Whether the token at an output index completes a stop string."""
    return any(
        at >= len(before)
        and tuple(tokens[at - len(before) : at]) == before
        and f"w{tokens[at]}".startswith(last)
        for before, last in patterns(strings)
    )


def ends_of(tokens: Sequence[int], decoding: Decoding) -> list[int]:
    """Output indices of the tokens at which an output may end."""
    return [
        t
        for t, token in enumerate(tokens)
        if token in decoding.stop or completes(tokens, t, decoding.stop_strings)
    ]


def end_of(tokens: Sequence[int], decoding: Decoding) -> int | None:
    """The output index at which an output ends; None where nothing ends it."""
    found = ends_of(tokens, decoding)
    return next((t for t in found if t >= decoding.min_new_tokens), None)
