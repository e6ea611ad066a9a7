"""Bundles that tests of ``conformance verify`` copy and forge."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from conformance import decide
from conformance.plan import Case, RunPlan
from conformance.reports.verify import replay

sys.path.append(str(Path(__file__).parent.parent / "served"))

import bundles

EXPECTED = """
[[expected]]
case = "* / temperature=1"
reason = "known"
link = "https://example.org/1"
expires = 2999-12-31
"""


@pytest.fixture(autouse=True, scope="module")
def _once() -> Any:
    """Planning, judging and looking for a cause are functions of what was asked and answered alone,
    and take nearly all of the time: what these tests do not change is worked out once.
    """
    with pytest.MonkeyPatch.context() as patch:
        for place, name, key_of in (
            (decide, "diagnose", _of_judge),
            (decide, "decide", _of_gathered),
            (replay, "prepare", _of_settings),
        ):
            patch.setattr(place, name, remembered(getattr(place, name), key_of, KNOWN[name]))
        yield


@pytest.fixture
def afresh() -> Any:
    """Forgets what was worked out, when it is called and at the end."""

    def forget() -> None:
        for known in KNOWN.values():
            known.clear()

    yield forget
    forget()


KNOWN: dict[str, dict[object, Any]] = {name: {} for name in ("diagnose", "decide", "prepare")}


def remembered(
    work: Callable[..., Any], key_of: Callable[..., object], known: dict[object, Any]
) -> Callable[..., Any]:
    """The function, asked once for every key."""

    def once(*given: Any) -> Any:
        key = key_of(*given)
        if key not in known or _gone(known[key]):
            known[key] = work(*given)
        return known[key]

    return once


def _gone(found: Any) -> bool:
    """Whether it is a plan that reads probes of a bundle that was removed since."""
    folders = (getattr(case, "probes", None) for case in getattr(found, "cases", ()))
    return any(folder is not None and not folder.exists() for folder in folders)


def _of_case(plan: RunPlan, case: Case) -> tuple[object, ...]:
    claims = repr((case.capabilities, case.workload, case.rounding, case.tests, case.noise))
    return plan.profile, plan.alpha, plan.level, plan.seed, plan.stage, case.id, claims


def _of_judge(judge: Any, answers: Any) -> object:
    return (*_of_case(judge.plan, judge.case), answers.sha256)


def _of_gathered(plan: RunPlan, found: Any) -> object:
    arms = [(arm, e.sha256, e.seconds, e.planned) for arm, e in found.arms.items()]
    return (*_of_case(plan, found.case), repr((arms, found.error, found.detail, found.stopped)))


def _of_settings(settings: Any, said: Any, probes: Path) -> object:
    files = (p for p in probes.rglob("*") if p.is_file())
    weights = [(p.name, hashlib.sha256(p.read_bytes()).hexdigest()) for p in files]
    return repr((settings, said, sorted(weights)))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, probe_cache: Path) -> Path:
    """Where bundles are; the processes of one test run share them."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    (shared / "bundles").mkdir(exist_ok=True)
    return shared / "bundles"


def bundle(folder: Path, make: Callable[[Path], Path]) -> Path:
    """A bundle, made by whoever needs it first."""
    done = folder.with_suffix(".done")
    with FileLock(folder.with_suffix(".lock")):
        if not done.exists():
            make(folder)
            done.touch()
    return folder


@pytest.fixture(scope="session")
def small(made: Path) -> Path:
    """One exact engine."""
    return bundle(made / "small", lambda f: bundles.run(f, "reference", *bundles.BOTH))


@pytest.fixture(scope="session")
def mixed(made: Path) -> Path:
    """EXACT, NOT EXACT at the end and before it, ERROR, and NOT SUPPORTED in two ways."""
    engines = ["reference", "faulty:resample-from-p"]
    engines += map(bundles.difficult, ("Accepts", "Refuses", "Fails", "Broken"))
    return bundle(made / "mixed", lambda f: bundles.run(f, *engines, *bundles.BOTH))


@pytest.fixture(scope="session")
def staged(made: Path) -> Path:
    """INCONCLUSIVE at first; EXACT with more samples, beside a case that was settled."""
    asked = (bundles.RARELY, "reference", *bundles.SAMPLED)
    return bundle(made / "staged", lambda f: bundles.resume(bundles.run(f, *asked)))


@pytest.fixture(scope="session")
def inconclusive(made: Path) -> Path:
    """INCONCLUSIVE for want of samples."""
    asked = (bundles.RARELY, *bundles.SAMPLED)
    return bundle(made / "inconclusive", lambda f: bundles.run(f, *asked))


@pytest.fixture(scope="session")
def verifiers(made: Path) -> Path:
    """The acceptance rule alone."""
    asked = ("reference:verifier", "faulty:lenient=0.9:verifier")
    return bundle(made / "verifiers", lambda f: bundles.run(f, *asked))


@pytest.fixture(scope="session")
def served(made: Path) -> Path:
    """A server with a model of its own."""
    return bundle(made / "served", bundles.served)


@pytest.fixture(scope="session")
def rounded(made: Path) -> Path:
    """An engine in low precision."""
    asked = (bundles.difficult("Rounds"), *bundles.BOTH)
    return bundle(made / "rounded", lambda f: bundles.run(f, *asked))


@pytest.fixture(scope="session")
def expected(made: Path) -> Path:
    """A failure that was declared beforehand."""
    asked = ("faulty:resample-from-p", "reference", *bundles.SAMPLED)

    def make(folder: Path) -> Path:
        entries = folder.with_suffix(".toml")
        entries.write_text(EXPECTED)
        return bundles.run(folder, *asked, "--expectations", entries)

    return bundle(made / "expected", make)


@pytest.fixture
def forged(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """A copy of one of the bundles, by its name."""

    def made(name: str) -> Path:
        return bundles.copy(request.getfixturevalue(name), tmp_path)

    return made
