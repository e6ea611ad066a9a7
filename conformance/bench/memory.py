"""Memory of an engine's processes, with its draft and without.

The contract loads target and draft at once, whatever is asked afterwards. So "without" is a fresh
process of the same engine with the same target and the smallest draft that engines load in the
draft's place, which then answers without speculation; "with" is a fresh process with both models,
which speculates. What differs is the draft, what it keeps of the text, and the buffers of
speculation; what an adapter loads besides (a second copy for the control arm, say) is in both.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from conformance.bench.asking import Asker
from conformance.bench.machine import processes
from conformance.contract import ModelPair, Request

EVERY = 0.02  # seconds between two looks
PAIRS = 3


@dataclass(frozen=True, slots=True)
class Peaks:
    """Largest resident memory of fresh processes, in bytes."""

    with_draft: tuple[int, ...]
    without: tuple[int, ...]


def measure_memory(
    make: Callable[[], Asker],
    pair: ModelPair,
    without: ModelPair,
    requests: Sequence[Request],
    plain: Sequence[Request],
    progress: Callable[[], None],
) -> Peaks:
    """Start fresh processes in turn, and watch each to the end of one call.

    Parameters
    ----------
    make : callable
        Makes an asker that has no process yet.
    pair, without : ModelPair
        Target and draft, and the target with a stand-in.
    requests, plain : sequence of Request
        With speculation, and the same without.
    progress : callable
        Called after every process.

    Raises
    ------
    ConformanceError
        If the engine fails.
    """
    peaks: tuple[list[int], list[int]] = ([], [])
    for i in range(PAIRS):
        order = [(0, pair, requests), (1, without, plain)]
        for which, models, asked in order if i % 2 == 0 else reversed(order):
            peaks[which].append(_peak(make(), models, asked))
            progress()
    return Peaks(tuple(peaks[0]), tuple(peaks[1]))


def _peak(asker: Asker, pair: ModelPair, requests: Sequence[Request]) -> int:
    try:
        asker.describe()
        pid = asker.pid
        if pid is None:
            return 0
        with Watch(pid) as watch:
            asker.ask(pair, requests)
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
