"""From a finished run to the report's model."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
from statsmodels.stats.multitest import multipletests

from conformance._version import __version__
from conformance.acceptance import Acceptance
from conformance.decoding import LATER_FILTERS
from conformance.plan import Case, RunPlan
from conformance.probes import Probe, load_probe, open_probe
from conformance.reports.details import (
    AcceptanceModel,
    AcceptedModel,
    DiagnosisModel,
    TrajectoryModel,
)
from conformance.reports.expectations import apply_expectations, exit_code_of
from conformance.reports.measured import measured
from conformance.reports.model import (
    ArmModel,
    BarsModel,
    CaseModel,
    EngineModel,
    Expectation,
    FindingModel,
    PitModel,
    ProbeModel,
    Report,
    SettingsModel,
    SpeculationModel,
)
from conformance.reports.unasked import unasked
from conformance.result import CaseResult
from conformance.served.words import MODEL, relative
from conformance.verdict import Verdict, run_verdict
from conformance.verifier.plan import VerifierCase

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
LISTED_PACKAGES = (
    "numpy", "scipy", "statsmodels", "matplotlib", "torch", "transformers", "safetensors",
)  # fmt: skip


def case_model(result: CaseResult, stage: int = 1) -> CaseModel:
    """One case, judged at a stage."""
    case = result.case
    return CaseModel(
        id=case.id,
        engine=case.engine,
        probe=case.probe,
        decoding=case.configuration,
        workload=str(case.workload) if case.workload else "",
        verdict=result.verdict.verdict,
        why=result.verdict.why,
        ruled_out=list(result.verdict.ruled_out),
        needed=result.verdict.needed,
        speculation=SpeculationModel(**asdict(result.speculation)),
        arms=[ArmModel(**asdict(arm)) for arm in result.arms],
        findings=[FindingModel(**asdict(f)) for f in result.findings],
        bars=[BarsModel(**asdict(b)) for b in result.bars],
        pit=[PitModel(**asdict(h)) for h in result.pit],
        error=result.error,
        stage=stage,
        form=case.form,
        claim="relative" if case.probe == MODEL else "absolute",
        trajectories=[TrajectoryModel(**asdict(t)) for t in result.trajectories],
        acceptance=_acceptance(result.acceptance),
        diagnosis=None if result.diagnosis is None else DiagnosisModel(**asdict(result.diagnosis)),
    )


def _acceptance(seen: Acceptance | None) -> AcceptanceModel | None:
    if seen is None:
        return None
    places = [
        AcceptedModel(
            place=at.place,
            proposals=at.proposals,
            accepted=at.accepted,
            rate=at.rate.estimate,
            low=at.rate.low,
            high=at.rate.high,
            rejection=at.rejection,
            matching=at.matching,
            likeliest=at.likeliest,
        )
        for at in seen.places
    ]
    return AcceptanceModel(verified=seen.verified, places=places)


def build_report(
    plan: RunPlan,
    cases: Sequence[CaseModel],
    *,
    seconds: float,
    jobs: int,
    command: Sequence[str],
    expectations: Sequence[Expectation] = (),
    created: datetime | None = None,
) -> Report:
    """Assemble the report of a run.

    Parameters
    ----------
    plan : RunPlan
        What was fixed before sampling.
    cases : sequence of CaseModel
        Judged cases.
    seconds : float
        Wall time of the run.
    jobs : int
        Worker processes.
    command : sequence of str
        The command line.
    expectations : sequence of Expectation, optional
        Failures declared beforehand: they change the exit status, and no verdict.
    created : datetime, optional
        Of the report that is built again; now if left out.
    """
    created = created or datetime.now(UTC)
    marked, found = apply_expectations(
        _with_holm(cases, plan.test_count), expectations, created.date()
    )
    verdict = run_verdict(c.verdict for c in cases)
    planned = {c.id: c for c in plan.cases}
    shown = [planned[c.id] for c in cases]
    return Report(
        tool_version=__version__,
        created=created,
        seconds=seconds,
        command=list(command),
        verdict=verdict,
        exit_code=exit_code_of(marked, found),
        why=run_sentence(cases),
        settings=SettingsModel(
            profile=plan.profile.name,
            alpha=plan.alpha,
            power=plan.profile.power,
            delta=plan.profile.delta,
            tests=plan.test_count,
            stage=plan.stage,
            seed=plan.seed,
            jobs=jobs,
        ),
        environment=environment(),
        engines=[_engine(c) for c in {c.engine: c for c in shown}.values()],
        probes=[_probe(probe) for probe in _probes(shown)],
        cases=marked,
        measured=measured(),
        expectations=found,
        not_asked=unasked(plan, cases),
    )


def run_sentence(cases: Sequence[CaseModel]) -> str:
    """The run in one sentence."""
    count = {v: sum(c.verdict is v for c in cases) for v in Verdict}
    judged = len(cases) - count[Verdict.NOT_SUPPORTED]
    if judged == 0:
        return "No configuration was judged, so nothing can be said."
    words = {
        Verdict.NOT_EXACT: "{n} of {of} configurations depart from the target's distribution",
        Verdict.ERROR: "{n} of {of} ended in an error",
        Verdict.INCONCLUSIVE: "{n} of {of} are inconclusive",
        Verdict.EXACT: "{n} of {of} passed every test",
        Verdict.NOT_SUPPORTED: "{n} more are not supported",
    }
    parts = [words[v].format(n=count[v], of=judged) for v in words if count[v]]
    return "; ".join(parts) + "." + relative(c.probe for c in cases if c.verdict is Verdict.EXACT)


def environment() -> dict[str, str]:
    """What the run ran on."""
    found = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "processors": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
    } | {name: os.environ[name] for name in THREADS if name in os.environ}
    for name in LISTED_PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _processor() -> str:
    """The processor's name; platform.processor() has none on Linux."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _engine(case: Case) -> EngineModel:
    dialect = case.capabilities.dialect
    return EngineModel(
        name=case.engine,
        card_name=case.card.name,
        version=case.card.version,
        method=case.card.method,
        homepage=case.card.homepage,
        rule=case.card.rule,
        environment=dict(case.environment),
        dialect="laws as given"
        if isinstance(case, VerifierCase)
        else "the server's own; the control arm has it too"
        if case.probe == MODEL
        else (
            f"{' then '.join(_warps(case))}; token crossing top_p: {dialect.top_p_crossing}; "
            f"top_k ties: {dialect.top_k_ties}{_grammar(case)}"
        ),
    )


