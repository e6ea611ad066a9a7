"""A process that gathers and is killed, again and again: ``killed.py TIER FOLDER [HOW OFTEN]``.

Everything is prepared once. Then, for every k, a forked child gathers into a folder of its own and
kills itself with SIGKILL at its k-th step in the file system: before it, or in the middle of what
is written. Another goes on from what it left and is killed as well, at a step k' of its own; a last
one is let be. Prints how many were killed; ends with an error if one ended with other evidence than
an undisturbed child, lost what had been saved, or left other files.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from conformance import arm, parts, wire
from conformance import gather as engines
from conformance.adapters.reference import reference
from conformance.contract import Request
from conformance.decoding import Decoding
from conformance.gather import evidence_path
from conformance.plan import PROFILES, Case, make_plan
from conformance.pool import Outcome, Task
from conformance.probes import load_probe
from conformance.served import gather as servers
from conformance.served.evidence import continued
from conformance.served.server import ARMS, Answer, Ask
from conformance.verifier import draws
from conformance.verifier import gather as verifiers
from conformance.verifier.evidence import assembled, read_stored
from conformance.verifier.serve import Server

Child = Callable[[Path], None]
Found = dict[str, Any]  # sha256 by arm


# --- an arm or three, gathered in this process ----------------------------------------------------


def engine() -> tuple[Child, Callable[[Path], Found]]:
    """Two arms of the reference engine, eleven batches each."""
    made = reference()
    claims = replace(made.capabilities, max_batch=8)
    case = Case("reference", "table", Decoding(), made.card, claims)
    plan = make_plan([case], PROFILES["smoke"])
    (case,) = plan.cases
    assert case.workload is not None
    case = replace(case, workload=replace(case.workload, requests=88))
    plan = replace(plan, cases=(case,))
    made.load(load_probe("table").pair)
    asked = [engines.arm_requests(plan, case, a) for a in case.arms]
    answers: dict[Request, wire.Json] = {}
    for requests in asked:
        said = wire.encode_completions(made.generate(requests), requests)
        answers |= dict(zip(requests, said, strict=True))

    def answered(tasks: Sequence[Task], *_: object) -> Iterator[Outcome]:
        # chunks may come in another order than asked for
        todo = list(tasks)
        for i in range(2, len(todo) - 2, 5):
            todo[i], todo[i + 2] = todo[i + 2], todo[i]
        for task in todo:
            yield Outcome(task, tuple(answers[r] for r in task.requests), 0.25)

    def gather(folder: Path) -> None:
        engines.run_tasks = answered  # type: ignore[assignment]
        (gathered,) = engines.gather(plan, plan.cases, folder)
        assert gathered.error is None, gathered.error

    def found(folder: Path) -> Found:
        kept = {
            a: arm.kept_evidence(
                case, engines.arm_seeds(plan, case, a), evidence_path(folder, case, a)
            )
            for a in case.arms
        }
        return {a: e and (len(e.tokens), e.sha256) for a, e in kept.items()}

    return gather, found


def served() -> tuple[Child, Callable[[Path], Found]]:
    """Three arms of a server that is a random number generator."""
    sys.path.append(str(Path(__file__).with_name("served")))
    from hidden import only, planned, texts

    plan = planned(texts(2, 6), Decoding(), tokens=3, requests=60)
    case = only(plan)

    class Random:
        def ask(self, decoding: Decoding, asks: Sequence[Ask]) -> list[Answer]:
            rngs = [random.Random(f"{a.text} {a.seed}") for a in asks]
            return [Answer(tuple(r.choices(range(4), k=3)), (3, r.randrange(4))) for r in rngs]

        def counted(self) -> tuple[int, int] | None:
            return None

        def close(self) -> None:
            pass

    def gather(folder: Path) -> None:
        gathered = servers.gather(plan, case, folder, source=Random())
        assert gathered.error is None, gathered.error

    def found(folder: Path) -> Found:
        run = servers._Run(plan, case, folder, None)
        pieces = {a: run._pieces(a) for a in ARMS}
        done = run._together({a: sum(len(e.symbols) for e in p) for a, p in pieces.items()})
        whole = {a: functools.reduce(continued, p) for a, p in pieces.items() if p}
        return {a: (done, e.sha256) for a, e in whole.items()}

    servers.BLOCKS_AT_ONCE, servers.FEWEST_AT_ONCE, servers.SECONDS_AT_ONCE = 1, 1, 0.0
    return gather, found


def verifier() -> tuple[Child, Callable[[Path], Found]]:
    """A verifier with laws in many chunks, edge cases and a repetition."""
    sys.path.append(str(Path(__file__).with_name("verifier")))
    from verifying import named, plan_for

    draws.CHUNK_ROWS = 32
    rule = named("reference:verifier")
    plan = plan_for(rule, laws=(("random-8", 150), ("peaked-32", 70)))
    (case,) = plan.cases

    class Here(verifiers.VerifierWorker):
        server = Server(rule)

        def describe(self, name: str) -> Any:
            return None

        def ask(self, message: dict[str, Any]) -> dict[str, Any]:
            return self.server.answer(message)

    verifiers.VerifierWorker = Here  # type: ignore[misc]

    def path(folder: Path) -> Path:
        return evidence_path(folder, case, "speculative")

    do = verifiers._do

    def did(worker: Any, job: Any, book: Any, told: Any) -> None:
        do(worker, job, book, told)
        book.save_parts()

    def gather(folder: Path) -> None:
        verifiers._do = did
        gathered = verifiers.gather_case(case, plan.seed, path=path(folder))
        assert gathered.error is None, gathered.error

    def found(folder: Path) -> Found:
        pieces = parts.Parts(path(folder)).pieces(
            lambda p, begin: read_stored(p, begin=begin)[0], lambda s: s.size
        )
        if not pieces:
            return {}
        whole = replace(pieces[-1], rows=tuple(r for s in pieces for r in s.rows))
        return {"speculative": (whole.size, assembled(whole).sha256)}

    return gather, found


# --- killing --------------------------------------------------------------------------------------


class Killer:
    """Kills this process at the k-th step; counts them."""

    def __init__(self, at: int) -> None:
        self.at, self.steps = at, 0

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """Before every change of the file system, and within every file that is written."""
        for module, name in ((os, "replace"), (os, "fsync"), (os, "unlink"), (os, "mkdir")):
            setattr(module, name, self._before(getattr(module, name)))
        whole = Path.open

        def opened(path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
            if "x" not in mode and "w" not in mode:
                return whole(path, mode, *more, **named)
            self.step()
            file = whole(path, mode, *more, **named)
            return _Half(file, self)

        Path.open = opened  # type: ignore[method-assign, assignment]
        unlink = os.unlink
        Path.unlink = lambda path, missing_ok=False: _gone(unlink, path, missing_ok)  # type: ignore[method-assign, assignment]

    def _before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*words: Any, **named: Any) -> Any:
            self.step()
            return call(*words, **named)

        return stepped


def _gone(unlink: Callable[[Path], None], path: Path, missing_ok: bool) -> None:
    try:
        unlink(path)
    except FileNotFoundError:
        if not missing_ok:
            raise


class _Half:
    """A file of which half may be written."""

    def __init__(self, file: Any, killer: Killer) -> None:
        self.file, self.killer = file, killer

    def __enter__(self) -> _Half:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, data: Any) -> None:
        half = len(data) // 2
        self.file.write(data[:half])
        self.file.flush()
        self.killer.step()
        self.file.write(data[half:])

    def flush(self) -> None:
        self.file.flush()

    def fileno(self) -> int:
        return int(self.file.fileno())


class Often(parts.Autosave):
    """Saves whenever it is asked whether all is well, and not by the clock."""

    def __init__(self, save: Callable[[], None], every: float | None = None) -> None:
        super().__init__(save, 1e9)

    def check(self) -> None:
        self._save()


def child(gather: Child, folder: Path, at: int) -> tuple[bool, int]:
    """Whether a child that gathers was killed; else how many steps it took."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            killer = Killer(at)
            killer.watch()
            gather(folder)
            os.write(write, str(killer.steps).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read) as said:
        steps = said.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True, 0
    assert status == 0, f"a child ended with status {status}"
    return False, int(steps)


