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
from collections.abc import Generator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conformance.text import one_line

if TYPE_CHECKING:
    from conformance.reports.model import CaseModel, Expectation, ExpectationsModel
    from conformance.store import Store

SESSION_VARIABLE = "CONFORMANCE_SESSION"
_STORE: pytest.StashKey[Store] = pytest.StashKey()
_BEGIN: pytest.StashKey[float] = pytest.StashKey()
_EXPECTATIONS: pytest.StashKey[tuple[Expectation, ...]] = pytest.StashKey()
_JUDGED: pytest.StashKey[CaseModel] = pytest.StashKey()  # the case that a test asked for


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
        "--conformance-suite",
        action="append",
        metavar="NAME",
        help="what is asked: law, greedy, ends, processors, cutoffs, structured, logprobs ... (see "
        "conformance run --help), or all (default: law); may be given several times",
    )
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
    group.addoption(
        "--expectations",
        metavar="FILE",
        help="failures that are known, in TOML, each with a reason, a link and an expiry",
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
        _ = _expectations(config)
        _store(config).clear()
        # what cannot be planned is said once, before anything is collected
        _store(config).begin(_expectations(config))
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
            suites=tuple(config.getoption("conformance_suite") or ("law",)),
            profile=config.getoption("conformance_profile"),
            probe=config.getoption("conformance_probe"),
            alpha=config.getoption("conformance_alpha"),
            seed=config.getoption("conformance_seed"),
            timeout=config.getoption("conformance_timeout"),
            python=config.getoption("conformance_python"),
        )
        config.stash[_STORE] = Store(settings, Path(os.environ[SESSION_VARIABLE]))
    return config.stash[_STORE]


def _expectations(config: pytest.Config) -> tuple[Expectation, ...]:
    """The declared failures, read once in each process."""
    if _EXPECTATIONS not in config.stash:
        from conformance.reports.expectations import load_expectations  # noqa: PLC0415

        path = config.getoption("expectations")
        config.stash[_EXPECTATIONS] = load_expectations(Path(path)) if path else ()
    return config.stash[_EXPECTATIONS]


def _marked(
    config: pytest.Config, cases: Sequence[CaseModel]
) -> tuple[list[CaseModel], ExpectationsModel | None]:
    from conformance.reports.expectations import apply_expectations  # noqa: PLC0415

    return apply_expectations(cases, _expectations(config), datetime.now(UTC).date())


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
    from conformance.reports.expectations import beside, excused  # noqa: PLC0415

    ((case,), _) = _marked(request.config, [_store(request.config).judged(request.param)])
    request.node.stash[_JUDGED] = case
    if case.verdict.value == "NOT SUPPORTED":
        pytest.skip(one_line(case.why))
    if case.verdict.value == "ERROR":
        if excused(case):
            pytest.xfail(beside(case))
        pytest.fail(f"ERROR: {one_line(case.why)}", pytrace=False)
    return case


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what fails in a case that was expected to fail as pytest shows an expected failure.

    A departure need not show in every test of its case, so that a test which passes is no news; a
    case that is EXACT after all is, in the test of its verdict.
    """
    report = yield
    case = item.stash.get(_JUDGED, None)
    if call.when != "call" or case is None or item.config.getoption("runxfail"):
        return report
    from conformance.reports.expectations import beside, excused  # noqa: PLC0415

    failed = call.excinfo is not None and call.excinfo.errisinstance(pytest.fail.Exception)
    if failed and excused(case):
        report.outcome, report.wasxfail = "skipped", beside(case)
    elif report.passed and case.expected and case.expected.outcome == "passes now":
        marker = item.get_closest_marker("conformance")
        if marker is not None and marker.kwargs.get("question") == "every":
            if case.expected.entry.strict:
                report.outcome, report.longrepr = "failed", f"[XPASS(strict)] {beside(case)}"
            else:
                report.wasxfail = beside(case)
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """A verdict a case, and the run's."""
    if not _is_controller(config):
        return
    from conformance.reports.expectations import beside, sentences  # noqa: PLC0415
    from conformance.verdict import run_verdict  # noqa: PLC0415

    cases, found = _marked(config, _store(config).all_judged())
    terminalreporter.section("conformance")
    for case in cases:
        terminalreporter.write_line(f"{case.verdict.value:14} {case.id}")
        if case.verdict.value != "EXACT":
            terminalreporter.write_line(f"{'':14} {one_line(case.why)}")
        if case.expected:
            terminalreporter.write_line(f"{'':14} {beside(case)}")
    for sentence in sentences(cases, found):
        terminalreporter.write_line(sentence)
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
    from conformance.reports.expectations import exit_code_of  # noqa: PLC0415

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
            expectations=_expectations(config),
        )
        write_bundle(report, store.folder)
    code = exit_code_of(*_marked(config, cases))
    # a failure in somebody's own test is not to be hidden by an EXACT engine
    session.exitstatus = code or (
        exitstatus if exitstatus == pytest.ExitCode.TESTS_FAILED else pytest.ExitCode.OK
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Forget what the written report holds, once the summary has been printed from it."""
    store = config.stash.get(_STORE, None)
    if store is not None and _is_controller(config) and (store.folder / "report.json").exists():
        store.end()


def _is_controller(config: pytest.Config) -> bool:
    # not by xdist's environment variable, which a session started from inside a worker inherits
    return bool(config.getoption("engine")) and not hasattr(config, "workerinput")
