"""The report's model: what ``report.json`` holds, validated, versioned and written in this order.

Everything a renderer shows comes from here; nothing is computed while rendering. Plots are data
(counts and expectations), so that a reader can check them.
"""

from __future__ import annotations

import json
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from conformance.errors import ReportError
from conformance.reports.details import (
    AcceptanceModel,
    DiagnosisModel,
    TrajectoryModel,
    UnaskedModel,
)
from conformance.reports.measured import Measured
from conformance.verdict import Verdict

SCHEMA_VERSION: Final = "1.2"


class _Strict(BaseModel):
    # inf and NaN have no JSON; a probability that is one of them is a defect to be seen, not shown
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class IntervalModel(_Strict):
    """An estimate with a confidence interval."""

    estimate: float
    low: float
    high: float
    confidence: float


class FindingModel(_Strict):
    """One test's result; the fields are those of `conformance.verdict.Finding`."""

    test: str
    scope: str
    arm: Literal["speculative", "control", "both"]
    n: int
    p_value: float | None
    adjusted_p: float | None
    level: float
    rejected: bool
    statistic: float | None
    df: float | None
    effect: dict[str, IntervalModel]
    detectable: float | None
    detectable_unit: str
    message: str
    figures: dict[str, float] = Field(
        default={}, description="what the test counts or measures, by name"
    )


class SpeculationModel(_Strict):
    """What was seen of speculation."""

    reported: bool
    blocks: int
    drafted: int
    accepted: int
    rejected: int
    longest: int


class ArmModel(_Strict):
    """What one arm of a case gathered."""

    arm: Literal["speculative", "control"]
    requests: int = Field(description="answers gathered")
    planned: int = Field(description="answers planned before sampling")
    tokens: int
    set_aside: int = Field(description="tokens at float-ambiguous prefixes, judged by support only")
    seconds: float = Field(description="time spent inside the engine, summed over workers")
    sha256: str = Field(description="checksum of the evidence file")


class BarsModel(_Strict):
    """Observed against expected counts of one table."""

    title: str
    labels: list[str]
    observed: list[int]
    expected: list[float]
    draft: list[float] | None = Field(
        description="expected counts if the draft's law had been sampled instead, where known"
    )


class PitModel(_Strict):
    """Histogram of the probability integral transform: flat under exactness."""

    order: str
    observed: list[int]
    expected: float = Field(description="expected count in every bin")
    band: tuple[float, float] = Field(description="simultaneous 99% band for a bin")


class Expectation(_Strict):
    """A failure that was declared before anything was sampled: one entry of an expectations file.

    It excuses a case in the run's exit status and hides nothing.
    """

    case: str = Field(
        description="pattern over 'engine / probe / decoding', as of file names: * ? [abc]"
    )
    verdict: list[Verdict] = Field(
        default=[Verdict.NOT_EXACT], description="verdicts that are expected"
    )
    reason: str
    link: str = Field(description="http or https address of an issue")
    expires: date = Field(description="last day, in UTC, on which the entry excuses anything")
    strict: bool = Field(default=False, description="whether passing now fails the run")


class ExpectedModel(_Strict):
    """What an expectation came to in one case."""

    outcome: Literal["as expected", "passes now", "otherwise", "expired"] = Field(
        description="only 'as expected' excuses the case; otherwise: it failed in another way"
    )
    entry: Expectation


class ExpectationsModel(_Strict):
    """What was expected of a run, and what became of it."""

    entries: list[Expectation] = Field(description="the file's content")
    unmatched: list[Expectation] = Field(description="entries that no case of this run matches")
    expired: list[Expectation] = Field(description="entries that match a case and have expired")
    as_expected: int = Field(description="cases that failed as expected")
    passes_now: int = Field(description="cases that were expected to fail and are EXACT")


