"""Runs of what is held out: plan, evidence, levels and verdict are those of ``conformance run``.

Unlike in the kill matrix requests are asked in calls of the size that the engine claims, so that a
fault of batches, or of what is kept between calls, shows as it would. Run as
``python held_out_runs.py --help``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "verifier"))
sys.path.insert(0, str(Path(__file__).parent))

import held_out
import held_out_exact
import held_out_verifiers
import in_process
import verifying

from conformance import wire
from conformance.adapters.reference import ReferenceEngine
from conformance.contract import Capabilities
from conformance.decide import decide
from conformance.decoding import DEFAULT_DECODINGS, Decoding
from conformance.errors import BadAnswerError
from conformance.evidence import Evidence
from conformance.gather import Gathered, arm_requests, arm_seeds
from conformance.plan import PROFILES, Case, RunPlan, make_plan
from conformance.result import CaseResult
from conformance.stacked import stack_rounds
from conformance.verdict import Verdict, run_verdict
from conformance.verifier.contract import Verifier

Make = Callable[[], ReferenceEngine]
PLAIN = ("mid", Decoding())


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one run: its verdict, the tests that rejected, and its cases' words."""

    verdict: Verdict
    tests: tuple[str, ...]
    cases: tuple[str, ...]
    said: tuple[str, ...]


@cache
def plan_of(profile: str, claims: Capabilities, only_plain: bool, alpha: float) -> RunPlan:
    """What ``conformance run`` plans, or its most telling case alone."""
    asked = [("worked-example", Decoding()), *(("mid", d) for d in DEFAULT_DECODINGS)]
    card = ReferenceEngine().card
    cases = [Case(card.name, *of, card, claims) for of in ([PLAIN] if only_plain else asked)]
    return make_plan(cases, PROFILES[profile], alpha, seed=0)


def gather(engine: ReferenceEngine, plan: RunPlan, case: Case, arm: str) -> Evidence:
    """One arm's evidence, asked call by call."""
    engine.load(case.oracle.probe.pair)
    requests = arm_requests(plan, case, arm)
    size = case.capabilities.max_batch
    answers = []
    for begin in range(0, len(requests), size):
        asked = requests[begin : begin + size]
        found = engine.generate(asked)
        wire.encode_completions(found, asked)
        answers += found
    assert case.workload is not None
    return Evidence(
        tokens=np.array([a.tokens for a in answers], dtype=np.int64),
        prompt=case.workload.prompt_of,
        seeds=arm_seeds(plan, case, arm),
        rounds=stack_rounds([a.rounds for a in answers]),
        seconds=0.0,
        planned=len(requests),
    )


@cache
def control_of(plan_key: tuple[str, Capabilities, bool, float], seed: int, i: int) -> Evidence:
    """The control arm of case i, which is right whatever is held out."""
    plan = in_process.with_seed(plan_of(*plan_key), seed)
    return gather(ReferenceEngine(), plan, plan.cases[i], "control")


def judge_all(
    make: Make, key: tuple[str, Capabilities, bool, float], seed: int
) -> Iterator[CaseResult]:
    """The judged cases of one run, most telling first, until one is NOT EXACT."""
    plan = in_process.with_seed(plan_of(*key), seed)
    order = sorted(range(len(plan.cases)), key=lambda i: _late(plan.cases[i]))
    for i in order:
        case = plan.cases[i]
        try:
            spec = gather(make(), plan, case, "speculative")
        except BadAnswerError as exc:
            yield decide(plan, Gathered(case, {}, exc))
            continue
        arms = {"speculative": spec, "control": control_of(key, seed, i)}
        result = decide(plan, Gathered(case, arms), explain=False)
        yield result
        if result.verdict.verdict is Verdict.NOT_EXACT:
            return


def _late(case: Case) -> tuple[bool, bool]:
    return (case.probe, case.decoding) != PLAIN, case.probe != "mid"


def run(
    make: Make, seed: int, profile: str = "standard", only_plain: bool = False, alpha: float = 1e-6
) -> Outcome:
    """One run of an engine."""
    return outcome(judge_all(make, (profile, make().capabilities, only_plain, alpha), seed))


def run_verifier(make: Callable[[], Verifier], seed: int, profile: str = "standard") -> Outcome:
    """One run of a verifier."""
    verifier = make()
    plan = in_process.with_seed(verifying.plan_for(verifier, profile), seed)
    return outcome([verifying.judged(verifier, plan)])


def outcome(results: Iterator[CaseResult] | Sequence[CaseResult]) -> Outcome:
    """What the cases amount to."""
    verdicts, tests, cases, said = [], dict[str, None](), [], []
    for r in results:
        verdicts.append(r.verdict.verdict)
        if r.verdict.verdict is Verdict.NOT_EXACT:
            cases.append(str(r.case.decoding))
            hits = sorted((f for f in r.findings if f.rejected), key=lambda f: f.p_value or 0.0)
            tests |= dict.fromkeys(f"{f.test} on {f.scope} [{f.arm}]" for f in hits)
        said.append(f"{r.case.probe} / {r.case.decoding}: {r.verdict.verdict} {r.verdict.why}")
    return Outcome(run_verdict(verdicts), tuple(tests), tuple(cases), tuple(said))


def asked_of(kind: str, names: Sequence[str]) -> dict[str, Callable[[int], Outcome]]:
    """How to run each of a kind, by name."""
    if kind == "verifiers":
        known = held_out_verifiers.FAULTS
        return {n: lambda s, n=n: run_verifier(known[n].make, s) for n in names or known}  # type: ignore[misc]
    engines: dict[str, Make] = (
        {n: f.make for n, f in held_out.FAULTS.items()}
        if kind == "engines"
        else held_out_exact.EXACT
    )
    return {n: lambda s, n=n: run(engines[n], s) for n in names or engines}  # type: ignore[misc]


def run_seeds(
    name: str, once: Callable[[int], Outcome], seeds: Iterable[int], out: Path | None
) -> None:
    """Run one engine with every seed; say what came of it, and add it to a file if there is one."""
    for seed in seeds:
        began = time.perf_counter()
        o = once(seed)
        print(f"{name:26} {seed} {o.verdict:12} {time.perf_counter() - began:4.0f} s  "
              f"{len(o.tests)} {'; '.join(o.tests[:3])} {o.cases}", flush=True)  # fmt: skip
        if out:
            row = {"name": name, "seed": seed} | asdict(o)
            with out.open("a", encoding="utf-8") as f:
                f.write(json.dumps(row) + "\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["engines", "verifiers", "exact"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    for name, once in asked_of(asked.kind, asked.names).items():
        run_seeds(name, once, range(asked.first, asked.first + asked.seeds), asked.out)


if __name__ == "__main__":
    main()
