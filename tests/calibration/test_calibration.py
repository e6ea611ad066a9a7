"""Are the p-values of every test uniform when the sampler is exact?

Sequences are drawn from prefix-dependent laws, and each test sees them as the judge would show
them: an output index conditional on its prefix, whole strings of first tokens, every token at once.
Which prefixes are reached, and how often, is itself random, as in a real run. At each threshold the
number of p-values at or below it is held to the binomial law; all comparisons together fail an
exact suite with probability below 1e-6.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import in_process
import numpy as np
import pytest
from scipy import stats

from conformance.decoding import Decoding
from conformance.law import softmax, warp
from conformance.reference import draw, verify
from conformance.statistics import exact, pit
from conformance.statistics.leak import leak
from conformance.statistics.tables import Ints, Table, conditional_table, pooled_table
from conformance.statistics.two_sample import two_sample

THRESHOLDS = (0.5, 0.1, 0.01, 0.001)
FALSE_ALARM = 1e-6
PLAIN = Decoding()
CERTAIN = 1 - 1e-9  # as in the judge: such a law leaves nothing to see


@dataclass(frozen=True, slots=True)
class Scenario:
    """Random laws, a decoding, and how much is drawn.

    `states` prefixes are possible at every output index; `sharp` is the spread of the logits.
    `block` proposals are verified at a time; 0 samples plainly.
    """

    name: str
    vocab: int
    sharp: float
    requests: int
    length: int
    states: int
    decoding: Decoding = PLAIN
    block: int = 0
    weight: float = 1.0


SCENARIOS = (
    Scenario("two tokens, few requests", 2, 1.0, 40, 3, 3),
    Scenario("two tokens, long", 2, 1.0, 12, 80, 2),
    Scenario("dense tables", 5, 1.0, 600, 4, 4),
    Scenario("sparse tables", 32, 1.5, 60, 6, 30),
    Scenario("flat", 32, 0.1, 300, 4, 6),
    Scenario("nearly greedy", 16, 8.0, 120, 6, 6),
    Scenario("cold", 16, 2.0, 150, 5, 6, Decoding(temperature=0.3)),
    Scenario("hot", 16, 2.0, 150, 5, 6, Decoding(temperature=2.0)),
    Scenario("top-k", 32, 1.5, 200, 5, 8, Decoding(top_k=3)),
    Scenario("top-p", 32, 2.0, 200, 5, 8, Decoding(temperature=0.7, top_p=0.6)),
    Scenario("speculative blocks", 8, 1.0, 150, 6, 5, block=3),
    Scenario("speculative blocks, truncated", 16, 2.0, 150, 6, 5, Decoding(top_k=4), block=2),
    Scenario("2000 tokens", 2000, 2.0, 100, 3, 4, weight=0.4),
)


class World:
    """The laws of a scenario and its sampler; row ``t * states + s`` is state s at index t."""

    def __init__(self, s: Scenario, rng: np.random.Generator) -> None:
        self.s, self.rng = s, rng
        logits = rng.standard_normal((s.length * s.states, s.vocab)) * s.sharp
        near = logits + 0.6 * s.sharp * rng.standard_normal(logits.shape)
        self.law, self.draft = warp(logits, s.decoding), warp(near, s.decoding)
        self.follow = rng.integers(0, s.states, size=logits.shape)
        self.certain = self.law.max(axis=1) > CERTAIN
        self.key = pit.draft_key(self.law, self.draft)

    def _step(self, row: Ints, token: Ints) -> Ints:
        """The row that follows a row and its token, index by index."""
        after = (row // self.s.states + 1) * self.s.states + self.follow[row, token]
        return np.where(after < len(self.law), after, 0)

    def sample(self) -> tuple[Ints, Ints]:
        """Rows and tokens of every request. [N, T]"""
        return self._blocks() if self.s.block else self._plain()

    def _plain(self) -> tuple[Ints, Ints]:
        n, length = self.s.requests, self.s.length
        rows, tokens = np.zeros((2, n, length), dtype=np.int64)
        row = np.arange(n) % min(2, self.s.states)  # two prompts
        for t in range(length):
            rows[:, t] = row
            tokens[:, t] = draw(self.law[row], self.rng.random(n))
            row = self._step(row, tokens[:, t])
        return rows, tokens

    def _blocks(self) -> tuple[Ints, Ints]:
        n, length, k = self.s.requests, self.s.length, self.s.block
        tokens = np.zeros((n, length + k + 1), dtype=np.int64)
        at, row = np.zeros(n, dtype=np.int64), np.arange(n) % min(2, self.s.states)
        while (at < length).any():
            path = [row]
            proposed = np.zeros((n, k), dtype=np.int64)
            for i in range(k):
                proposed[:, i] = draw(self.draft[path[-1]], self.rng.random(n))
                path.append(self._step(path[-1], proposed[:, i]))
            p, q = self.law[np.stack(path, 1)], self.draft[np.stack(path[:-1], 1)]
            out, accepted = verify(p, q, proposed, self.rng.random((n, k)), self.rng.random(n))
            alive = at < length
            for i in range(k + 1):
                put = np.flatnonzero(alive & (i <= accepted))
                tokens[put, at[put] + i] = out[put, i]
            end = np.array(path)[accepted, np.arange(n)]
            row = np.where(alive, self._step(end, out[np.arange(n), accepted]), row)
            at = np.where(alive, at + accepted + 1, at)
        tokens = tokens[:, :length]
        rows = np.zeros_like(tokens)
        rows[:, 0] = np.arange(n) % min(2, self.s.states)
        for t in range(1, length):
            rows[:, t] = self._step(rows[:, t - 1], tokens[:, t - 1])
        return rows, tokens

    def pairs_table(self, rows: Ints, tokens: Ints) -> Table:
        """First two tokens jointly, one row a prompt."""
        v, prompts = self.s.vocab, min(2, self.s.states)
        first = self.law[:prompts]
        second = self.law[self.s.states + self.follow[:prompts]]
        prob = (first[:, :, None] * second).reshape(prompts, -1)
        flat = rows[:, 0] * v * v + tokens[:, 0] * v + tokens[:, 1]
        counts = np.bincount(flat, minlength=prompts * v * v).reshape(prompts, -1)
        return pooled_table(counts.sum(axis=1), counts, prob)


def p_values(world: World) -> Iterator[tuple[str, float]]:
    """Every test's p-value on one exact sample; nothing where there was nothing to judge."""
    rng = world.rng
    rows, tokens = world.sample()
    for t in (0, 1, world.s.length - 1):
        table = conditional_table(rows[:, t], tokens[:, t], world.law)
        if table.df:
            place = "first" if t == 0 else "later"
            if t == 1:
                yield "chi-square, second index", exact.chi_square(table, rng).p_value
                continue
            yield f"chi-square, {place} index", exact.chi_square(table, rng).p_value
            yield f"KL, {place} index", exact.likelihood_ratio(table, rng).p_value
    if world.s.vocab <= 100:
        table = world.pairs_table(rows, tokens)
        if table.df:
            yield "joint", exact.chi_square(table, rng).p_value
    seen = ~world.certain[rows]
    prefix, token = rows[seen], tokens[seen]
    if len(prefix):
        for name, key in (("p", world.law), ("q/p", world.key)):
            u = pit.transform(prefix, token, world.law, key, rng)
            yield f"PIT by {name}", pit.kolmogorov_smirnov(u).p_value
        found = leak(prefix, token, world.law, world.draft)
        if found is not None:
            yield "draft leak", found.p_value
    other_rows, other = world.sample()
    first, second = (rows.ravel(), tokens.ravel()), (other_rows.ravel(), other.ravel())
    fit, _ = two_sample(first, second, world.s.vocab, rng)
    if fit.df:
        yield "two-sample", fit.p_value


