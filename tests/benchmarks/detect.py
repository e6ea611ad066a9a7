"""How many tokens until a departure is detected: our tests and the incumbents', side by side."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.incumbents import STATISTICS, draw_counts
from benchmarks.laws import Departure, Pair, departures, make_pair, rules, total_variation
from benchmarks.ours import FIXED, check, run_lengths, tokens_needed
from benchmarks.published import DESIGNS, Design
from conformance.law import Floats
from conformance.reference import EXACT, Rule

ALPHA = 1e-6
AT_ONCE = 1 << 22  # cells of counts in memory
LEAST = 1e-12  # nats a token; below it a rule emits p on this pair
FIRST_SIZE = 16


@dataclass(frozen=True, slots=True)
class Grid:
    """How large the benchmark is.

    Parameters
    ----------
    vocabularies, distances
        Vocabulary sizes and total variations of the pairs.
    names : tuple of str or None
        Departures; all of them if None.
    runs : int
        Runs of the e-process for each departure.
    power_runs, null_runs
        Simulated runs for the incumbents' power, and of exact samplers for their thresholds.
    rates : dict
        False-alarm rate at which all are compared, by vocabulary: what `null_runs` can resolve.
    limit : int
        Tokens beyond which an incumbent is not followed.
    checks : int
        Runs of the real fixed-N tests at the N that was calculated; their power is measured, and
        tested to be what was calculated, in the quick version.
    design_runs, exact_runs
        Runs of every published design under a fault, and of an exact sampler.
    """

    vocabularies: tuple[int, ...]
    distances: tuple[float, ...]
    names: tuple[str, ...] | None
    runs: int
    power_runs: int
    null_runs: dict[int, int]
    rates: dict[int, float]
    limit: int
    checks: int
    design_runs: int
    exact_runs: int


FULL = Grid(
    vocabularies=(10, 32, 4096, 32_000),
    distances=(0.05, 0.25, 0.6),
    names=None,
    runs=100,
    power_runs=100,
    null_runs={10: 10_000, 32: 10_000, 4096: 2000, 32_000: 1000},
    rates={10: 0.001, 32: 0.001, 4096: 0.01, 32_000: 0.01},
    limit=1 << 20,
    checks=0,
    design_runs=50,
    exact_runs=1000,
)
QUICK = Grid(
    vocabularies=(32, 4096),
    distances=(0.25,),
    names=("accept-all", "lenient", "resample-from-p", "softmax-residual", "leak=0.1"),
    runs=100,
    power_runs=60,
    null_runs={32: 4000, 4096: 1000},
    rates={32: 0.001, 4096: 0.01},
    limit=1 << 18,
    checks=20,
    design_runs=20,
    exact_runs=100,
)


def finite(x: float) -> float | None:
    """For JSON: None where a limit was reached."""
    return float(x) if np.isfinite(x) else None


def cells(grid: Grid, seed: int = 0) -> list[dict[str, Any]]:
    """One row for each vocabulary, distance and departure."""
    return [
        row for v in grid.vocabularies for tv in grid.distances for row in of(grid, v, tv, seed)
    ]


def of(grid: Grid, vocab: int, tv: float, seed: int = 0) -> list[dict[str, Any]]:
    """One row for each departure on one pair."""
    pair = make_pair(vocab, tv, seed)
    rng = np.random.default_rng([seed, vocab, int(1000 * tv)])
    found = asked(grid, pair, seed)
    rows = list(pair_rows(grid, pair, [d for d in found if d.kl > LEAST], rng))
    none = [d.name for d in found if d.kl <= LEAST]
    return rows + [{"vocab": vocab, "tv": tv, "departure": name, "kl": 0.0} for name in none]


def asked(grid: Grid, pair: Pair, seed: int = 0) -> list[Departure]:
    """The departures that a grid asks of a pair."""
    return [d for d in departures(pair, seed) if grid.names is None or d.name in grid.names]


def pair_rows(
    grid: Grid, pair: Pair, found: list[Departure], rng: np.random.Generator
) -> Iterator[dict[str, Any]]:
    """Rows of one pair."""
    rate = grid.rates[pair.vocab]
    others = incumbents(grid, pair, found, rng)
    for d in found:
        ours, equal = e_process(pair, d, rate, grid.runs, rng)
        yield {
            "vocab": pair.vocab,
            "tv": pair.tv,
            "departure": d.name,
            "kl": d.kl,
            "emitted_tv": total_variation(d.law, pair.p),
            "leans": d.leans,
            "wald": d.wald(ALPHA),
            "e_process": ours,
            "fixed": {t: fixed(t, pair, d, grid.checks, rng) for t in FIXED},
            "equal_rate": {
                "rate": rate,
                "wald": d.wald(rate),
                **equal,
                "fixed_n": finite(
                    min(tokens_needed(t, pair, d, rate / len(FIXED), 0.5) for t in FIXED)
                ),
                "incumbents": others[d.name],
            },
        }


def e_process(
    pair: Pair, d: Departure, rate: float, runs: int, rng: np.random.Generator
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Tokens that our e-process needs: at ALPHA, and at the rate at which all are compared."""
    lengths = run_lengths(pair, d.law, (ALPHA, rate), runs, rng)
    ours, equal = lengths[ALPHA], lengths[rate]
    return (
        {"median": finite(ours.quantile(0.5)), "q90": finite(ours.quantile(0.9))},
        {
            "e_process": finite(equal.quantile(0.5)),
            "e_process_at_least": finite(equal.at_least()),
        },
    )


