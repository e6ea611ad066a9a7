"""Workers: what they survive, what they keep, and what they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.contract import Request
from conformance.decoding import Decoding
from conformance.errors import (
    EngineFailure,
    EngineLoadError,
    UnknownEngineError,
)
from conformance.pool import Outcome, Task, Worker, run_tasks
from conformance.probes import load_probe
from conformance.runner import Settings, judge_cases, prepare
from conformance.verdict import Verdict
from conformance.verifier.gather import describe

ENGINES = """
    import os, sys, time
    from conformance.adapters.reference import ReferenceEngine

    class Once(ReferenceEngine):
        def generate(self, requests):
            os.write(2, b"allocating\\n")
            if requests[0].seed == 0:
                os._exit(7)
            if requests[0].seed == 1:
                time.sleep(600)
            if requests[0].seed == 2:
                raise ValueError("seed 2")
            if requests[0].seed == 3:
                os.write(2, b"x" * 100_000 + b"the end")
                os._exit(1)
            return super().generate(requests)

    class Vandal(ReferenceEngine):
        def load(self, probe):
            ReferenceEngine.generate = None
            super().load(probe)

        def close(self):
            raise RuntimeError("not so fast")

    class DiesBetween(ReferenceEngine):
        def generate(self, requests):
            import threading
            threading.Timer(0.1, os._exit, (5,)).start()
            return super().generate(requests)

    class Stubborn(ReferenceEngine):
        def close(self):
            time.sleep(600)

    class BadCard(ReferenceEngine):
        def __init__(self):
            super().__init__()
            self.card = {"name": "bad"}

    class Crooked(ReferenceEngine):
        def __init__(self):
            from dataclasses import replace
            super().__init__()
            field, value = os.environ["CROOKED"].split("=", 1)
            part = "card" if field in ("name", "version") else "capabilities"
            setattr(self, part, replace(getattr(self, part), **{field: eval(value)}))
