"""What a report comes to, put together for somebody who reads no further than the first screen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from conformance.reports.details import DiagnosisModel, Status, UnaskedModel
from conformance.reports.measured import SURE, KillRow
from conformance.reports.model import CaseModel, FindingModel, Report
from conformance.reports.text import at_least, number, p_text, percent
from conformance.reports.wording import worst_first
from conformance.text import one_line
from conformance.verdict import Verdict

_SHOWN_CAUSES = 3
_SHOWN_CERTIFICATES = 3
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
# What every finding says of itself, and the table says in columns of their own
_REMARK = re.compile(r"^.*?: p (?:=|is) \S+?,? (?P<rest>.*)$", re.DOTALL)
_LEVEL_ONLY = re.compile(r"^(?:is )?(?:above|below) this test's level \S+$")

STATUSES: dict[Status, str] = {
    "refused": "The engine refused it, out loud.",
    "not claimed": "The engine does not claim it, so it was not put to the test.",
    "not reached": "It was to be tested, and there was nothing, or too little, to judge.",
    "not in this run": "The suite can ask it; this run did not.",
    "not asked by this suite": "No run of this suite asks it.",
}


# --- causes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CauseShown:
    """One cause, with the cases it was found in."""

    diagnosis: DiagnosisModel
    cases: Sequence[CaseModel]


def causes(report: Report) -> list[CauseShown]:
    """The causes that explain most cases, those that fit before those that are merely nearest.

    A fault that fits one case is shown as fitting, with the cases it is nearest to as well.
    """
    found: dict[str, list[CaseModel]] = {}
    for case in worst_first(report.cases):  # in which those come first that a fault fits
        told = case.diagnosis
        if told is not None and told.standing in ("fits", "nearest"):
            found.setdefault(told.fault, []).append(case)
    shown = [CauseShown(c[0].diagnosis, c) for c in found.values() if c[0].diagnosis is not None]
    shown.sort(key=lambda cause: (cause.diagnosis.standing != "fits", -len(cause.cases)))
    return shown[:_SHOWN_CAUSES]


def diagnosis_words(told: DiagnosisModel) -> str:
    """What the diagnosis amounts to, in words."""
    if told.standing == "not compared":
        return (
            "Only an engine that drafts with the probe's own draft model can be compared with the "
            "catalogue of faults; of any other, only the place is told."
        )
    if told.standing == "unexplained":
        return "No fault in the catalogue explains the evidence better than exactness does."
    parts = []
    if told.odds_exact is not None:
        parts.append(f"over exactness by {_odds(told.odds_exact)}")
    if told.odds_runner_up is not None and told.runner_up:
        parts.append(f"over {one_line(told.runner_up, 60)}, the next best, by "
                     f"{_odds(told.odds_runner_up)}")  # fmt: skip
    said = f"Favoured {' and '.join(parts)}. " if parts else ""
    if told.alike:
        also = " and ".join(one_line(name, 60) for name in told.alike[:3])
        said += f"It looks the same here as {also}. "
    if told.standing == "nearest":
        return said + "But the evidence does not fit it: look for something like it."
    fit = "" if told.fit_p is None else f" (p = {p_text(told.fit_p)} for fault and evidence alike)"
    return f"{said}The evidence fits it{fit}."


def _odds(tens: float) -> str:
    return f"10^{tens:.0f} to 1" if tens >= 2 else f"{10**tens:.2g} to 1"


# --- one case -------------------------------------------------------------------------------------


def short_why(case: CaseModel) -> str:
    """Why the case has its verdict, short enough for a table."""
    told = case.diagnosis
    if case.verdict is not Verdict.NOT_EXACT or told is None or not told.fault:
        return one_line(case.why, 240)
    if told.standing == "fits":
        return f"Likely cause: {one_line(told.fault, 60)}, {one_line(told.summary, 160)}."
    return f"Nearest known fault: {one_line(told.fault, 60)}, {one_line(told.summary, 160)}."


def sizes(case: CaseModel) -> list[tuple[str, str, str]]:
    """How large a departure is: what it is called, the estimate, and its interval with its place.

    Only what is certainly not 0, in the speculative arm or between the arms.
    """
    out = []
    for name, title, scale in (
        ("leak", "Leans to the draft", percent_text),
        ("tv", "Tokens that come out otherwise", percent_text),
        ("kl_nats_per_token", "Divergence, nats a token", number),
        ("diverged", "Greedy tokens off the argmax", percent_text),
    ):
        mine = [f for f in case.findings if name in f.effect and f.arm != "control"]
        if name == "leak":  # elsewhere it leans under any rule
            mine = [f for f in mine if f.scope in ("all tokens", "whole grid")]
        sure = [f for f in mine if f.effect[name].low > 0 or f.effect[name].high < 0]
        if sure:
            best = max(sure, key=lambda f: abs(f.effect[name].estimate))
            size = best.effect[name]
            shown = title
            if size.high < 0:
                shown = "Leans away from the draft" if name == "leak" else title
            low, high = sorted((abs(size.low), abs(size.high)))
            where = one_line(best.scope, 60)
            between = f"{percent(size.confidence)}: {scale(low)} to {scale(high)}, {where}"
            out.append((shown, scale(abs(size.estimate)), between))
    return out


def percent_text(value: float) -> str:
    """A share, to three digits.

    Examples
    --------
    >>> percent_text(0.12345)
    '12.3%'
    """
    return f"{100 * value:.3g}%"


def remark(finding: FindingModel) -> str:
    """What a finding's message says beyond the columns of its table; empty where nothing.

    Examples
    --------
    >>> from conformance.reports.model import FindingModel
    >>> def said(message):
    ...     return remark(FindingModel.model_construct(message=message))
    >>> said("PIT by p on all tokens: p = 0.2, above this test's level 1e-09")
    ''
    >>> said("KL on all tokens: p = 0.2, for information only (sampling was stopped early)")
    'for information only (sampling was stopped early)'
    >>> said("every token is one the law can emit")
    'every token is one the law can emit'
    """
    message = one_line(finding.message, 600)
    found = _REMARK.match(message)
    if found is None:
        return message
    rest = found["rest"]
    return "" if _LEVEL_ONLY.match(rest) else rest


# --- what is ruled out, and what was not asked ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Certificate:
    """What every one of some passes rules out: the weakest of their certificates."""

    line: str
    cases: int


def weakest_certificates(report: Report) -> list[Certificate]:
    """What is ruled out in the cases that passed, in words; of lines that differ by their first
    number alone, the one with the largest.
    """
    best: dict[str, tuple[float, str]] = {}
    cases: dict[str, int] = {}
    for case in report.cases:
        if case.verdict is not Verdict.EXACT:
            continue
        for line in case.ruled_out:
            found = _NUMBER.search(line)
            size = float(found.group().replace(",", "")) if found else 0.0
            kind = _NUMBER.sub("#", line, count=1)
            cases[kind] = cases.get(kind, 0) + 1
            if kind not in best or size > best[kind][0]:
                best[kind] = size, line
    ordered = sorted(best, key=lambda kind: -cases[kind])
    return [Certificate(best[kind][1], cases[kind]) for kind in ordered[:_SHOWN_CERTIFICATES]]


def unasked_groups(report: Report) -> list[tuple[Status, str, list[UnaskedModel]]]:
    """What was not asked, by why; nothing from before schema 1.2, which had no list."""
    asked = report.not_asked or []
    groups = [(s, words, [u for u in asked if u.status == s]) for s, words in STATUSES.items()]
    return [group for group in groups if group[2]]


# --- the suite itself -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KillCell:
    """Runs of one fault at one tier and profile."""

    row: KillRow

    @property
    def whole(self) -> str:
        """With what probability all requests kill, at the least; empty where it is not known."""
        return "" if self.row.whole is None else at_least(self.row.whole)

    @property
    def key(self) -> str:
        """For the style sheet: all, some or none caught."""
        sure = self.row.whole is not None and self.row.whole >= SURE
        if self.row.killed == self.row.runs or sure:
            return "all"
        return "some" if self.row.killed else "none"


@dataclass(frozen=True, slots=True)
class KillTable:
    """Faults by tier and profile."""

    columns: Sequence[tuple[str, str]]
    rows: Sequence[tuple[str, Sequence[KillCell | None], str]]


def kill_table(kills: Sequence[KillRow]) -> KillTable:
    """Arrange the kill matrix: a row a fault, a column a tier and profile, and what catches it."""
    columns = [*dict.fromkeys((k.tier, k.profile) for k in kills)]
    by_fault: dict[str, dict[tuple[str, str], KillRow]] = {}
    for k in kills:
        by_fault.setdefault(k.fault, {})[k.tier, k.profile] = k
    rows = []
    for fault, mine in by_fault.items():
        cells = [KillCell(mine[c]) if c in mine else None for c in columns]
        by = dict.fromkeys(name for k in mine.values() for name in k.by)
        rows.append((fault, cells, ", ".join(by)))
    return KillTable(columns, rows)
