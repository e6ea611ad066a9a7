"""Plots: bounded, deterministic, safe to put into a page, and saying what they show."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import matplotlib as mpl
import pytest

from conformance.errors import ReportError
from conformance.reports.model import BarsModel, PitModel
from conformance.reports.plots import (
    MAX_BARS,
    bars_summary,
    bars_svg,
    pit_summary,
    pit_svg,
    pooled,
)

SVG = "{http://www.w3.org/2000/svg}"


def table(cells: int, label: str = "{}") -> BarsModel:
    return BarsModel(
        title="t",
        labels=[label.format(i) for i in range(cells)],
        observed=[10 * i for i in range(cells)],
        expected=[10.5 * i for i in range(cells)],
        draft=[9.0 * i for i in range(cells)],
    )


PIT = PitModel(order="q/p", observed=[90, 100, 130, 80], expected=100.0, band=(75.0, 125.0))


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text")]


def test_beyond_the_limit_cells_are_pooled_without_loss() -> None:
    bars = table(200)
    drawn = pooled(bars)
    assert len(drawn.labels) == MAX_BARS
    assert drawn.labels[-1] == "161 others"
    assert drawn.labels[0] == "161"
    assert sum(drawn.observed) == sum(bars.observed)
    assert sum(drawn.expected) == pytest.approx(sum(bars.expected))
    assert sum(drawn.draft or []) == pytest.approx(sum(bars.draft or []))
    assert pooled(drawn) == drawn
    assert pooled(table(MAX_BARS)) == table(MAX_BARS)


def test_size_is_bounded() -> None:
    assert len(bars_svg(table(200, "a long label {}"))) < 40_000
    assert len(pit_svg(PIT)) < 40_000


def test_same_data_same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    bars, pit = bars_svg(table(12)), pit_svg(PIT)
    # whatever a user's matplotlibrc says
    monkeypatch.setitem(mpl.rcParams, "font.size", 30.0)
    monkeypatch.setitem(mpl.rcParams, "axes.edgecolor", "red")
    monkeypatch.setitem(mpl.rcParams, "svg.fonttype", "path")
    assert bars_svg(table(12)) == bars
    assert pit_svg(PIT) == pit
    assert mpl.rcParams["font.size"] == 30.0
    assert bars_svg(table(13)) != bars


@pytest.mark.parametrize("svg", [bars_svg(table(12)), pit_svg(PIT)])
def test_fits_into_a_page(svg: str) -> None:
    root = ET.fromstring(svg)
    assert svg.startswith("<svg ")
    assert root.get("role") == "img"
    assert root.get("aria-label")
    assert "currentColor" in svg
    assert "#01020" not in svg
    assert "<style" not in svg
    assert "metadata" not in svg
    assert "font-family" not in svg
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    for element in root.iter():
        href = element.get("href")
        assert href is None or href[1:] in ids


def test_two_plots_share_no_identifier() -> None:
    first, second = (
        {e.get("id") for e in ET.fromstring(bars_svg(table(n))).iter() if e.get("id")}
        for n in (5, 6)
    )
    assert first
    assert not first & second


@pytest.mark.parametrize(
    "label", ["<script>alert(1)</script>", "$x$", "$$", "\\frac", "]]>", "&lt;", "a\x00b", "\"'"]
)
def test_labels_are_text(label: str) -> None:
    bars = BarsModel(title="t", labels=[label], observed=[1], expected=[1.0], draft=None)
    svg = bars_svg(bars)
    assert "<script" not in svg
    shown = label.replace("\x00", "\\x00")
    assert (shown if len(shown) <= 12 else shown[:11] + "…") in texts(svg)


@pytest.mark.filterwarnings("error")
def test_foreign_scripts_draw_without_a_warning() -> None:
    bars = BarsModel(title="t", labels=["漢字"], observed=[1], expected=[1.0], draft=None)
    assert "漢字" in texts(bars_svg(bars))


def test_degenerate_data_can_be_drawn() -> None:
    empty = BarsModel(title="", labels=[], observed=[], expected=[], draft=None)
    impossible = BarsModel(title="", labels=["a"], observed=[3], expected=[0.0], draft=[0.0])
    for bars in (empty, impossible):
        assert bars_svg(bars).startswith("<svg")
    assert "3 of them where none was possible" in bars_summary(impossible)
    nothing = PitModel(order="", observed=[], expected=0.0, band=(0.0, 0.0))
    assert pit_svg(nothing).startswith("<svg")


@pytest.mark.parametrize(
    "changes",
    [
        {"observed": [1, 2]},
        {"draft": []},
        {"observed": [-1]},
        {"expected": [1e300]},
        {"observed": [10**400]},
    ],
)
def test_what_is_no_table_is_refused(changes: dict[str, object]) -> None:
    bars = BarsModel(title="t", labels=["a"], observed=[1], expected=[1.0], draft=None)
    with pytest.raises(ReportError, match="this table"):
        bars_svg(bars.model_copy(update=changes))


def test_pit_with_impossible_numbers_is_refused() -> None:
    with pytest.raises(ReportError, match="this histogram"):
        pit_svg(PIT.model_copy(update={"expected": 1e300}))


def test_summaries_say_what_is_seen() -> None:
    assert "1 outside the band of 75 to 125" in pit_summary(PIT)
    assert "at 11: observed 110, expected 115.5" in bars_summary(table(12))