class CaseModel(_Strict):
    """One case: engine x probe x decoding."""

    id: str
    engine: str
    probe: str
    decoding: str
    workload: str
    verdict: Verdict
    why: str
    ruled_out: list[str]
    needed: int | None = Field(
        description="where more samples should settle an inconclusive case: requests an arm"
    )
    speculation: SpeculationModel
    arms: list[ArmModel]
    findings: list[FindingModel]
    bars: list[BarsModel]
    pit: list[PitModel]
    error: str | None = Field(description="traceback or engine output, where the case failed")
    stage: int = Field(default=1, description="the stage it was judged at, with its alpha")
    trajectories: list[TrajectoryModel] = Field(
        default=[], description="the e-processes of a sampled case, by arm"
    )
    acceptance: AcceptanceModel | None = Field(
        default=None, description="where the draft's law is known and rounds or counts are told"
    )
    diagnosis: DiagnosisModel | None = Field(
        default=None, description="the likely cause, where a departure was found and it was sought"
    )
    form: str = Field(
        default="plain", description="what its requests have in common, and what they do not"
    )
    claim: Literal["absolute", "relative"] = Field(
        default="absolute",
        description=(
            "absolute: held to a law that was computed here; relative: to plain sampling of the "
            "same server, and to its log-probabilities where it tells them"
        ),
    )
    expected: ExpectedModel | None = Field(
        default=None, description="where an entry of the expectations file names this case"
    )


class EngineModel(_Strict):
    """Who was tested."""

    name: str
    card_name: str
    version: str
    method: str
    homepage: str
    rule: str
    dialect: str
    environment: dict[str, str] = Field(
        default={}, description="what it runs on, names and versions, as far as it says"
    )


class ProbeModel(_Strict):
    """Which models were sampled."""

    name: str
    vocab_size: int
    entropy_nats: float
    draft_tv: float | None
    float_noise: float = Field(description="largest float32 against float64 difference of a logit")
    sha256: dict[str, str]


class SettingsModel(_Strict):
    """What was fixed before sampling."""

    profile: str
    alpha: float
    power: float
    delta: float
    tests: int = Field(description="tests among which alpha is split")
    stage: int = Field(description="1, and one more for every addition; stage s spends alpha/2^s")
    seed: int
    jobs: int


class Report(_Strict):
    """A whole run.

    Fields that a later version of the schema added have defaults, so that an earlier report can
    still be read and compared.
    """

    schema_version: Literal["1.1", "1.2"] = SCHEMA_VERSION
    tool_version: str
    created: datetime
    seconds: float
    command: list[str]
    verdict: Verdict
    exit_code: int
    why: str
    settings: SettingsModel
    environment: dict[str, str]
    engines: list[EngineModel]
    probes: list[ProbeModel]
    cases: list[CaseModel]
    measured: Measured = Field(description="how the suite itself was tested")
    expectations: ExpectationsModel | None = Field(
        default=None, description="where expected failures were declared"
    )
    not_asked: list[UnaskedModel] | None = Field(
        default=None, description="what was not asked or not answered; None before schema 1.2"
    )


def json_schema() -> dict[str, Any]:
    """The JSON Schema of ``report.json``; the copy shipped with the package is this one."""
    schema = Report.model_json_schema(mode="serialization")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = f"specdec-conformance report {SCHEMA_VERSION}"
    return schema


def dump_json(report: Report) -> str:
    """Serialise with stable order and a final newline."""
    return report.model_dump_json(indent=2) + "\n"


def load_report(path: Path) -> Report:
    """Read and validate a ``report.json``.

    Raises
    ------
    ReportError
        If the file is missing, is not JSON, or does not fit the schema.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ReportError(f"cannot read report {path}: {exc.strerror or exc}") from exc
    except ValueError as exc:
        raise ReportError(f"{path} is not JSON: {exc}") from exc
    try:
        return Report.model_validate(raw)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ReportError(
            f"{path} does not fit report schema {SCHEMA_VERSION}: {where}: {first['msg']} "
            f"({exc.error_count()} problem(s))"
        ) from exc
