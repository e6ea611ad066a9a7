"""What judging a case leaves: findings, verdict, and the data behind the plots."""

from __future__ import annotations

from dataclasses import dataclass, field

from conformance.acceptance import Acceptance
from conformance.cause import Cause
from conformance.plan import Case
from conformance.verdict import CaseVerdict, Finding, Speculation


@dataclass(frozen=True, slots=True)
class ArmFacts:
    """What one arm gathered."""

    arm: str
    requests: int
    planned: int
    tokens: int
    set_aside: int
    seconds: float
    sha256: str


@dataclass(frozen=True, slots=True)
class Bars:
    """Observed against expected counts."""

    title: str
    labels: tuple[str, ...]
    observed: tuple[int, ...]
    expected: tuple[float, ...]
    draft: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram of the probability integral transform, with a simultaneous band."""

    order: str
    observed: tuple[int, ...]
    expected: float
    band: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """An e-process as it was looked at.

    Parameters
    ----------
    arm : str
        Whose tokens.
    tokens : tuple of int
        How many had been judged at each look.
    log10_e : tuple of float
        Its logarithm there, to base 10.
    needed : float
        What it takes to reject.
    """

    arm: str
    tokens: tuple[int, ...]
    log10_e: tuple[float, ...]
    needed: float


@dataclass(frozen=True, slots=True)
class CaseResult:
    """A judged case."""

    case: Case
    verdict: CaseVerdict
    findings: tuple[Finding, ...] = ()
    speculation: Speculation = field(default_factory=Speculation)
    arms: tuple[ArmFacts, ...] = ()
    bars: tuple[Bars, ...] = ()
    pit: tuple[Histogram, ...] = ()
    trajectories: tuple[Trajectory, ...] = ()
    acceptance: Acceptance | None = None
    diagnosis: Cause | None = None
    error: str | None = None
