"""What else transformers is asked for: grammars, and the log-probabilities it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.decoding import Decoding
from conformance.grammar import automaton

# Which of its two kinds of scores: ``output_scores`` are after all processors and warpers,
# ``output_logits`` before.
FIELDS = {"processed": "scores", "raw": "logits"}


def returned(decoding: Decoding, kind: str) -> dict[str, Any]:
    """What a generation configuration says where log-probabilities are wanted."""
    if not decoding.logprobs:
        return {}
    return {"return_dict_in_generate": True, f"output_{FIELDS[kind]}": True}


def sequences(output: Any) -> Any:
    """The tokens of an answer, [B, L + T]."""
    return getattr(output, "sequences", output)


def logprobs(torch: Any, output: Any, kind: str, begin: int) -> list[list[float]] | None:
    """The log-probability of every token generated, as the library's scores have it. [B, T]

    Parameters
    ----------
    torch : module
        torch.
    output : object
        As `generate` returned it; None is returned where it has no scores.
    kind : str
        A key of `FIELDS`.
    begin : int
        Tokens of the prompt.
    """
    steps = getattr(output, FIELDS[kind], None)
    if not steps:
        return None
    tokens = output.sequences[:, begin:]  # [B, T]
    told = torch.stack(steps, dim=1).float().log_softmax(dim=-1)  # [B, T, V]
    found = told.gather(-1, tokens[:, : told.shape[1], None])[..., 0]
    listed: list[list[float]] = found.tolist()
    return listed


def grammar(decoding: Decoding, begin: int, vocab_size: int) -> dict[str, Any]:
    """What `generate` is given beside its configuration, where there is a grammar."""
    if not decoding.grammar:
        return {}
    states = automaton(decoding.grammar, decoding.stop, vocab_size)
    every = list(range(vocab_size))

    def allowed(_row: int, sequence: Any) -> list[int]:
        # an empty list is refused, and after a wrong token anything may come
        return states.allowed(states.state_of(sequence[begin:].tolist())) or every

    made: Callable[[int, Any], list[int]] = allowed
    return {"prefix_allowed_tokens_fn": made}
