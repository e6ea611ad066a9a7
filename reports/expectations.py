"""Expected failures: declared beforehand with a reason, a link and an expiry, and never hidden.

The report keeps the true verdicts, of every case and of the run. Only the exit status leaves out a
case that failed in the declared way, by an entry that has not expired; and nothing passes by that:
some other case must have been judged, and all others must be EXACT.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from conformance.errors import ExpectationsError
from conformance.reports.model import CaseModel, Expectation, ExpectationsModel, ExpectedModel
from conformance.reports.text import counted, web_address
from conformance.text import clean, one_line
from conformance.verdict import EXIT_CODES, Verdict, run_verdict

LARGEST_FILE = 2**20  # bytes
MOST_ENTRIES = 1000
LONGEST_CASE, LONGEST_REASON = 400, 600
# EXACT is no failure, and what an engine refuses out loud is never counted
MAY_BE_EXPECTED = (Verdict.NOT_EXACT, Verdict.ERROR, Verdict.INCONCLUSIVE)
REQUIRED = ("case", "reason", "link", "expires")
KNOWN = (*REQUIRED, "verdict", "strict")
SHOWN = 5


def load_expectations(path: Path) -> tuple[Expectation, ...]:
    """Read an expectations file.

    Parameters
    ----------
    path : Path
        TOML, with one ``[[expected]]`` table for each entry.

    Raises
    ------
    ExpectationsError
        If it cannot be read, is no TOML, or an entry is not complete.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(LARGEST_FILE + 1)
    except OSError as exc:
        raise ExpectationsError(f"cannot read {path}: {exc.strerror or exc}") from exc
    if len(data) > LARGEST_FILE:
        raise ExpectationsError(f"{path} is larger than {LARGEST_FILE:,} bytes")
    try:
        return parse_expectations(data.decode("utf-8"))
    except UnicodeDecodeError as exc:
        raise ExpectationsError(f"{path} is not UTF-8 text") from exc
    except ExpectationsError as exc:
        raise ExpectationsError(f"{path}: {exc}") from exc


def parse_expectations(text: str) -> tuple[Expectation, ...]:
    """Read the text of an expectations file.

    Raises
    ------
    ExpectationsError
        If it is no TOML, or an entry is not complete.

    Examples
    --------
    >>> (entry,) = parse_expectations('''
    ... [[expected]]
    ... case = "transformers:universal / * / temperature=*"
    ... reason = "tokens of two vocabularies are matched by text"
    ... link = "https://example.org/issues/1"
    ... expires = 2030-01-31
    ... ''')
    >>> [v.value for v in entry.verdict]
    ['NOT EXACT']
    """
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as exc:
        raise ExpectationsError(f"not TOML: {exc}") from exc
    tables = content.pop("expected", None)
    if content:
        raise ExpectationsError(f"unknown key {_quoted(next(iter(content)))}; write [[expected]]")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ExpectationsError("there is no [[expected]] table in it")
    if len(tables) > MOST_ENTRIES:
        raise ExpectationsError(f"more than {MOST_ENTRIES:,} entries")
    return tuple(_entry(table, f"entry {n}") for n, table in enumerate(tables, 1))


def _entry(table: Mapping[str, Any], where: str) -> Expectation:
    for key in table:
        if key not in KNOWN:
            raise ExpectationsError(
                f"{where}: unknown key {_quoted(key)}; there are {', '.join(KNOWN)}"
            )
    for key in REQUIRED:
        if key not in table:
            raise ExpectationsError(f"{where}: '{key}' is missing")
    strict = table.get("strict", False)
    if not isinstance(strict, bool):
        raise ExpectationsError(f"{where}: 'strict' is true or false")
    link = _text(table, "link", 500, where)
    if web_address(link) is None:
        raise ExpectationsError(f"{where}: 'link' must be an http or https address")
    return Expectation(
        case=_text(table, "case", LONGEST_CASE, where),
        verdict=_verdicts(table.get("verdict", Verdict.NOT_EXACT.value), where),
        reason=_text(table, "reason", LONGEST_REASON, where),
        link=link,
        expires=_day(table["expires"], where),
        strict=strict,
    )


