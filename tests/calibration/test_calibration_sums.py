"""Are leak and surprisal p-values at most uniform when the sampler is exact?

Both come from sums that keep no laws. Where the sums are smooth they are uniform; where they are
made of rare jumps the p-value is that of the step, and above it on average. Prefixes repeat or
never do; laws are flat, sharp, nearly greedy or truncated; drafts near, far and one-hot; tokens few
and many.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import in_process
import numpy as np
import pytest
from scipy import stats

from conformance.law import Floats, softmax
from conformance.reference import draw
from conformance.statistics.leak import LeakSum
from conformance.statistics.surprisal import SurprisalSum

THRESHOLDS = (0.1, 0.01, 0.001)
FALSE_ALARM = 1e-6
SMOOTH = ("dense", "flat", "twin draft")


@dataclass(frozen=True, slots=True)
class Scenario:
    """`apart` is the spread of the draft's logits around the target's; 0 is a one-hot draft."""

    name: str
    vocab: int
    sharp: float
    apart: float
    prefixes: int
    tokens: int
    keep: int = 10**6


SCENARIOS = (
    Scenario("dense", 8, 1.0, 0.5, 5, 500),
    Scenario("sparse", 32, 1.5, 0.5, 60, 120),
    Scenario("flat", 32, 0.1, 0.3, 20, 300),
    Scenario("nearly greedy", 16, 6.0, 1.0, 30, 400),
    Scenario("far draft", 32, 1.5, 3.0, 40, 400),
    Scenario("twin draft", 32, 1.5, 0.02, 40, 400),
    Scenario("one-hot draft", 16, 1.5, 0.0, 30, 300),
    Scenario("truncated", 32, 1.5, 0.7, 30, 300, keep=4),
    Scenario("few tokens", 32, 1.5, 0.5, 20, 25),
    Scenario("one table", 4, 2.0, 1.0, 1, 80),
)


def laws(s: Scenario, rng: np.random.Generator) -> tuple[Floats, Floats]:
    logits = s.sharp * rng.standard_normal((s.prefixes, s.vocab))
    p = softmax(logits)
    if s.apart:
        q = softmax(logits + s.apart * rng.standard_normal(logits.shape))
    else:
        q = np.eye(s.vocab)[draw(p, rng.random(s.prefixes))]
    cut = np.sort(p, axis=1)[:, [-min(s.keep, s.vocab)]]
    p = np.where(p >= cut, p, 0.0)
    return p / p.sum(axis=1, keepdims=True), q


def check(replicates: int, seed: int, name: str, temperature: float = 1.0) -> None:
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for i, s in enumerate(SCENARIOS):
        rng = np.random.default_rng([seed, i])
        for r in range(-(-replicates // len(SCENARIOS))):
            if r % 50 == 0:
                p, q = laws(s, rng)
                drawn = p ** (1 / temperature)
                drawn /= drawn.sum(axis=1, keepdims=True)
            prefix = rng.integers(0, s.prefixes, s.tokens)
            token = draw(drawn[prefix], rng.random(s.tokens))
            leak, surprisal = LeakSum(), SurprisalSum()
            leak.add(prefix, token, p, q)
            surprisal.add(prefix, token, p)
            for test, result in (("leak", leak.result()), ("surprisal", surprisal.result())):
                if result is not None:
                    found[test, s.name].append(result.p_value)
                    found[test, "all"].append(result.p_value)
    rows = [
        {"test": test, "scenario": scenario, "threshold": a, "n": len(p),
         "at_or_below": int((np.array(p) <= a).sum())}
        for (test, scenario), p in found.items()
        for a in THRESHOLDS
    ]  # fmt: skip
    in_process.write_table(name, rows)
    for row in rows:
        rate = row["at_or_below"] / row["n"]
        print(f"{row['test']:10} {row['scenario']:16} P(p <= {row['threshold']:<5}) = {rate:.5f}")
    for row in rows:
        side = "two-sided" if row["scenario"] in SMOOTH else "greater"
        luck = stats.binomtest(
            row["at_or_below"], row["n"], row["threshold"], alternative=side
        ).pvalue
        assert luck > FALSE_ALARM / len(rows), row
    assert len(found) == 2 * (len(SCENARIOS) + 1)


def test_p_values_are_at_most_uniform_under_exact_sampling() -> None:
    check(1800, seed=1, name="calibration_sums")


@pytest.mark.long
def test_p_values_are_at_most_uniform_in_twenty_thousand_samples() -> None:
    check(20_000, seed=2, name="calibration_sums_long")


def test_the_check_fails_where_the_sampler_is_hotter() -> None:
    with pytest.raises(AssertionError, match="'test'"):
        check(900, seed=3, name="calibration_sums_of_a_hot_sampler", temperature=1.2)
