"""Going on with a run: ``run.json`` says what was asked, and the evidence what was answered.

A run that was interrupted goes on as if it had not been. One that has ended goes on with what was
not settled: cases that were INCONCLUSIVE for want of samples get more. Every such addition is a new
stage with an alpha of its own (`RunPlan.stage`), so that looking again keeps the whole within
alpha. An ERROR stays: whoever may answer a failed request again may choose among the answers.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from conformance.decoding import DEFAULT_DECODINGS, parse_decodings
from conformance.errors import ConformanceError, PlanError
from conformance.plan import PROFILES, RunPlan
from conformance.reports.model import CaseModel, Report, load_report
from conformance.runner import Settings

FILE = "run.json"
REPORT, PREVIOUS = "report.json", "report.previous.json"
MOST_STAGES = 50
# fields of `Settings` that ``run.json`` has under the same name and in the same form
AS_THEY_ARE = (
    "profile",
    "probe",
    "alpha",
    "seed",
    "jobs",
    "timeout",
    "python",
    "stage",
    "requests",
)


class _Run(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    engines: list[str]
    decodings: list[str] | None  # None: the suite's own
    profile: str
    probe: str | None
    alpha: float
    seed: int
    jobs: int
    timeout: float
    python: str | None
    stage: int
    requests: dict[str, int]
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Resumed:
    """What to go on with: settings, cases that keep their verdict, and the versions judged.

    `finished` is set where every case is settled.
    """

    settings: Settings
    settled: tuple[CaseModel, ...]
    versions: dict[str, str]
    finished: Report | None = None


def clear(folder: Path) -> None:
    """Forget an earlier run."""
    shutil.rmtree(folder / "evidence", ignore_errors=True)
    for name in (FILE, REPORT, PREVIOUS):
        (folder / name).unlink(missing_ok=True)


def begin_stage(settings: Settings, plan: RunPlan, folder: Path) -> None:
    """Leave ``run.json``, atomically, before anything is sampled; the report of a finished stage
    is set aside, so that an interruption can be told from an end.
    """
    run = _Run(
        engines=list(settings.engines),
        decodings=None if settings.uses_default_decodings else [str(d) for d in settings.decodings],
        **{name: getattr(settings, name) for name in AS_THEY_ARE},
        versions={c.engine: c.card.version for c in plan.cases},
    )
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / REPORT).exists():
        os.replace(folder / REPORT, folder / PREVIOUS)
    half = folder / f"{FILE}.half"
    half.write_text(run.model_dump_json(indent=2) + "\n", encoding="utf-8")
    os.replace(half, folder / FILE)


def read_run(folder: Path) -> Resumed:
    """Work out how to go on with the run in a folder.

    Raises
    ------
    PlanError
        If there is no run to go on with, or its file is damaged.
    ReportError
        If the run has ended and its report cannot be read.
    """
    path = folder / FILE
    try:
        run = _Run.model_validate_json(path.read_bytes())
        asked = DEFAULT_DECODINGS if run.decodings is None else parse_decodings(run.decodings)
    except OSError as exc:
        raise PlanError(f"no run to go on with in {folder}: {exc.strerror or exc}") from exc
    except (ValidationError, ConformanceError) as exc:
        raise PlanError(f"{path} is damaged ({exc}); start the run anew") from exc
    if run.profile not in PROFILES or not 1 <= run.stage <= MOST_STAGES:
        raise PlanError(f"{path} is damaged: no profile {run.profile!r}, or stage {run.stage}")
    settings = Settings(
        engines=tuple(run.engines),
        decodings=asked,
        **{name: getattr(run, name) for name in AS_THEY_ARE},
    )
    if not (folder / REPORT).exists():
        return Resumed(settings, _previous(folder), run.versions)
    report = load_report(folder / REPORT)
    settled = tuple(c for c in report.cases if c.needed is None)
    more = {c.id: c.needed for c in report.cases if c.needed is not None}
    return Resumed(
        replace(settings, stage=run.stage + 1, requests={**run.requests, **more}),
        settled,
        run.versions,
        report if len(settled) == len(report.cases) else None,
    )


def check_versions(resumed: Resumed, plan: RunPlan) -> None:
    """Refuse to add one build's answers to another's.

    Raises
    ------
    PlanError
        If an engine is not the version that was sampled before.
    """
    for case in plan.cases:
        before = resumed.versions.get(case.engine)
        if before is not None and case.error is None and before != case.card.version:
            raise PlanError(
                f"{case.engine} was version {before} and is now {case.card.version}: its answers "
                "cannot be added to the earlier ones; start the run anew"
            )


def _previous(folder: Path) -> tuple[CaseModel, ...]:
    """Settled cases of the stage before an interrupted addition."""
    path = folder / PREVIOUS
    if not path.exists():
        return ()
    return tuple(c for c in load_report(path).cases if c.needed is None)
