"""From calls to the times that are reported."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from conformance import wire
from conformance.bench.measure import Timed


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the calls of one arm took, repeat by repeat.

    Parameters
    ----------
    end_to_end : tuple of float
        Seconds of every call for all tokens.
    inside : tuple of float or None
        The same as the engine's process says; None if any is missing.
    first : tuple of tuple of float
        Seconds to the first token, of every request of every call; of the call as a whole where
        the engine does not tell.
    per_token : tuple of tuple of float
        Seconds of a token after the first block, of every request of every call; likewise.
    pauses : tuple of tuple of float
        Seconds between blocks (tokens, where the arm does not speculate), of every request.
    decode : tuple of float or None
        Of every call: seconds a token that every request of the batch moves on, after the first.
    round : tuple of float or None
        Of every call: seconds of a block; None where no blocks were told.
    """

    end_to_end: tuple[float, ...]
    inside: tuple[float, ...] | None
    first: tuple[tuple[float, ...], ...]
    per_token: tuple[tuple[float, ...], ...]
    pauses: tuple[tuple[float, ...], ...]
    decode: tuple[float | None, ...]
    round: tuple[float | None, ...]


def pace(calls: Sequence[Timed], streamed: bool) -> Pace:
    """Read the calls of one arm, which are of the same repeats in the same order."""
    full = [c for c in calls if c.kind == "full"]
    inside = [c.inside for c in full]
    told = [t for t in inside if t is not None]
    if streamed:
        whole = [_streamed(c) for c in full]
    else:
        firsts = {c.repeat: c.seconds for c in calls if c.kind == "first"}
        whole = [_unstreamed(c, firsts[c.repeat]) for c in full]
    return Pace(
        end_to_end=tuple(c.seconds for c in full),
        inside=tuple(told) if len(told) == len(full) else None,
        first=tuple(w.first for w in whole),
        per_token=tuple(w.per_token for w in whole),
        pauses=tuple(pauses for w in whole for pauses in w.pauses),
        decode=tuple(w.decode for w in whole),
        round=tuple(w.round for w in whole),
    )


@dataclass(frozen=True, slots=True)
class _Call:
    first: tuple[float, ...]
    per_token: tuple[float, ...]
    pauses: tuple[tuple[float, ...], ...]
    decode: float | None
    round: float | None


def _streamed(call: Timed) -> _Call:
    arrivals = [(c["times"], block_ends(c)) for c in call.completions]
    first = tuple(times[0] for times, _ in arrivals)
    per_token, pauses, steps, later = [], [], [], []
    for times, ends in arrivals:
        tokens = len(times) - 1 - ends[0]
        later.append(tokens)
        steps.append(len(ends) - 1)
        pauses.append(tuple(times[b] - times[a] for a, b in itertools.pairwise(ends)))
        if tokens:
            per_token.append((times[-1] - times[ends[0]]) / tokens)
    # the batch as a whole: from the first block of whoever was first to the last token of all
    span = max(t[-1] for t, _ in arrivals) - min(t[e[0]] for t, e in arrivals)
    return _Call(
        first,
        tuple(per_token),
        tuple(pauses),
        span * len(later) / sum(later) if sum(later) else None,
        span * len(steps) / sum(steps) if sum(steps) else None,
    )


def _unstreamed(call: Timed, first: float) -> _Call:
    tokens = len(call.completions[0]["tokens"]) - 1
    rest = call.seconds - first  # may be negative, where noise is larger than what is measured
    rounds = [c.get("rounds") for c in call.completions]
    steps = sum(len(r) - 1 for r in rounds if r is not None)
    known = all(r is not None for r in rounds) and steps > 0
    decode = rest / tokens if tokens else None
    return _Call(
        (first,),
        () if decode is None else (decode,),
        (),
        decode,
        rest * len(rounds) / steps if known else None,
    )


def block_ends(completion: wire.Json) -> list[int]:
    """Index of the last token of every block; every token is one where none were told."""
    count = len(completion["tokens"])
    rounds = completion.get("rounds")
    if rounds is None:
        return list(range(count))
    ends, at = [], -1
    for _, accepted in rounds:
        at = min(at + accepted + 1, count - 1)
        ends.append(at)
    return ends
