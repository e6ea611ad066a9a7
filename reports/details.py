"""Parts of the report's model that a case or a run has beside its findings.

They came with schema 1.2; an earlier report has none of them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Status = Literal[
    "not claimed", "refused", "not reached", "not in this run", "not asked by this suite"
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TrajectoryModel(_Strict):
    """An e-process, at every look: evidence against the law as tokens come in."""

    arm: Literal["speculative", "control", "both"]
    tokens: list[int] = Field(description="tokens judged until then")
    log10_e: list[float] = Field(description="the evidence there, as a power of ten")
    needed: float = Field(description="the power of ten at which it rejects")


class AcceptedModel(_Strict):
    """Accepted proposals at one place of the block, and what exact methods would accept."""

    place: str
    proposals: int
    accepted: int
    rate: float
    low: float = Field(description="95% interval of the rate")
    high: float
    rejection: float = Field(description="mean of the sum of min(p, q) at the same prefixes")
    matching: float | None = Field(description="mean of the sum of p * q")
    likeliest: float | None = Field(description="mean p of the draft's likeliest token")


class AcceptanceModel(_Strict):
    """Acceptance observed and predicted; for information, no verdict depends on it."""

    verified: bool = Field(
        description="whether only proposals are counted that were looked at, or all drafted ones"
    )
    places: list[AcceptedModel]


class DiagnosisModel(_Strict):
    """The likely cause of a departure; the fields are those of `conformance.cause.Cause`."""

    standing: Literal["fits", "nearest", "unexplained", "not compared"]
    fault: str
    summary: str
    shows: str
    seen: str = Field(description="public threads in which it was reported")
    note: str
    size: float | None
    alike: list[str] = Field(description="other faults that explain it about as well")
    runner_up: str
    odds_runner_up: float | None = Field(description="odds over the runner-up, as a power of ten")
    odds_exact: float | None = Field(description="odds over exactness, as a power of ten")
    fit_p: float | None
    place: str


class UnaskedModel(_Strict):
    """A question that was not put to the engine, or not answered."""

    status: Status
    question: str
    why: str
    cases: list[str] = Field(description="ids of the cases; empty where it concerns the whole run")
