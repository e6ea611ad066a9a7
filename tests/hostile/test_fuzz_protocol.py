"""Whatever an engine's process writes, and whenever it dies, its case is an ERROR with a reason in
words, other cases go on, and nothing ends as EXACT by being left out.

What goes wrong is decided by the seed in a test's name, so that a failure can be run again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
from pathlib import Path

import fuzzed  # a file's neighbours can be imported
import numpy as np
import pytest

from conformance import introduction, wire
from conformance.contract import Request
from conformance.decoding import Decoding
from conformance.errors import (
    ConformanceError,
    EngineFailure,
    NotSupportedError,
    UnknownEngineError,
)
from conformance.gather import evidence_path
from conformance.law import warp
from conformance.plan import PROFILES, Case, RunPlan, make_plan
from conformance.pool import Outcome, Task, Worker
from conformance.probes import load_probe
from conformance.result import CaseResult
from conformance.runner import Settings, collect, judge_cases, prepare
from conformance.verdict import Verdict

pytestmark = pytest.mark.engines

PROGRAM = Path(fuzzed.__file__)
GREEDY, SAMPLED = Decoding(greedy=True), Decoding()
KINDS = len(fuzzed.FAULTS) + len(fuzzed.HARMLESS)
PATIENT, SHORT = 30.0, 0.5  # seconds for an answer; whoever hangs costs this much
LONG = pytest.mark.long


@pytest.fixture(autouse=True)
def _shorter_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.pool.LONGEST_LINE", fuzzed.LIMIT)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, probe_cache: Path) -> Path:
    """The laws of probe ``table``: what an engine needs to be exact on it."""
    probe = load_probe("table", probe_cache)
    each = np.arange(probe.recipe.vocab_size)[:, None]
    logits = {"p": probe.target.logits(each)[:, 0], "q": probe.draft.logits(each)[:, 0]}
    laws = {
        name: {key: warp(z, decoding).tolist() for key, z in logits.items()}
        for name, decoding in (("greedy", GREEDY), ("sampled", SAMPLED))
    }
    path = tmp_path_factory.mktemp("tables") / "tables.json"
    path.write_text(json.dumps(laws), encoding="utf-8")
    return path


def engine(tables: Path, seed: int, pids: Path | str = "") -> str:
    return f"exec:{sys.executable} -I -S {PROGRAM} {tables} {seed} {pids}"


# --- a worker -------------------------------------------------------------------------------------


def task(name: str, seed: int) -> Task:
    requests = tuple(Request((1, 2, seed), 8, SAMPLED, seed + i) for i in range(2))
    return Task(seed, name, load_probe("table").pair, requests)


def right(tables: Path, asked: Task) -> tuple[wire.Json, ...]:
    laws = json.loads(tables.read_bytes())
    rows = wire.encode_requests(asked.requests)
    return tuple(fuzzed.complete(row, laws) | {"counts": None} for row in rows)


def check_failed(outcome: Outcome, seed: int) -> None:
    error = outcome.error
    assert isinstance(error, ConformanceError)
    assert outcome.completions == ()
    assert isinstance(error, NotSupportedError) == (fuzzed.kind_of(seed) == "refuses")
    assert 2 <= len(str(error)) < 2600, "a sentence, and not without end"
    assert len(outcome.detail) < 21_000
    (str(error) + outcome.detail).encode("utf-8")  # can be printed and stored


def drive(tables: Path, seed: int) -> None:
    kind, at = fuzzed.kind_of(seed), fuzzed.at(seed)
    name, healthy = engine(tables, seed), engine(tables, fuzzed.NONE)
    worker = Worker(SHORT if kind in fuzzed.HANGS else PATIENT)
    first, second = task(name, 1), task(name, 9)
    seen = at + 1 if kind in fuzzed.SEEN_LATER else at
    try:
        outcomes = [worker.generate(first), worker.generate(second)]
        for asked, outcome, by in zip((first, second), outcomes, (3, 4), strict=True):
            if kind in fuzzed.HARMLESS or by < seen:
                assert outcome.error is None, outcome.detail
                told = right(tables, asked)
                assert [c["tokens"] for c in outcome.completions] == [c["tokens"] for c in told]
            elif by in (seen, 3):
                check_failed(outcome, seed)
        worker.timeout = PATIENT
        again = worker.generate(task(healthy, 5))
        assert again.completions == right(tables, again.task), again.error
    finally:
        worker.close()


@pytest.mark.parametrize("seed", range(7 * KINDS))
def test_a_worker_survives(tables: Path, seed: int) -> None:
    drive(tables, seed)


@LONG
@pytest.mark.parametrize("begin", range(7 * KINDS, 47 * KINDS, KINDS))
def test_a_worker_survives_more(tables: Path, begin: int) -> None:
    for seed in range(begin, begin + KINDS):
        print(f"seed {seed}: {fuzzed.kind_of(seed)}")
        drive(tables, seed)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sh -c 'exec 3<&0; sleep 60 & exit 3'", "status 3, and what it has started kept its"),
        ("sh -c 'exec 1>&-; sleep 60'", "closed its output instead of answering"),
        ("sh -c 'exec 0<&-; sleep 60'", "did not answer within|closed its output"),
        ("sh -c 'kill -9 $$'", "ended by signal 9 instead of answering"),
        ("true", "ended with exit status 0 instead of answering"),
        ("sleep 60", "did not answer within 1 seconds and was stopped"),
        ("cat", "capabilities must be an object, not None"),  # repeats the question
        ("yes", "answered garbage"),
        ("cat /dev/zero", "answered garbage: a line of more than"),
        ("cat /dev/urandom", "answered garbage"),
    ],
)
def test_programs_that_are_no_engine(command: str, said: str) -> None:
    worker = Worker(1.0)
    with pytest.raises(EngineFailure, match=said):
        worker.start(f"exec:{command}")
    worker.close()


def test_a_command_line_that_cannot_be_read() -> None:
    with pytest.raises(UnknownEngineError, match="No closing quotation"):
        Worker(1.0).start("exec:node 'my engine.js")


# --- whole cases ----------------------------------------------------------------------------------


def cases(names: list[str], decoding: Decoding = GREEDY, batch: int = 4) -> list[Case]:
    """Cases of engines that nobody asked who they are: what they will say is what is tested."""
    card, claims = introduction.read_description(
        {"card": fuzzed.card(), "capabilities": fuzzed.capabilities() | {"max_batch": batch}}
    )
    return [Case(name, "table", decoding, card, claims) for name in names]


def judge(plan: RunPlan, folder: Path, timeout: float = PATIENT) -> dict[str, CaseResult]:
    results = collect(plan, list(judge_cases(plan, folder, jobs=2, timeout=timeout)))
    assert len(results) == len(plan.cases)
    return {r.case.engine: r for r in results}


def check_complete(result: CaseResult) -> None:
    """EXACT, with an answer to every request of both arms."""
    assert result.verdict.verdict is Verdict.EXACT, (result.verdict.why, result.error)
    assert [a.arm for a in result.arms] == ["speculative", "control"]
    assert all(0 < a.requests == a.planned for a in result.arms)


def check_error(result: CaseResult, folder: Path) -> None:
    assert result.verdict.verdict is Verdict.ERROR, result.verdict.why
    assert len(result.verdict.why.split()) >= 4
    result.verdict.why.encode("utf-8")
    assert result.findings == ()
    assert any(a.requests < a.planned for a in result.arms)
    for arm in result.arms:
        whole = evidence_path(folder, result.case, arm.arm).exists()
        assert whole <= (arm.requests == arm.planned), "half an arm under a whole one's name"


def check_judged(tables: Path, seeds: list[int], decoding: Decoding, folder: Path) -> None:
    healthy = [engine(tables, fuzzed.NONE), "reference"]
    names = {engine(tables, seed): fuzzed.kind_of(seed) for seed in seeds}
    plan = make_plan(cases([*healthy, *names], decoding), PROFILES["smoke"])
    results = judge(plan, folder, 5.0 if set(names.values()) & set(fuzzed.HANGS) else PATIENT)
    for name, kind in names.items():
        if kind in fuzzed.HARMLESS:
            check_complete(results[name])
        elif kind == "refuses" and results[name].verdict.verdict is Verdict.NOT_SUPPORTED:
            assert not any(a.requests for a in results[name].arms)
        else:
            check_error(results[name], folder)
    for name in healthy:
        check_complete(results[name])


def test_in_a_run_each_fault_ends_its_own_case_alone(tables: Path, tmp_path: Path) -> None:
    """One of every kind, beside two engines that are right."""
    seeds = [s for s in range(KINDS) if fuzzed.kind_of(s) != "own words"]
    check_judged(tables, seeds, GREEDY, tmp_path)


@LONG
@pytest.mark.parametrize("begin", range(KINDS, 9 * KINDS, KINDS))
def test_in_a_run_each_fault_ends_its_own_case_alone_more(
    tables: Path, tmp_path: Path, begin: int
) -> None:
    seeds = [s for s in range(begin, begin + KINDS) if fuzzed.kind_of(s) != "own words"]
    check_judged(tables, seeds, (GREEDY, SAMPLED)[begin // KINDS % 2], tmp_path)


def test_an_engine_that_cannot_be_asked_is_an_error(tables: Path) -> None:
    """One of every kind, from the first question on."""
    seeds = {fuzzed.kind_of(s): s for s in reversed(range(900)) if fuzzed.at(s) == fuzzed.START}
    assert len(seeds) == KINDS
    named = {engine(tables, seed): kind for kind, seed in seeds.items() if kind not in fuzzed.HANGS}
    plan = prepare(Settings(tuple(named), (GREEDY,), "smoke", timeout=PATIENT, probe="table"))
    for case in plan.cases:
        kind = named[case.engine]
        if kind in fuzzed.HARMLESS or kind in fuzzed.SEEN_LATER:
            assert case.error is None
        else:
            assert case.error
            case.error.encode("utf-8")
            assert len(case.error) < 2600


# --- killed from outside --------------------------------------------------------------------------


def test_killed_at_any_moment(tables: Path, tmp_path: Path) -> None:
    killed = [kill_once(tables, tmp_path, seed) for seed in range(6)]
    assert any(killed)


@LONG
def test_killed_at_any_moment_more(tables: Path, tmp_path: Path) -> None:
    killed = [kill_once(tables, tmp_path, seed) for seed in range(100, 150)]
    print(f"{sum(killed)} of {len(killed)} runs lost a case to the kill")
    assert sum(killed) >= 20


def kill_once(tables: Path, tmp_path: Path, seed: int) -> bool:
    """Judge two cases while somebody kills one engine process; whether that cost a case."""
    rng = random.Random(seed)
    folder, pids = tmp_path / f"run {seed}", tmp_path / f"pids {seed}"
    names = []
    for each in "ab":
        (pids / each).mkdir(parents=True)
        names.append(engine(tables, fuzzed.NONE, f"'{pids / each}'"))
    plan = make_plan(cases(names, batch=1), PROFILES["smoke"])  # many answers to be killed at
    done = threading.Event()
    struck: list[str] = []
    killer = threading.Thread(target=_strike, args=(pids, rng, done, struck))
    killer.start()
    results = judge(plan, folder)
    done.set()
    killer.join()
    lost = [name for name in names if results[name].verdict.verdict is not Verdict.EXACT]
    for name, each in zip(names, "ab", strict=True):
        if name in lost:
            assert struck == [each], (seed, struck, results[name].verdict.why)
            assert "ended by signal 9 instead of answering" in results[name].verdict.why
            check_error(results[name], folder)
        else:
            check_complete(results[name])
    return bool(lost)


def _strike(pids: Path, rng: random.Random, done: threading.Event, struck: list[str]) -> None:
    """Kill one of the engine processes at a random moment, unless all is over before."""
    which = rng.choice("ab")
    while not (found := list((pids / which).iterdir())):
        if done.wait(0.001):
            return
    done.wait(rng.uniform(0, 0.25))  # about as long as a case takes
    found = list((pids / which).iterdir())
    for file in rng.sample(found, len(found)):
        with contextlib.suppress(OSError):
            # not whoever has its number by now
            if PROGRAM.name.encode() in Path(f"/proc/{file.name}/cmdline").read_bytes():
                os.kill(int(file.name), signal.SIGKILL)
                struck.append(which)
                return
