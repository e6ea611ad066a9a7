"""A run's folder while the run goes on: ``run.json`` says what was asked, the evidence what was
answered, ``judged/`` what has been made of it.

A run that was interrupted goes on as if it had not been. One that has ended goes on with what was
not settled: cases that were INCONCLUSIVE for want of samples get more. Every such addition is a new
stage with an alpha of its own (`RunPlan.stage`), so that looking again keeps the whole within
alpha. An ERROR stays: whoever may answer a failed request again may choose among the answers.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from conformance._version import __version__
from conformance.decoding import DEFAULT_DECODINGS, parse_decodings
from conformance.described import Described, of_plan, read
from conformance.errors import ConformanceError, PlanError
from conformance.plan import PROFILES, RunPlan
from conformance.probes import ROUNDING, rounding_text
from conformance.reports.model import CaseModel, Expectation, Report, load_report
from conformance.reports.writing import replace_text
from conformance.runner import Settings
from conformance.suite import LAW, named

FILE = "run.json"
REPORT, PREVIOUS = "report.json", "report.previous.json"
JUDGED, EVIDENCE, PROBES = "judged", "evidence", "probes"
MOST_STAGES = 50
MOST_REQUESTS = 10**7  # an arm; more than anybody asks, and no more than fits
LARGEST_FILE = 64 * 2**20  # bytes of run.json
# fields of `Settings` that ``run.json`` has under the same name and in the same form
AS_THEY_ARE = ("profile", "probe", "alpha", "seed", "jobs", "timeout", "python")


class RunFile(BaseModel):
    """``run.json``: what was asked for, and what the engines said of themselves.

    `stages` has, for every stage so far, the requests an arm that cases were found to need by then.
    `decodings` is None where they were left to the suite.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    format: Literal[1] = 1
    tool_version: str = __version__
    engines: list[str] = Field(min_length=1, max_length=1000)
    decodings: list[str] | None
    suites: list[str] = [LAW]
    profile: str
    probe: str | None
    alpha: float
    seed: int
    jobs: int
    timeout: float
    python: str | None
    stages: list[dict[str, int]] = Field(min_length=1, max_length=MOST_STAGES)
    described: dict[str, dict[str, Any]]
    expectations: list[Expectation] = []

    def settings(self, stage: int | None = None) -> Settings:
        """What was asked for, as it stood at a stage; by default the last.

        Raises
        ------
        PlanError
            If a field means nothing.
        """
        number = len(self.stages) if stage is None else stage
        if not 1 <= number <= len(self.stages):
            raise PlanError(f"there was no stage {number}; there were {len(self.stages)}")
        if self.profile not in PROFILES:
            raise PlanError(f"there is no profile {self.profile!r}")
        requests = self.stages[number - 1]
        if any(not 0 < n <= MOST_REQUESTS for n in requests.values()):
            raise PlanError(f"requests must be 1 to {MOST_REQUESTS:,} an arm")
        asked = None if self.decodings is None else parse_decodings(self.decodings)
        return Settings(
            engines=tuple(self.engines),
            decodings=DEFAULT_DECODINGS if asked is None else asked,
            suites=named(self.suites),
            stage=number,
            requests=requests,
            **{name: getattr(self, name) for name in AS_THEY_ARE},
        )

    def said(self) -> dict[str, Described]:
        """What every engine said of itself.

        Raises
        ------
        EvidenceError
            If it cannot be read.
        """
        return {name: read(name, data) for name, data in self.described.items()}


@dataclass(frozen=True, slots=True)
class Resumed:
    """What to go on with.

    Parameters
    ----------
    settings : Settings
        As they were, at the stage that is now to be sampled.
    stages : tuple of mapping
        As in `RunFile`, with that stage.
    settled : tuple of CaseModel
        Cases that keep their verdict.
    described : mapping
        What the engines said of themselves.
    expectations : tuple of Expectation
        Failures that were declared beforehand.
    finished : Report or None
        Set where every case is settled.
    """

    settings: Settings
    stages: tuple[Mapping[str, int], ...] = ({},)
    settled: tuple[CaseModel, ...] = ()
    described: Mapping[str, dict[str, Any]] | None = None
    expectations: tuple[Expectation, ...] = ()
    finished: Report | None = None


def as_text(run: RunFile) -> str:
    """``run.json`` as it is written."""
    return run.model_dump_json(indent=2) + "\n"


def clear(folder: Path) -> None:
    """Forget an earlier run."""
    for name in (EVIDENCE, JUDGED, PROBES):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (FILE, REPORT, PREVIOUS):
        (folder / name).unlink(missing_ok=True)


def begin_stage(before: Resumed, plan: RunPlan, folder: Path) -> None:
    """Leave ``run.json`` and the probes before anything is sampled; the report of a finished stage
    is set aside, so that an interruption can be told from an end.

    Raises
    ------
    PlanError
        If an engine is not the one that was sampled before.
    """
    now = of_plan(plan)
    _check_same(before, now)
    settings = before.settings
    run = RunFile(
        engines=list(settings.engines),
        decodings=None if settings.uses_default_decodings else [str(d) for d in settings.decodings],
        suites=list(settings.suites),
        stages=[dict(s) for s in before.stages],
        described=now,
        expectations=list(before.expectations),
        **{name: getattr(settings, name) for name in AS_THEY_ARE},
    )
    folder.mkdir(parents=True, exist_ok=True)
    _keep_probes(plan, folder)
    # in this order: whenever this stops, run.json and the reports agree on the stage
    replace_text(folder / FILE, as_text(run))
    if (folder / REPORT).exists():
        os.replace(folder / REPORT, folder / PREVIOUS)


