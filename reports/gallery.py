"""The pictures of a case: what is drawn, what it shows in words, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from conformance.errors import ReportError
from conformance.reports import text
from conformance.reports.details import AcceptanceModel, TrajectoryModel
from conformance.reports.forest import (
    Mark,
    Row,
    acceptance_summary,
    effect_rows,
    forest_svg,
)
from conformance.reports.model import BarsModel, CaseModel, FindingModel, PitModel
from conformance.reports.plots import bars_summary, bars_svg, pit_summary, pit_svg, pooled
from conformance.reports.plots_evidence import (
    p_values_summary,
    p_values_svg,
    trajectories_summary,
    trajectories_svg,
)
from conformance.text import one_line

SHOWN_BARS = 4  # tables drawn for a case; all of them are in report.json
_METHODS = (
    Mark("min(p, q)", "|"),
    Mark("p \N{MULTIPLICATION SIGN} q", "d"),
    Mark("p of likeliest", "v"),
)


@dataclass(frozen=True, slots=True)
class Picture:
    """One figure: the drawing, what it shows in words, and its numbers as a table.

    Parameters
    ----------
    title : str
        What it is of.
    hint : str
        How to read it.
    draw : callable
        Makes the SVG; raises `ReportError` if it cannot.
    summary : str
        What it shows.
    head, rows : sequences of str
        The table; none where the findings are its table.
    """

    title: str
    hint: str
    draw: Callable[[], str]
    summary: str
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


@dataclass(frozen=True, slots=True)
class Drawn:
    """A picture with its drawing; None where it cannot be drawn, and `summary` says why."""

    title: str
    hint: str
    svg: Markup | None
    summary: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def drawn(picture: Picture) -> Drawn:
    """Draw a picture; one that cannot be drawn must not cost the reader the verdict."""
    svg, summary = None, picture.summary
    try:
        svg = Markup(picture.draw())  # escaped by the XML serialiser in `figure`
    except ReportError as exc:
        summary = f"Not drawn: {exc}."
    return Drawn(picture.title, picture.hint, svg, summary, picture.head, picture.rows)


def pictures(case: CaseModel, key: str) -> Iterator[Picture]:
    """Everything that can be drawn of a case, what explains most first.

    Parameters
    ----------
    case : CaseModel
        A judged case.
    key : str
        Tells the case's drawings from those of others.
    """
    if sum(f.p_value is not None for f in case.findings) > 1:
        yield Picture(
            "Every test at once",
            "Each stroke is one test. Left of the dashed level is chance; a cross is a rejection.",
            lambda: p_values_svg(case.findings, f"{key}-p"),
            p_values_summary(case.findings),
        )
    if case.trajectories:
        yield _course(case.trajectories, key)
    if case.acceptance is not None and case.acceptance.places:
        yield _acceptance(case.acceptance, key)
    yield from _leak(case.findings, key)
    yield from _distance(case.findings, key)
    for j, pit in enumerate(case.pit):
        yield _pit(pit, f"{key}-pit-{j}")
    for j, bars in enumerate(case.bars[:SHOWN_BARS]):
        yield _bars(bars, f"{key}-bars-{j}")


def _course(courses: Sequence[TrajectoryModel], key: str) -> Picture:
    looks = [
        (tokens, course.arm, value, course.needed)
        for course in courses
        for tokens, value in zip(course.tokens, course.log10_e, strict=False)
    ]
    return Picture(
        "Evidence as tokens come in (e-process)",
        "A bet against the law. An exact engine hardly ever makes it rise to the dashed line.",
        lambda: trajectories_svg(courses, f"{key}-e"),
        trajectories_summary(courses),
        ("tokens", "arm", "evidence, power of 10", "needed"),
        [
            (text.count(tokens), arm, f"{value:.2f}", f"{needed:.2f}")
            for tokens, arm, value, needed in looks
        ],
    )


def _acceptance(seen: AcceptanceModel, key: str) -> Picture:
    rows = [
        Row(at.place, at.rate, at.low, at.high, (at.rejection, at.matching, at.likeliest))
        for at in seen.places
    ]
    summary = acceptance_summary(seen)
    return Picture(
        "Acceptance, observed and predicted",
        "No verdict depends on it. Rejection sampling attains min(p, q); an engine that samples "
        "the target and keeps what matches attains p \N{MULTIPLICATION SIGN} q, or the p of the "
        "draft's likeliest token; block verification accepts more. None of these is a fault.",
        lambda: forest_svg(
            [("share of proposals accepted", rows)],
            _METHODS,
            summary,
            zero=False,
            as_percent=True,
            key=f"{key}-a",
        ),
        summary,
        ("proposals", "judged", "accepted", "rate (95%)", "min(p, q)", "p × q", "p of likeliest"),
        [
            (
                one_line(at.place, 60),
                text.count(at.proposals),
                text.count(at.accepted),
                f"{at.rate:.3f} ({at.low:.3f} to {at.high:.3f})",
                *(text.number(x) for x in (at.rejection, at.matching, at.likeliest)),
            )
            for at in seen.places
        ],
    )


def _leak(findings: Sequence[FindingModel], key: str) -> Iterator[Picture]:
    found = effect_rows(findings, "leak")
    if not found:
        return
    rows = [_both_ways(row) for _, row in found]
    first = found[0][0]
    summary = (
        f"Share of the draft in the output, {one_line(first.scope, 60)}: "
        f"{text.interval(first.effect['leak'])}"
    )
    if first.detectable is not None:
        summary += f"; {text.number(first.detectable)} would have been caught"
    summary += "."
    yield Picture(
        "Does the output lean to the draft?",
        "0 is exact; an interval off 0 leans. The strokes are what would have been caught. "
        "Accepted tokens lean under any rule.",
        lambda: forest_svg(
            [("share of the draft's law in the output", rows)],
            (Mark("caught beyond", "|"), Mark("_", "|")),
            summary,
            as_percent=True,
            key=f"{key}-leak",
        ),
        summary,
        ("tokens", "arm", "leak (95%)", "caught beyond"),
        [
            (
                one_line(f.scope, 60),
                f.arm,
                text.interval(f.effect["leak"]),
                text.number(f.detectable),
            )
            for f, _ in found
        ],
    )


def _both_ways(row: Row) -> Row:
    limit = row.marks[0]
    marks = (limit, None if limit is None else -limit)
    return Row(row.label, row.estimate, row.low, row.high, marks, row.hollow)


def _distance(findings: Sequence[FindingModel], key: str) -> Iterator[Picture]:
    tests = [f for f in findings if f.test != "KL"]  # the same tables again
    tv, kl = effect_rows(tests, "tv"), effect_rows(tests, "kl_nats_per_token")
    if not tv and not kl:
        return
    panels = []
    if tv:
        panels.append(("total variation", [row for _, row in tv]))
    if kl and (not tv or [f for f, _ in kl] == [f for f, _ in tv]):
        panels.append(("KL, nats per token", [_unmarked(row) for _, row in kl]))
    worst = max(tv or kl, key=lambda pair: (pair[1].low, pair[1].estimate))[0]
    sizes = "; ".join(f"{text.effect_name(k)} {text.interval(v)}" for k, v in worst.effect.items())
    summary = f"Largest at {one_line(worst.scope, 60)}, {worst.arm} arm: {sizes}."
    yield Picture(
        "How far from the law?",
        "0 is exact. The strokes are the total variation that would have been caught.",
        lambda: forest_svg(panels, (Mark("caught beyond", "|"),), summary, key=f"{key}-tv"),
        summary,
        ("tokens", "arm", "total variation (95%)", "KL, nats per token (95%)", "caught beyond"),
        [
            (
                one_line(f.scope, 60),
                f.arm,
                *(
                    text.interval(f.effect[name]) if name in f.effect else "–"
                    for name in ("tv", "kl_nats_per_token")
                ),
                text.number(f.detectable),
            )
            for f, _ in (tv or kl)
        ],
    )


def _unmarked(row: Row) -> Row:
    return Row(row.label, row.estimate, row.low, row.high, (), row.hollow)


def _bars(bars: BarsModel, key: str) -> Picture:
    try:
        cells = pooled(bars)
    except ReportError:
        return Picture(bars.title, "", lambda: bars_svg(bars, key), "")  # which says what is wrong
    head = ["token", "observed", "expected"]
    rows = [
        [one_line(label, 60), text.count(observed), f"{expected:,.1f}"]
        for label, observed, expected in zip(
            cells.labels, cells.observed, cells.expected, strict=True
        )
    ]
    if cells.draft is not None:
        head.append("if the draft were sampled")
        for row, value in zip(rows, cells.draft, strict=True):
            row.append(f"{value:,.1f}")
    return Picture(
        bars.title,
        "Bars: what came out; strokes: what the law expects. Below, the difference in standard "
        "errors; beyond the dashed lines is unusual.",
        lambda: bars_svg(cells, key),
        bars_summary(cells),
        head,
        rows,
    )


def _pit(pit: PitModel, key: str) -> Picture:
    low, high = pit.band
    bins = len(pit.observed)
    return Picture(
        f"Transformed tokens (PIT), ordered by {one_line(pit.order, 60)}",
        "Flat if exact: every bar in the band.",
        lambda: pit_svg(pit, key),
        pit_summary(pit),
        ("bin", "observed", "within band"),
        [
            [
                f"{i / bins:.2f} to {(i + 1) / bins:.2f}",
                text.count(value),
                "yes" if low <= value <= high else "no",
            ]
            for i, value in enumerate(pit.observed)
        ],
    )
