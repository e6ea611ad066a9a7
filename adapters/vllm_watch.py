"""What is watched while vLLM generates: its blocks, or at least their totals."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Any

from conformance.contract import Completion

DRAFTED, ACCEPTED = "vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens"


class Rounds:
    """Watches the blocks of one LLM, at its scheduler and without changing them."""

    def __init__(self, llm: Any) -> None:
        self._done: dict[str, list[tuple[int, int]]] = defaultdict(list)
        scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        update = scheduler.update_from_output

        @functools.wraps(update)
        def watched(scheduled: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
            proposed = scheduled.scheduled_spec_decode_tokens
            for request, row in output.req_id_to_index.items():
                # a prompt that is read in several pieces yields no token until the last
                if output.sampled_token_ids and (emitted := len(output.sampled_token_ids[row])):
                    # what a grammar has no place for is struck out with a -1
                    drafted = sum(token >= 0 for token in proposed.get(request, ()))
                    block = (drafted, emitted - 1)
                    # the scheduler's names of requests are ours and a random suffix, and before
                    # them, of several answers, which one it is
                    self._done[request.partition("-")[0]].append(block)
            return update(scheduled, output, *args, **kwargs)

        scheduler.update_from_output = watched

    def clear(self) -> None:
        """Forget the blocks of the last call."""
        self._done.clear()

    def completions(self, names: list[str], tokens: list[tuple[int, ...]]) -> list[Completion]:
        """The tokens of requests of those names, with their blocks."""
        return [
            Completion(tokens=t, rounds=tuple(self._done[name]))
            for name, t in zip(names, tokens, strict=True)
        ]


class Counters:
    """vLLM's own counters, where its blocks cannot be watched."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._before = (0, 0)

    def clear(self) -> None:
        """Count from here."""
        self._before = self._now()

    def completions(self, _names: list[str], tokens: list[tuple[int, ...]]) -> list[Completion]:
        """The tokens, with the totals of all."""
        drafted, accepted = self._now()
        counts = (drafted - self._before[0], accepted - self._before[1])
        return [Completion(tokens=t, counts=None if i else counts) for i, t in enumerate(tokens)]

    def _now(self) -> tuple[int, int]:
        values = {m.name: m.value for m in self._llm.get_metrics() if m.name in (DRAFTED, ACCEPTED)}
        return int(values.get(DRAFTED, 0)), int(values.get(ACCEPTED, 0))


def watch(llm: Any) -> Rounds | Counters:
    """Watch an `LLM` that speculates."""
    try:
        return Rounds(llm)
    except AttributeError:  # another version keeps its scheduler elsewhere
        return Counters(llm)
