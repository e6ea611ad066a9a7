"""Whether the machine was quiet: who else used its processors, and whether it drifted."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
from scipy import stats

BUSY = 0.25  # processors' worth of others
DRIFT, SURE = 0.05, 0.01


@dataclass(frozen=True, slots=True)
class Machine:
    """What a report says of the machine."""

    system: str
    processor: str
    processors: int
    memory_bytes: int
    python: str


def this_machine() -> Machine:
    """Describe it."""
    return Machine(
        system=platform.platform(terse=True),
        processor=_processor(),
        processors=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else
        os.cpu_count() or 1,
        memory_bytes=int(psutil.virtual_memory().total),
        python=platform.python_version(),
    )  # fmt: skip


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


class Quiet:
    """Watches what others use of the processors between two moments.

    Parameters
    ----------
    pids : sequence of int
        Processes of ours, with their children; this one is always.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = [os.getpid(), *pids]
        self._began = time.monotonic()
        self._all, self._ours = _busy(), self._own()

    def others(self) -> float | None:
        """Processors' worth of time that others used since; None if that cannot be told."""
        passed = time.monotonic() - self._began
        if passed <= 0:
            return None
        used = (_busy() - self._all) - (self._own() - self._ours)
        return max(0.0, used / passed)

    def _own(self) -> float:
        total = 0.0
        for process in processes(self._pids):
            try:
                times: Any = process.cpu_times()
                total += times.user + times.system
            except psutil.Error:
                continue
        return total


def processes(pids: Sequence[int]) -> list[psutil.Process]:
    """These processes and all their children, each once."""
    found: dict[int, psutil.Process] = {}
    for pid in pids:
        try:
            root = psutil.Process(pid)
            for process in (root, *root.children(recursive=True)):
                found[process.pid] = process
        except psutil.Error:
            continue
    return list(found.values())


def _busy() -> float:
    times: Any = psutil.cpu_times()
    # guest time is part of user time, and waiting for a disk is not work
    return float(times.user + times.system + getattr(times, "nice", 0.0))


def load_average() -> float | None:
    """Of the last minute; None where there is no such thing."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None


def drift(seconds: Sequence[float]) -> float | None:
    """By what share the second half of a cell's calls was slower; None if that may be chance.

    The calls are the control arm's, whose time hardly depends on the prompt.
    """
    half = len(seconds) // 2
    if half < 3:
        return None
    first, last = seconds[:half], seconds[-half:]
    change = float(np.median(last) / np.median(first) - 1)
    p = float(stats.mannwhitneyu(first, last).pvalue)
    return change if abs(change) >= DRIFT and p <= SURE else None