def _warps(case: Case) -> list[str]:
    """The order of warps; of those that not every engine has, what this one claims."""
    claims = case.capabilities
    return [w for w in claims.dialect.warps if w not in LATER_FILTERS or getattr(claims, w)]


def _grammar(case: Case) -> str:
    again = case.capabilities.dialect.grammar == "resample"
    return "; a grammar is asked after a token was drawn" if again else ""


def _probes(cases: Sequence[Case]) -> Iterator[Probe]:
    """Every probe once, as it is on disk: an engine may have rounded its weights."""
    for case in {c.probe: c for c in cases if c.has_probe}.values():
        if case.probes is None:
            yield load_probe(case.probe)
        else:
            yield open_probe(case.probe, case.probes / case.probe)


def _probe(probe: Probe) -> ProbeModel:
    return ProbeModel(
        name=probe.recipe.name,
        vocab_size=probe.recipe.vocab_size,
        entropy_nats=probe.mean_entropy,
        draft_tv=probe.mean_draft_tv,
        float_noise=probe.float_noise,
        sha256=probe.checksums(),
    )


def _with_holm(cases: Sequence[CaseModel], tests: int) -> list[CaseModel]:
    """Holm-adjust over the whole run; planned tests that could not be judged still count."""
    p_values = [f.p_value for c in cases for f in c.findings if _spends_alpha(f)]
    padded = p_values + [1.0] * max(0, tests - len(p_values))
    adjusted = iter(multipletests(padded, method="holm")[1].tolist() if padded else [])
    return [
        c.model_copy(
            update={
                "findings": [
                    f
                    if not _spends_alpha(f)
                    else f.model_copy(update={"adjusted_p": min(next(adjusted), 1.0)})
                    for f in c.findings
                ]
            }
        )
        for c in cases
    ]


def _spends_alpha(finding: FindingModel) -> bool:
    """Not where a p-value is given for information only."""
    return finding.p_value is not None and finding.level > 0
