"""What changed between two reports, as Markdown that fits into a comment of a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from conformance.reports.diff_model import (
    ArmChangeModel,
    CaseDiffModel,
    DiffModel,
    SideModel,
    SpeedModel,
)
from conformance.reports.expectations import beside_verdict
from conformance.reports.markdown import escape, folded, table
from conformance.reports.text import counted, effect_name, interval, moment, number
from conformance.reports.wording import LOOKS
from conformance.text import one_line
from conformance.verdict import Verdict

# GitHub takes 65,536 characters; counted in bytes here, which are never fewer
LONGEST = 60_000
ROOM_FOR_CHANGES = 24_000
ROOM_FOR_DETAIL = 9_000
ORDER = ("worse", "removed", "added", "better", "same")
SIGNS = {"worse": "🔻", "removed": "🔻", "added": "🆕", "better": "🔺", "same": "▫️"}


def render_diff(diff: DiffModel, speed: bool = False) -> str:
    """Render a comparison as GitHub-flavoured Markdown of at most `LONGEST` bytes.

    Parameters
    ----------
    diff : DiffModel
        What was found.
    speed : bool
        Whether to show the time that the engine took for a token.

    Returns
    -------
    str
        A first line that says it all, what changed, and details that are folded away.
    """
    blocks = list(_head(diff))
    blocks += _changes(diff)
    for block in _details(diff, speed):
        if len("\n\n".join([*blocks, block]).encode()) > LONGEST - 200:
            blocks.append("More is in the reports, and in `conformance diff --json`.")
            break
        blocks.append(block)
    return "\n\n".join(blocks) + "\n"


def in_order(cases: Iterable[CaseDiffModel]) -> list[CaseDiffModel]:
    """What needs attention first."""
    return sorted(cases, key=lambda case: (ORDER.index(case.change), not case.weaker))


def is_news(case: CaseDiffModel) -> bool:
    """Whether anything is to be said of a case beyond that it is as it was."""
    return case.change != "same" or bool(case.weaker or case.stronger)


def news_of(case: CaseDiffModel) -> list[str]:
    """What is to be said of a case, line by line; not escaped."""
    lines = [case.said]
    if case.expected is not None and case.new is not None:
        lines.append(beside_verdict(case.expected, case.new))
    lines += [f"weaker: {words}" for words in case.weaker]
    lines += [f"stronger: {words}" for words in case.stronger]
    return lines


def _head(diff: DiffModel) -> Iterator[str]:
    sign = "❌" if diff.exit_code else "⚠️" if diff.counts["weaker"] else "✅"
    yield f"## {sign} {diff.headline}"
    said = [
        f"Before: {_side(diff.old)}",
        f"Now: {_side(diff.new)}",
        *(f"`--strict`: being weaker counts. {words}" for words in _strict_words(diff)),
        *(f"Weaker as a whole: {escape(words)}." for words in diff.weaker),
        *(
            f"{escape(old, 120)} is compared with {escape(new, 120)}."
            for old, new in list(diff.matched.items())[:10]
        ),
    ]
    if diff.settings:
        differs = "; ".join(
            f"{escape(c.name, 80)} {escape(c.old, 60)}, now {escape(c.new, 60)}"
            for c in diff.settings[:12]
        )
        said.append(f"Settings differ, so that comparing means less: {differs}.")
    yield "\n".join(f"* {words}" for words in said)


def _strict_words(diff: DiffModel) -> Iterator[str]:
    if diff.strict and diff.counts["weaker"] and not diff.counts["worse"]:
        yield f"Exit status {diff.exit_code}."


def _side(side: SideModel) -> str:
    engines = ", ".join(f"{one_line(n, 60)} {one_line(v, 40)}" for n, v in side.engines.items())
    return (
        f"{LOOKS[side.verdict].emoji} {side.verdict.value}, {escape(engines, 300)}, "
        f"{moment(side.created)}"
    )


def _changes(diff: DiffModel) -> Iterator[str]:
    news = [case for case in in_order(diff.cases) if is_news(case)]
    if news:
        rows = [
            (
                f"{SIGNS[case.change]} {case.change}",
                escape(_name(case), 200),
                _verdict(case.old),
                _verdict(case.new),
                "; ".join(escape(line) for line in news_of(case)),
            )
            for case in news
        ]
        head = ("", "Configuration", "Before", "Now", "What changed")
        yield table(head, rows, ROOM_FOR_CHANGES)


def _details(diff: DiffModel, speed: bool) -> Iterator[str]:
    cases = in_order(diff.cases)
    unchanged = [case for case in cases if not is_news(case)]
    rows: list[tuple[str, ...]] = [
        (
            escape(_name(c), 200),
            _verdict(c.new),
            "the same tokens in both" if c.same_tokens else escape(c.said),
        )
        for c in unchanged
    ]
    yield from _folded(f"Unchanged: {len(rows)}", ("Configuration", "Verdict", ""), rows)
    yield from _folded(
        "Effect sizes, with intervals",
        ("Configuration", "Effect", "Where", "Before", "Now", ""),
        [
            (
                escape(_name(case), 200),
                escape(effect_name(e.effect)),
                escape(e.scope, 80),
                interval(e.old) if e.old else "–",
                interval(e.new) if e.new else "–",
                e.change or "–",
            )
            for case in cases
            for e in sorted(case.effects, key=lambda e: e.change in (None, "not seen to differ"))
            if e.main or (case.old is case.new and e.change in ("grew", "shrank"))
        ],
        after=f"“Grew” and “shrank” hold in all {counted(diff.comparisons, 'comparison')} together "
        f"with a confidence of {diff.confidence:.9g}, by the sizes of the effects; KL is shown and "
        "decides nothing, and TV and KL are not compared where the seed, and so the prompts, are "
        "others. The intervals "
        "shown are those of the reports. An estimate of a case that was stopped early is a little "
        "too large.",
    )
    yield from _folded(
        "What a pass rules out",
        ("Configuration", "Departure", "Before", "Now", ""),
        [
            (escape(_name(case), 200), c.name, number(c.old), number(c.new), c.change)
            for case in cases
            for c in case.certificates
        ],
    )
    yield from _folded(
        "Accepted of drafted tokens (no part of being exact)",
        ("Configuration", "Before", "Now", ""),
        [
            (
                escape(_name(case), 200),
                interval(case.acceptance.old),
                interval(case.acceptance.new),
                case.acceptance.change,
            )
            for case in cases
            if case.acceptance
        ],
    )
    yield from _folded(
        "Requests and tokens",
        ("Configuration", "Arm", "Requests", "Tokens"),
        [
            (escape(_name(case), 200), arm.arm, _both(arm.requests), _both(arm.tokens))
            for case in cases
            for arm in case.arms
        ],
    )
    if speed:
        yield from _folded(
            "Time inside the engine for a token (never part of “worse”)",
            ("Configuration", "Arm", "Before", "Now", "Ratio"),
            [
                (escape(_name(case), 200), arm.arm, *speed_cells(arm))
                for case in cases
                for arm in case.arms
            ],
            after="Summed over workers, on whatever machine it was; a hint and no benchmark.",
        )
        yield from _folded(
            "Measured by conformance bench",
            ("Configuration", "Before and now"),
            [(escape(s.cell, 200), escape(speed_sentence(s))) for s in diff.speed],
        )
    yield from _folded(
        "Versions and machine",
        ("", "Before", "Now"),
        [(escape(c.name, 120), escape(c.old, 200), escape(c.new, 200)) for c in diff.surroundings],
    )


def speed_cells(arm: ArmChangeModel) -> tuple[str, str, str]:
    """Milliseconds a token before and now, and their ratio."""
    old, new = arm.seconds_per_token
    ratio = f"{new / old:.2f}" if old and new else "–"
    shown = [f"{1000 * value:.3g} ms" if value is not None else "–" for value in (old, new)]
    return shown[0], shown[1], ratio


def speed_sentence(s: SpeedModel) -> str:
    """A number that both measured, in words."""
    shown = [
        interval(known) if known else number(value)
        for known, value in zip((s.old, s.new), s.values, strict=True)
    ]
    told = f", {s.change}" if s.change else ""
    return f"{s.what} {shown[0]}, now {shown[1]}{told}"


def _both(values: tuple[int, int]) -> str:
    old, new = values
    return f"{new:,}" if old == new else f"{old:,}, now {new:,}"


def _folded(
    title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]], after: str = ""
) -> Iterator[str]:
    if rows:
        body = table(head, rows, ROOM_FOR_DETAIL)
        yield folded(title, f"{body}\n\n{after}" if after else body)


def _verdict(verdict: Verdict | None) -> str:
    return f"{LOOKS[verdict].emoji} {verdict.value}" if verdict else "–"


def _name(case: CaseDiffModel) -> str:
    return case.new_id or case.old_id or ""
