"""The e-process of one arm: a bet against the law, settled request by request.

What a request is worth to each alternative depends on its own tokens and their laws; the bet is the
sum over requests, in their order, and is looked at after a number of requests that is fixed
beforehand. So the evidence of several workers or several nights adds up, and whoever has the
evidence finds the same value at every look.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from conformance.law import Bools, Floats
from conformance.oracle import Chunk, Tree
from conformance.statistics import eprocess
from conformance.statistics.alternatives import pointwise_log_ratios
from conformance.tinylm import Tokens

# Above this vocabulary only those alternatives are kept that need nothing but p(x) and q(x): the
# others cost several passes over the vocabulary at every prefix.
LARGE_VOCABULARY = 2**16
FIRST_LOOK = 32
GROWTH = 0.25  # looks are spaced so that each adds this share of what was seen before


class Ledger:
    """What each of N requests is worth to each alternative, and the token it began with.

    Parameters
    ----------
    prompt : (N,) int64
        The prompt of each request.
    repeated : int
        Prompts below this number are asked again and again, so that their counts tell something.
    """

    def __init__(self, prompt: Tokens, repeated: int) -> None:
        self.prompt, self.repeated = prompt, repeated
        self.sums = np.zeros((len(prompt), len(eprocess.names())))  # [N, C]
        self.first = np.full(len(prompt), -1)  # -1: not judged
        self.laws: dict[int, Floats] = {}  # of the first token, by prompt

    def add(self, tree: Tree, chunk: Chunk, at: Tokens, free: Bools) -> None:
        """Enter the tokens of a chunk.

        Parameters
        ----------
        tree, chunk
            What was emitted, and the laws of some of its prefixes.
        at : (n,) int64
            Flat positions of the tokens.
        free : (n,) bool
            Those of them that are judged and whose law leaves a choice.
        """
        law, draft = chunk.laws.probs, chunk.draft
        large = law.shape[1] > LARGE_VOCABULARY
        if large and draft is None:
            return
        at = at[free]
        row, x = tree.prefix.flat[at] - chunk.begin, tree.tokens.flat[at]
        request = at // tree.tokens.shape[1]
        if large and draft is not None:
            np.add.at(self.sums, request, pointwise_log_ratios(law[row, x], draft[row, x]))
        if not large:
            mine, group = np.unique(request, return_inverse=True)
            self.sums[mine] += eprocess.log_ratios_by(group, len(mine), row, x, law, draft)
            starts = (tree.index[chunk.begin + row] == 0) & (self.prompt[request] < self.repeated)
            self.first[request[starts]] = x[starts]
            for r in np.unique(row[starts]):
                self.laws[int(self.prompt[tree.request[chunk.begin + r]])] = law[r]

    def renumbered(self, number: Tokens) -> Ledger:
        """The same with prompts numbered otherwise, [P]: as those of several runs together."""
        other = Ledger(number[self.prompt], 0)
        other.sums, other.first = self.sums, self.first
        other.laws = {int(number[prompt]): law for prompt, law in self.laws.items()}
        return other


class Bet:
    """The running value of the bet."""

    def __init__(self) -> None:
        self._sums = np.zeros(len(eprocess.names()))
        self._counts: dict[int, Tokens] = {}
        self._laws: dict[int, Floats] = {}

    def take(self, ledger: Ledger, begin: int, end: int) -> None:
        """Settle the requests `begin` .. `end` - 1 of a ledger."""
        rows = slice(begin, end)
        self._sums = self._sums + ledger.sums[rows].sum(axis=0)
        self._laws |= ledger.laws
        for prompt, law in ledger.laws.items():
            mine = (ledger.prompt[rows] == prompt) & (ledger.first[rows] >= 0)
            counts = np.bincount(ledger.first[rows][mine], minlength=len(law))
            self._counts[prompt] = self._counts.get(prompt, np.zeros_like(counts)) + counts

    @property
    def gains(self) -> Floats:
        """Evidence for each alternative, as in `eprocess.log_ratios`. [C]"""
        return self._sums

    @property
    def log_e(self) -> float:
        """Logarithm of the e-value; the mean of the e-value under exactness is at most 1."""
        tilts = float(eprocess.log_e(self._sums))
        if not self._counts:
            return tilts
        counts = np.stack([self._counts[p] for p in self._counts])
        laws = np.stack([self._laws[p] for p in self._counts])
        return eprocess.combine(tilts, eprocess.dirichlet_log_e(counts, laws))


def looks(requests: int) -> Iterator[tuple[int, int]]:
    """The requests that are settled between one look and the next, as (begin, end); the last look
    is at the end.
    """
    begin = 0
    while begin < requests:
        end = min(begin + next_look(begin), requests)
        yield begin, end
        begin = end


def next_look(seen: int) -> int:
    """How many more requests the next look wants."""
    return max(FIRST_LOOK, int(GROWTH * seen))


def course(ledger: Ledger) -> list[tuple[int, float]]:
    """Requests settled and log E, at every look.

    Looks become rarer as evidence grows, so that a million requests have fewer than fifty.
    """
    bet, out = Bet(), []
    for begin, end in looks(len(ledger.prompt)):
        bet.take(ledger, begin, end)
        out.append((end, bet.log_e))
    return out
