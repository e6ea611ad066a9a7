"""What a verdict is called, looks like and means, in words for somebody who is no statistician."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conformance.reports.model import CaseModel, FindingModel, Report
from conformance.reports.text import counted, number, odds, percent
from conformance.served.words import relative
from conformance.text import one_line
from conformance.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Look:
    """How one verdict is shown.

    Parameters
    ----------
    key : str
        Name for style sheets.
    glyph : str
        A sign that says it without colour.
    emoji : str
        The same for Markdown, where there is no style.
    meaning : str
        One sentence.
    """

    key: str
    glyph: str
    emoji: str
    meaning: str


# In the order in which cases are shown: what needs attention comes first
LOOKS: dict[Verdict, Look] = {
    Verdict.NOT_EXACT: Look(
        "not-exact",
        "✗",
        "❌",
        "a departure from the target model's law was found",
    ),
    Verdict.ERROR: Look(
        "error",
        "!",
        "💥",
        "the engine failed or gave an answer that is not one; nothing can be said of it",
    ),
    Verdict.INCONCLUSIVE: Look(
        "inconclusive",
        "?",
        "❔",
        "nothing can be claimed: the evidence is too thin, speculation was hardly seen, or plain "
        "sampling already departs from what the engine declares",
    ),
    Verdict.EXACT: Look(
        "exact",
        "✓",
        "✅",
        "nothing was found, and a departure of the stated size would have been",
    ),
    Verdict.NOT_SUPPORTED: Look(
        "not-supported",
        "–",
        "➖",
        "the engine refused this configuration out loud, which is right; it is not counted",
    ),
}


def worst_first(cases: Sequence[CaseModel]) -> list[CaseModel]:
    """Order cases by how much they need attention, those with a known cause first among equals."""
    rank = {verdict: i for i, verdict in enumerate(LOOKS)}

    def key(case: CaseModel) -> tuple[int, bool]:
        known = case.diagnosis is not None and case.diagnosis.standing == "fits"
        return rank[case.verdict], not known

    return sorted(cases, key=key)


def strongest_first(findings: Sequence[FindingModel]) -> list[FindingModel]:
    """Order findings: rejected before the others, a proof (no p-value) before any p-value."""

    def key(finding: FindingModel) -> tuple[bool, bool, float]:
        if finding.p_value is None:
            return (not finding.rejected, not finding.rejected, 0.0)
        return (not finding.rejected, False, finding.p_value)

    return sorted(findings, key=key)


def engines_named(report: Report) -> str:
    """Name the engines with their versions, each once."""
    names = dict.fromkeys(
        f"{one_line(engine.card_name, 80)} {one_line(engine.version, 40)}".strip()
        for engine in report.engines
    )
    return ", ".join([*names][:20])


def tally(report: Report) -> dict[Verdict, int]:
    """Count the cases of each verdict that occurs, worst first."""
    verdicts = [case.verdict for case in report.cases]
    return {v: verdicts.count(v) for v in LOOKS if v in verdicts}


def headline(report: Report) -> str:
    """Say in one sentence what the run found."""
    numbers = tally(report)
    tested = len(report.cases) - numbers.get(Verdict.NOT_SUPPORTED, 0)
    if tested == 0:
        return "Nothing was tested, so nothing can be claimed."
    hits = numbers.get(report.verdict, 0)
    of = f"{hits} of {counted(tested, 'configuration')} tested"
    if report.verdict is Verdict.EXACT and hits == tested > 1:
        of = f"any of the {counted(tested, 'configuration')} tested"
    return {
        Verdict.NOT_EXACT: f"A departure was found in {of}.",
        Verdict.ERROR: f"The engine failed in {of}.",
        Verdict.INCONCLUSIVE: f"Nothing can be claimed about {of}.",
        Verdict.EXACT: f"No departure was found in {of}.{relative(_passed(report))}",
        Verdict.NOT_SUPPORTED: f"The engine refused {of}.",
    }[report.verdict]


def _passed(report: Report) -> Iterator[str]:
    """What was sampled in the cases that passed."""
    return (case.probe for case in report.cases if case.verdict is Verdict.EXACT)


def meaning(report: Report) -> str:
    """Say what the run's verdict means for somebody who uses the engine."""
    settings = report.settings
    share = number(100 * settings.delta)
    return {
        Verdict.NOT_EXACT: (
            "There, the engine's tokens do not follow the target model's own distribution: what "
            "comes out is not the model that was asked for. The odds that a run of an exact "
            f"engine raises such an alarm are at most {odds(settings.alpha)}."
        ),
        Verdict.ERROR: (
            "This is not a pass. An engine that fails on some requests has not been tested on "
            "them. No departure was found in what it did answer."
        ),
        Verdict.INCONCLUSIVE: (
            "This is not a pass. Too few tokens were judged, or speculation was hardly seen (an "
            "engine that does not speculate always looks exact), or plain sampling already "
            "departs from what the engine declares. The reason stands beside each case."
        ),
        Verdict.EXACT: (
            "A pass is not a proof, it is a limit: smaller departures may be there. Where the "
            f"engine samples, a first token chosen otherwise {share} times in 100 or more (total "
            f"variation {number(settings.delta)}) would have been caught with a probability of "
            f"{percent(settings.power)}. What else is ruled out stands beside each case."
        ),
        Verdict.NOT_SUPPORTED: "Nothing was tested, so nothing can be claimed.",
    }[report.verdict]
