"""How the suite itself was tested: numbers measured by ``make calibrate``, carried by every report.

A distribution test that has never rejected anything proves nothing, and one that rejects an exact
engine is worse. `measured.json` holds what simulation found of both; it is written by
``tests/measure.py`` and never by hand.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

FILE = Path(__file__).parent / "measured.json"
SURE = 0.999  # the kill rate that a row is to show


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class CalibrationRow(_Strict):
    """P-values of one test on exact samplers."""

    test: str
    threshold: float
    n: int = Field(description="samples judged")
    at_or_below: int = Field(description="p-values at or below the threshold")


class FalseAlarms(_Strict):
    """Whole runs of the exact engine."""

    alpha: float
    runs: int
    alarms: int


class KillRow(_Strict):
    """Runs of one fault of the catalogue."""

    tier: str = Field(description="engine, or verifier")
    profile: str
    fault: str
    share: float = Field(1.0, description="of the profile's requests, in these runs")
    runs: int
    killed: int = Field(description="NOT EXACT, or a broken contract")
    passed: int = Field(description="EXACT; the rest was inconclusive")
    low: float = Field(description="exact 95% interval of the kill rate")
    high: float
    whole: float | None = Field(
        None, description="with all requests the kill rate is at least this, with confidence 99%"
    )
    explained: int = Field(description="further runs, in which the cause was asked for")
    named: int = Field(description="of these, runs whose diagnosis named it")
    by: list[str] = Field(description="tests that rejected in at least half of the runs")


class ShareRow(_Strict):
    """Runs of one fault with two shares of its requests: the check of `KillRow.whole`."""

    fault: str
    profile: str
    shares: tuple[float, float]
    runs: int = Field(description="with each share")
    killed: tuple[int, int]
    promised: float = Field(description="kill rate with the larger that the smaller promises")


class Measured(_Strict):
    """What simulation found of the suite's false alarms and of its power."""

    tool_version: str
    calibration: list[CalibrationRow]
    false_alarms: list[FalseAlarms]
    kills: list[KillRow]
    shares: list[ShareRow] = []


@cache
def measured() -> Measured:
    """The numbers that came with this version."""
    return Measured.model_validate_json(FILE.read_bytes())
