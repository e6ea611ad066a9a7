"""Are the p-values of the independence tests at most uniform when requests are independent?

Flat, sharp and nearly greedy laws; short and long answers; few and many requests to a prompt; some
tokens set aside. The correlation has an exact law and must be uniform; the others promise no more
than "at most".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import in_process
import numpy as np
import pytest
from scipy import stats

from conformance.law import softmax
from conformance.reference import draw
from conformance.statistics.independence import coincidences, correlation_at_lag
from conformance.statistics.repeats import repeats_anywhere, repeats_at_lag

THRESHOLDS = (0.1, 0.01, 0.001)
FALSE_ALARM = 1e-6
UNIFORM = {"correlation across requests", "correlation within a request"}


@dataclass(frozen=True, slots=True)
class Scenario:
    """`aside` is the share of prefixes set aside, as ambiguous ones are."""

    name: str
    vocab: int
    sharp: float
    prompts: int
    requests: int
    length: int
    aside: float = 0.0


SCENARIOS = (
    Scenario("two tokens", 2, 0.5, 1, 30, 3),
    Scenario("flat, short", 8, 0.1, 2, 60, 3),
    Scenario("sharp, long", 12, 2.0, 2, 40, 12),
    Scenario("nearly greedy", 12, 6.0, 2, 40, 8),
    Scenario("a prompt each", 12, 1.5, 30, 30, 6),
    Scenario("some set aside", 12, 1.5, 2, 60, 8, aside=0.2),
    Scenario("many requests", 32, 1.5, 4, 400, 4),
)


def p_values(s: Scenario, rng: np.random.Generator) -> Iterator[tuple[str, float]]:
    """Every test's p-value on one exact sample."""
    law = softmax(rng.standard_normal((s.vocab + s.prompts, s.vocab)) * s.sharp)
    aside = rng.random(len(law)) < s.aside
    prompt = np.sort(rng.integers(0, s.prompts, s.requests))
    row, code = s.vocab + prompt, prompt + 1
    rows, prefix, token = np.zeros((3, s.requests, s.length), dtype=np.int64)
    for t in range(s.length):
        rows[:, t], prefix[:, t] = row, code
        token[:, t] = draw(law[row], rng.random(s.requests))
        code = code * 1_000_003 + token[:, t] + 1
        row = token[:, t]
    p, judged = law[rows, token], ~aside[rows]
    for lag in (1, 5):
        found = repeats_at_lag(prefix, token, p, judged, lag, rng)
        if found is not None:
            yield f"repeats at lag {lag}", found.p_value
    found = repeats_anywhere(prefix, token, p, judged, rng)
    if found is not None:
        yield "repeats anywhere", found.p_value
    u = np.cumsum(law, axis=1)[rows, token] - p * rng.random(p.shape)
    across = correlation_at_lag(u, judged, 1)
    if across is not None:
        yield "correlation across requests", across.p_value
    within = correlation_at_lag(u.T, judged.T, 1)
    if within is not None:
        yield "correlation within a request", within.p_value
    other = token[:-1]
    use = judged[1:] & (prefix[1:] != prefix[:-1])
    yield "coincidences", coincidences(token[1:], other, law[rows[1:], other], use).p_value


def check(replicates: int, seed: int, name: str) -> None:
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for i, s in enumerate(SCENARIOS):
        rng = np.random.default_rng([seed, i])
        for _ in range(-(-replicates // len(SCENARIOS))):
            for test, p in p_values(s, rng):
                found[test, s.name].append(p)
                found[test, "all"].append(p)
    rows = []
    for (test, scenario), values in found.items():
        for a in THRESHOLDS:
            hits = int((np.array(values) <= a).sum())
            rows.append({"test": test, "scenario": scenario, "threshold": a, "n": len(values),
                         "at_or_below": hits})  # fmt: skip
            if scenario == "all":
                print(f"{test:30} P(p <= {a:<5}) = {hits / len(values):.5f} of {len(values)}")
    in_process.write_table(name, rows)
    for row in rows:
        side = "two-sided" if row["test"] in UNIFORM else "greater"
        luck = stats.binomtest(
            row["at_or_below"], row["n"], row["threshold"], alternative=side
        ).pvalue
        assert luck > FALSE_ALARM / len(rows), row
    assert len({test for test, _ in found}) == 6


def test_p_values_are_at_most_uniform_under_independence() -> None:
    check(1400, seed=1, name="calibration_independence")


@pytest.mark.long
def test_p_values_are_at_most_uniform_in_forty_thousand_samples() -> None:
    check(40_000, seed=2, name="calibration_independence_long")


def test_the_check_fails_where_neighbours_share_randomness(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check can fail: every fifth request or so draws with the coin of the one before."""
    honest = draw

    def shared(law: np.ndarray, u: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng(int(u[0] * 2**32))
        again = np.flatnonzero(rng.random(len(u)) < 0.2)
        u = u.copy()
        u[again[again > 0]] = u[again[again > 0] - 1]
        return honest(law, u)

    monkeypatch.setitem(globals(), "draw", shared)
    with pytest.raises(AssertionError, match="'test'"):
        check(2100, seed=3, name="calibration_of_shared_randomness")
