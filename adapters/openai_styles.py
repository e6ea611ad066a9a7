"""How servers are asked for token ids, and where their answers have them.

Plain functions between `Request`, `Completion` and the JSON of four protocols; nothing is sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from conformance.adapters import openai_processors as processors
from conformance.adapters.openai_http import Limits
from conformance.contract import Completion, Request
from conformance.decoding import WARPS, Warp
from conformance.errors import BadAnswerError, EngineLoadError, UnknownEngineError

Json = dict[str, Any]
COUNTER = re.compile(
    rb"^vllm:spec_decode_num_(draft|accepted)_tokens(?:_total)?(?:\{[^\n]*\})?[ \t]+([0-9.eE+]+)",
    re.MULTILINE,
)
# Where an answer counts drafts: an object, and in it (drafted, accepted); newest names first.
COUNTS = {
    "vllm": (("num_draft_tokens", "num_accepted_draft_tokens"),),
    "sglang": (
        ("spec_num_proposed_drafts", "spec_num_correct_drafts"),
        ("spec_draft_token_num", "spec_accept_token_num"),
    ),
}


@dataclass(frozen=True, slots=True)
class Terms:
    """What all requests to one server have in common.

    Parameters
    ----------
    model : str
        The name it is served under.
    order : tuple of str
        The order of the warps, for a server that can be told.
    words : tuple of str
        The probe's vocabulary, by token id.
    """

    model: str
    order: tuple[Warp, ...]
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Style:
    """One way to ask a server and to read its answer.

    Parameters
    ----------
    path : str
        Where to post, after the address; a leading ``..`` drops the address's ``/v1``.
    order : tuple of str
        The order in which servers of this kind apply the warps.
    ask : callable
        Makes a request's body.
    read : callable
        Takes the token ids out of an answer, not yet checked.
    only : tuple of str
        The filters that can be asked for; empty for all.
    ties : {'keep', 'lowest-id'}
        What top-k does with equal logits, as in `Dialect`.
    processors : tuple of str
        What else can be asked for, as in `Capabilities`.
    presence_over : {'all', 'output'}
        Which tokens presence and frequency penalties count, as in `Dialect`.
    """

    path: str
    order: tuple[Warp, ...]
    ask: Callable[[Request, Terms], Json]
    read: Callable[[Json, Terms], object]
    only: tuple[str, ...] = ()
    ties: Literal["keep", "lowest-id"] = "keep"
    processors: tuple[str, ...] = ()
    presence_over: Literal["all", "output"] = "output"


def _completion(r: Request, terms: Terms) -> Json:
    """What the protocol itself has."""
    d = r.decoding.taken
    body: Json = {
        "model": terms.model,
        "prompt": list(r.prompt),
        "max_tokens": r.max_new_tokens,
        "temperature": 0.0 if d.greedy else d.temperature,
        "top_p": 1.0 if d.top_p is None else d.top_p,
        "n": 1,
        "stream": False,
    }
    body |= processors.openai(d)
    return body if r.seed is None else body | {"seed": r.seed}


def _ask_vllm(r: Request, terms: Terms) -> Json:
    # what a request leaves unsaid is filled in from the model's folder by some servers
    return _completion(r, terms) | {
        "top_k": int(r.decoding.taken.top_k or -1),
        "min_p": r.decoding.min_p or 0.0,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "return_token_ids": True,
        **processors.vllm(r.decoding, len(terms.words)),
    }


def _ask_llama(r: Request, terms: Terms) -> Json:
    d = r.decoding.taken
    body: Json = {
        "model": terms.model,
        "prompt": list(r.prompt),
        "n_predict": r.max_new_tokens,
        "return_tokens": True,
        "stream": False,
        # every default of this server that is not neutral, and the order, which it can be told
        "samplers": ["penalties", *terms.order],
        "temperature": 0.0 if d.greedy else d.temperature,
        "top_k": 0 if d.top_k is None else int(d.top_k),
        "top_p": 1.0 if d.top_p is None else d.top_p,
        "min_p": d.min_p or 0.0,
        "dynatemp_range": 0.0,
        "mirostat": 0,
        "min_keep": 0,
        "ignore_eos": True,
        # the rest of an answer repeats the request, and is most of it
        "response_fields": ["tokens", "tokens_evaluated", "timings"],
        **processors.llama(d, terms.words),
    }
    return body if r.seed is None else body | {"seed": r.seed}


def _ask_sglang(r: Request, terms: Terms) -> Json:
    d = r.decoding.taken
    sampling: Json = {
        "max_new_tokens": r.max_new_tokens,
        "temperature": 0.0 if d.greedy else d.temperature,
        "top_k": -1 if d.top_k is None else int(d.top_k),
        "top_p": 1.0 if d.top_p is None else d.top_p,
        "min_p": d.min_p or 0.0,
        **processors.sglang(d),
    }
    if r.seed is not None:
        sampling["sampling_seed"] = r.seed
    return {"input_ids": list(r.prompt), "sampling_params": sampling, "stream": False}


def _ask_text(r: Request, terms: Terms) -> Json:
    prompt = " ".join(terms.words[i] for i in r.prompt)
    return _completion(r, terms) | {"prompt": prompt, "skip_special_tokens": False}


def _choice(answer: Json) -> Json:
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise BadAnswerError(f"an answer with {sorted(answer)[:20]} has no single choice")
    return choices[0]


def _read_text(answer: Json, terms: Terms) -> list[int]:
    """Token ids of a text made of the probe's words, with white space between them or without."""
    text = _choice(answer).get("text")
    if not isinstance(text, str):
        raise BadAnswerError("an answer has no text")
    ids = {word: i for i, word in enumerate(terms.words)}
    word = "|".join(map(re.escape, sorted(ids, key=len, reverse=True)))
    if not re.fullmatch(rf"(?:\s*(?:{word}))*\s*", text):
        raise BadAnswerError("an answer's text is not made of the probe's words")
    return [ids[w] for w in re.findall(word, text)]


