"""Bundles that tests of ``conformance verify`` copy and forge."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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


@pytest.fixture(autouse=True, scope="session")
def _once() -> Any:
    """Planning, judging and looking for a cause are functions of what was asked and answered alone,
    and take nearly all of the time: what these tests do not change is worked out once.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decide, "diagnose", remembered(decide.diagnose, _of_judge))
        patch.setattr(decide, "decide", remembered(decide.decide, _of_gathered))
        patch.setattr(replay, "prepare", remembered(replay.prepare, _of_settings))
        yield


def remembered(work: Callable[..., Any], key_of: Callable[..., object]) -> Callable[..., Any]:
    """The function, asked once for every key."""
    known: dict[object, Any] = {}

    def once(*given: Any) -> Any:
        key = key_of(*given)
        if key not in known:
            known[key] = work(*given)
        return known[key]

    return once


def _of_case(plan: RunPlan, case: Case) -> tuple[object, ...]:
    claims = repr((case.capabilities, case.workload, case.rounding, case.tests, case.noise))
    return plan.profile, plan.alpha, plan.level, plan.seed, plan.stage, case.id, claims


def _of_judge(judge: Any, answers: Any) -> object:
    return (*_of_case(judge.plan, judge.case), answers.sha256)


def _of_gathered(plan: RunPlan, found: Any) -> object:
    arms = [(arm, e.sha256, e.seconds, e.planned) for arm, e in found.arms.items()]
    return (*_of_case(plan, found.case), repr((arms, found.error, found.detail, found.stopped)))


def _of_settings(settings: Any, said: Any, probes: Path) -> object:
    weights = [(p.name, hashlib.sha256(p.read_bytes()).hexdigest()) for p in probes.glob("*/*/*")]
    return repr((settings, said, sorted(weights)))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, probe_cache: Path) -> Path:
    return tmp_path_factory.mktemp("bundles")


@pytest.fixture(scope="session")
def small(made: Path) -> Path:
    """One exact engine."""
    return bundles.run(made / "small", "reference", *bundles.BOTH)


@pytest.fixture(scope="session")
def mixed(made: Path) -> Path:
    """EXACT, NOT EXACT at the end and before it, ERROR, and NOT SUPPORTED in two ways."""
    engines = ["reference", "faulty:resample-from-p"]
    engines += map(bundles.difficult, ("Accepts", "Refuses", "Fails", "Broken"))
    return bundles.run(made / "mixed", *engines, *bundles.BOTH)


@pytest.fixture(scope="session")
def staged(made: Path) -> Path:
    """INCONCLUSIVE at first; EXACT with more samples, beside a case that was settled."""
    folder = bundles.run(made / "staged", bundles.RARELY, "reference", *bundles.SAMPLED)
    return bundles.resume(folder)


@pytest.fixture(scope="session")
def inconclusive(made: Path) -> Path:
    """INCONCLUSIVE for want of samples."""
    return bundles.run(made / "inconclusive", bundles.RARELY, *bundles.SAMPLED)


@pytest.fixture(scope="session")
def verifiers(made: Path) -> Path:
    """The acceptance rule alone."""
    return bundles.run(made / "verifiers", "reference:verifier", "faulty:lenient=0.9:verifier")


@pytest.fixture(scope="session")
def served(made: Path) -> Path:
    """A server with a model of its own."""
    return bundles.served(made / "served")


@pytest.fixture(scope="session")
def rounded(made: Path) -> Path:
    """An engine in low precision."""
    return bundles.run(made / "rounded", bundles.difficult("Rounds"), *bundles.BOTH)


@pytest.fixture(scope="session")
def expected(made: Path) -> Path:
    """A failure that was declared beforehand."""
    (made / "expected.toml").write_text(EXPECTED)
    asked = ("faulty:resample-from-p", "reference", *bundles.SAMPLED)
    return bundles.run(made / "expected", *asked, "--expectations", made / "expected.toml")


@pytest.fixture
def forged(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """A copy of one of the bundles, by its name."""

    def made(name: str) -> Path:
        return bundles.copy(request.getfixturevalue(name), tmp_path)

    return made
