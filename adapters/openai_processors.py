"""Penalties, biases, masks and ends in the JSON of servers that speak OpenAI's protocol.

Plain functions between a `Decoding` and a body; nothing here sends anything.
"""

from __future__ import annotations

from typing import Any

from conformance.adapters.gguf_probe import EVERY
from conformance.decoding import Decoding
from conformance.errors import NotSupportedError

Json = dict[str, Any]
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
VLLM = ("logit_bias", *PENALTIES, "banned", "allowed", "min_new_tokens", "stop")
LLAMA = ("logit_bias", *PENALTIES, "banned", "allowed", "stop")
# A repetition penalty was in some releases of SGLang, and not in others that take the field.
SGLANG = ("logit_bias", *PENALTIES[1:], "min_new_tokens", "stop")
# Texts that end an output are not in it, so that it cannot be told which it was.
OPENAI = ("logit_bias", *PENALTIES[1:])


def kept(d: Decoding, size: int) -> set[int]:
    """Tokens that may occur, of a vocabulary of that size."""
    vocab = set(range(size))
    return vocab & set(d.allowed or vocab) - set(d.banned)


def openai(d: Decoding) -> Json:
    """The fields of the protocol itself; what a request leaves unsaid a server may fill in."""
    return {
        "presence_penalty": d.presence_penalty or 0.0,
        "frequency_penalty": d.frequency_penalty or 0.0,
    } | _biases(d)


def vllm(d: Decoding, size: int) -> Json:
    """Fields of vLLM beside those of the protocol."""
    body = openai(d) | {
        "repetition_penalty": d.repetition_penalty or 1.0,
        "min_tokens": d.min_new_tokens,
    }
    if d.stop:
        body["stop_token_ids"] = list(d.stop)
    if d.banned or d.allowed:
        body["allowed_token_ids"] = sorted(kept(d, size))
    return body


def sglang(d: Decoding) -> Json:
    """Sampling parameters of SGLang."""
    # what ignores an end-of-sequence token ignores the others as well
    body = openai(d) | {"min_new_tokens": d.min_new_tokens, "ignore_eos": not d.stop}
    return body | ({"stop_token_ids": list(d.stop)} if d.stop else {})


def llama(d: Decoding, words: tuple[str, ...]) -> Json:
    """llama-server's fields; all tokens count for penalties, where by default 64 do.

    Raises
    ------
    NotSupportedError
        If a stop token cannot be said by its text, which is what this server takes.
    """
    may = kept(d, len(words))
    # a bias of false is minus infinity
    biases: list[list[Any]] = [[token, bias] for token, bias in d.logit_bias if token in may]
    for token in d.stop:
        if token >= len(words) or sum(words[token] in word for word in words) > 1:
            raise NotSupportedError(
                f"llama-server ends an output at a text, and that of token {token} is part of "
                "another token's"
            )
    return {
        "logit_bias": biases + [[token, False] for token in range(len(words)) if token not in may],
        "repeat_penalty": d.repetition_penalty or 1.0,
        "repeat_last_n": EVERY,
        "presence_penalty": d.presence_penalty or 0.0,
        "frequency_penalty": d.frequency_penalty or 0.0,
        "stop": [words[token] for token in d.stop],
    }


def _biases(d: Decoding) -> Json:
    return {"logit_bias": {str(t): bias for t, bias in d.logit_bias}} if d.logit_bias else {}


def roads(only: tuple[str, ...]) -> tuple[str, ...]:
    """The ways to ask for greedy decoding of a server that knows only these filters; empty for all.
    By default the protocol's temperature is 1.
    """
    return ("temperature-0", "top-k-1") if not only or "top_k" in only else ("temperature-0",)
