"""Reading an arm: what every token tells, taken from its law once, so that the law can be let go.

Laws are large (a vocabulary each) and prefixes are many; tokens are small. A `Reading` goes through
the laws a chunk at a time and keeps, for every token, its probabilities and ranks; for every
prefix that was answered often, the cells of a table; and the sums that the tests of all tokens
need. Time is linear in tokens times vocabulary, memory in tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conformance.betting import Ledger
from conformance.chances import METHODS, chances
from conformance.law import Bools, Floats
from conformance.oracle import Chunk, Oracle, Tree, free_tokens
from conformance.statistics import pit
from conformance.statistics.leak import LeakSum
from conformance.statistics.surprisal import SurprisalSum
from conformance.statistics.tables import Table, conditional_table, stacked
from conformance.tinylm import Tokens

EVERYWHERE = "all tokens"


@dataclass(frozen=True, slots=True)
class Uniforms:
    """The numbers that randomise ranks, one a token; [N * T] each."""

    by_p: Floats
    by_draft: Floats
    by_id: Floats


class Reading:
    """What one arm of a sampled case emitted, read against its laws.

    Parameters
    ----------
    oracle : Oracle
        Laws.
    prompts : (P, L) int64
        Distinct prompts.
    tree : Tree
        What was emitted.
    uniforms : Uniforms
        Randomise the ranks.
    strata : dict of str to (N, T) bool
        Further sets of tokens to sum over, beside all of them.
    repeated : int
        Prompts below this number are asked again and again.

    Attributes
    ----------
    p, q : (N, T) float64
        Probability of each token under target and draft; `q` is None without a draft.
    neighbour, neighbour_p : (N, T)
        The token of the request before, and its probability at this request's own prefix; the
        first request has none before it, and is given its own.
    judged, open : (N, T) bool
        Tokens that tests other than support may use, and those of them whose law leaves a choice.
    impossible : (N, T) bool
        Tokens the law cannot emit.
    chances : (N, T, 3) float64 or None
        How likely a proposal is accepted there, by each of `METHODS`; None where the draft's law
        is not known.
    by_p, by_draft, by_id : (N, T) float64
        The probability integral transform, ranked by p, by q/p and by token id.
    """

    def __init__(
        self,
        oracle: Oracle,
        prompts: Tokens,
        tree: Tree,
        uniforms: Uniforms,
        strata: dict[str, Bools],
        repeated: int,
    ) -> None:
        shape = tree.tokens.shape
        self.tree, self._uniforms = tree, uniforms
        self.p, self.by_p, self.by_id = np.ones(shape), np.zeros(shape), np.zeros(shape)
        self.neighbour = np.concatenate([tree.tokens[:1], tree.tokens[:-1]])
        self.neighbour_p = np.ones(shape)
        self.judged, self.open = np.zeros(shape, bool), np.zeros(shape, bool)
        self.impossible = np.zeros(shape, bool)
        aware = oracle.draft_kind != "none"
        self.q = np.ones(shape) if aware else None
        self.by_draft = np.zeros(shape) if aware else None
        known = oracle.draft_kind == "model"
        self.chances = np.zeros((*shape, len(METHODS))) if known else None
        self._strata = {EVERYWHERE: np.ones(shape, bool), **strata}
        self.leaks = {name: LeakSum() for name in self._strata} if aware else {}
        self.surprisal = SurprisalSum()
        self.ledger = Ledger(tree.prompt, repeated)
        self._tables: list[list[Table]] = [[] for _ in range(shape[1])]
        for chunk in oracle.chunks(prompts, tree):
            self._read(chunk)

    def table(self, index: int) -> Table:
        """Tokens at an output index by prefix."""
        return stacked(self._tables[index])

    def _read(self, chunk: Chunk) -> None:
        tree, law, draft = self.tree, chunk.laws.probs, chunk.draft
        at = tree.instances(chunk.begin, chunk.begin + len(law))  # flat positions, by prefix
        row, x = tree.prefix.flat[at] - chunk.begin, tree.tokens.flat[at]
        judged, free = free_tokens(tree, chunk, at)
        self.impossible.flat[at] = tree.valid.flat[at] & ~chunk.laws.possible[row, x]
        self.judged.flat[at], self.open.flat[at] = judged, free
        self.p.flat[at] = law[row, x]
        self.neighbour_p.flat[at] = law[row, self.neighbour.flat[at]]
        before = pit.mass_before_id(row, x, law)
        self.by_id.flat[at] = pit.randomised(before, law[row, x], self._uniforms.by_id[at])
        before = pit.mass_before(row, x, law, law)
        self.by_p.flat[at] = pit.randomised(before, law[row, x], self._uniforms.by_p[at])
        if draft is not None and self.q is not None and self.by_draft is not None:
            self.q.flat[at] = draft[row, x]
            before = pit.mass_before(row, x, law, pit.draft_key(law, draft))
            self.by_draft.flat[at] = pit.randomised(
                before, law[row, x], self._uniforms.by_draft[at]
            )
            if self.chances is not None:
                self.chances.reshape(-1, len(METHODS))[at] = chances(law, draft)[row]
            for name, leak in self.leaks.items():
                use = free & self._strata[name].flat[at]
                leak.add(row[use], x[use], law, draft)
        self.surprisal.add(row[free], x[free], law)
        self.ledger.add(tree, chunk, at, free)
        index = tree.index[chunk.begin : chunk.begin + len(law)]
        for t in np.unique(index):
            use = judged & (index[row] == t)
            self._tables[t].append(conditional_table(row[use], x[use], law))