def fixed(
    test: str, pair: Pair, d: Departure, checks: int, rng: np.random.Generator
) -> dict[str, float | None]:
    """Tokens at which a fixed-N test has power .5 and .99, and its measured power at the first."""
    half, most = (tokens_needed(test, pair, d, ALPHA, power) for power in (0.5, 0.99))
    measured = None
    if checks and np.isfinite(half):
        measured = check(test, pair, d, ALPHA, int(half), checks, rng)
    return {"n50": finite(half), "n99": finite(most), "measured_at_n50": measured}


# --- incumbents at an equal false-alarm rate ------------------------------------------------------


def incumbents(
    grid: Grid, pair: Pair, found: list[Departure], rng: np.random.Generator
) -> dict[str, dict[str, float | None]]:
    """Tokens at which each statistic, held to the false-alarm rate, has power one half."""
    thresholds: dict[int, dict[str, float]] = {}
    out: dict[str, dict[str, float | None]] = {}
    for d in found:
        needed: dict[str, float] = {}
        below: dict[str, float] = dict.fromkeys(STATISTICS, 0.0)  # power at the size before
        n = FIRST_SIZE
        while n <= grid.limit and len(needed) < len(STATISTICS):
            if n not in thresholds:
                null = statistics(pair, pair.p, n, grid.null_runs[pair.vocab], rng)
                at = 1 - grid.rates[pair.vocab]
                thresholds[n] = {
                    s: float(np.quantile(v, at, method="higher")) for s, v in null.items()
                }
            for name, value in statistics(pair, d.law, n, grid.power_runs, rng).items():
                power = float((value > thresholds[n][name]).mean())
                if power >= 0.5 and name not in needed:
                    share = (0.5 - below[name]) / (power - below[name])
                    needed[name] = n if n == FIRST_SIZE else n / 2 * 2**share
                below[name] = power
            n *= 2
        out[d.name] = {s: finite(needed.get(s, np.inf)) for s in STATISTICS}
    return out


