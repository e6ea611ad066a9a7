"""The laws of the reference engine's rows: their logits after all that came before, and warped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conformance.decoding import Decoding, Dialect
from conformance.faults.steps import Steps
from conformance.law import Floats, softmax, warp
from conformance.processors import History, drawn_again, penalised, resamples, states, table
from conformance.tinylm import TinyLlama, Tokens


class Laws:
    """What laws are made from; a batch has these and moves them on.

    Attributes
    ----------
    target : TinyLlama
        Of which the vocabulary is looked at alone.
    steps : Steps
        How logits are processed.
    decoding, dialect
        What was asked, and how it is applied.
    raw : bool
        Whether the log-probabilities returned are those of the logits as they are.
    tokens : (B, room) int64
        Prompts, and what came after them.
    prompt_length, length : (B,) int64
        Tokens of each prompt, and of all that is written in each row.
    state : (B,) int64
        Of the grammar, before each row's next token.
    ghosts : (B, V) int64
        What is counted although it was rejected.
    """

    target: TinyLlama
    steps: Steps
    decoding: Decoding
    dialect: Dialect
    raw: bool
    tokens: Tokens
    prompt_length: Tokens
    length: Tokens
    state: Tokens
    ghosts: Tokens

    def _warp(self, logits: Floats, rows: Tokens, end: Tokens, target: bool) -> Floats:
        """Laws at n places from `end` on. [b, n, V]"""
        law = warp(self._processed(logits, rows, end, target), self.decoding, self.dialect)
        if resamples(self.decoding, self.dialect):
            free = replace(self.decoding, grammar="")
            history = self._history(rows, end, logits.shape[1])
            unbound = self.steps.process(logits, replace(history, state=None), free, target)
            _, allowed = table(self.decoding, logits.shape[-1])
            law = drawn_again(warp(unbound, free, self.dialect), law, allowed[history.state])
        return law

    def _processed(self, logits: Floats, rows: Tokens, end: Tokens, target: bool) -> Floats:
        if not self.decoding.processors:
            return logits
        history = self._history(rows, end, logits.shape[1])
        return self.steps.process(logits, history, self.decoding, target)

    def _told(
        self, logits: Floats, law: Floats, rows: Tokens, end: Tokens, target: bool
    ) -> Floats | None:
        """Log-probabilities to return at n places from `end` on; None where none are asked for."""
        if not self.decoding.logprobs:
            return None
        if not self.raw and self.decoding.greedy:
            logits = self._processed(logits, rows, end, target)
        with np.errstate(divide="ignore"):
            return np.log(softmax(logits) if self.raw or self.decoding.greedy else law)

    def _history(self, rows: Tokens, end: Tokens, n: int) -> History:
        """What is before each of n places from `end` on."""
        at = end[:, None] + np.arange(n)  # [b, n]
        overs = self.dialect.repetition_over, self.dialect.presence_over
        if self.decoding.repetition_penalty is None and not penalised(self.decoding):
            counted = (np.zeros((1, 1, 1), dtype=np.int64),) * 2  # nobody looks at them
        else:
            counted = self._counted(rows, at, overs[0]), self._counted(rows, at, overs[1])
        return History(
            *counted,
            at - self.prompt_length[rows][:, None],
            self._states(rows, end, n) if self.decoding.grammar else None,
        )

    def _states(self, rows: Tokens, end: Tokens, n: int) -> Tokens:
        """The grammar's state at each of n places from `end` on. [b, n]"""
        begin = self.length[rows]
        ahead = int((end - begin).max(initial=0))  # the same in all rows: proposals made so far
        between = self.tokens[rows[:, None], begin[:, None] + np.arange(ahead + n - 1)]
        return self._onward(between, self.state[rows])[:, ahead:]

    def _onward(self, tokens: Tokens, start: Tokens) -> Tokens:
        return states(tokens, self.decoding, self.target.shape.vocab_size, start)

    def _counted(self, rows: Tokens, at: Tokens, over: str) -> Tokens:
        first = np.zeros((1, 1), np.int64) if over == "all" else self.prompt_length[rows][:, None]
        window = self.dialect.penalty_window
        begin = (first if window is None else np.maximum(at - window, first))[..., None]
        place = np.arange(self.tokens.shape[1])
        counted = (place >= begin) & (place < at[..., None])  # [b, n, room]
        one_hot = self.tokens[rows, :, None] == np.arange(self.target.shape.vocab_size)
        seen = counted.astype(np.int64) @ one_hot.astype(np.int64)  # [b, n, V]
        return np.asarray(seen + self.ghosts[rows, None])
