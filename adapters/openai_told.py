"""Log-probabilities of the tokens that servers emit: how they are asked for, and where they are.

`openai_logprobs` reads the likeliest tokens of a place, for laws that only a server knows; here it
is what is said of the very tokens of an answer, which is judged.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from conformance.adapters.library import LOGPROBS
from conformance.adapters.openai_styles import Style, name_of
from conformance.contract import Completion, Logprobs, Request
from conformance.errors import NotSupportedError

Json = dict[str, Any]
KNOWN = ("vllm", "llama")  # of others it is not known what they are of


def kind(style: Style, said: str) -> Logprobs:
    """What a server of a style returns: by default, and as the user says that it was started."""
    return LOGPROBS[said] if name_of(style) in KNOWN else "none"


def asked(body: Json, request: Request, style: Style, said: str) -> Json:
    """The body of a request that asks for the log-probabilities of its own tokens.

    Raises
    ------
    NotSupportedError
        If it is not known what such a server would return.
    """
    if not request.logprobs:
        return body
    name = name_of(style)
    if name not in KNOWN:
        raise NotSupportedError("it is not known what log-probabilities such a server returns")
    if name == "vllm":
        return body | {"logprobs": 0}
    wanted = [*body["response_fields"], "completion_probabilities"]
    more = {"n_probs": 1, "post_sampling_probs": said == "processed", "response_fields": wanted}
    return body | more


def told(completion: Completion, answer: Json, request: Request, style: Style) -> Completion:
    """A completion with what the answer says of its tokens; NaN where it says nothing."""
    if not request.logprobs:
        return completion
    found = _vllm(answer) if name_of(style) == "vllm" else _llama(answer)
    count = len(completion.tokens)
    if len(found) > count:  # of other tokens than these
        found = []
    return replace(completion, logprobs=found + [math.nan] * (count - len(found)))


def _vllm(answer: Json) -> list[float]:
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    places = first.get("logprobs") if isinstance(first, dict) else None
    values = places.get("token_logprobs") if isinstance(places, dict) else None
    return [_number(value) for value in values] if isinstance(values, list) else []


def _llama(answer: Json) -> list[float]:
    places = answer.get("completion_probabilities")
    if not isinstance(places, list):
        return []
    found = []
    for place in places:
        at = place if isinstance(place, dict) else {}
        p = _number(at.get("prob"))
        after = math.log(p) if p > 0 else -math.inf if p == 0 else math.nan
        found.append(_number(at["logprob"]) if "logprob" in at else after)
    return found


def _number(value: object) -> float:
    """A number of an answer; NaN for whatever else it holds."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain else math.nan  # type: ignore[arg-type]
