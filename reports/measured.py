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
    runs: int
    killed: int = Field(description="NOT EXACT, or a broken contract")
    passed: int = Field(description="EXACT; the rest was inconclusive")
    low: float = Field(description="exact 95% interval of the kill rate")
    high: float
    explained: int = Field(description="runs in which the cause was asked for")
    named: int = Field(description="of these, runs whose diagnosis named it")
    by: list[str] = Field(description="tests that rejected in at least half of the runs")


class Measured(_Strict):
    """What simulation found of the suite's false alarms and of its power."""

    tool_version: str
    calibration: list[CalibrationRow]
    false_alarms: list[FalseAlarms]
    kills: list[KillRow]


@cache
def measured() -> Measured:
    """The numbers that came with this version."""
    return Measured.model_validate_json(FILE.read_bytes())