"""


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory, probe_cache: Path) -> Path:
    path = tmp_path_factory.mktemp("engines") / "engines.py"
    path.write_text(textwrap.dedent(ENGINES), encoding="utf-8")
    return path


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker(timeout=20)
    yield made
    made.close()


def ask(engine: str, seed: int) -> Task:
    request = Request((1, 2, 3), 4, Decoding(), seed)
    return Task(seed, engine, load_probe("mid").pair, (request,))


def pid_of(worker: Worker) -> int:
    assert worker._process is not None
    return worker._process.pid


# --- one worker -----------------------------------------------------------------------------------


def test_a_worker_is_replaced_after_its_engine_died_or_raised(
    engines: Path, worker: Worker
) -> None:
    name = f"{engines}:Once"
    alone = worker.generate(ask(name, 9))
    assert alone.error is None
    for seed, sentence in ((0, "ended with exit status 7"), (2, "ValueError: seed 2")):
        failed = worker.generate(ask(name, seed))
        assert isinstance(failed.error, EngineFailure)
        assert sentence in str(failed.error)
        again = worker.generate(ask(name, 9))
        assert (again.error, again.completions) == (None, alone.completions)


def test_a_process_is_kept_while_nothing_goes_wrong(engines: Path, worker: Worker) -> None:
    worker.generate(ask(f"{engines}:Once", 8))
    first = pid_of(worker)
    worker.generate(ask(f"{engines}:Once", 9))
    assert pid_of(worker) == first


def test_timeout_ends_the_process(engines: Path) -> None:
    worker = Worker(timeout=3)
    worker.load(f"{engines}:Once", ask("", 1).pair)
    hung = pid_of(worker)
    begin = time.monotonic()
    outcome = worker.generate(ask(f"{engines}:Once", 1))
    assert "did not answer within 3 seconds and was stopped" in str(outcome.error)
    assert time.monotonic() - begin < 9
    assert not _exists(hung)
    worker.close()


def test_the_last_output_is_kept_and_not_all_of_it(engines: Path, worker: Worker) -> None:
    outcome = worker.generate(ask(f"{engines}:Once", 3))
    assert outcome.detail.endswith("the end")
    assert len(outcome.detail) == 4000
    # the next process's last output is its own
    assert worker.generate(ask(f"{engines}:Once", 0)).detail == "allocating\n"


def test_a_traceback_is_the_detail_of_an_exception(engines: Path, worker: Worker) -> None:
    assert 'raise ValueError("seed 2")' in worker.generate(ask(f"{engines}:Once", 2)).detail


def test_dying_between_two_batches_is_told_as_such(engines: Path, worker: Worker) -> None:
    name = f"{engines}:DiesBetween"
    assert worker.generate(ask(name, 1)).error is None
    time.sleep(0.5)
    assert "ended with exit status 5" in str(worker.generate(ask(name, 2)).error)


def test_engines_do_not_share_a_process(engines: Path, worker: Worker) -> None:
    """One that ruins the reference for its whole process, and fails to close, ruins only itself."""
    assert worker.generate(ask(f"{engines}:Vandal", 1)).error is not None
    assert worker.generate(ask("reference", 1)).error is None
    worker.start(f"{engines}:Vandal")
    assert worker.generate(ask("reference", 1)).error is None


def test_an_engine_that_will_not_close_is_ended(engines: Path) -> None:
    worker = Worker(timeout=20)
    worker.load(f"{engines}:Stubborn", ask("", 1).pair)
    stubborn = pid_of(worker)
    begin = time.monotonic()
    worker.close()
    assert time.monotonic() - begin < 8
    assert not _exists(stubborn)


def test_a_hung_engine_does_not_outlive_whoever_asked_it(engines: Path) -> None:
    """As when a CI system kills the job."""
    code = (
        "import sys, test_pool\n"
        "worker = test_pool.Worker(600)\n"
        "worker.load(sys.argv[1], test_pool.ask('', 1).pair)\n"
        "print(test_pool.pid_of(worker), flush=True)\n"
        "worker.generate(test_pool.ask(sys.argv[1], 1))\n"
    )
    command = [sys.executable, "-c", code, f"{engines}:Once"]
    with subprocess.Popen(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        hung = int(parent.stdout.readline())
        time.sleep(0.5)
        parent.kill()
    deadline = time.monotonic() + 10
    while _exists(hung) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _exists(hung)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")  # dead, and not yet reaped by whoever inherited it
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


# --- many -----------------------------------------------------------------------------------------


def test_every_task_has_an_outcome_whatever_happens(engines: Path) -> None:
    name = f"{engines}:Once"
    tasks = [ask(name, seed) for seed in (2, 8, 0, 9, 2, 10)]
    outcomes = list(run_tasks(tasks, 2, 20, lambda task: True))
    assert sorted(o.task.key for o in outcomes if o.error is None) == [8, 9, 10]
    assert sorted(o.task.key for o in outcomes if o.error) == [0, 2, 2]


def test_unwanted_tasks_are_dropped() -> None:
    tasks = [ask("reference", seed) for seed in (1, 2)]
    outcomes = list(run_tasks(tasks, 1, 20, lambda task: task.key == 2))
    assert [o.task.key for o in outcomes] == [2]


def test_no_tasks() -> None:
    assert list(run_tasks([], 4, 20, lambda task: True)) == []


def test_abandoning_a_run_does_not_wait_for_engines_that_hang(engines: Path) -> None:
    """As when a person presses Ctrl-C."""
    name = f"{engines}:Once"
    outcomes: Iterator[Outcome] = run_tasks([ask(name, 9), ask(name, 1)], 2, 600, lambda t: True)
    assert next(outcomes).task.key == 9
    time.sleep(0.5)
    begin = time.monotonic()
    outcomes.close()  # type: ignore[attr-defined]  # it is a generator
    assert time.monotonic() - begin < 8


# --- who are you? ---------------------------------------------------------------------------------


def test_describe() -> None:
    card, capabilities = describe("reference")
    assert (card.name, capabilities.draft, capabilities.max_batch) == ("reference", "model", 1024)
    with pytest.raises(UnknownEngineError, match="no engine named"):
        describe("no-such-engine")


def test_a_card_of_another_type(engines: Path) -> None:
    with pytest.raises(EngineLoadError, match="the engine's card is dict, not EngineCard"):
        describe(f"{engines}:BadCard")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("name=None", "name must be a string, not None"),
        ("version=(1, 2)", "version must be a string"),
        ("version=object()", "not JSON serializable"),
        ("max_batch=0.5", "max_batch must be a whole number, not 0.5"),
        ("max_batch='many'", "max_batch must be a whole number, not 'many'"),
        ("control='no'", "control must be True or False, not 'no'"),
        ("greedy=1", "greedy must be True or False, not 1"),
        ("draft='magic'", "draft must be one of .*, not 'magic'"),
        ("dialect=None", "unreadable card"),
        ("processes=0", "processes must be a whole number >= 1, not 0"),
    ],
)
def test_a_crooked_description(
    engines: Path, monkeypatch: pytest.MonkeyPatch, said: str, sentence: str
) -> None:
    monkeypatch.setenv("CROOKED", said)
    with pytest.raises(EngineFailure, match=sentence):
        describe(f"{engines}:Crooked")


@pytest.mark.parametrize("batch", ["0", "-5", "10**9"])
def test_an_odd_batch_size_loses_no_request(
    engines: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, batch: str
) -> None:
    monkeypatch.setenv("CROOKED", f"max_batch={batch}")
    settings = Settings((f"{engines}:Crooked",), (Decoding(greedy=True),), "smoke")
    plan = prepare(settings)
    (result,) = judge_cases(plan, tmp_path)
    assert [(a.requests, a.planned) for a in result.arms] == [(16, 16), (16, 16)]
    assert result.verdict.verdict is Verdict.EXACT


def test_a_name_that_is_too_much(engines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CROOKED", r"name='\x1b[2J\udcff' + 'n' * 10**6")
    card, _ = describe(f"{engines}:Crooked")
    assert len(card.name) < 600
    card.name.encode("utf-8")
