"""How servers are asked for the likeliest tokens, and where their answers have them.

Plain functions, as in `openai_styles`; nothing here sends anything. What a server returns is
checked before it is believed: finite numbers that are log-probabilities, ids that are ids, each of
them once, and no more of them than were asked for.

Log-probabilities are always asked for at temperature 1 and without a filter. Some servers return
those of the plain softmax whatever the decoding, some divide by its temperature first, some apply
its filters as well: asked like this, all of them say the same. The other way is ``processed``: the
request has the decoding, and the server is trusted to return its law after all warps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.errors import BadAnswerError

Json = dict[str, Any]
MOST = 2000  # tokens a place: with eight places some megabytes of JSON
IMPOSSIBLE = -700.0  # nats: below the smallest probability of double precision
ABOVE_ONE = 0.02  # what low precision may add to a sum of probabilities
LARGEST_ID = 2**31
STYLES = ("vllm", "llama", "sglang")


@dataclass(frozen=True, slots=True)
class Top:
    """The likeliest tokens at one place, most likely first, and their log-probabilities."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def with_logprobs(body: Json, style: str, most: int, processed: bool) -> Json:
    """The body of a request that also asks for the likeliest tokens at each place."""
    if style == "vllm":
        return body | {"logprobs": most, "return_tokens_as_token_ids": True}
    if style == "llama":
        wanted = [*body["response_fields"], "completion_probabilities"]
        more = {"n_probs": most, "post_sampling_probs": processed, "response_fields": wanted}
        return body | more
    # from the first token of the prompt on, which tells its ids
    more = {"return_logprob": True, "top_logprobs_num": most, "logprob_start_len": 0}
    return body | more


def after_prefix(
    body: Json, style: str, text: str, ids: Sequence[int] | None, prefix: Sequence[int]
) -> Json:
    """The body of a request that goes on after a prompt and some tokens.

    Parameters
    ----------
    body : dict
        Of the same request with the prompt alone.
    style : {'vllm', 'llama', 'sglang'}
        Of the server.
    text : str
        The prompt.
    ids : sequence of int or None
        Its tokens, as the server told them; llama-server needs none.
    prefix : sequence of int
        At least one token.

    Raises
    ------
    BadAnswerError
        If the server did not tell the prompt's tokens.
    """
    if style == "llama":  # a prompt may be a text and tokens after it
        return body | {"prompt": [text, *prefix]}
    if ids is None:
        raise BadAnswerError("the server does not tell the tokens of a prompt")
    if style == "vllm":
        return body | {"prompt": [*ids, *prefix]}
    changed = {k: v for k, v in body.items() if k != "text"}
    return changed | {"input_ids": [*ids, *prefix]}


def prompt_ids(answer: Json, style: str) -> tuple[int, ...] | None:
    """Tokens of the prompt as the server saw it, where it tells.

    Raises
    ------
    BadAnswerError
        If what it tells is no list of tokens.
    """
    if style == "vllm":
        told = _choice(answer).get("prompt_token_ids")
    elif style == "sglang":
        told = _meta(answer).get("input_token_logprobs")
        if isinstance(told, list):
            told = [t[1] if isinstance(t, list) and len(t) > 1 else None for t in told]
    else:
        return None
    if told is None:
        return None
    if not isinstance(told, list) or not all(_is_id(i) for i in told):
        raise BadAnswerError("the tokens of a prompt are no list of token ids")
    return tuple(told)


def read_tops(answer: Json, style: str, most: int) -> list[Top]:
    """The likeliest tokens at each place of an answer.

    Raises
    ------
    BadAnswerError
        If they are missing, or nothing that log-probabilities can be.
    """
    places = _PLACES[style](answer)
    if not isinstance(places, list) or not places:
        raise BadAnswerError("an answer has no log-probabilities where such a server puts them")
    return [_top(_PAIRS[style](place), most) for place in places]


def _vllm_places(answer: Json) -> object:
    told = _choice(answer).get("logprobs")
    return told.get("top_logprobs") if isinstance(told, dict) else None


def _vllm_pairs(place: object) -> list[tuple[object, object]]:
    if not isinstance(place, dict):
        return []
    return [(_named(name), value) for name, value in place.items()]


def _named(name: object) -> object:
    word, _, number = str(name).partition(":")
    return int(number) if word == "token_id" and number.isascii() and number.isdigit() else None


def _llama_pairs(place: object) -> list[tuple[object, object]]:
    if not isinstance(place, dict):
        return []
    told = place.get("top_logprobs", place.get("top_probs"))
    pairs = [t for t in told if isinstance(t, dict)] if isinstance(told, list) else []
    return [(t.get("id"), t["logprob"] if "logprob" in t else _log(t.get("prob"))) for t in pairs]


def _log(prob: object) -> object:
    if not isinstance(prob, float | int) or isinstance(prob, bool) or not 0 <= prob < 2:
        return None
    return math.log(prob) if prob > 0 else IMPOSSIBLE


def _sglang_pairs(place: object) -> list[tuple[object, object]]:
    pairs = [t for t in place if isinstance(t, list)] if isinstance(place, list) else []
    return [(t[1], t[0]) for t in pairs if len(t) > 1]


_PLACES: dict[str, Callable[[Json], object]] = {
    "vllm": _vllm_places,
    "llama": lambda a: a.get("completion_probabilities"),
    "sglang": lambda a: _meta(a).get("output_top_logprobs"),
}
_PAIRS = {"vllm": _vllm_pairs, "llama": _llama_pairs, "sglang": _sglang_pairs}


def _top(pairs: Sequence[tuple[object, object]], most: int) -> Top:
    """Check one place. vLLM adds the token that was drawn, if it is not among the likeliest."""
    if not 1 <= len(pairs) <= most + 1:
        raise BadAnswerError(f"{len(pairs)} likeliest tokens where {most} were asked for")
    good: list[tuple[float, int]] = []
    for i, value in pairs:
        if not _is_id(i):
            raise BadAnswerError("a likeliest token has no token id")
        if isinstance(value, bool) or not isinstance(value, float | int):
            raise BadAnswerError("a log-probability is no number")
        if not value <= ABOVE_ONE:  # nor if it is none
            raise BadAnswerError("a log-probability is above 0, or not a number")
        assert isinstance(i, int)
        good.append((float(max(value, IMPOSSIBLE)), i))
    good = [t for t in good if t[0] > IMPOSSIBLE] or good[:1]  # what a filter has removed
    if len({i for _, i in good}) < len(good):
        raise BadAnswerError("a token is twice among the likeliest")
    good = sorted(good, key=lambda t: (-t[0], t[1]))[:most]
    total = math.fsum(math.exp(value) for value, _ in good)
    if not 1e-6 < total < 1 + ABOVE_ONE:
        raise BadAnswerError(f"the probabilities of the likeliest tokens add up to {total:.4g}")
    return Top(tuple(i for _, i in good), tuple(value for value, _ in good))


def _is_id(i: object) -> bool:
    return type(i) is int and 0 <= i < LARGEST_ID


def _choice(answer: Json) -> Json:
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
    if not isinstance(first, dict):
        raise BadAnswerError("an answer has no single choice")
    return first


def _meta(answer: Json) -> Json:
    told = answer.get("meta_info")
    return told if isinstance(told, dict) else {}
