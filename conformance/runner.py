"""One run, from engine names to judged cases. The command line and the pytest plugin both call
this and nothing beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from conformance.contract import Capabilities, EngineCard
from conformance.cores import one_core
from conformance.decide import decide, unsampled
from conformance.decoding import DEFAULT_DECODINGS, Decoding
from conformance.described import Described
from conformance.errors import ConformanceError, PlanError, UnknownEngineError
from conformance.forms import FORMS
from conformance.gather import Progress, gather
from conformance.plan import DEFAULT_ALPHA, Case, RunPlan, probe_for
from conformance.result import CaseResult
from conformance.served.decide import judge_served
from conformance.served.plan import ServedCase, plan_all, served_cases
from conformance.served.words import is_served
from conformance.suite import IN_FORMS, LAW, SUITES, on_probes
from conformance.verdict import EXIT_CODES, CaseVerdict, Verdict, run_verdict
from conformance.verifier import VerifierCapabilities
from conformance.verifier.decide import judge_verifiers
from conformance.verifier.gather import meet, stand_in
from conformance.verifier.plan import VerifierCase, verifier_case

SMALLEST_ALPHA = 1e-100  # below, quantiles are no longer numbers, and no sample is large enough


@dataclass(frozen=True, slots=True)
class Settings:
    """What a person asked for.

    Parameters
    ----------
    engines : tuple of str
        Names as typed.
    decodings : tuple of Decoding
        Which configurations; where they are left to the suites, those of the suite ``law``.
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
    python : str or None
        The Python to run engines with; by default that of an engine's own environment if it has
        one, else the suite's.
    stage : int
        As in `RunPlan`.
    requests : mapping of str to int
        By case id: requests an arm found to be needed at an earlier stage.
    suites : tuple of str
        Which suites are asked, where the decodings are left to them.
    """

    engines: tuple[str, ...]
    decodings: tuple[Decoding, ...] = DEFAULT_DECODINGS
    profile: str = "standard"
    probe: str | None = None
    alpha: float = DEFAULT_ALPHA
    seed: int = 0
    jobs: int = 1
    timeout: float = 300.0
    python: str | None = None
    stage: int = 1
    requests: Mapping[str, int] = field(default_factory=dict)
    suites: tuple[str, ...] = (LAW,)

    @property
    def uses_default_decodings(self) -> bool:
        """Whether the decodings were left to the suite, which then asks its own questions too."""
        return self.decodings is DEFAULT_DECODINGS


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


def prepare(
    settings: Settings,
    described: Mapping[str, Described] | None = None,
    probes: Path | None = None,
) -> RunPlan:
    """Ask every engine what it can do, and plan.

    An engine that cannot be asked is an ERROR in each of its cases; a name that means nothing
    ends the run, because it is the caller's mistake.

    Parameters
    ----------
    settings : Settings
        What was asked for.
    described : mapping of str to Described, optional
        What the engines said earlier; none is asked then.
    probes : Path, optional
        A folder with the probes to use, in the place of the cache.

    Raises
    ------
    UnknownEngineError
        If no engine has one of the names.
    PlanError
        If the run cannot be planned.
    """
    if 0 < settings.alpha < SMALLEST_ALPHA:
        raise PlanError(f"alpha must be {SMALLEST_ALPHA:g} at least, not {settings.alpha:g}")
    cases = asked(settings, described)
    if probes is not None:
        cases = [replace(c, probes=probes) for c in cases]
    return plan_all(
        cases, settings.profile, settings.alpha, settings.seed, settings.stage, settings.requests
    )


def asked(settings: Settings, described: Mapping[str, Described] | None = None) -> list[Case]:
    """Every case of a run, not yet planned. `settings` and `described` as in `prepare`."""
    cases: list[Case] = []
    for name in dict.fromkeys(settings.engines):
        cases += _cases(name, settings, None if described is None else described.get(name))
    return cases


def _cases(name: str, settings: Settings, said: Described | None) -> Iterator[Case]:
    """An engine's cases, not yet planned."""
    if is_served(name):
        known = None if said is None else (said.met, said.error, said.prompts)
        yield from served_cases(name, settings.decodings, known)
        return
    said = said or ask(name, settings)
    if isinstance(said.capabilities, VerifierCapabilities):
        case = verifier_case(name, said.card, said.capabilities, said.injects, said.error)
        yield replace(case, environment=said.environment)
        return
    claims, error = said.capabilities, said.error
    for probe, d in dict.fromkeys(_questions(settings, claims)):  # two suites may ask the same
        yield Case(
            name,
            probe,
            d,
            said.card,
            claims,
            refusal=claims.refuses(d),
            error=error,
            environment=said.environment,
        )
    for form, d in _forms(settings):
        yield Case(
            name,
            FORMS[form].probe or probe_for(claims, settings.probe),
            d,
            said.card,
            claims,
            refusal=FORMS[form].refused(claims) or claims.refuses(d),
            error=error,
            environment=said.environment,
            form=form,
        )


