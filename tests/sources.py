"""Requests drawn from exact laws, for tests of how they depend on one another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conformance.law import Floats, softmax
from conformance.reference import draw
from conformance.statistics.tables import Ints


@dataclass(frozen=True, slots=True)
class Drawn:
    """N requests of T tokens from laws that depend on the last token; prefixes numbered."""

    prefix: Ints  # [N, T]
    token: Ints  # [N, T]
    token_prob: Floats  # [N, T]
    row: Ints  # [N, T], the row of the law
    u: Floats  # [N, T], transforms with tokens ranked by id


class Source:
    """Exact laws; how the randomness is shared is what the tests vary."""

    def __init__(self, vocab: int, sharp: float, prompts: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.prompts, self.vocab = prompts, vocab
        self.law = softmax(self.rng.standard_normal((vocab + prompts, vocab)) * sharp)

    def draw(self, n: int, length: int, copied: float = 0.0, lag: int = 1) -> Drawn:
        """A request copies the one `lag` before it with probability `copied`."""
        tokens = np.zeros((n, length), dtype=np.int64)
        prompt = np.arange(n) // max(1, -(-n // self.prompts))
        row = self.vocab + prompt
        for t in range(length):
            tokens[:, t] = draw(self.law[row], self.rng.random(n))
            row = tokens[:, t]
        for i in np.flatnonzero(self.rng.random(n) < copied):
            if i >= lag and prompt[i] == prompt[i - lag]:
                tokens[i] = tokens[i - lag]
        return self.judge(prompt, tokens)

    def judge(self, prompt: Ints, tokens: Ints) -> Drawn:
        rows = np.concatenate([self.vocab + prompt[:, None], tokens[:, :-1]], axis=1)
        p = self.law[rows, tokens]
        before = np.cumsum(self.law, axis=1)[rows, tokens] - p
        u = before + p * self.rng.random(p.shape)
        return Drawn(numbered(prompt, tokens), tokens, p, rows, u)


def numbered(prompt: Ints, tokens: Ints) -> Ints:
    """Numbers that differ where prefixes do: the prompt, then the tokens, in some large base."""
    code = (prompt + 1).astype(np.int64)
    out = [code]
    for t in range(tokens.shape[1] - 1):
        code = code * 1_000_003 + tokens[:, t] + 1  # wraps round, as a hash does
        out.append(code)
    return np.stack(out, axis=1)
