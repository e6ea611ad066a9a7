"""Runs without worker processes: plan, engine and evidence in this one, for tests by simulation."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from scipy import stats

from conformance import wire
from conformance.adapters.reference import ReferenceEngine
from conformance.arm import Arm
from conformance.decoding import Decoding
from conformance.evidence import Evidence, several
from conformance.forms import PLAIN
from conformance.gather import arm_requests, arm_seeds
from conformance.plan import Case, RunPlan
from conformance.pool import Outcome
from conformance.stacked import stack_counts, stack_logprobs, stack_rounds
from conformance.tinylm import Tokens

NOWHERE = Path("nowhere")  # evidence that is not saved
TABLES = "CONFORMANCE_TABLES"


def cases(probe: str, decodings: Iterable[Decoding], form: str = PLAIN) -> list[Case]:
    """The reference engine's cases on one probe."""
    engine = ReferenceEngine()
    card, claims = engine.card, engine.capabilities
    return [Case(card.name, probe, d, card, claims, form=form) for d in decodings]


def with_seed(plan: RunPlan, seed: int) -> RunPlan:
    """The same plan, prompts included, with other random numbers: another run of it."""
    return replace(plan, seed=seed)


def gather_runs(
    engine: ReferenceEngine, case: Case, arm: str, plans: Sequence[RunPlan]
) -> list[Evidence]:
    """One arm's evidence for each of several runs of a case, generated in one batch.

    Every request draws from a stream of its own seed, so what shares its batch changes nothing.
    """
    engine.load(case.oracle.probe.pair)
    requests = [arm_requests(plan, case, arm) for plan in plans]
    answers = iter(engine.generate([r for rs in requests for r in rs]))
    out = []
    for plan, rs in zip(plans, requests, strict=True):
        mine = [next(answers) for r in rs for _ in range(r.answers)]
        # the contract, as a worker process holds it
        said = wire.encode_completions(mine, rs)
        tokens: Tokens = np.array([c["tokens"] for c in said], dtype=np.int64)
        assert case.workload is not None
        out.append(
            Evidence(
                tokens=tokens,
                prompt=case.workload.prompt_of,
                seeds=arm_seeds(plan, case, arm),
                rounds=stack_rounds([a.rounds for a in mine]),
                seconds=0.0,
                planned=case.workload.requests,
                counts=stack_counts([a.counts for a in mine]),
                logprobs=stack_logprobs([c.get("logprobs") for c in said], tokens.shape[1]),
                answer=several(case.workload.answer_of),
            )
        )
    return out


def gather_calls(engine: ReferenceEngine, plan: RunPlan, case: Case, arm: str) -> Evidence:
    """One arm's evidence for one run, generated in the calls that are planned."""
    return answered(engine, Arm(plan, case, arm, NOWHERE))


def answered(engine: ReferenceEngine, arm: Arm) -> Evidence:
    """What the engine answers to an arm, in the calls that are planned."""
    engine.load(arm.case.oracle.probe.pair)
    for task in list(arm.tasks()):
        said = wire.encode_completions(engine.generate(task.requests), task.requests)
        assert isinstance(task.key, tuple)
        arm.take(task.key[1], Outcome(task, tuple(said), 0.0))
    return arm.evidence()


def at_or_below(
    p_values: Mapping[str, Sequence[float]], thresholds: Sequence[float]
) -> dict[str, dict[float, tuple[int, int]]]:
    """How many p-values of each test are at or below each threshold, and of how many."""
    return {
        test: {a: (sum(p <= a for p in values), len(values)) for a in thresholds}
        for test, values in p_values.items()
    }


def check_uniform(
    below: Mapping[str, Mapping[float, tuple[int, int]]],
    level: float,
    side: Callable[[str], Literal["two-sided", "greater"]],
) -> None:
    """Fail, with this probability at most under uniform p-values, if there are too many small ones,
    or too few where `side` of the test's name says so.
    """
    compared = [(test, a, *hits) for test, row in below.items() for a, hits in row.items()]
    for test, a, hits, n in compared:
        p = stats.binomtest(hits, n, a, side(test)).pvalue
        assert p > level / len(compared), f"{test}: {hits} of {n} p-values below {a}"


def clopper_pearson(hits: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact interval of a rate."""
    found = stats.binomtest(hits, n).proportion_ci(confidence, method="exact")
    return float(found.low), float(found.high)


def write_table(name: str, rows: object) -> None:
    """Keep measured numbers as JSON in the folder $CONFORMANCE_TABLES, where it is set."""
    folder = os.environ.get(TABLES)
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        text = json.dumps(rows, indent=1, default=float) + "\n"
        (Path(folder) / f"{name}.json").write_text(text, encoding="utf-8")
