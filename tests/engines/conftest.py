"""Tests that need a real engine: skipped, with the reason, where it is not installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from conformance import launch
from conformance.builtin import BUILTINS
from conformance.contract import Request
from conformance.decoding import Decoding
from conformance.pool import Outcome, Task, Worker
from conformance.probes import load_probe
from conformance.resolve import split_options
from conformance.result import CaseResult
from conformance.runner import Settings, judge_cases, prepare

Judge = Callable[..., list[CaseResult]]


def need(name: str) -> None:
    """Skip the test unless the engine can be run here."""
    absent = launch.missing(name)
    head = split_options(name)[0].partition(":")[0]
    if absent is None and not BUILTINS[head].own_environment and not BUILTINS[head].installed:
        absent = f"{BUILTINS[head].requires} is not installed"
    if absent:
        pytest.skip(absent)


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A process for one engine, ended afterwards."""
    made = Worker(timeout=240)
    yield made
    made.close()


@pytest.fixture(scope="module")
def both_arms(probe_cache: Path) -> Iterator[Callable[..., tuple[tuple[Request, ...], Outcome]]]:
    """Ask both arms of an engine, in its own process, for some tokens after a few prompts:
    ``both_arms("vllm", Decoding(), prompts=4, tokens=8)``.
    """
    workers: dict[str, Worker] = {}

    def run(
        name: str, decoding: Decoding, prompts: int, tokens: int
    ) -> tuple[tuple[Request, ...], Outcome]:
        absent = launch.missing(name)
        if absent:
            pytest.skip(absent)
        worker = workers.setdefault(name, Worker(timeout=240))
        rows = np.random.default_rng(3).integers(0, 32, (prompts, 8)).tolist()
        wanted = tuple(
            Request(tuple(row), tokens, decoding, None if decoding.greedy else 7 + i, speculate)
            for speculate in (True, False)
            for i, row in enumerate(rows)
        )
        pair = load_probe("mid", probe_cache).pair
        return wanted, worker.generate(Task("test", name, pair, wanted))

    yield run
    for made in workers.values():
        made.close()


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """Judge an engine as ``conformance run`` does: ``judge("vllm", Decoding(), probe="small")``."""

    def run(name: str, *decodings: Decoding, **settings: object) -> list[CaseResult]:
        need(name)
        asked = Settings((name,), decodings or (Decoding(),), **{"profile": "smoke", **settings})  # type: ignore[arg-type]
        return list(judge_cases(prepare(asked), tmp_path, jobs=1, timeout=240))

    return run