def statistics(
    pair: Pair, law: Floats, n: int, runs: int, rng: np.random.Generator
) -> dict[str, Floats]:
    """Every statistic of `runs` samplers that emit n tokens of `law`."""
    out: dict[str, list[Floats]] = {name: [] for name in STATISTICS}
    step = max(1, AT_ONCE // pair.vocab)
    for begin in range(0, runs, step):
        counts = draw_counts(n, law, pair.p, min(step, runs - begin), rng)
        for name, statistic in STATISTICS.items():
            out[name].append(statistic(counts, pair.p, rng))
    return {name: np.concatenate(values) for name, values in out.items()}


# --- published designs ----------------------------------------------------------------------------


def published(grid: Grid, number: int, seed: int = 0) -> dict[str, Any]:
    """A published test as published: how often it rejects, and what it would have needed."""
    design, rng = DESIGNS[number], np.random.default_rng([seed, 7, number])
    alarms = sum(design.rejects(design.pair(rng), EXACT, 1, rng) for _ in range(grid.exact_runs))
    interval = stats.binomtest(alarms, grid.exact_runs).proportion_ci(method="exact")
    return {
        "design": design.name,
        "trials": design.trials,
        "tokens": design.tokens,
        "runs": grid.design_runs,
        "false_alarms": {
            "runs": grid.exact_runs,
            "rate": alarms / grid.exact_runs,
            "interval_95": [float(interval.low), float(interval.high)],
        },
        "faults": {
            name: _killed(design, rule, grid, rng)
            for name, rule in rules().items()
            if grid.names is None or name in grid.names
        },
    }


def _killed(design: Design, rule: Rule, grid: Grid, rng: np.random.Generator) -> dict[str, Any]:
    multiple, rates = 1, []
    for _ in range(design.doublings + 1):
        hits = sum(
            design.rejects(design.pair(rng), rule, multiple, rng) for _ in range(grid.design_runs)
        )
        rates.append(hits / grid.design_runs)
        if rates[-1] >= 0.5:
            break
        multiple *= 2
    return {
        "kill_rate": rates[0],
        "multiple": multiple if rates[-1] >= 0.5 else None,
        "followed_to": 2**design.doublings,
        "ours": _ours_there(design, rule, grid, rng),
    }


def _ours_there(design: Design, rule: Rule, grid: Grid, rng: np.random.Generator) -> float | None:
    """Median tokens of the e-process at ALPHA on the design's own laws; infinite if the rule
    emits p there.
    """
    lengths = []
    for _ in range(max(2, grid.design_runs // 20)):
        pair = design.pair(rng)
        law = design.emitted(pair, rule)
        found = run_lengths(pair, law, (ALPHA,), 20, rng, limit=grid.limit)
        lengths.append(found[ALPHA].tokens)
    return finite(float(np.quantile(np.concatenate(lengths), 0.5, method="inverted_cdf")))


def renewed(found: dict[str, Any], grid: Grid, jobs: int = 1) -> dict[str, Any]:
    """What was found, with our e-process measured anew beside the incumbents as they were.

    Most of the time goes into the incumbents' thresholds, which no change of ours changes.
    """
    pairs = dict.fromkeys((c["vocab"], c["tv"]) for c in found["cells"])
    with ProcessPoolExecutor(jobs) as pool:
        ours = {pair: pool.submit(of_ours, grid, *pair) for pair in pairs}
        tests = [pool.submit(designs_ours, grid, i) for i in range(len(DESIGNS))]
        for cell in found["cells"]:
            if cell["kl"] > 0:
                mine = ours[cell["vocab"], cell["tv"]].result()
                cell["e_process"], equal = mine[cell["departure"]]
                cell["equal_rate"] |= equal
        for design, test in zip(found["designs"], tests, strict=True):
            for name, needed in test.result().items():
                design["faults"][name]["ours"] = needed
    return found


def of_ours(grid: Grid, vocab: int, tv: float, seed: int = 0) -> dict[str, Any]:
    """`e_process` of every departure from one pair, by name."""
    pair = make_pair(vocab, tv, seed)
    rng = np.random.default_rng([seed, vocab, int(1000 * tv)])
    return {
        d.name: e_process(pair, d, grid.rates[vocab], grid.runs, rng)
        for d in asked(grid, pair, seed)
        if d.kl > LEAST
    }


def designs_ours(grid: Grid, number: int, seed: int = 0) -> dict[str, float | None]:
    """What our e-process needs on the laws of a published test, by fault."""
    design, rng = DESIGNS[number], np.random.default_rng([seed, 7, number])
    return {
        name: _ours_there(design, rule, grid, rng)
        for name, rule in rules().items()
        if grid.names is None or name in grid.names
    }


def run(grid: Grid, jobs: int = 1) -> dict[str, Any]:
    """The whole of this benchmark, for JSON; `jobs` worker processes share the pairs."""
    with ProcessPoolExecutor(jobs) as pool:
        pairs = [
            # the largest first, so that no worker is left alone with it
            pool.submit(of, grid, vocab, tv)
            for vocab in sorted(grid.vocabularies, reverse=True)
            for tv in grid.distances
        ]
        tests = [pool.submit(published, grid, i) for i in range(len(DESIGNS))]
        rows = [row for pair in pairs for row in pair.result()]
        designs = [test.result() for test in tests]
    rows.sort(key=lambda row: (row["vocab"], row["tv"]))
    return {"alpha": ALPHA, "grid": asdict(grid), "cells": rows, "designs": designs}
