"""Findings, verdicts and exit codes.

A `Finding` is one test's result, a `CaseVerdict` what the findings of one case amount to, and the
run's verdict what the cases amount to. The rules are here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    """The possible outcomes of a case, and of a run."""

    EXACT = "EXACT"
    NOT_EXACT = "NOT EXACT"
    INCONCLUSIVE = "INCONCLUSIVE"
    ERROR = "ERROR"
    NOT_SUPPORTED = "NOT SUPPORTED"


EXIT_CODES = {
    Verdict.EXACT: 0,
    Verdict.NOT_EXACT: 1,
    Verdict.INCONCLUSIVE: 2,
    Verdict.ERROR: 2,
    Verdict.NOT_SUPPORTED: 2,
}


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with a confidence interval."""

    estimate: float
    low: float
    high: float
    confidence: float = 0.95


@dataclass(frozen=True, slots=True)
class Finding:
    """One test's result.

    Parameters
    ----------
    test : str
        The test's name, as in the documentation: ``"chi-square"``, ``"KL"``, ``"support"`` ...
    scope : str
        What it looked at: ``"output index 0"``, ``"first 2 tokens"``, ``"all tokens"``.
    arm : {'speculative', 'control', 'both'}
        Whose tokens.
    n : int
        Number of tokens (or token tuples) judged.
    p_value : float or None
        None where the test does not produce one (nothing could be judged, or a proof).
    level : float
        The share of alpha this test was given before sampling; 0 where none is spent.
    rejected : bool
        ``p_value <= level``, or a proof.
    statistic, df : float or None
        The test statistic and its degrees of freedom.
    adjusted_p : float or None
        Holm-adjusted over every test judged in the run.
    effect : dict of str to Interval
        Effect sizes: ``"kl_nats_per_token"``, ``"tv"``, ``"leak"``.
    detectable : float or None
        The certificate: an effect of this size (in ``detectable_unit``) would have been caught
        with the profile's power.
    detectable_unit : str
        ``"TV"``, ``"leak"`` or ``"rate"``.
    message : str
        One sentence for a person.
    figures : dict of str to float
        Numbers that a test counts or measures, by name.
    """

    test: str
    scope: str
    arm: str
    n: int
    p_value: float | None = None
    level: float = 0.0
    rejected: bool = False
    statistic: float | None = None
    df: float | None = None
    adjusted_p: float | None = None
    effect: dict[str, Interval] = field(default_factory=dict)
    detectable: float | None = None
    detectable_unit: str = ""
    message: str = ""
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Speculation:
    """What was seen of speculation in the speculative arm.

    Parameters
    ----------
    reported : bool
        Whether the engine reported its rounds.
    blocks : int
        Number of draft-and-verify rounds with at least one proposal.
    drafted, accepted, rejected : int
        Proposed tokens, accepted tokens, and blocks that ended in a rejection.
    longest : int
        The longest accepted run in one block.
    """

    reported: bool = False
    blocks: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    longest: int = 0


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """What the findings of one case amount to, with the sentence that says why.

    `needed` is set where more samples should settle an INCONCLUSIVE case: requests an arm.
    """

    verdict: Verdict
    why: str
    ruled_out: tuple[str, ...] = ()
    needed: int | None = None


def run_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """Combine the verdicts of the cases into the run's.

    NOT EXACT wins over everything. An ERROR or INCONCLUSIVE case forbids EXACT. Cases that are
    NOT SUPPORTED are listed and not counted. Nothing judged is INCONCLUSIVE.

    Examples
    --------
    >>> run_verdict([Verdict.EXACT, Verdict.NOT_SUPPORTED]).value
    'EXACT'
    >>> run_verdict([Verdict.NOT_SUPPORTED]).value
    'INCONCLUSIVE'
    >>> run_verdict([Verdict.EXACT, Verdict.ERROR]).value
    'ERROR'
    """
    counted = [v for v in verdicts if v is not Verdict.NOT_SUPPORTED]
    for worst in (Verdict.NOT_EXACT, Verdict.ERROR, Verdict.INCONCLUSIVE):
        if worst in counted:
            return worst
    return Verdict.EXACT if counted else Verdict.INCONCLUSIVE
