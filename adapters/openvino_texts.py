"""What else OpenVINO GenAI is asked for: stop strings, and grammars. Both are of texts, which are
those of `openvino_probe`: every word with a blank behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from conformance.decoding import Decoding
from conformance.grammar import spelled


def say(library: Any, config: Any, decoding: Decoding, vocab_size: int) -> None:
    """Say it in a generation configuration."""
    if decoding.stop_strings:
        config.stop_strings = set(decoding.stop_strings)
        config.include_stop_str_in_output = True
    if decoding.grammar:
        regex = spelled(decoding.grammar, lambda token: f"w{token} ", vocab_size)
        config.structured_output_config = library.StructuredOutputConfig(regex=regex)


def held_back(strings: Sequence[str]) -> int:
    """How many tokens are not handed out before the next ones are there: with stop strings, as many
    as the longest of them has.

    Examples
    --------
    >>> held_back(["w7", "w23 w5"])
    2
    """
    return max((len(string.split()) for string in strings), default=0)


def blocks(tokens: Sequence[int], came: Sequence[int], held: int) -> list[list[int]] | None:
    """The tokens that every step made, from how many it handed out.

    Parameters
    ----------
    tokens : sequence of int
        Of the whole answer.
    came : sequence of int
        How many were handed out at every step; at the last one all that are left.
    held : int
        As `held_back` says.

    Returns
    -------
    list of list of int or None
        None where that cannot be told: while nothing has been handed out, there may be anything
        from one token for every step to `held`.

    Examples
    --------
    >>> blocks("abcdefg", [1, 4, 2], held=0)
    [['a'], ['b', 'c', 'd', 'e'], ['f', 'g']]
    >>> blocks("abcdefgh", [0, 0, 3, 1, 4], held=2)  # there are 1, 2, 5, 6 and 8
    [['a'], ['b'], ['c', 'd', 'e'], ['f'], ['g', 'h']]
    >>> blocks("abcd", [0, 0, 0, 4], held=3)  # there are 2 or 3 after the second step
    """
    if not held:
        came = [new for new in came if new]
    made, out = [0], 0
    for step, new in enumerate(came):
        out += new
        if not held or step == len(came) - 1:
            made.append(out)
        elif out or step in (0, held - 1):
            made.append(out + held if out else step + 1)
        else:
            return None
    if any(after <= before for before, after in pairwise(made)):
        return None
    return [list(tokens[before:after]) for before, after in pairwise(made)]
