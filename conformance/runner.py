"""One run, from engine names to judged cases. The command line and the pytest plugin both call
this and nothing beside it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from statsmodels.stats.multitest import multipletests

from conformance import pool
from conformance.contract import Capabilities, EngineCard
from conformance.decide import decide, unsampled
from conformance.decoding import DEFAULT_DECODINGS, Decoding
from conformance.errors import ConformanceError, UnknownEngineError
from conformance.gather import Progress, gather
from conformance.plan import DEFAULT_ALPHA, PROFILES, Case, RunPlan, make_plan, probe_for
from conformance.result import CaseResult
from conformance.verdict import EXIT_CODES, CaseVerdict, Verdict, run_verdict


@dataclass(frozen=True, slots=True)
class Settings:
    """What a person asked for.

    Parameters
    ----------
    engines : tuple of str
        Names as typed.
    decodings : tuple of Decoding
        Which configurations.
    profile : str
        ``"smoke"``, ``"standard"`` or ``"audit"``.
    probe : str or None
        A probe other than the method's own.
    alpha : float
        False-alarm probability of the whole run, at most.
    seed : int
        Of every random number.
    jobs : int
        Worker processes.
    timeout : float
        Seconds an engine may take for one batch.
    """

    engines: tuple[str, ...]
    decodings: tuple[Decoding, ...] = DEFAULT_DECODINGS
    profile: str = "standard"
    probe: str | None = None
    alpha: float = DEFAULT_ALPHA
    seed: int = 0
    jobs: int = 1
    timeout: float = 300.0


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished run."""

    settings: Settings
    plan: RunPlan
    results: tuple[CaseResult, ...]
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """The run's verdict."""
        return run_verdict(r.verdict.verdict for r in self.results)

    @property
    def exit_code(self) -> int:
        """The process exit status that goes with it."""
        return EXIT_CODES[self.verdict]


def prepare(settings: Settings) -> RunPlan:
    """Ask every engine what it can do, and plan.

    An engine that cannot be asked is an ERROR in each of its cases; a name that means nothing
    ends the run, because it is the caller's mistake.

    Raises
    ------
    UnknownEngineError
        If no engine has one of the names.
    PlanError
        If the run cannot be planned.
    """
    profile = PROFILES[settings.profile]
    cases: list[Case] = []
    for name in dict.fromkeys(settings.engines):
        error = None
        try:
            card, capabilities = pool.describe(name, settings.timeout)
        except UnknownEngineError:
            raise
        except ConformanceError as exc:
            error = str(exc)
            card, capabilities = EngineCard(name=name), Capabilities()
        probe = probe_for(capabilities, settings.probe)
        cases += [
            Case(name, probe, d, card, capabilities, refusal=capabilities.refuses(d), error=error)
            for d in settings.decodings
        ]
    return make_plan(cases, profile, settings.alpha, settings.seed)


def judge_cases(
    plan: RunPlan,
    folder: Path,
    cases: Sequence[Case] | None = None,
    jobs: int = 1,
    timeout: float = 300.0,
    progress: Progress | None = None,
) -> Iterator[CaseResult]:
    """Sample and judge cases of a plan; results come as cases finish."""
    cases = plan.cases if cases is None else cases
    sampled = [c for c in cases if c.workload is not None]
    for case in cases:
        if case.workload is None:
            yield unsampled(case)
    for gathered in gather(plan, sampled, folder, jobs, timeout, progress):
        yield decide(plan, gathered)


def finish(
    settings: Settings, plan: RunPlan, results: Sequence[CaseResult], seconds: float
) -> RunResult:
    """Put results in the plan's order and add Holm-adjusted p-values over the whole run.

    A planned case without a result is an ERROR: nothing passes by being lost.
    """
    by_id = {r.case.id: r for r in results}
    lost = CaseVerdict(Verdict.ERROR, "the case was planned but has no result")
    ordered = [by_id.get(c.id, CaseResult(c, lost)) for c in plan.cases]
    return RunResult(settings, plan, tuple(_holm(plan, ordered)), seconds)


def _holm(plan: RunPlan, results: Sequence[CaseResult]) -> Iterator[CaseResult]:
    judged = [f.p_value for r in results for f in r.findings if f.p_value is not None]
    # planned tests that could not be judged still count: their number was fixed beforehand
    padded = judged + [1.0] * max(0, plan.test_count - len(judged))
    adjusted = iter(multipletests(padded, method="holm")[1] if padded else [])
    for r in results:
        yield replace(
            r,
            findings=tuple(
                f if f.p_value is None else replace(f, adjusted_p=float(next(adjusted)))
                for f in r.findings
            ),
        )


def run(settings: Settings, folder: Path, progress: Progress | None = None) -> RunResult:
    """Plan, sample and judge a whole run, keeping its evidence under `folder`."""
    begin = time.perf_counter()
    plan = prepare(settings)
    results = list(
        judge_cases(
            plan, folder, jobs=settings.jobs, timeout=settings.timeout, progress=progress
        )
    )
    return finish(settings, plan, results, time.perf_counter() - begin)
