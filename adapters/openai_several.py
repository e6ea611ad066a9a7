"""Several answers to one request of a server: OpenAI's ``n``, and the choices that come back."""

from __future__ import annotations

from typing import Any

from conformance.adapters.openai_styles import Style, name_of
from conformance.contract import Request
from conformance.errors import BadAnswerError

Json = dict[str, Any]
# Others may have it; that a request with ``n`` is served as one of theirs is known of these.
KNOWN = ("vllm",)


def has(style: Style) -> bool:
    """Whether a server of a style is asked for several answers."""
    return name_of(style) in KNOWN


def asked(body: Json, request: Request) -> Json:
    """The body of a request, with how many answers it wants."""
    return body if request.answers == 1 else body | {"n": request.answers}


def apart(answer: Json, request: Request) -> list[Json]:
    """One answer for each choice, in their order; what is counted for all is told with the first.

    Raises
    ------
    BadAnswerError
        If there are not as many choices as were asked for, each once.
    """
    if request.answers == 1:
        return [answer]
    choices = answer.get("choices")
    listed = choices if isinstance(choices, list) else []
    by_place = {c.get("index"): c for c in listed if isinstance(c, dict)}
    if len(listed) != request.answers or set(by_place) != set(range(request.answers)):
        raise BadAnswerError(
            f"an answer has {len(listed)} choices where {request.answers} were asked for, or they "
            "are not numbered"
        )
    plain = {name: value for name, value in answer.items() if name != "metrics"}
    return [(plain if i else answer) | {"choices": [by_place[i]]} for i in range(request.answers)]
