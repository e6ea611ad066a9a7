"""Memory of an engine's processes, with its draft and without.

The contract loads target and draft at once, whatever is asked afterwards. So "without" is a fresh
process of the same engine with the same target and the smallest draft that engines load in the
draft's place, which then answers without speculation; "with" is a fresh process with both models,
which speculates. What differs is the draft, what it keeps of the text, and the buffers of
speculation; what an adapter loads besides (a second copy for the control arm, say) is in both.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from conformance.bench.asking import Asker
from conformance.bench.machine import processes
from conformance.bench.models import Models
from conformance.contract import Capabilities, ModelPair, Request
from conformance.errors import ConformanceError
from conformance.reports.bench_model import MemoryModel
from conformance.text import one_line

EVERY = 0.02  # seconds between two looks
PAIRS = 3


@dataclass(frozen=True, slots=True)
class Peaks:
    """Largest resident memory of fresh processes, in bytes."""

    with_draft: tuple[int, ...]
    without: tuple[int, ...]


def memory_model(
    make: Callable[[], Asker],
    engine: str,
    capabilities: Capabilities,
    models: Models,
    asked: tuple[Request, Request],
    progress: Callable[[int, int], None],
) -> MemoryModel:
    """Measure one engine, or say why not.

    Parameters
    ----------
    make : callable
        Makes an asker that has no process yet.
    engine, capabilities, models
        Who is measured, and with what.
    asked : tuple of Request
        One with speculation, and the same without.
    progress : callable
        As for `measure_memory`.
    """
    replaced = capabilities.draft == "model" and models.pair.draft is not None
    peaks, stand_in = Peaks((), ()), None
    if not capabilities.control:
        sentence = "Not measured: an engine without a control arm has no 'without'."
    else:
        try:
            without = models.with_stand_in() if replaced else models.pair
            peaks = measure_memory(make, models.pair, without, *asked, progress)
            stand_in = Models(without, None).draft_bytes if replaced else None
            sentence = _sentence(peaks, replaced)
        except ConformanceError as exc:
            sentence = f"Not measured: {one_line(str(exc), 600)}"
    added = None
    if peaks.with_draft and peaks.without:
        added = round(statistics.median(peaks.with_draft) - statistics.median(peaks.without))
    return MemoryModel(
        engine=engine,
        with_draft=list(peaks.with_draft),
        without=list(peaks.without),
        added=added,
        target_files=models.target_bytes,
        draft_files=models.draft_bytes,
        stand_in_files=stand_in,
        sentence=sentence,
    )


def _sentence(peaks: Peaks, replaced: bool) -> str:
    text = "Largest resident memory of fresh processes that "
    text += (
        "load both models and answer one request with speculation, against such that have a "
        "stand-in for the draft and answer without."
        if replaced
        else "answer one request with speculation, against such that answer without; both load the "
        "same models."
    )
    gap = abs(statistics.median(peaks.with_draft) - statistics.median(peaks.without))
    if gap <= max(max(side) - min(side) for side in (peaks.with_draft, peaks.without)):
        text += " The difference is no larger than that between processes that are alike."
    return text + " Memory of a GPU is not measured."


def measure_memory(
    make: Callable[[], Asker],
    pair: ModelPair,
    without: ModelPair,
    request: Request,
    plain: Request,
    progress: Callable[[int, int], None],
) -> Peaks:
    """Start fresh processes in turn, and watch each to the end of one call.

    Parameters
    ----------
    make : callable
        Makes an asker that has no process yet.
    pair, without : ModelPair
        Target and draft, and the target with a stand-in.
    request, plain : Request
        With speculation, and the same without.
    progress : callable
        Told after every process how many are done, and of how many.

    Raises
    ------
    ConformanceError
        If the engine fails.
    """
    peaks: tuple[list[int], list[int]] = ([], [])
    # what an engine converts when it first meets a model is done by one process that does not count
    _peak(make(), without, plain)
    done = 0
    for i in range(PAIRS):
        order = [(0, pair, request), (1, without, plain)]
        for which, models, asked in order if i % 2 == 0 else reversed(order):
            peaks[which].append(_peak(make(), models, asked))
            done += 1
            progress(done, 2 * PAIRS)
    return Peaks(tuple(peaks[0]), tuple(peaks[1]))


def _peak(asker: Asker, pair: ModelPair, request: Request) -> int:
    try:
        asker.describe()
        pid = asker.pid
        assert pid is not None  # it has just answered
        with Watch(pid) as watch:
            asker.ask(pair, [request])
        return watch.peak
    finally:
        asker.close()


class Watch:
    """The largest sum of resident memory over a process and its children while it is open."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.peak = max(self.peak, resident(self._pid), high_water(self._pid))

    def _look(self) -> None:
        while not self._stop.wait(EVERY):
            self.peak = max(self.peak, resident(self._pid))


def resident(pid: int) -> int:
    """Resident memory of a process and its children now; what they share is counted in each."""
    total = 0
    for process in processes([pid]):
        with contextlib.suppress(psutil.Error):
            total += int(process.memory_info().rss)
    return total


def high_water(pid: int) -> int:
    """The most that the process itself ever had, as Linux keeps it; 0 elsewhere."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0
