"""What ``conformance diff`` finds, as data: its JSON, and what its renderers show."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from conformance.reports.diff_estimates import Direction
from conformance.reports.model import ExpectedModel, IntervalModel
from conformance.verdict import Verdict

DIFF_VERSION: Final = "1.0"
CaseChange = Literal["worse", "better", "same", "added", "removed"]
Strength = Literal["weaker", "stronger", "same"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SideModel(_Strict):
    """One of the two reports."""

    created: datetime
    tool_version: str
    verdict: Verdict
    exit_code: int
    engines: dict[str, str] = Field(description="version by engine")


class ChangedModel(_Strict):
    """Something that was set, or found on the machine, and differs."""

    name: str
    old: str
    new: str


class EffectModel(_Strict):
    """An effect size in the speculative arm, side by side."""

    effect: str
    scope: str
    old: IntervalModel | None
    new: IntervalModel | None
    difference: IntervalModel | None = Field(
        description="of its size, whatever its sign; None where one side has none"
    )
    change: Direction | None = Field(description="null where the two cannot be compared")
    counts: bool = Field(description="whether it can make a case worse")
    main: bool = Field(description="whether it is one of those that are always shown")


class CertificateModel(_Strict):
    """What a pass rules out, side by side: the smaller, the stronger."""

    name: str
    old: float | None
    new: float | None
    change: Strength


class AcceptanceChangeModel(_Strict):
    """Accepted of drafted tokens."""

    old: IntervalModel
    new: IntervalModel
    difference: IntervalModel
    change: Direction


class ArmChangeModel(_Strict):
    """What one arm gathered, and how long the engine took for a token."""

    arm: Literal["speculative", "control"]
    planned: tuple[int, int]
    requests: tuple[int, int]
    tokens: tuple[int, int]
    seconds_per_token: tuple[float | None, float | None]


class CaseDiffModel(_Strict):
    """One configuration in both reports, or in one of them."""

    old_id: str | None
    new_id: str | None
    old: Verdict | None
    new: Verdict | None
    change: CaseChange
    said: str = Field(description="one sentence")
    weaker: list[str] = Field(description="in what a pass says less than it did")
    stronger: list[str]
    same_tokens: bool = Field(description="whether both reports are about the very same tokens")
    expected: ExpectedModel | None = Field(description="what the new report says of it")
    effects: list[EffectModel]
    certificates: list[CertificateModel]
    acceptance: AcceptanceChangeModel | None
    arms: list[ArmChangeModel]


class SpeedModel(_Strict):
    """A number of ``conformance bench`` in both folders."""

    cell: str
    what: str
    values: tuple[float, float]
    old: IntervalModel | None = Field(description="null where there were too few samples")
    new: IntervalModel | None
    change: Direction | None


class DiffModel(_Strict):
    """What changed between two reports."""

    diff_version: Literal["1.0"] = DIFF_VERSION
    tool_version: str
    old: SideModel
    new: SideModel
    confidence: float = Field(description="with which all comparisons of estimates hold together")
    comparisons: int = Field(description="among which its complement is split")
    settings: list[ChangedModel] = Field(description="what differs, so that comparing means less")
    surroundings: list[ChangedModel] = Field(description="versions and machine")
    matched: dict[str, str] = Field(description="engines compared under different names")
    weaker: list[str] = Field(description="settings by which the new run as a whole says less")
    cases: list[CaseDiffModel]
    speed: list[SpeedModel] = Field(description="where both folders have a bench.json")
    counts: dict[str, int] = Field(description="worse (with removed), better, added, removed ...")
    strict: bool = Field(description="whether being weaker counts")
    exit_code: Literal[0, 1]
    headline: str