def _text(table: Mapping[str, Any], key: str, longest: int, where: str) -> str:
    value = table[key]
    if not isinstance(value, str) or not value.strip() or len(value) > longest:
        raise ExpectationsError(f"{where}: '{key}' must be text, of 1 to {longest} characters")
    if value != clean(value):
        raise ExpectationsError(f"{where}: '{key}' has characters in it that cannot be seen")
    return value


def _verdicts(value: object, where: str) -> list[Verdict]:
    names = value if isinstance(value, list) else [value]
    allowed = [v.value for v in MAY_BE_EXPECTED]
    if not names or any(name not in allowed for name in names):
        raise ExpectationsError(
            f"{where}: 'verdict' is one or several of {', '.join(allowed)}; EXACT is no failure, "
            "and NOT SUPPORTED is never counted"
        )
    return [Verdict(name) for name in dict.fromkeys(names)]


def _day(value: object, where: str) -> date:
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value)
        except ValueError:
            value = None
    if not isinstance(value, date) or isinstance(value, datetime):
        raise ExpectationsError(f"{where}: 'expires' must be a day, such as 2030-01-31")
    return value


def _quoted(key: str) -> str:
    return f"'{one_line(key, 60)}'"


def matches(entry: Expectation, case_id: str) -> bool:
    """Whether an entry's pattern is the whole of a case's name, upper and lower case told apart."""
    return fnmatchcase(case_id, entry.case)


def expected_of(
    case: CaseModel, entries: Sequence[Expectation], today: date
) -> ExpectedModel | None:
    """What the entries say of one case; None where none names it.

    Where several do, one that has not expired and foresaw the verdict goes before one that has
    not expired, and that before any.
    """
    mine = [entry for entry in entries if matches(entry, case.id)]
    if not mine:
        return None

    def fit(entry: Expectation) -> tuple[bool, bool]:
        return (today > entry.expires, case.verdict not in entry.verdict)

    best = min(mine, key=fit)  # the first of equals
    if case.verdict is Verdict.EXACT:
        return ExpectedModel(outcome="passes now", entry=best)
    if today > best.expires:
        return ExpectedModel(outcome="expired", entry=best)
    foreseen = case.verdict in best.verdict
    return ExpectedModel(outcome="as expected" if foreseen else "otherwise", entry=best)


def apply_expectations(
    cases: Sequence[CaseModel], entries: Sequence[Expectation], today: date
) -> tuple[list[CaseModel], ExpectationsModel | None]:
    """Mark the cases that were expected to fail, and sum up.

    Parameters
    ----------
    cases : sequence of CaseModel
        As judged; marks of an earlier time are replaced.
    entries : sequence of Expectation
        The file's content; empty where there is none.
    today : date
        In UTC. An entry holds until the end of the day on which it expires.

    Returns
    -------
    list of CaseModel
        The same cases with their verdicts, marked.
    ExpectationsModel or None
        None without entries.
    """
    marked = [
        case.model_copy(update={"expected": expected_of(case, entries, today)}) for case in cases
    ]
    if not entries:
        return marked, None
    used = [any(matches(entry, case.id) for case in cases) for entry in entries]
    outcomes = [case.expected.outcome for case in marked if case.expected]
    return marked, ExpectationsModel(
        entries=list(entries),
        unmatched=[entry for entry, hit in zip(entries, used, strict=True) if not hit],
        expired=[e for e, hit in zip(entries, used, strict=True) if hit and today > e.expires],
        as_expected=outcomes.count("as expected"),
        passes_now=outcomes.count("passes now"),
    )


def exit_code_of(cases: Sequence[CaseModel], found: ExpectationsModel | None) -> int:
    """The run's exit status: that of the cases which did not fail as expected.

    Where these are fine, it is 1 for an entry that names a case and has expired, and for a case
    that passes although an entry with ``strict`` says it fails. Where there are none, it is 2, as
    ever: nothing was judged.
    """
    code = EXIT_CODES[run_verdict(case.verdict for case in cases if not excused(case))]
    return code or int(found is not None and bool(found.expired or _strict(cases)))