# vLLM warps in this order (min-p before the filters), llama-server as it is told. SGLang normalises
# again between top-k and top-p on one of its back-ends only.
_STANDARD: tuple[Warp, ...] = WARPS
_VLLM: tuple[Warp, ...] = ("temperature", "min_p", "top_k", "top_p")
_LLAMA: tuple[Warp, ...] = ("top_k", "top_p", "min_p", "temperature")
STYLES: dict[str, Style] = {
    "vllm": Style(
        "/completions",
        _VLLM,
        _ask_vllm,
        lambda a, t: _choice(a).get("token_ids"),
        processors=processors.VLLM,
    ),
    "llama": Style(
        "../completion",
        _LLAMA,
        _ask_llama,
        lambda a, t: a.get("tokens"),
        ties="lowest-id",
        processors=processors.LLAMA,
        presence_over="all",
    ),
    "sglang": Style(
        "../generate",
        _STANDARD,
        _ask_sglang,
        lambda a, t: a.get("output_ids"),
        processors=processors.SGLANG,
    ),
    # the protocol as OpenAI has it: a prompt may be ids, and what comes back is text
    "openai": Style(
        "/completions",
        _STANDARD,
        _completion,
        _read_text,
        ("top_p",),
        processors=processors.OPENAI,
    ),
    "text": Style(
        "/completions",
        _STANDARD,
        _ask_text,
        _read_text,
        ("top_p",),
        processors=processors.OPENAI,
    ),
}


def name_of(style: Style) -> str:
    """The key of `STYLES`; empty if it is none of them."""
    return next((name for name, known in STYLES.items() if known is style), "")


def read(answer: Json, r: Request, style: Style, terms: Terms) -> Completion:
    """An answer as a completion.

    Raises
    ------
    BadAnswerError
        If it has no token ids or not as many as were asked for, if the server saw another prompt
        than it was sent, or if it drafted although it was asked not to.
    """
    ids = style.read(answer, terms)
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise BadAnswerError("an answer has no token ids where such a server puts them")
    over = len(ids) < r.max_new_tokens and bool(ids) and ids[-1] in r.decoding.stop
    if len(ids) != r.max_new_tokens and not over:
        raise BadAnswerError(
            f"an answer has {len(ids)} tokens where {r.max_new_tokens} were asked for and no "
            "end-of-sequence token exists"
        )
    seen = prompt_tokens(answer)
    if seen is not None and seen != len(r.prompt):
        raise BadAnswerError(
            f"the server saw a prompt of {seen} tokens where {len(r.prompt)} were sent; does it "
            "add a token of its own, or a template?"
        )
    counts = drafted_and_accepted(answer)
    if not r.speculate and counts is not None and counts[0]:
        raise BadAnswerError(
            "an answer of the control arm counts drafted tokens: the server speculates although "
            "it was asked not to"
        )
    return Completion(tuple(ids), counts=counts if r.speculate else None)


