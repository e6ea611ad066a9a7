"""The exactness verdict that belongs beside a speed, or a clear word that there is none."""

from __future__ import annotations

from pathlib import Path

from conformance.contract import EngineCard
from conformance.errors import ReportError
from conformance.reports.bench_model import AuditModel
from conformance.reports.model import CaseModel, Report, load_report
from conformance.reports.wording import worst_first
from conformance.text import one_line
from conformance.verdict import run_verdict

NOT_AUDITED = "Not audited"


def read_audit(folder: Path | None) -> Report | None:
    """The report of an exactness run; None where none was named.

    Raises
    ------
    ReportError
        If the folder has none, or it cannot be read.
    """
    if folder is None:
        return None
    path = folder / "report.json" if folder.is_dir() else folder
    if not path.exists():
        raise ReportError(
            f"{folder} has no report.json: --beside wants what 'conformance run' left"
        )
    return load_report(path)


def audit(
    report: Report | None, engine: str, card: EngineCard | None, decoding: str, models: str
) -> AuditModel:
    """The verdict on one engine at one decoding.

    Parameters
    ----------
    report : Report or None
        Of the exactness run.
    engine : str
        As typed, options included: another option is another configuration.
    card : EngineCard or None
        Who is timed; None where it could not be asked.
    decoding : str
        As in reports.
    models : str
        What is timed.
    """

    def none(why: str) -> AuditModel:
        sentence = f"{NOT_AUDITED}: {why}."
        return AuditModel(engine=engine, decoding=decoding, verdict=None, sentence=sentence)

    if report is None:
        return none(
            "no exactness verdict stands beside these numbers; 'conformance run' gives one, and "
            "--beside shows it here"
        )
    if card is None:
        return none("the engine could not be asked who it is")
    who = next((e for e in report.engines if e.name == engine), None)
    if who is None:
        return none(f"the report judged {_named(report)}, not {one_line(engine, 80)}")
    if (who.card_name, who.version) != (card.name, card.version):
        judged = one_line(f"{who.card_name} {who.version}", 120)
        timed = one_line(f"{card.name} {card.version}", 120)
        return none(f"the report judged {judged}; {timed} is timed")
    cases = [c for c in report.cases if c.engine == engine and c.decoding == decoding]
    if not cases:
        return none(f"the report has no verdict on {one_line(decoding, 80)}")
    verdict = run_verdict(c.verdict for c in cases)
    worst = worst_first(cases)[0]
    sentence = f"{verdict.value} {_where(cases)}: {one_line(worst.why, 300).rstrip('.')}."
    if any(c.probe != models for c in cases):
        sentence += f" Timed with {one_line(models, 80)}, which was not what was judged."
    return AuditModel(engine=engine, decoding=decoding, verdict=verdict, sentence=sentence)


def _where(cases: list[CaseModel]) -> str:
    probes = dict.fromkeys(one_line(c.probe, 60) for c in cases)
    return f"on probe {', '.join(probes)}"


def _named(report: Report) -> str:
    names = [one_line(e.name, 60) for e in report.engines[:5]]
    return ", ".join(names) or "no engine"