def check(replicates: int, seed: int, name: str) -> list[dict[str, Any]]:
    """Simulate about `replicates` samples in all, and hold every test to uniformity."""
    share = replicates / sum(s.weight for s in SCENARIOS)
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for i, s in enumerate(SCENARIOS):
        rng = np.random.default_rng([seed, i])
        worlds = [World(s, rng) for _ in range(4)]
        for r in range(int(np.ceil(share * s.weight))):
            for test, p in p_values(worlds[r % len(worlds)]):
                found[test, s.name].append(p)
                found[test, "all"].append(p)
    rows: list[dict[str, Any]] = [
        {
            "test": test, "scenario": scenario, "threshold": a, "n": len(p),
            "at_or_below": int((np.array(p) <= a).sum()),
        }
        for (test, scenario), p in found.items()
        for a in THRESHOLDS
    ]  # fmt: skip
    in_process.write_table(name, rows)
    for row in rows:
        p = stats.binomtest(row["at_or_below"], row["n"], row["threshold"]).pvalue
        row["p"] = p
        if row["scenario"] == "all":
            rate = row["at_or_below"] / row["n"]
            print(f"{row['test']:26} P(p <= {row['threshold']:<5}) = {rate:.5f} of {row['n']}")
    bad = [row for row in rows if row["p"] <= FALSE_ALARM / len(rows)]
    assert not bad, bad
    tests = {test for test, _ in found}
    assert len(tests) == 10, tests  # nothing went unjudged everywhere
    return rows


def test_p_values_are_uniform_under_exact_sampling() -> None:
    check(800, seed=1, name="calibration")


@pytest.mark.long
def test_p_values_are_uniform_in_twenty_thousand_samples() -> None:
    """Of every test: some tables are too thin to be judged, so there are more samples than that."""
    rows = check(37_000, seed=2, name="calibration_long")
    assert min(row["n"] for row in rows if row["scenario"] == "all") >= 20_000


def test_the_check_fails_where_the_law_is_slightly_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: the sampler is a little hotter than the law it is judged by."""
    make = World.__init__

    def hotter(self: World, s: Scenario, rng: np.random.Generator) -> None:
        make(self, s, rng)
        self.judged_by = self.law
        self.law = softmax(np.log(np.maximum(self.law, 1e-300)) / 1.15)

    def judged(world: World) -> Iterator[tuple[str, float]]:
        rows, tokens = world.sample()
        table = conditional_table(rows[:, 0], tokens[:, 0], world.judged_by)  # type: ignore[attr-defined]
        if table.df:
            yield "chi-square", exact.chi_square(table, world.rng).p_value

    monkeypatch.setattr(World, "__init__", hotter)
    monkeypatch.setitem(globals(), "p_values", judged)
    with pytest.raises(AssertionError, match="chi-square"):
        check(1000, seed=3, name="calibration_of_a_wrong_law")
