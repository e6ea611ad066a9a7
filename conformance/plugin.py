"""The pytest plugin behind ``pytest suites --engine NAME``.

It plans the run once, gives every suite test the cases its question applies to, gathers a case the
first time any test asks for it (in whichever xdist worker that is), and ends the session with the
run's verdict as exit status. It does nothing unless ``--engine`` is given, and imports nothing
heavy before.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conformance.text import one_line

if TYPE_CHECKING:
    from conformance.reports.model import CaseModel
    from conformance.store import Store

SESSION_VARIABLE = "CONFORMANCE_SESSION"
_STORE: pytest.StashKey[Store] = pytest.StashKey()
_BEGIN: pytest.StashKey[float] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of ``conformance run``, under names that do not clash with other plugins."""
    group = parser.getgroup("conformance", "speculative decoding conformance")
    group.addoption(
        "--engine",
        action="append",
        metavar="NAME",
        help="engine to judge: a built-in name, package.module:Class or path/to/file.py:Class",
    )
    group.addoption(
        "--decoding",
        action="append",
        metavar="CONFIG",
        help="'greedy' or for example 'temperature=0.7,top_p=0.8'; may be given several times",
    )
    group.addoption(
        "--conformance-profile",
        choices=("smoke", "standard", "audit"),
        default="standard",
        help="how small a departure a pass must rule out (default: standard)",
    )
    group.addoption("--conformance-probe", metavar="NAME", help="probe to use")
    group.addoption(
        "--conformance-alpha",
        type=float,
        default=1e-6,
        help="false-alarm probability of the whole run (default: 1e-6)",
    )
    group.addoption("--conformance-seed", type=int, default=0, help="seed of everything")
    group.addoption(
        "--conformance-timeout",
        type=float,
        default=300.0,
        help="seconds an engine may take for one batch (default: 300)",
    )
    group.addoption(
        "--conformance-python",
        metavar="PATH",
        help="the Python of the virtual environment that the engines are installed in",
    )
    group.addoption(
        "--conformance-out", metavar="DIR", help="write the report and the evidence here"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose the folder that this session, with all its xdist workers, shares."""
    config.addinivalue_line("markers", "conformance: a question put to an engine by the suites")
    if not _is_controller(config):
        return
    config.stash[_BEGIN] = time.perf_counter()
    out = config.getoption("conformance_out")
    folder = Path(out).resolve() if out else Path(tempfile.mkdtemp(prefix="conformance-"))
    os.environ[SESSION_VARIABLE] = str(folder)  # xdist workers inherit it
    from conformance.errors import ConformanceError  # noqa: PLC0415

    try:
        _store(config).clear()
        _ = _store(config).plan  # what cannot be planned is said once, before anything is collected
    except ConformanceError as exc:
        raise pytest.UsageError(one_line(str(exc))) from exc


def _store(config: pytest.Config) -> Store:
    """The session's plan and judged cases, made on first use in each process."""
    if _STORE not in config.stash:
        from conformance.cli.options import settings_from  # noqa: PLC0415
        from conformance.store import Store  # noqa: PLC0415

        settings = settings_from(
            tuple(config.getoption("engine")),
            tuple(config.getoption("decoding") or ()),
            profile=config.getoption("conformance_profile"),
            probe=config.getoption("conformance_probe"),
            alpha=config.getoption("conformance_alpha"),
            seed=config.getoption("conformance_seed"),
            timeout=config.getoption("conformance_timeout"),
            python=config.getoption("conformance_python"),
        )
        config.stash[_STORE] = Store(settings, Path(os.environ[SESSION_VARIABLE]))
    return config.stash[_STORE]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a suite test the cases that its marker's ``question`` applies to."""
    if "judged_case" not in metafunc.fixturenames:
        return
    config = metafunc.config
    if not config.getoption("engine"):
        skip = pytest.mark.skip(reason="no --engine given: nothing to judge")
        metafunc.parametrize("judged_case", [pytest.param(None, marks=skip)], indirect=True)
        return
    from conformance.errors import ConformanceError  # noqa: PLC0415
    from conformance.store import QUESTIONS  # noqa: PLC0415

    marker = metafunc.definition.get_closest_marker("conformance")
    assert marker is not None, f"{metafunc.definition.nodeid} needs @pytest.mark.conformance(...)"
    applies = QUESTIONS[marker.kwargs["question"]]
    try:
        cases = [c for c in _store(config).plan.cases if applies(c)]
    except ConformanceError as exc:
        raise pytest.UsageError(one_line(str(exc))) from exc
    if not cases:
        skip = pytest.mark.skip(reason="no configuration of this run is asked this")
        metafunc.parametrize("judged_case", [pytest.param(None, marks=skip)], indirect=True)
        return
    # the group keeps a case's tests on one xdist worker under --dist loadgroup; correctness does
    # not depend on it
    params = [
        pytest.param(c.id, id=c.id, marks=pytest.mark.xdist_group(c.id))
        if config.pluginmanager.hasplugin("xdist")
        else pytest.param(c.id, id=c.id)
        for c in cases
    ]
    metafunc.parametrize("judged_case", params, indirect=True)


@pytest.fixture
def judged_case(request: pytest.FixtureRequest) -> CaseModel:
    """A judged case; gathered now if no test of this session has asked for it yet."""
    case = _store(request.config).judged(request.param)
    if case.verdict.value == "NOT SUPPORTED":
        pytest.skip(one_line(case.why))
    if case.verdict.value == "ERROR":
        pytest.fail(f"ERROR: {one_line(case.why)}", pytrace=False)
    return case


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """A verdict a case, and the run's."""
    if not _is_controller(config):
        return
    from conformance.verdict import run_verdict  # noqa: PLC0415

    cases = _store(config).all_judged()
    terminalreporter.section("conformance")
    for case in cases:
        terminalreporter.write_line(f"{case.verdict.value:14} {case.id}")
        if case.verdict.value != "EXACT":
            terminalreporter.write_line(f"{'':14} {one_line(case.why)}")
    verdict = run_verdict(c.verdict for c in cases)
    terminalreporter.write_line(f"run verdict: {verdict.value}")
    if config.getoption("conformance_out"):
        terminalreporter.write_line(f"report: {_store(config).folder / 'report.html'}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write the report, and make the run's verdict the exit status."""
    config = session.config
    finished = (
        pytest.ExitCode.OK,
        pytest.ExitCode.TESTS_FAILED,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    )
    if not _is_controller(config) or exitstatus not in finished:
        return
    if config.getoption("collectonly"):
        return
    from conformance.verdict import EXIT_CODES, run_verdict  # noqa: PLC0415

    store = _store(config)
    cases = store.all_judged()
    if config.getoption("conformance_out"):
        from conformance.reports.build import build_report  # noqa: PLC0415
        from conformance.reports.bundle import write_bundle  # noqa: PLC0415

        report = build_report(
            store.plan,
            cases,
            seconds=time.perf_counter() - config.stash[_BEGIN],
            jobs=int(config.getoption("numprocesses", 0) or 1),
            command=[Path(sys.argv[0]).name, *sys.argv[1:]],
        )
        write_bundle(report, store.folder)
    code = EXIT_CODES[run_verdict(c.verdict for c in cases)]
    # a failure in somebody's own test is not to be hidden by an EXACT engine
    session.exitstatus = code or (
        exitstatus if exitstatus == pytest.ExitCode.TESTS_FAILED else pytest.ExitCode.OK
    )


def _is_controller(config: pytest.Config) -> bool:
    # not by xdist's environment variable, which a session started from inside a worker inherits
    return bool(config.getoption("engine")) and not hasattr(config, "workerinput")
