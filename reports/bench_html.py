"""``bench.html``: speed and cost as one HTML file that needs nothing else.

Its look is the exactness report's, its colours are not: nothing on the page is a verdict on speed.
Whatever a template prints is cleaned and escaped by `conformance.reports.html.page_environment`;
the policy of the page allows no script at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from conformance.reports import bench_text
from conformance.reports.bench_model import BenchReport, CellModel
from conformance.reports.bench_plots import (
    PARTS,
    lengths_svg,
    lengths_words,
    parts_svg,
    parts_words,
    speedup_svg,
    speedup_words,
    with_parts,
)
from conformance.reports.bench_text import Group
from conformance.reports.gallery import Drawn
from conformance.reports.html import page_environment

# What keeps a page of a thousand settings readable; all of them are in its tables and in bench.json
MOST_DRAWINGS, MOST_DETAILS = 120, 200


@dataclass(frozen=True, slots=True)
class _Cell:
    """One cell with its rows."""

    anchor: str
    model: CellModel
    latency: Sequence[Sequence[str]]
    throughput: Sequence[Sequence[str]]
    cost: Sequence[Sequence[str]]
    lengths: Drawn | None


@dataclass(frozen=True, slots=True)
class _Group:
    """One engine at one decoding."""

    anchor: str
    group: Group
    pictures: Sequence[Drawn]
    cells: Sequence[_Cell]
    left_out: int


def render_bench_html(report: BenchReport) -> str:
    """Render a measurement as one self-contained HTML document."""
    return (
        page_environment()
        .get_template("bench.html.j2")
        .render(report=report, groups=list(_groups(report)), t=bench_text)
    )


def _groups(report: BenchReport) -> Iterator[_Group]:
    drawings, details = MOST_DRAWINGS, MOST_DETAILS
    for i, group in enumerate(bench_text.groups(report), start=1):
        title = f"{group.engine}, {group.decoding}"
        measured = [c for c in group.cells if c.status == "measured"]
        yield _Group(
            f"group-{i}",
            group,
            list(_pictures(title, measured, str(i))) if measured else [],
            [
                _Cell(
                    f"cell-{i}-{j}",
                    cell,
                    bench_text.latency_rows(cell),
                    bench_text.throughput_rows(cell),
                    bench_text.cost_rows(cell),
                    _lengths(cell, f"{i}-{j}") if j <= drawings else None,
                )
                for j, cell in enumerate(measured[:details], start=1)
            ],
            max(0, len(measured) - details),
        )
        drawings = max(0, drawings - len(measured))
        details = max(0, details - len(measured))


def _pictures(title: str, cells: Sequence[CellModel], key: str) -> Iterator[Drawn]:
    if any(c.speedup for c in cells):
        yield Drawn(
            "Speed-up, end to end",
            "The bar is the 95 % interval. Left of the dashed line speculation costs time.",
            Markup(speedup_svg(title, cells, f"s{key}")),  # escaped by the XML serialiser
            speedup_words(title, cells),
            ("setting", "speed-up"),
            [(bench_text.where(c), bench_text.times(c.speedup)) for c in cells if c.speedup],
        )
    parts = with_parts(cells)
    if parts:
        yield Drawn(
            "Where a block's time goes",
            "Were the rest nothing, the formula would be right.",
            Markup(parts_svg(title, cells, f"p{key}")),
            parts_words(title, cells),
            ("setting", *PARTS),
            [
                (bench_text.where(c), *(bench_text.seconds(value) for value in values))
                for c, values in parts
            ],
        )


def _lengths(cell: CellModel, key: str) -> Drawn | None:
    if cell.acceptance is None or not cell.acceptance.accepted:
        return None
    counts = cell.acceptance.accepted
    total = sum(counts.values())
    return Drawn(
        "Accepted proposals of a block",
        "",
        Markup(lengths_svg(cell, f"a{key}")),
        lengths_words(cell),
        ("accepted", "blocks", "share"),
        [(str(n), f"{k:,}", f"{k / total:.1%}") for n, k in counts.items()],
    )
