"""What else vLLM is asked for: grammars, stop strings, and log-probabilities of its tokens."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance.contract import Request
from conformance.decoding import Decoding
from conformance.errors import NotSupportedError
from conformance.grammar import spelled

# Its ``logprobs_mode``, its own default first; fixed when an LLM is made.
MODES = {"raw": "raw_logprobs", "processed": "processed_logprobs"}
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def asked(library: Any, request: Request, vocab_size: int) -> dict[str, Any]:
    """What sampling parameters say of grammar, stop strings and log-probabilities.

    Raises
    ------
    NotSupportedError
        If a grammar is to end at a token.
    """
    said: dict[str, Any] = {"detokenize": bool(request.decoding.stop_strings)}
    if request.decoding.stop_strings:
        # the unknown word counts as special, and is a token of the probes like any other
        said |= {
            "stop": list(request.decoding.stop_strings),
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
        }
    if request.logprobs:
        said["logprobs"] = 0  # of the token itself, and no other
    if request.decoding.grammar:
        if request.decoding.stop:
            raise NotSupportedError(
                "vllm ends a grammar at its tokenizer's own end of a sequence, which no request "
                "names"
            )
        regex = spelled(request.decoding.grammar, lambda token: f"w{token}", vocab_size)
        made = library.sampling_params.StructuredOutputsParams(regex=regex)
        said["structured_outputs"] = made
    return said


def of_texts(decoding: Decoding) -> bool:
    """Whether vLLM needs a tokenizer for it."""
    return bool(decoding.grammar or decoding.stop_strings)


def several(outputs: Sequence[Any]) -> tuple[list[str], list[Any]]:
    """All answers of a call, those to one request one after the other, and the names under which
    they were scheduled.
    """
    names, made = [], []
    for request in outputs:
        answers = sorted(request.outputs, key=lambda output: output.index)
        many = len(answers) > 1
        names += [
            f"{a.index}_{request.request_id}" if many else request.request_id for a in answers
        ]
        made += answers
    return list(map(str, names)), made


def told(output: Any) -> list[float] | None:
    """The log-probability of each token of an answer; NaN where one is missing."""
    if output.logprobs is None:
        return None
    places = zip(output.token_ids, output.logprobs, strict=False)
    found = [float(at[token].logprob) if token in at else math.nan for token, at in places]
    return found + [math.nan] * (len(output.token_ids) - len(found))


def with_tokenizer(probe: Path, model: Path) -> None:
    """Put a probe's tokenizer beside its converted model: grammars are of texts."""
    for name in TOKENIZER:
        if not (model / name).exists():
            shutil.copyfile(probe / name, model / name)
