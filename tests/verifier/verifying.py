"""Verifiers judged without worker processes, for tests by simulation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from conformance.contract import EngineCard
from conformance.plan import RunPlan
from conformance.resolve import construct
from conformance.result import CaseResult
from conformance.verdict import Finding
from conformance.verifier import gather
from conformance.verifier.book import Book, Job, jobs_of
from conformance.verifier.contract import Verifier, VerifierCapabilities
from conformance.verifier.decide import _edges, decide
from conformance.verifier.gather import Gathered
from conformance.verifier.judge import Judge, samples
from conformance.verifier.plan import Blocks, VerifierCase, plan_run, verifier_case
from conformance.verifier.serve import Server, check_verifier


def named(name: str) -> Verifier:
    """A built-in verifier."""
    return check_verifier(name, construct(name))


def plan_for(
    verifier: Verifier,
    profile: str = "smoke",
    alpha: float = 1e-6,
    seed: int = 0,
    laws: tuple[tuple[str, int], ...] = (),
    share: float = 1.0,
) -> RunPlan:
    """The plan of one verifier; with `laws`, of these alone; with a share of its blocks."""
    injects = hasattr(verifier, "verify_with")
    plan = _plan_of(verifier.capabilities, injects, profile, alpha)
    (planned,) = plan.cases
    planned = replace(planned, engine=verifier.card.name, card=verifier.card)
    if share < 1:
        assert isinstance(planned, VerifierCase)
        assert planned.workload is not None
        some = tuple((name, math.ceil(share * rows)) for name, rows in planned.blocks)
        planned = replace(
            planned, workload=replace(planned.workload, requests=sum(n for _, n in some), laws=some)
        )
    plan = replace(plan, seed=seed, cases=(planned,))
    if not laws:
        return plan
    only = {name for name, _ in laws}
    tests = tuple(t for t in planned.tests if _law(t.scope) in only | GRID_SCOPES)
    blocks = Blocks(prompts=(), requests=sum(n for _, n in laws), new_tokens=17, laws=laws)
    return replace(plan, cases=(replace(planned, workload=blocks, tests=tests),))


@cache
def _plan_of(claims: VerifierCapabilities, injects: bool, profile: str, alpha: float) -> RunPlan:
    """The plan of whoever claims this; what it is called changes nothing of it."""
    return plan_run([verifier_case("", EngineCard(name=""), claims, injects)], profile, alpha, 0)


GRID_SCOPES = {
    "first position",
    "all positions",
    "whole grid",
    "rows of a call",
    "consecutive calls",
}


def _law(scope: str) -> str:
    return scope.split(",", maxsplit=1)[0]


def judged(verifier: Verifier, plan: RunPlan) -> CaseResult:
    """Gather in this process, and judge."""
    (case,) = plan.cases
    assert isinstance(case, VerifierCase)
    book = Book(case, plan.seed, None)
    server = Server(verifier)
    worker = _Here(server)
    for job in jobs_of(case, plan.seed):
        gather._do(worker, job, book, lambda rows: None)  # type: ignore[arg-type]
    return decide(plan, Gathered(case, book.evidence(), book.error))


def first_kill(verifier: Verifier, plan: RunPlan) -> tuple[str, ...]:
    """The tests that reject on the first law, or edge, on which any does; empty if none does.

    Laws are gathered and judged one by one, the quick ones first and edges last, with the tokens
    and at the level of the whole run: what rejects here is among the findings of `judged`, which
    then is NOT EXACT. Tests over all laws together are not asked.
    """
    (case,) = plan.cases
    assert isinstance(case, VerifierCase)
    worker = _Here(Server(verifier))
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in jobs_of(case, plan.seed):
        groups.setdefault((job.kind, "" if job.kind == "edge" else job.name), []).append(job)
    specs = {name: case.law(name).spec for name, _ in case.blocks}
    # a call takes as long as a thousand more numbers
    time = {n: rows * (specs[n].vocab + 1000 / specs[n].batch) for n, rows in case.blocks}
    for kind, name in sorted(groups, key=lambda g: (g[0] == "edge", time.get(g[1], 0))):
        if kind == "again":
            continue
        book = Book(case, plan.seed, None)
        for job in groups[kind, name]:
            gather._do(worker, job, book, lambda rows: None)  # type: ignore[arg-type]
        evidence = book.evidence()
        if kind == "edge":
            findings = [*_edges(case, Gathered(case, evidence))]
        else:
            judge = Judge(plan, case, evidence)
            for sample in samples(case, evidence):
                judge._count(sample)
                judge._law(sample)
            findings = [judge._support(), *judge.findings]
        if rejected := sorted({f.test for f in findings if f.rejected}):
            return tuple(rejected)
    return ()


class _Here:
    def __init__(self, server: Server) -> None:
        self.ask = server.answer


def sampled(result: CaseResult) -> Iterator[Finding]:
    """Findings of tests that spend alpha."""
    return (f for f in result.findings if f.p_value is not None)


def smallest(result: CaseResult) -> float:
    """The smallest p-value."""
    return min(f.p_value for f in sampled(result) if f.p_value is not None)