def metrics(page: bytes) -> tuple[int, int] | None:
    """Tokens drafted and accepted since the server started, from a page of vLLM's metrics."""
    found: dict[bytes, int] = {}
    for name, value in COUNTER.findall(page):
        try:
            found[name] = found.get(name, 0) + int(float(value))
        except (ValueError, OverflowError):
            return None
    return (found[b"draft"], found[b"accepted"]) if len(found) == 2 else None


def prompt_tokens(answer: Json) -> int | None:
    """Tokens of the prompt as the server saw it; None if it does not tell."""
    seen = answer.get("tokens_evaluated")
    for place in ("usage", "meta_info"):
        if isinstance(answer.get(place), dict):
            seen = answer[place].get("prompt_tokens")
    return seen if type(seen) is int else None


def drafted_and_accepted(answer: Json) -> tuple[int, int] | None:
    """Tokens drafted and accepted for this answer; None if it does not tell."""
    timings = answer.get("timings")
    if isinstance(timings, dict):  # llama-server leaves them out where nothing was drafted
        return _pair(timings.get("draft_n", 0), timings.get("draft_n_accepted", 0))
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    places: tuple[tuple[Any, tuple[tuple[str, str], ...]], ...] = (
        (_inside(answer.get("metrics"), "speculative_decoding"), COUNTS["vllm"]),
        (_inside(first, "speculative_decoding"), COUNTS["vllm"]),
        (answer.get("meta_info"), COUNTS["sglang"]),
    )
    for told, names in places:
        for drafted, accepted in names if isinstance(told, dict) else ():
            if (pair := _pair(told.get(drafted), told.get(accepted))) is not None:
                return pair
    return None


def _inside(place: object, name: str) -> object:
    return place.get(name) if isinstance(place, dict) else None


def _pair(drafted: object, accepted: object) -> tuple[int, int] | None:
    return (drafted, accepted) if type(drafted) is int and type(accepted) is int else None


def switch_of(text: str) -> tuple[list[str], object]:
    """Read ``PATH=VALUE``: where in a body, and what.

    Raises
    ------
    UnknownEngineError
        If it is not of that form.
    """
    path, found, raw = text.partition("=")
    steps = path.split("/")
    if not found or not all(steps):
        raise UnknownEngineError("option switch must be PATH=VALUE")
    try:
        return steps, json.loads(raw)
    except ValueError:
        return steps, raw


def put(body: Json, path: Sequence[str], value: object) -> None:
    """Add a value to a body, making the objects on the way."""
    *into, last = path
    for step in into:
        body = body.setdefault(step, {})
    body[last] = value


def join(base: str, path: str) -> str:
    """An address under another; a path that begins with ``..`` is one of the server's own."""
    return base.removesuffix("/v1") + path[2:] if path.startswith("../") else base + path


def words_of(folder: Path) -> tuple[str, ...]:
    """The words of a probe's tokenizer, by token id.

    Raises
    ------
    EngineLoadError
        If there is none, or it has gaps.
    """
    try:
        kept = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        vocabulary: dict[str, int] = kept["model"]["vocab"]
        words = tuple(sorted(vocabulary, key=vocabulary.__getitem__))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise EngineLoadError(f"cannot read the tokenizer in {folder}: {exc!r}") from exc
    if [vocabulary[w] for w in words] != list(range(len(words))):
        raise EngineLoadError(f"the tokenizer in {folder} does not number its words from 0")
    return words


def same_server(first: str, second: str) -> bool:
    """Whether two addresses, checked by `address`, lead to the same place."""
    usual, places = {"http": 80, "https": 443}, set()
    for p in map(urlsplit, (first.rstrip("/"), second.rstrip("/"))):
        places.add((p.scheme, str(p.hostname).rstrip("."), p.port or usual[p.scheme], p.path))
    return len(places) == 1


def number_of(name: str, text: str, low: float, high: float, whole: bool = False) -> float:
    """An option that is a number.

    Raises
    ------
    UnknownEngineError
        If it is none, or out of range.
    """
    try:
        value = float(int(text) if whole else text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        raise UnknownEngineError(f"option {name} must be {kind} from {low:g} to {high:g}")
    return value


def limits_of(concurrency: str, timeout: str, retries: str, rate: str) -> Limits:
    """The limits that options set to requests.

    Raises
    ------
    UnknownEngineError
        If one of them is no number, or out of range.
    """
    return Limits(
        int(number_of("concurrency", concurrency, 1, 1024, whole=True)),
        number_of("timeout", timeout, 0.1, 3600),
        int(number_of("retries", retries, 0, 20, whole=True)),
        number_of("rate", rate, 0, 1e6),
    )
