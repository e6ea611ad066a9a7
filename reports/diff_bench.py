"""Two ``bench.json`` side by side: told, and never part of what got worse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from conformance.reports.bench_model import FILE, BenchReport, CellModel, load_bench
from conformance.reports.bench_model import Estimate as Timed
from conformance.reports.diff_estimates import Estimate, direction, each_of, size_change
from conformance.reports.diff_model import SpeedModel
from conformance.reports.model import IntervalModel

SPEEDUP = "speed-up over no speculation"
RATE = "output tokens a second, speculating"


def read_bench(folder: Path) -> BenchReport | None:
    """The measurement in a folder; None where there is none.

    Raises
    ------
    ReportError
        If there is one that cannot be read.
    """
    path = folder / FILE
    return load_bench(path) if folder.is_dir() and path.exists() else None


def speed_changes(
    old: BenchReport, new: BenchReport, renamed: Mapping[str, str], confidence: float
) -> list[SpeedModel]:
    """Compare what both measured: engine, decoding, batch size and prompt length being the same.

    Parameters
    ----------
    old, new : BenchReport
        What is compared.
    renamed : mapping of str to str
        New names of engines.
    confidence : float
        With which all of these comparisons hold together.
    """
    before = {_key(cell, renamed): cell for cell in old.cells}
    found = [
        (cell.id, name, a, b)
        for cell in new.cells
        if _key(cell, {}) in before
        for name, a, b in _numbers(before[_key(cell, {})], cell)
    ]
    each = each_of(confidence, len(found))
    return [_change(name, what, a, b, each) for name, what, a, b in found]


def _key(cell: CellModel, renamed: Mapping[str, str]) -> tuple[str, str, int, int | None]:
    return (renamed.get(cell.engine, cell.engine), cell.decoding, cell.batch, cell.prompt_length)


def _numbers(old: CellModel, new: CellModel) -> Iterator[tuple[str, Timed, Timed]]:
    if old.speedup and new.speedup:
        yield SPEEDUP, old.speedup, new.speedup
    a, b = (
        next((arm.tokens_per_second for arm in cell.arms if arm.arm == "speculative"), None)
        for cell in (old, new)
    )
    if a and b:
        yield RATE, a, b


def _change(cell: str, what: str, old: Timed, new: Timed, each: float) -> SpeedModel:
    a, b = (_interval(value) for value in (old, new))
    change = None
    if a and b:
        change = direction(size_change(Estimate(a, old.n), Estimate(b, new.n), each))
    return SpeedModel(
        cell=cell, what=what, values=(old.estimate, new.estimate), old=a, new=b, change=change
    )


def _interval(value: Timed) -> IntervalModel | None:
    """None where there were too few samples for one."""
    if value.low is None or value.high is None or value.low > value.high:
        return None
    return IntervalModel(estimate=value.estimate, low=value.low, high=value.high, confidence=0.95)
