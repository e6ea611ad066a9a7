"""What is watched while transformers generates: when tokens come, and the blocks they come in."""

from __future__ import annotations

import functools
import time
from typing import Any


class Clock:
    """A streamer of the library that keeps when tokens came, and nothing else of them."""

    def __init__(self, began: float) -> None:
        self.times: list[float] = []
        self._began = began
        self._prompt = True  # which is streamed as well, first

    def put(self, tokens: Any) -> None:
        """A block's tokens, [1, n], or the next token of each row, [B]."""
        if not self._prompt:
            count = tokens.shape[-1] if tokens.ndim > 1 else 1
            self.times += [time.perf_counter() - self._began] * count
        self._prompt = False

    def end(self) -> None:
        """Nothing is held back."""


def streamer(clock: Clock | None) -> dict[str, Any]:
    """What `generate` is given beside the rest, where times are wanted."""
    return {} if clock is None else {"streamer": clock}


class Rounds:
    """Watches the blocks of one target, on that instance alone and without changing them."""

    def __init__(self) -> None:
        self.done: list[tuple[int, int]] = []
        self.begun = False
        self._drafted = 0

    def clear(self) -> None:
        """Forget the blocks of the last request."""
        self.done.clear()
        self.begun = False
        self._drafted = 0

    def watch(self, target: Any) -> None:
        """Observe every candidate generator that `target` makes from now on."""
        make = target._get_candidate_generator

        @functools.wraps(make)
        def watched(*args: Any, **kwargs: Any) -> Any:
            generator = make(*args, **kwargs)
            propose, learn = generator.get_candidates, generator.update_candidate_strategy

            def get_candidates(input_ids: Any, *args: Any, **kwargs: Any) -> Any:
                self.begun = True
                answer = propose(input_ids, *args, **kwargs)
                self._drafted = answer[0].shape[1] - input_ids.shape[1]
                return answer

            def update_candidate_strategy(
                input_ids: Any, scores: Any, num_matches: Any, *args: Any, **kwargs: Any
            ) -> Any:
                self.done.append((self._drafted, int(num_matches)))
                return learn(input_ids, scores, num_matches, *args, **kwargs)

            generator.get_candidates = get_candidates
            generator.update_candidate_strategy = update_candidate_strategy
            return generator

        target._get_candidate_generator = watched