def excused(case: CaseModel) -> bool:
    """Whether the exit status leaves this case out."""
    return case.expected is not None and case.expected.outcome == "as expected"


def _others(n: int) -> str:
    return "the only other one judged is" if n == 1 else f"all of the other {n:,} judged are"


def beside(case: CaseModel) -> str:
    """What stands beside the verdict of a case that an entry names; empty where none does.

    The text comes from a file and is not yet escaped for any format.
    """
    return beside_verdict(case.expected, case.verdict) if case.expected else ""


def beside_verdict(expected: ExpectedModel, verdict: Verdict) -> str:
    """What an entry came to, beside the verdict."""
    entry, outcome = expected.entry, expected.outcome
    told = f"{one_line(entry.reason, 300)}, {one_line(entry.link, 300)}"
    if outcome == "as expected":
        return f"expected: {told}, until {entry.expires.isoformat()}"
    if outcome == "passes now":
        return f"passes now, remove the entry: {told}"
    if outcome == "expired":
        return f"no longer excused, the entry expired on {entry.expires.isoformat()}: {told}"
    foreseen = " or ".join(v.value for v in entry.verdict)
    counts = "not counted" if verdict is Verdict.NOT_SUPPORTED else "not excused"
    return f"{counts}, {foreseen} was expected: {told}"


def _strict(cases: Sequence[CaseModel]) -> list[CaseModel]:
    return [
        case
        for case in cases
        if case.expected and case.expected.outcome == "passes now" and case.expected.entry.strict
    ]


def sentences(cases: Sequence[CaseModel], found: ExpectationsModel | None) -> list[str]:
    """What is to be said of the expectations of a run, most pressing first; the last one says what
    they did to the exit status.

    Parameters
    ----------
    cases : sequence of CaseModel
        Marked by `apply_expectations`.
    found : ExpectationsModel or None
        What it returned with them.
    """
    if found is None:
        return []
    said = []
    for entry in found.expired[:SHOWN]:
        said.append(
            f"The entry '{one_line(entry.case, 120)}' expired on {entry.expires.isoformat()} and "
            "excuses nothing any more: mend the fault, or look at the entry again "
            f"({one_line(entry.link, 200)})."
        )
    for case in [c for c in cases if c.expected and c.expected.outcome == "passes now"][:SHOWN]:
        said.append(f"{one_line(case.id, 200)} passes now: remove the entry.")
    for case in [c for c in cases if c.expected and c.expected.outcome == "otherwise"][:SHOWN]:
        assert case.expected is not None
        foreseen = " or ".join(v.value for v in case.expected.entry.verdict)
        refused = case.verdict is Verdict.NOT_SUPPORTED
        said.append(
            f"{one_line(case.id, 200)} was expected to be {foreseen} and is {case.verdict.value}, "
            f"which is {'never counted' if refused else 'not excused'}."
        )
    for entry in found.unmatched[:SHOWN]:
        said.append(f"No case of this run is named by the entry '{one_line(entry.case, 120)}'.")
    return [*said, *_in_all(cases, found)]


def _in_all(cases: Sequence[CaseModel], found: ExpectationsModel) -> Iterator[str]:
    """What the expectations did to the exit status; nothing where they did nothing."""
    code, n = exit_code_of(cases, found), found.as_expected
    others = [c.verdict for c in cases if not excused(c)]
    verdict = run_verdict(others)
    judged = len(others) - others.count(Verdict.NOT_SUPPORTED)
    failed = f"{counted(n, 'case')} failed as expected"
    if n and not judged:
        yield f"{failed}, and no other was judged, so nothing can be said: exit status {code}."
    elif n and verdict is not Verdict.EXACT:
        yield f"{failed}; without them the run is {verdict.value}: exit status {code}."
    elif n and code == 0:
        yield f"{failed}; {_others(judged)} EXACT: exit status 0."
    elif verdict is Verdict.EXACT and code:
        why = "an entry has expired" if found.expired else "a case passes against a strict entry"
        yield f"{failed}; all others are EXACT, but {why}: exit status {code}."
