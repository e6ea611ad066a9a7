"""The pytest plugin: what a vendor's own pytest session does with the suites."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from pathlib import Path

import matplotlib
import pytest

# a session within this process must not be the first to import what cannot be imported twice
from conformance.decoding import Decoding
from conformance.probes import CACHE_VARIABLE
from conformance.reports import build, bundle, html  # noqa: F401
from conformance.runner import Settings
from conformance.store import Store
from conformance.verdict import Verdict

ENGINES = """
    import os
    from conformance import NotSupportedError
    from conformance.adapters.reference import ReferenceEngine

    class Counting(ReferenceEngine):
        def generate(self, requests):
            r = requests[0]
            with open(os.environ["CALLS"], "a") as file:
                file.write(f"{r.decoding} {r.speculate} {len(requests)}\\n")
            return super().generate(requests)

    class GreedyOnly(Counting):
        def generate(self, requests):
            if not requests[0].decoding.greedy:
                raise NotSupportedError("sampling needs \\x1b[31mversion 3\\x1b[0m")
            return super().generate(requests)

    class Broken(ReferenceEngine):
        def generate(self, requests):
            raise RuntimeError("\\x1b[2Jout of \\x9b31mmemory")
"""
FONTS = matplotlib.get_cachedir()  # else plotting begins by listing the machine's fonts
SUITES = ("--pyargs", "conformance.suites", "--conformance-profile=smoke", "-p", "no:cacheprovider")
GREEDY, PLAIN = "--decoding=greedy", "--decoding=temperature=1"


@pytest.fixture
def session(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, probe_cache: Path
) -> pytest.Pytester:
    """A folder with engines in it; pytester moves the home folder, but the probes stay."""
    monkeypatch.setenv(CACHE_VARIABLE, str(probe_cache))
    monkeypatch.setenv("MPLCONFIGDIR", FONTS)
    monkeypatch.setenv("CALLS", str(pytester.path / "calls"))
    monkeypatch.setenv("CONFORMANCE_SESSION", "set by whoever started this process")
    (pytester.path / "eng.py").write_text(textwrap.dedent(ENGINES), encoding="utf-8")
    return pytester


def calls(session: pytest.Pytester) -> Counter[str]:
    """Requests by decoding and arm."""
    count: Counter[str] = Counter()
    for line in (session.path / "calls").read_text().splitlines():
        arm, _, requests = line.rpartition(" ")
        count[arm] += int(requests)
    return count


def text(result: pytest.RunResult) -> str:
    return result.stdout.str() + result.stderr.str()


def test_without_an_engine_everything_is_skipped(session: pytest.Pytester) -> None:
    result = session.runpytest_inprocess(*SUITES, "-rs")
    assert result.ret == 0
    outcomes = result.parseoutcomes()
    assert set(outcomes) == {"skipped"}
    result.stdout.fnmatch_lines(["*no --engine given: nothing to judge*"])
    result.stdout.no_fnmatch_line("*run verdict*")


@pytest.mark.long
def test_two_workers_gather_a_case_once_and_leave_a_bundle(session: pytest.Pytester) -> None:
    result = session.runpytest_subprocess(
        *SUITES, "--engine=eng.py:Counting", GREEDY, "-n2", "--conformance-out=out"
    )
    assert result.ret == 0, text(result)
    result.stdout.fnmatch_lines(["run verdict: EXACT", "report: *report.html"])
    assert set(result.parseoutcomes()) == {"passed", "skipped"}
    report = json.loads((session.path / "out/report.json").read_text())
    assert (report["verdict"], report["exit_code"]) == ("EXACT", 0)
    assert report["settings"]["jobs"] == 2
    for name in ("report.html", "report.md", "junit.xml"):
        assert (session.path / "out" / name).stat().st_size > 100
    planned = {
        f"{c['decoding']} {a['arm'] == 'speculative'}": a["planned"]
        for c in report["cases"]
        for a in c["arms"]
    }
    assert len(planned) == 2
    assert calls(session) == planned


def test_not_exact_is_exit_status_1(session: pytest.Pytester) -> None:
    result = session.runpytest_inprocess(*SUITES, "--engine=faulty:accept-all", GREEDY)
    assert result.ret == 1
    assert set(result.parseoutcomes()) == {"failed", "skipped"}
    result.stdout.fnmatch_lines(["*of the greedy tokens are not the argmax*", "run verdict: NOT*"])


def test_an_error_is_exit_status_2_and_cannot_draw_on_the_terminal(
    session: pytest.Pytester,
) -> None:
    result = session.runpytest_inprocess(*SUITES, "--engine=eng.py:Broken", GREEDY)
    assert result.ret == 2
    assert set(result.parseoutcomes()) == {"errors", "skipped"}
    result.stdout.fnmatch_lines(["*RuntimeError: *out of *memory*", "run verdict: ERROR"])
    assert not {"\x1b", "\x9b"} & set(text(result))


def test_not_supported_is_skipped_listed_and_not_counted(session: pytest.Pytester) -> None:
    result = session.runpytest_inprocess(
        *SUITES, "--engine=eng.py:GreedyOnly", GREEDY, PLAIN, "-rs"
    )
    assert result.ret == 0
    assert set(result.parseoutcomes()) == {"passed", "skipped"}
    result.stdout.fnmatch_lines(
        [
            "EXACT * greedy",
            "NOT SUPPORTED * temperature=1",
            "run verdict: EXACT",
            "*SKIPPED*refused the configuration: sampling needs*version 3*",
        ]
    )
    assert "\x1b" not in text(result)


def test_everything_refused_is_exit_status_2(session: pytest.Pytester) -> None:
    result = session.runpytest_inprocess(*SUITES, "--engine=eng.py:GreedyOnly", PLAIN)
    assert result.ret == 2
    assert set(result.parseoutcomes()) == {"skipped"}
    result.stdout.fnmatch_lines(["run verdict: INCONCLUSIVE"])


def test_selection_gathers_what_is_selected(session: pytest.Pytester) -> None:
    result = session.runpytest_inprocess(
        *SUITES, "--engine=eng.py:Counting", GREEDY, PLAIN, "-k", "argmax"
    )
    assert result.ret == 0
    assert result.parseoutcomes()["passed"] == 1
    assert {name.split()[0] for name in calls(session)} == {"greedy"}


def test_selecting_nothing_is_not_exact(session: pytest.Pytester) -> None:
    result = session.runpytest_inprocess(*SUITES, "--engine=reference", GREEDY, "-k", "no_such")
    assert result.ret == 2


def test_a_vendors_own_failing_test_is_not_hidden_by_an_exact_engine(
    session: pytest.Pytester,
) -> None:
    session.makepyfile(test_own="def test_own(): assert False")
    result = session.runpytest_inprocess(
        "test_own.py", *SUITES, "--engine=reference", GREEDY, "-k", "own or argmax"
    )
    assert result.ret == 1
    assert result.parseoutcomes() == {"passed": 1, "failed": 1, "deselected": 26}
    result.stdout.fnmatch_lines(["run verdict: EXACT"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--engine=no-such-engine", GREEDY), "*no engine named 'no-such-engine'*"),
        (("--engine=reference", "--decoding=nonsense"), "*nonsense*"),
        (("--engine=reference", "--conformance-alpha=2", PLAIN), "*alpha must be in (0, 1)*"),
        (("--engine=reference", "--conformance-probe=none-such"), "*unknown probe*"),
        (("--engine=no-such-engine", GREEDY, "-n2"), "*no engine named 'no-such-engine'*"),
    ],
)
def test_what_a_person_gets_wrong_is_one_sentence(
    session: pytest.Pytester, words: tuple[str, ...], sentence: str
) -> None:
    run = session.runpytest_subprocess if "-n2" in words else session.runpytest_inprocess
    result = run(*SUITES, *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([sentence])
    assert "Traceback" not in text(result)


def test_a_session_inside_an_xdist_worker_is_one_of_its_own(
    session: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when somebody's tests, run with xdist, start pytest: this very file, for example."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    result = session.runpytest_inprocess(*SUITES, "--engine=faulty:accept-all", GREEDY)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["run verdict: NOT EXACT"])


def test_an_earlier_session_in_the_folder_is_forgotten(session: pytest.Pytester) -> None:
    """Its evidence was another build's."""
    (session.path / "out" / "judged").mkdir(parents=True)
    (session.path / "out" / "judged" / "old.json").write_text("{}")
    words = ("--engine=reference", GREEDY, "--conformance-out=out", "-k", "no_such")
    session.runpytest_inprocess(*SUITES, *words)
    assert not (session.path / "out" / "judged").exists()


def test_a_case_whose_judging_never_ended_is_an_error(tmp_path: Path, probe_cache: Path) -> None:
    """A worker that is killed while it judges must not leave the others to be the whole run."""
    store = Store(Settings(("reference",), (Decoding(greedy=True), Decoding()), "smoke"), tmp_path)
    greedy, plain = store.plan.cases
    store.judged(greedy.id)
    assert [c.verdict for c in store.all_judged()] == [Verdict.EXACT]
    store._asked(plain).touch()
    lost = store.all_judged()[1]
    assert (lost.id, lost.verdict) == (plain.id, Verdict.ERROR)
    assert "judging it did not end" in lost.why
