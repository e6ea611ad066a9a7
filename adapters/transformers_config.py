"""A decoding in the words of Hugging Face transformers' generation configuration."""

from __future__ import annotations

from typing import Any

from conformance.decoding import Decoding
from conformance.ends import end_of

# Presence and frequency penalties are for its continuous batching alone.
CLAIMED = (
    "logit_bias", "repetition_penalty", "banned", "allowed", "stop", "min_new_tokens", "grammar",
)  # fmt: skip
# A temperature of 0 is refused out loud, with a draft or without.
ROADS = ("temperature-unset", "top-k-1", "do-sample-false")


def claimed(draft: str) -> tuple[str, ...]:
    """What else of a decoding is supported with such a draft: an assistant is handed stop strings
    without a tokenizer, and raises (transformers #48039).
    """
    return (*CLAIMED, "stop_strings") if draft == "lookup" else CLAIMED


def options(decoding: Decoding, max_new_tokens: int, vocab_size: int) -> dict[str, Any]:
    """Keyword arguments of ``GenerationConfig``.

    Whatever is not said here falls back to defaults that are not neutral (``top_k`` = 50), or to
    the model's own file.

    Parameters
    ----------
    decoding : Decoding
        What is asked for.
    max_new_tokens : int
        How many tokens are wanted.
    vocab_size : int
        V, of which masks are the rest.
    """
    said: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "num_beams": 1,
        "num_return_sequences": 1,
        "repetition_penalty": 1.0,
        "use_cache": True,
        # no padding token: prompts of one batch are equally long, and every id is a word
        "eos_token_id": list(decoding.stop) or None,
        "pad_token_id": _padding(decoding),
        "stop_strings": list(decoding.stop_strings) or None,
    }
    said |= _processors(decoding, vocab_size)
    if decoding.road == "temperature-unset":
        return said
    decoding = decoding.taken
    said["do_sample"] = not decoding.greedy
    if not decoding.greedy:
        said |= {
            "temperature": float(decoding.temperature),
            "top_k": 0 if decoding.top_k is None else int(decoding.top_k),
            "top_p": 1.0 if decoding.top_p is None else float(decoding.top_p),
            "min_p": None if decoding.min_p is None else float(decoding.min_p),
            "typical_p": 1.0 if decoding.typical_p is None else float(decoding.typical_p),
            "epsilon_cutoff": float(decoding.epsilon_cutoff or 0.0),
            "eta_cutoff": float(decoding.eta_cutoff or 0.0),
        }
    return said


def _padding(decoding: Decoding) -> int | None:
    if decoding.stop:
        return decoding.stop[0]
    return 0 if decoding.stop_strings else None


def ended(tokens: list[int], decoding: Decoding) -> tuple[int, ...]:
    """An answer without what pads it: rows of a batch that have ended wait for the others."""
    end = end_of(tokens, decoding)
    if end is None:
        return tuple(tokens)
    # what comes after an end and is no padding is the engine's own
    rest = set(tokens[end + 1 :])
    return tuple(tokens[: end + 1] if rest <= {_padding(decoding)} else tokens)


def for_stop_strings(tokenizer: Any) -> Any:
    """A tokenizer with which the library can tell what text each token makes: to find out it
    decodes every one of them behind a text of its own, which has to be a word.
    """
    tokenizer.add_tokens(["abcdef"])
    return tokenizer


def _processors(decoding: Decoding, vocab_size: int) -> dict[str, Any]:
    said: dict[str, Any] = {}
    if decoding.repetition_penalty is not None:
        said["repetition_penalty"] = float(decoding.repetition_penalty)
    if decoding.logit_bias:
        said["sequence_bias"] = [[[t], float(bias)] for t, bias in decoding.logit_bias]
    if decoding.banned or decoding.allowed:
        vocab = set(range(vocab_size))
        kept = vocab & set(decoding.allowed or vocab) - set(decoding.banned)
        said["suppress_tokens"] = sorted(vocab - kept)
    if decoding.min_new_tokens:
        said["min_new_tokens"] = decoding.min_new_tokens
    return said
