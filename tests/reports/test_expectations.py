"""Expected failures: what may be declared, what it changes, and what it never does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.errors import ExpectationsError
from conformance.reports.expectations import (
    apply_expectations,
    beside,
    exit_code_of,
    load_expectations,
    parse_expectations,
    sentences,
)
from conformance.reports.model import CaseModel, Expectation
from conformance.verdict import EXIT_CODES, Verdict, run_verdict

Cases = Callable[..., CaseModel]
TODAY = date(2030, 1, 31)
ENTRY = """
[[expected]]
case = "eng / mid / temperature=1"
reason = "the draft's law leaks"
link = "https://example.org/issues/1"
expires = 2030-01-31
"""


def entry(**changes: object) -> Expectation:
    (one,) = parse_expectations(ENTRY)
    return one.model_copy(update=changes)


@pytest.fixture
def named(case_of: Cases) -> Callable[..., CaseModel]:
    def make(verdict: Verdict, decoding: str = "temperature=1") -> CaseModel:
        return case_of(verdict, decoding, engine="eng", id=f"eng / mid / {decoding}")

    return make


def test_an_entry_is_read_whole() -> None:
    text = ENTRY + 'verdict = ["ERROR", "NOT EXACT", "ERROR"]\nstrict = true\n' + ENTRY
    first, second = parse_expectations(text)
    assert first.verdict == [Verdict.ERROR, Verdict.NOT_EXACT]
    assert first.strict
    assert first.expires == date(2030, 1, 31)
    assert (second.verdict, second.strict) == ([Verdict.NOT_EXACT], False)
    assert parse_expectations(ENTRY.replace("2030-01-31", '"2030-01-31"'))[0] == second


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"there is no \[\[expected\]\] table"),
        ("[[expected]", "not TOML"),
        ("x = " + "[" * 100_000, "not TOML"),
        ("expected = 3", "there is no"),
        ("expected = [1]", "there is no"),
        ("strict = true\n" + ENTRY, "unknown key 'strict'"),
        (ENTRY + "expiry = 2030-01-01\n", "entry 1: unknown key 'expiry'"),
        (ENTRY.replace('reason = "', 'reazon = "'), "unknown key 'reazon'"),
        (ENTRY + ENTRY.replace('link = "https://example.org/issues/1"', ""), "entry 2: 'link' is"),
        (ENTRY.replace("expires = 2030-01-31", ""), "'expires' is missing"),
        (ENTRY.replace("https:", "javascript:"), "http or https"),
        (ENTRY.replace("https://example.org/issues/1", "issue 1"), "http or https"),
        (ENTRY.replace("2030-01-31", '"soon"'), "must be a day"),
        (ENTRY.replace("2030-01-31", "2030-01-31T00:00:00Z"), "must be a day"),
        (ENTRY.replace("2030-01-31", "20300131"), "must be a day"),
        (ENTRY.replace("the draft's law leaks", "  "), "'reason' must be text"),
        (ENTRY.replace("the draft's law leaks", "a" * 601), "1 to 600"),
        (ENTRY.replace("the draft's law leaks", r"\u202eleaks"), "cannot be seen"),
        (ENTRY + 'verdict = "EXACT"\n', "EXACT is no failure"),
        (ENTRY + 'verdict = ["NOT EXACT", "NOT SUPPORTED"]\n', "never counted"),
        (ENTRY + "verdict = []\n", "'verdict' is one"),
        (ENTRY + "verdict = 3\n", "'verdict' is one"),
        (ENTRY + 'strict = "yes"\n', "true or false"),
        (ENTRY * 1001, "more than 1,000"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(text: str, says: str) -> None:
    with pytest.raises(ExpectationsError, match=says):
        parse_expectations(text)


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"\xff", "not UTF-8"), (b"#" * (2**20 + 1), "larger than"), (b"", "e.toml: there is no")],
)
def test_a_file_that_cannot_be_one(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_bytes(content)
    with pytest.raises(ExpectationsError, match=says):
        load_expectations(path)
    with pytest.raises(ExpectationsError, match="cannot read"):
        load_expectations(tmp_path / "none.toml")


def test_a_failure_as_expected_is_excused_and_shown(named: Cases) -> None:
    cases = [named(Verdict.NOT_EXACT), named(Verdict.EXACT, "greedy")]
    marked, found = apply_expectations(cases, [entry()], TODAY)
    assert [c.verdict for c in marked] == [Verdict.NOT_EXACT, Verdict.EXACT]
    assert marked[0].expected is not None
    assert marked[0].expected.outcome == "as expected"
    assert marked[1].expected is None
    assert exit_code_of(marked, found) == 0
    assert sentences(marked, found) == [
        "1 case failed as expected; the only other one judged is EXACT: exit status 0."
    ]
    assert beside(marked[0]) == (
        "expected: the draft's law leaks, https://example.org/issues/1, until 2030-01-31"
    )


def test_nothing_passes_by_being_expected(named: Cases) -> None:
    for others in ([], [named(Verdict.NOT_SUPPORTED, "greedy")]):
        marked, found = apply_expectations([named(Verdict.NOT_EXACT), *others], [entry()], TODAY)
        assert exit_code_of(marked, found) == 2
        assert "no other was judged" in sentences(marked, found)[-1]


def test_another_failure_than_the_expected_one_is_not_excused(named: Cases) -> None:
    cases = [named(Verdict.ERROR), named(Verdict.EXACT, "greedy")]
    marked, found = apply_expectations(cases, [entry()], TODAY)
    assert exit_code_of(marked, found) == 2
    assert "is ERROR, which is not excused" in sentences(marked, found)[0]
    both = entry(verdict=[Verdict.ERROR, Verdict.NOT_EXACT])
    assert exit_code_of(*apply_expectations(cases, [both], TODAY)) == 0


@pytest.mark.parametrize(("strict", "code"), [(False, 0), (True, 1)])
def test_what_passes_now_is_said(strict: bool, code: int, named: Cases) -> None:
    marked, found = apply_expectations([named(Verdict.EXACT)], [entry(strict=strict)], TODAY)
    assert exit_code_of(marked, found) == code
    assert "passes now: remove the entry" in sentences(marked, found)[0]
    assert ("strict entry" in sentences(marked, found)[-1]) is strict


@pytest.mark.parametrize(("day", "code"), [(TODAY, 0), (date(2030, 2, 1), 1)])
def test_an_entry_holds_until_the_end_of_its_day(day: date, code: int, named: Cases) -> None:
    cases = [named(Verdict.NOT_EXACT), named(Verdict.EXACT, "greedy")]
    marked, found = apply_expectations(cases, [entry()], day)
    assert exit_code_of(marked, found) == code
    assert ("expired on 2030-01-31" in " ".join(sentences(marked, found))) is bool(code)


def test_an_expired_entry_fails_even_a_run_that_is_exact(named: Cases) -> None:
    marked, found = apply_expectations([named(Verdict.EXACT)], [entry()], date(2031, 1, 1))
    assert exit_code_of(marked, found) == 1
    assert sentences(marked, found)[-1].endswith("an entry has expired: exit status 1.")


def test_an_entry_that_names_nothing_warns(named: Cases) -> None:
    stale = entry(case="eng / mid / temperature=2", expires=date(2000, 1, 1))
    marked, found = apply_expectations([named(Verdict.EXACT)], [stale], TODAY)
    assert found is not None
    assert (found.unmatched, found.expired) == ([stale], [])
    assert exit_code_of(marked, found) == 0
    assert sentences(marked, found) == [
        "No case of this run is named by the entry 'eng / mid / temperature=2'."
    ]


def test_patterns_are_of_the_whole_name(named: Cases) -> None:
    for pattern, hit in [
        ("eng / * / temperature=*", True),
        ("*", True),
        ("eng", False),
        ("temperature=1", False),
        ("ENG / mid / temperature=1", False),
        ("eng / mid / temperature=[!1]", False),
    ]:
        _, found = apply_expectations([named(Verdict.NOT_EXACT)], [entry(case=pattern)], TODAY)
        assert found is not None
        assert bool(found.as_expected) is hit, pattern


def test_the_entry_that_fits_best_speaks(named: Cases) -> None:
    old = entry(reason="old", expires=date(2029, 1, 1))
    other = entry(reason="other", verdict=[Verdict.ERROR])
    fits = entry(reason="fits", case="eng*")
    marked, _ = apply_expectations([named(Verdict.NOT_EXACT)], [old, other, fits], TODAY)
    assert marked[0].expected is not None
    assert marked[0].expected.entry == fits


VERDICTS = st.sampled_from(list(Verdict))
ENTRIES = st.builds(
    entry,
    case=st.sampled_from(["*", "eng / mid / 0", "eng / mid / [01]", "none"]),
    verdict=st.lists(
        st.sampled_from([Verdict.NOT_EXACT, Verdict.ERROR, Verdict.INCONCLUSIVE]), min_size=1
    ),
    expires=st.sampled_from([date(2029, 1, 1), date(2031, 1, 1)]),
    strict=st.booleans(),
)


@given(st.lists(VERDICTS, max_size=4), st.lists(ENTRIES, max_size=3))
def test_exit_status_0_only_where_something_is_exact_and_all_else_was_foreseen(
    verdicts: list[Verdict], entries: list[Expectation]
) -> None:
    cases = [_bare(f"eng / mid / {i}", verdict) for i, verdict in enumerate(verdicts)]
    marked, found = apply_expectations(cases, entries, TODAY)
    assert [c.verdict for c in marked] == verdicts
    code = exit_code_of(marked, found)
    assert code in (0, 1, 2)
    if not entries:
        assert code == EXIT_CODES[run_verdict(verdicts)]
    if code == 0:
        assert Verdict.EXACT in verdicts
        for case in marked:
            foreseen = any(
                case.verdict in e.verdict and e.expires >= TODAY and e.case != "none"
                for e in entries
            )
            assert foreseen or case.verdict in (Verdict.EXACT, Verdict.NOT_SUPPORTED)
    # marking what is marked already changes nothing
    assert apply_expectations(marked, entries, TODAY) == (marked, found)
    said = " ".join(sentences(marked, found))
    if "exit status" in said:
        assert f"exit status {code}." in said


def _bare(name: str, verdict: Verdict) -> CaseModel:
    return CaseModel.model_validate(
        {
            "id": name, "engine": "eng", "probe": "mid", "decoding": "greedy", "workload": "",
            "verdict": verdict, "why": "", "ruled_out": [], "needed": None, "error": None,
            "speculation": {"reported": False, "blocks": 0, "drafted": 0, "accepted": 0,
                            "rejected": 0, "longest": 0},
            "arms": [], "findings": [], "bars": [], "pit": [],
        }
    )  # fmt: skip
