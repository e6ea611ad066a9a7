"""The report as Markdown, short enough for a CI job summary.

What a reader needs comes first: the verdict, what follows from it, a line for each case. Evidence
is folded away below. GitHub takes 1 MiB; this stays far below, whatever the run.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from conformance.reports.expectations import beside, sentences
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
_ERROR_LIMIT = 3000
LONGEST = 120_000  # bytes
_ROOM_FOR_CASES = 40_000  # bytes
# Everything that can open inline markup, a table cell, mathematics or an entity. A word joiner
# after @ keeps a hostile name from notifying somebody when the text is posted.
_ESCAPES = {ord(c): f"\\{c}" for c in "\\`*_{}[]#!|~$"} | {
    ord("&"): "&amp;",
    ord("<"): "&lt;",
    ord(">"): "&gt;",
    ord("@"): "@\u2060",
}
_PLAIN = re.compile(r"https?://[A-Za-z0-9./~%+#?=&_-]{1,300}")
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


def summary(text: str, limit: int = 300) -> str:
    """Make untrusted text fit for the line of a fold, which is HTML and not Markdown."""
    safe = html.escape(one_line(text, limit)).replace("@", "@\u2060").replace("$", "&#36;")
    return re.sub(r"(?i)(?<=www)\.", "&#46;", safe.replace("://", "&#58;//")) or "–"


def expectation(case: CaseModel, limit: int = 700) -> str:
    """What an expectations file says of a case, its link made one where it is plain."""
    if case.expected is None:
        return ""
    link = case.expected.entry.link
    text = escape(beside(case), limit)
    return text.replace(escape(link, 500), f"<{link}>") if _PLAIN.fullmatch(link) else text


def table(head: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> str:
    """A table of as many rows as there is room for, in bytes, and how many there are besides.

    Cells must be escaped; a head that ends with a colon is that of numbers.
    """
    rule = " | ".join("---:" if name.endswith(":") else "---" for name in head)
    lines = [f"| {' | '.join(name.rstrip(':') for name in head)} |", f"| {rule} |"]
    for i, row in enumerate(rows):
        line = f"| {' | '.join(row)} |"
        room -= len(line.encode()) + 1
        if room < 0:
            cells = [f"… and {len(rows) - i:,} more", *[""] * (len(head) - 1)]
            lines.append(f"| {' | '.join(cells)} |")
            break
        lines.append(line)
    return "\n".join(lines)


def folded(title: str, body: str) -> str:
    """A fold; the title must come from `summary` or be trusted."""
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


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
    foot = folded("How it was run", "\n\n".join(_foot(report)))
    room = LONGEST - len("\n\n".join([*blocks, foot]).encode()) - 200
    troubled = [
        case
        for case in worst_first(report.cases)
        if case.verdict in (Verdict.NOT_EXACT, Verdict.ERROR)
    ]
    for i, case in enumerate(troubled):
        block = _trouble(case)
        room -= len(block.encode()) + 2
        if room < 0 or i == _SHOWN_BLOCKS:
            rest = counted(len(troubled) - i, "more case")
            blocks.append(f"{rest} with findings or errors in `report.html`.")
            break
        blocks.append(block)
    return "\n\n".join([*blocks, foot]) + "\n"


def _head(report: Report) -> Iterator[str]:
    yield f"## {LOOKS[report.verdict].emoji} {report.verdict.value}: {headline(report)}"
    said = sentences(report.cases, report.expectations)
    if said:
        yield "\n".join(f"* {escape(words, 1000)}" for words in said)
    yield meaning(report)
    numbers = ", ".join(f"{n} {verdict.value}" for verdict, n in tally(report).items())
    yield f"**Cases:** {numbers}. {escape(report.why, 1000)}" if numbers else escape(report.why)


def _table(report: Report) -> str:
    methods = {engine.name: engine.method for engine in report.engines}
    rows = []
    for case in worst_first(report.cases):
        answers = sum(arm.requests for arm in case.arms if arm.arm == "speculative")
        method = methods.get(case.engine, "")
        rows.append(
            (
                f"{LOOKS[case.verdict].emoji} {case.verdict.value}",
                escape(case.engine, 80) + (f" ({escape(method, 80)})" if method else ""),
                escape(f"{case.decoding}, {case.probe}" if case.probe else case.decoding, 120),
                _said(case),
                f"{answers:,}",
            )
        )
    head = ("Verdict", "Engine", "Decoding", "Ruled out, or why not EXACT", "Answers:")
    return table(head, rows, _ROOM_FOR_CASES)


def _said(case: CaseModel) -> str:
    """What a pass rules out, or why it is none; and whether that was expected."""
    exact = case.verdict is Verdict.EXACT and bool(case.ruled_out)
    said = escape("; ".join(case.ruled_out[:2]) if exact else case.why, 300)
    return f"**{expectation(case)}.** {said}" if case.expected else said


def _trouble(case: CaseModel) -> str:
    parts = " × ".join(part for part in (case.engine, case.decoding, case.probe) if part)
    look = LOOKS[case.verdict]
    blocks = [f"**Why:** {escape(case.why, 1500)}"]
    if case.expected:
        blocks.insert(0, f"**{expectation(case)}.**")
    rejected = [f for f in strongest_first(case.findings) if f.rejected]
    if rejected:
        items = [_finding(finding) for finding in rejected[:_SHOWN_FINDINGS]]
        if len(rejected) > _SHOWN_FINDINGS:
            items.append(f"- and {len(rejected) - _SHOWN_FINDINGS:,} more in `report.html`")
        blocks.append("\n".join(items))
    if case.error is not None:
        blocks.append(fenced(case.error, _ERROR_LIMIT))
    title = f"{look.emoji} {case.verdict.value}: {summary(parts)}"
    return folded(title, "\n\n".join(blocks))


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