def _keep_probes(plan: RunPlan, folder: Path) -> None:
    """Copy the probes that are sampled: their weights, and how this machine rounds, say what the
    law was.
    """
    for case in plan.cases:
        if case.workload is None or not case.has_probe:
            continue
        target = folder / PROBES / case.probe
        if target.exists():
            continue
        probe = case.oracle.probe
        half = target.with_name(f".{case.probe}.half")
        shutil.rmtree(half, ignore_errors=True)
        for name in probe.checksums():
            (half / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(probe.folder / name, half / name)
        used = {c.capabilities.precision for c in plan.cases if c.probe == case.probe}
        rounding: dict[str, float] = {
            p: replace(probe, precision=p).float_noise for p in {*used, "float32"}
        }
        replace_text(half / ROUNDING, rounding_text(rounding))
        half.rename(target)


def keep_judged(case: CaseModel, slug: str, folder: Path) -> None:
    """Leave a case's verdict, so that it stands whatever becomes of the rest of the run."""
    (folder / JUDGED).mkdir(parents=True, exist_ok=True)
    replace_text(folder / JUDGED / f"{slug}.json", case.model_dump_json() + "\n")


def forget_judged(folder: Path) -> None:
    """Remove what the finished report holds."""
    shutil.rmtree(folder / JUDGED, ignore_errors=True)
    (folder / PREVIOUS).unlink(missing_ok=True)


def read_run_file(folder: Path) -> RunFile:
    """Read ``run.json``.

    Raises
    ------
    PlanError
        If there is none, or it is damaged.
    """
    path = folder / FILE
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise PlanError(f"{path} is damaged: it is larger than {LARGEST_FILE:,} bytes")
        run = RunFile.model_validate_json(path.read_bytes())
        run.settings()
    except OSError as exc:
        raise PlanError(
            f"there is no run to go on with in {folder}: {exc.strerror or exc}"
        ) from exc
    except (ValidationError, ConformanceError) as exc:
        raise PlanError(f"{path} is damaged ({exc}); start the run anew") from exc
    return run


def read_run(folder: Path) -> Resumed:
    """Work out how to go on with the run in a folder.

    Raises
    ------
    PlanError
        If there is no run to go on with, or its file is damaged.
    ReportError
        If a report in it cannot be read.
    """
    run = read_run_file(folder)
    report = folder / REPORT
    if not report.exists():
        settled = {c.id: c for c in (*_previous(folder), *_judged(folder, len(run.stages)))}
        return Resumed(run.settings(), tuple(run.stages), tuple(settled.values()), run.described)
    done = load_report(report)
    settled_now = tuple(c for c in done.cases if c.needed is None)
    more = {c.id: c.needed for c in done.cases if c.needed is not None}
    if done.settings.stage < len(run.stages):  # stopped as the addition began: begin it again
        run = run.model_copy(update={"stages": run.stages[: done.settings.stage]})
    stages = (*run.stages, {**run.stages[-1], **more})
    settings = replace(run.settings(), stage=len(stages), requests=stages[-1])
    finished = done if len(settled_now) == len(done.cases) else None
    return Resumed(settings, stages, settled_now, run.described, tuple(run.expectations), finished)


def _check_same(before: Resumed, now: Mapping[str, dict[str, Any]]) -> None:
    """Refuse to add one build's answers to another's."""
    for name, said in (before.described or {}).items():
        new = now.get(name)
        if new is None or said.get("error") is not None or new.get("error") is not None:
            continue
        old_version, version = (d.get("card", {}).get("version") for d in (said, new))
        if old_version != version:
            raise PlanError(
                f"{name} was version {old_version} and is now {version}: its answers cannot be "
                "added to the earlier ones; start the run anew"
            )
        if said != new:
            changed = sorted(key for key in {*said, *new} if said.get(key) != new.get(key))
            raise PlanError(
                f"{name} says other things of itself than before ({', '.join(changed)}): its "
                "answers cannot be added to the earlier ones; start the run anew"
            )


def _previous(folder: Path) -> tuple[CaseModel, ...]:
    """Settled cases of the stage before an interrupted addition."""
    path = folder / PREVIOUS
    if not path.exists():
        return ()
    return tuple(c for c in load_report(path).cases if c.needed is None)


def _judged(folder: Path, stage: int) -> list[CaseModel]:
    """Cases that were judged before the run was interrupted."""
    found = []
    for path in sorted((folder / JUDGED).glob("*.json")):
        try:
            case = CaseModel.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as exc:
            raise PlanError(f"{path} is damaged ({exc}); start the run anew") from exc
        if case.stage == stage:
            found.append(case)
    return found