def ask(name: str, settings: Settings) -> Described:
    """Ask an engine or a verifier who it is.

    Raises
    ------
    UnknownEngineError
        If there is none of this name.
    """
    try:
        said, environment = meet(name, settings.timeout, settings.python)
    except UnknownEngineError:
        raise
    except ConformanceError as exc:
        return Described(EngineCard(name=name), stand_in(name), error=str(exc))
    card, capabilities, *injects = said
    return Described(card, capabilities, bool(injects and injects[0]), environment=environment)


def _questions(settings: Settings, capabilities: Capabilities) -> Iterator[tuple[str, Decoding]]:
    """The (probe, decoding) pairs put to an engine: every decoding on the probe its method needs,
    before them the worked example where the draft can be given, or a small vocabulary where drafts
    come from lookup, and after them what the suites ask on probes of their own.
    """
    law = not settings.uses_default_decodings or LAW in settings.suites
    if settings.uses_default_decodings and settings.probe is None and law:
        extra = {"model": "worked-example", "lookup": "small"}.get(capabilities.draft)
        if extra:
            yield extra, Decoding()
    probe = probe_for(capabilities, settings.probe)
    asked = list(settings.decodings) if law else []
    if settings.uses_default_decodings:
        asked += [d for name in settings.suites if name != LAW for d in SUITES[name]]
    yield from ((probe, decoding) for decoding in asked)
    if settings.uses_default_decodings and settings.probe is None:
        for name in settings.suites:
            yield from on_probes(name, capabilities.draft)


def _forms(settings: Settings) -> tuple[tuple[str, Decoding], ...]:
    """The (form, decoding) pairs put to an engine."""
    if not settings.uses_default_decodings:
        return ()
    return tuple(asked for name in settings.suites for asked in IN_FORMS.get(name, ()))


def judge_cases(
    plan: RunPlan,
    folder: Path,
    cases: Sequence[Case] | None = None,
    jobs: int = 1,
    timeout: float = 300.0,
    progress: Progress | None = None,
    python: str | None = None,
) -> Iterator[CaseResult]:
    """Sample and judge cases of a plan; results come as cases finish."""
    cases = plan.cases if cases is None else cases
    apart = (VerifierCase, ServedCase)
    sampled = [c for c in cases if c.workload is not None and not isinstance(c, apart)]
    verifiers = [c for c in cases if c.workload is not None and isinstance(c, VerifierCase)]
    for case in cases:
        if case.workload is None:
            yield unsampled(case)
    served = [c for c in cases if c.workload is not None and isinstance(c, ServedCase)]
    with one_core():
        for gathered in gather(plan, sampled, folder, jobs, timeout, progress, python):
            yield decide(plan, gathered)
        yield from judge_verifiers(plan, verifiers, folder, jobs, timeout, progress, python)
        yield from judge_served(plan, served, folder, progress)


def collect(plan: RunPlan, results: Sequence[CaseResult]) -> tuple[CaseResult, ...]:
    """Put results in the plan's order.

    A planned case without a result is an ERROR: nothing passes by being lost.
    """
    by_id = {r.case.id: r for r in results}
    lost = CaseVerdict(Verdict.ERROR, "the case was planned but has no result")
    return tuple(by_id.get(c.id, CaseResult(c, lost)) for c in plan.cases)


def run_planned(
    settings: Settings,
    folder: Path,
    planned: Callable[[RunPlan], None] | None = None,
    progress: Progress | None = None,
    judged: Callable[[CaseResult], None] | None = None,
    settled: Container[str] = (),
) -> RunResult:
    """Plan, sample and judge a whole run.

    Parameters
    ----------
    settings : Settings
        What was asked for.
    folder : Path
        Evidence is kept under it.
    planned, progress, judged : callable, optional
        Told of the plan, of every batch answered, and of every case judged.
    settled : container of str
        Ids of cases that an earlier stage settled; they are planned and not sampled.
    """
    begin = time.perf_counter()
    plan = prepare(settings)
    if planned:
        planned(plan)
    results = []
    cases = [c for c in plan.cases if c.id not in settled]
    for result in judge_cases(
        plan, folder, cases, settings.jobs, settings.timeout, progress, settings.python
    ):
        results.append(result)
        if judged:
            judged(result)
    return RunResult(settings, plan, collect(plan, results), time.perf_counter() - begin)
