"""Evidence as counts: what happened where, in cells that do not depend on the prefix.

A token's stratum is its event (accepted, recovered, bonus, plain) and its position in the block.
Within a stratum its cell is the decile of its probability integral transform ranked by q/p, and the
quarter of the one ranked by p; impossible tokens, and ids outside the vocabulary, have cells of
their own. Under a fault the counts have some law or other; it is found by running the fault.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conformance.evidence import Evidence
from conformance.law import Bools, Floats
from conformance.oracle import Oracle, Sample
from conformance.reference import Ints
from conformance.statistics import pit
from conformance.strata import BONUS, PLAIN, block_places
from conformance.tinylm import Tokens

EVENTS = ("accepted", "recovered", "bonus", "plain", "unlabelled")
ACCEPTED, RECOVERED, BONUS_TOKEN, PLAIN_TOKEN, UNLABELLED = range(len(EVENTS))
POSITIONS = 8  # later ones are counted with the last
RANKS, QUARTERS = 10, 4
IMPOSSIBLE, OUTSIDE = RANKS * QUARTERS, RANKS * QUARTERS + 1
CELLS = RANKS * QUARTERS + 2
COARSE = 10  # fifths by q/p, times halves by p
INDICES = 16  # of output indices told apart, at most


@dataclass(frozen=True, slots=True)
class Counts:
    """Answers as counts.

    Parameters
    ----------
    cells : (EVENTS, POSITIONS, CELLS) int64
        Tokens by stratum and cell.
    index : (EVENTS, COARSE + 1, I) int64
        Tokens by event and coarse cell (the last one: impossible or outside), over output indices.
    prompts : (P, COARSE + 1) int64
        Tokens by prompt and coarse cell.
    links : dict of str to int64 array
        What ties requests, or blocks, to each other: each table is counts over its last axis.
    """

    cells: Ints
    index: Ints
    prompts: Ints
    links: dict[str, Ints]

    def plus(self, other: Counts) -> Counts:
        """Both together."""
        return Counts(
            self.cells + other.cells,
            self.index + other.index,
            self.prompts + other.prompts,
            {name: table + other.links[name] for name, table in self.links.items()},
        )


def multiplicities(answers: Evidence) -> Ints:
    """How many earlier requests had the same prompt and the same answer. [N]"""
    rows = np.concatenate([answers.prompt[:, None], answers.tokens], axis=1)
    back = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
    order = np.argsort(back, kind="stable")
    starts = np.searchsorted(back[order], back[order], side="left")
    rank = np.empty(len(back), dtype=np.int64)
    rank[order] = np.arange(len(back)) - starts
    return rank


def count(
    oracle: Oracle, prompts: Tokens, answers: Evidence, most: int, rng: np.random.Generator
) -> Counts:
    """Count answers.

    Parameters
    ----------
    oracle : Oracle
        The laws.
    prompts : (P, L) int64
        Distinct prompts.
    answers : Evidence
        What was answered.
    most : int
        An answer is counted at most so many times. Answers that repeat each other far more often
        than chance has it are no independent evidence on the law of a token.
    rng : Generator
        Randomises ranks.
    """
    sample = oracle.sample(prompts, answers.prompt, answers.tokens)
    event, position = events(answers)
    rank = multiplicities(answers)
    used = np.repeat((rank < most)[:, None], answers.tokens.shape[1], axis=1)
    cell = _cells(sample, rng)
    used &= cell >= 0
    cells = np.zeros((len(EVENTS), POSITIONS, CELLS), dtype=np.int64)
    np.add.at(cells, (event[used], position[used], cell[used]), 1)
    fifth, half = cell // QUARTERS // 2, cell % QUARTERS // 2
    coarse = np.where(cell >= IMPOSSIBLE, COARSE, 2 * fifth + half)
    length = answers.tokens.shape[1]
    at = np.broadcast_to(np.arange(length) * min(length, INDICES) // length, cell.shape)
    index = np.zeros((len(EVENTS), COARSE + 1, min(length, INDICES)), dtype=np.int64)
    np.add.at(index, (event[used], coarse[used], at[used]), 1)
    by_prompt = np.zeros((len(prompts), COARSE + 1), dtype=np.int64)
    whose = np.broadcast_to(answers.prompt[:, None], cell.shape)
    np.add.at(by_prompt, (whose[used], coarse[used]), 1)
    return Counts(cells, index, by_prompt, _links(sample, answers, rank, position))


def events(answers: Evidence) -> tuple[Ints, Ints]:
    """Event and position of every token. [N, T] each"""
    places = block_places(answers)
    if places is None:
        shape = answers.tokens.shape
        return np.full(shape, UNLABELLED), np.zeros(shape, dtype=np.int64)
    kind, position, accepted = places
    verified = np.where(accepted, ACCEPTED, RECOVERED)
    event = np.where(kind == BONUS, BONUS_TOKEN, np.where(kind == PLAIN, PLAIN_TOKEN, verified))
    return event, np.minimum(position, POSITIONS - 1)


def _cells(sample: Sample, rng: np.random.Generator) -> Ints:
    """The cell of every token; -1 where nothing can be said. [N, T]"""
    out = np.full(sample.tokens.shape, -1)
    free = sample.open
    prefix, token = sample.prefix[free], sample.tokens[free]
    by_p = pit.transform(prefix, token, sample.law, sample.law, rng)
    ranked = by_p
    if sample.draft is not None:
        key = pit.draft_key(sample.law, sample.draft)
        ranked = pit.transform(prefix, token, sample.law, key, rng)
    out[free] = _bin(ranked, RANKS) * QUARTERS + _bin(by_p, QUARTERS)
    out[sample.valid & ~sample.possible[sample.prefix, sample.tokens]] = IMPOSSIBLE
    for i, t, _ in sample.outside:
        out[i, t] = OUTSIDE
    return out


def _bin(u: Floats, bins: int) -> Ints:
    return np.minimum((u * bins).astype(np.int64), bins - 1)


def _links(sample: Sample, answers: Evidence, rank: Ints, position: Ints) -> dict[str, Ints]:
    """What ties requests, and the blocks of a request, together.

    Counts of answers that were given before; of answers equal to the one before it at the same
    prompt; and two tables of quarters of the distribution function, in the order of token ids, that
    shared uniforms make dependent: first tokens of neighbouring requests, and first tokens of
    neighbouring blocks.
    """
    order = np.argsort(answers.prompt, kind="stable")
    same = answers.prompt[order][1:] == answers.prompt[order][:-1]
    equal = (answers.tokens[order][1:] == answers.tokens[order][:-1]).all(axis=1)[same]
    quarter, usable = _quarters(sample)
    first, ok = quarter[:, 0], usable[:, 0]
    links = {
        "given before": np.array([(rank == 0).sum(), (rank > 0).sum()]),
        "as the one before": np.array([(~equal).sum(), equal.sum()]),
        "neighbours": _pairs(first[:-1], first[1:], ok[:-1] & ok[1:]),
    }
    if answers.rounds is not None:
        row, t = np.nonzero(position == 0)
        along = row[1:] == row[:-1]
        a, b = quarter[row[:-1], t[:-1]], quarter[row[1:], t[1:]]
        both = usable[row[:-1], t[:-1]] & usable[row[1:], t[1:]]
        links["blocks"] = _pairs(a, b, along & both)
    return links


def _quarters(sample: Sample) -> tuple[Ints, Bools]:
    """Quarter of the middle of every token's step in the distribution function. [N, T] each"""
    middle = np.cumsum(sample.law, axis=1) - sample.law / 2  # [U, V]
    return _bin(middle[sample.prefix, sample.tokens], QUARTERS), sample.open


def _pairs(a: Ints, b: Ints, use: Bools) -> Ints:
    table = np.bincount(a[use] * QUARTERS + b[use], minlength=QUARTERS**2)
    return np.asarray(table, dtype=np.int64)
