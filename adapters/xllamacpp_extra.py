"""What else llama.cpp's server is asked for: grammars, and log-probabilities of its tokens."""

from __future__ import annotations

import math
from typing import Any

from conformance.adapters.gguf_probe import ENDS
from conformance.contract import Request
from conformance.decoding import Decoding, Dialect
from conformance.errors import NotSupportedError
from conformance.grammar import spelled

# What samplers are called in a request, where not as here. The order of the others is part of it.
NAMES = {"typical_p": "typ_p"}
# It draws a token first and looks at the grammar afterwards.
GRAMMAR = Dialect(grammar="resample").grammar


def refuse(request: Request, kind: str) -> None:
    """Refuse what the server cannot be asked for.

    Raises
    ------
    NotSupportedError
        If the prompt is empty, there are more stop tokens than a model can declare, or greedy
        tokens' log-probabilities are wanted after sampling: each then has a probability of 1.
    """
    if not request.prompt:
        raise NotSupportedError("llama.cpp needs a prompt of at least one token")
    if len(request.decoding.stop) > len(ENDS):
        raise NotSupportedError(
            f"a model of llama.cpp declares at most {len(ENDS)} stop tokens here"
        )
    if request.logprobs and kind == "processed" and request.decoding.taken.greedy:
        raise NotSupportedError("after greedy sampling llama.cpp gives every token probability 1")


def samplers(order: tuple[str, ...]) -> list[str]:
    """The samplers of a request, in their order."""
    return ["penalties", *(NAMES.get(name, name) for name in order)]


def settings(decoding: Decoding) -> dict[str, float]:
    """Temperature and filters of a request; what is not said falls back to other defaults."""
    if decoding.greedy:
        return {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}
    return {
        "temperature": float(decoding.temperature),
        "top_k": 0 if decoding.top_k is None else int(decoding.top_k),
        "top_p": 1.0 if decoding.top_p is None else float(decoding.top_p),
        "min_p": 0.0 if decoding.min_p is None else float(decoding.min_p),
        "typical_p": 1.0 if decoding.typical_p is None else float(decoding.typical_p),
    }


def asked(decoding: Decoding, kind: str, vocab_size: int) -> dict[str, Any]:
    """The part of a request's body on grammar and log-probabilities."""
    body: dict[str, Any] = {}
    if decoding.grammar:
        body["grammar"] = "root ::= " + spelled(
            decoding.grammar, lambda token: f'"w{token}"', vocab_size, joined=" "
        )
    if decoding.logprobs:
        body |= {"logprobs": 1, "post_sampling_probs": kind == "processed"}
    return body


def told(choice: dict[str, Any], count: int) -> list[float]:
    """Log-probabilities of the `count` tokens of a chunk; NaN where it has none.

    Those after sampling come as probabilities.
    """
    places = (choice.get("logprobs") or {}).get("content") or []
    found = [_one(place) for place in places][:count]
    return found + [math.nan] * (count - len(found))


def _one(place: dict[str, Any]) -> float:
    if "logprob" in place:
        return float(place["logprob"])
    p = float(place.get("prob", math.nan))
    return math.log(p) if p > 0 else -math.inf if p == 0 else math.nan