def rows(found: Found) -> int:
    return sum(kept[0] for kept in found.values() if isinstance(kept, tuple))


def main(tier: str, folder: Path, times: int | None = None) -> None:
    gather, found = {"engine": engine, "served": served, "verifier": verifier}[tier]()
    for module in (engines, servers, verifiers):
        module.Autosave = Often  # type: ignore[attr-defined]
    _, steps = child(gather, folder / "whole", 0)
    wanted = found(folder / "whole")
    files = sorted(p.name for p in (folder / "whole" / "evidence").iterdir())
    rng = np.random.default_rng(0)
    killed = saved = 0
    every = range(1, steps + 1)
    for k in every if times is None else every[:: max(1, steps // times)]:
        here = folder / str(k)
        before = 0
        for at in (k, int(rng.integers(1, steps)), 0):
            was_killed, _ = child(gather, here, at)
            killed += was_killed
            after = rows(found(here))
            # no fewer than were there before, or than a child had saved that was killed earlier
            assert after >= max(before, saved), f"at step {k}: rows were lost"
            saved = after if at == k else saved
            before = after
            if not was_killed:
                break
        if 2 * k > steps:
            assert 5 * saved > rows(wanted), f"at step {k}: what had come was not saved"
        assert found(here) == wanted, f"killed at step {k}: other evidence"
        left = sorted(p.name for p in (here / "evidence").iterdir())
        assert left == files, f"killed at step {k}: left {left}"
        shutil.rmtree(here)
    print(f"{steps} steps, {killed} killed")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
