"""The report as Markdown, short enough for a CI job summary."""

from __future__ import annotations

import re
from collections.abc import Iterator

from conformance.reports.model import CaseModel, FindingModel, Report
from conformance.reports.text import (
    command_line,
    counted,
    duration,
    effect_name,
    interval,
    moment,
    number,
    p_text,
    percent,
)
from conformance.reports.wording import (
    LOOKS,
    engines_named,
    headline,
    meaning,
    strongest_first,
    tally,
    worst_first,
)
from conformance.text import excerpt, one_line
from conformance.verdict import Verdict

_SHOWN_FINDINGS = 5
_SHOWN_BLOCKS = 40
_SHOWN_ROWS = 500
_ERROR_LIMIT = 3000
# Everything that can open inline markup, a table cell, mathematics or an entity. A word joiner
# after @ keeps a hostile name from notifying somebody when the text is posted.
_ESCAPES = {ord(c): f"\\{c}" for c in "\\`*_{}[]#!|~$"} | {
    ord("&"): "&amp;",
    ord("<"): "&lt;",
    ord(">"): "&gt;",
    ord("@"): "@\u2060",
}
# GitHub makes links of bare addresses
_ADDRESS = re.compile(r"(?<=www)(?=\.)|(?=://)", re.IGNORECASE)


def escape(text: str, limit: int = 400) -> str:
    r"""Make untrusted text into one line of literal Markdown, safe in a table cell.

    It must not stand at the start of a line, where a dash or a number would open a list. Nothing
    becomes a dash, since emphasis round nothing is no emphasis.

    Examples
    --------
    >>> escape("a|b <script>")
    'a\\|b &lt;script&gt;'
    """
    return _ADDRESS.sub(r"\\", one_line(text, limit).translate(_ESCAPES)) or "–"


def fenced(text: str, limit: int) -> str:
    """Put untrusted text into a code block that it cannot close."""
    body = excerpt(text, limit).rstrip("\n")
    longest = max((len(run) for run in re.findall("`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{body}\n{fence}"


def render_markdown(report: Report) -> str:
    """Render a report as GitHub-flavoured Markdown.

    Parameters
    ----------
    report : Report
        What to render.

    Returns
    -------
    str
        Headline, table of cases, the strongest findings of what went wrong, and the settings.
    """
    blocks = [*_head(report), _table(report)]
    troubled = [
        case
        for case in worst_first(report.cases)
        if case.verdict in (Verdict.NOT_EXACT, Verdict.ERROR)
    ]
    for case in troubled[:_SHOWN_BLOCKS]:
        blocks += _trouble(case)
    if len(troubled) > _SHOWN_BLOCKS:
        rest = counted(len(troubled) - _SHOWN_BLOCKS, "more case")
        blocks.append(f"{rest} with findings or errors in `report.html`.")
    blocks += _foot(report)
    return "\n\n".join(blocks) + "\n"


def _head(report: Report) -> Iterator[str]:
    yield f"## {LOOKS[report.verdict].emoji} {report.verdict.value}: {headline(report)}"
    yield meaning(report)
    yield f"**Why:** {escape(report.why, 1000)}"
    numbers = ", ".join(f"{n} {verdict.value}" for verdict, n in tally(report).items())
    if numbers:
        yield f"**Cases:** {numbers}"


def _table(report: Report) -> str:
    methods = {engine.name: engine.method for engine in report.engines}
    lines = [
        "| Verdict | Engine | Decoding | Why | Ruled out | Answers |",
        "| --- | --- | --- | --- | --- | ---: |",
    ]
    cases = worst_first(report.cases)
    for case in cases[:_SHOWN_ROWS]:
        answers = sum(arm.requests for arm in case.arms if arm.arm == "speculative")
        method = methods.get(case.engine, "")
        engine = escape(case.engine, 80) + (f" ({escape(method, 80)})" if method else "")
        cells = (
            f"{LOOKS[case.verdict].emoji} {case.verdict.value}",
            engine,
            escape(f"{case.decoding}, {case.probe}" if case.probe else case.decoding, 120),
            escape(case.why),
            escape(case.ruled_out[0]) if case.ruled_out else "–",
            f"{answers:,}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    if len(cases) > _SHOWN_ROWS:
        rest = counted(len(cases) - _SHOWN_ROWS, "more case")
        lines.append(f"| {rest} in `report.html` | | | | | |")
    return "\n".join(lines)


def _trouble(case: CaseModel) -> Iterator[str]:
    name = " × ".join(escape(part, 120) for part in (case.engine, case.decoding, case.probe))
    yield f"### {LOOKS[case.verdict].emoji} {case.verdict.value}: {name}"
    yield f"**Why:** {escape(case.why, 1000)}"
    rejected = [f for f in strongest_first(case.findings) if f.rejected]
    if rejected:
        items = [_finding(finding) for finding in rejected[:_SHOWN_FINDINGS]]
        if len(rejected) > _SHOWN_FINDINGS:
            items.append(f"- and {len(rejected) - _SHOWN_FINDINGS:,} more in `report.html`")
        yield "\n".join(items)
    if case.error is not None:
        yield fenced(case.error, _ERROR_LIMIT)


def _finding(finding: FindingModel) -> str:
    facts = [f"{finding.arm} arm", counted(finding.n, "judgement")]
    if finding.p_value is None:
        facts.append("proof")
    else:
        facts.append(f"p = {p_text(finding.p_value)}, level {p_text(finding.level)}")
    facts += [f"{escape(effect_name(k))} {interval(v)}" for k, v in finding.effect.items()]
    where = f"**{escape(finding.test, 80)}**, {escape(finding.scope, 120)}"
    return f"- {where} ({'; '.join(facts)}): {escape(finding.message, 600)}"


def _foot(report: Report) -> Iterator[str]:
    settings = report.settings
    yield "---"
    yield (
        f"Engines: {escape(engines_named(report), 1000)}. "
        f"Profile {escape(settings.profile, 40)}, "
        f"alpha {p_text(settings.alpha)} over {counted(settings.tests, 'test')}, "
        f"power {percent(settings.power)} at delta {number(settings.delta)}, "
        f"seed {settings.seed}. "
        f"Run {moment(report.created)} in {duration(report.seconds)} "
        f"by specdec-conformance {escape(report.tool_version, 40)}."
    )
    yield f"Command: {escape(command_line(report.command), 2000)}"
