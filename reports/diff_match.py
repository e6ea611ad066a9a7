"""Which case of one report is compared with which case of another.

Cases are the same where engine, probe and decoding are. Engines may have been renamed: by options
(``xllamacpp`` and ``xllamacpp,dtype=bfloat16``), which is seen here where it is unambiguous, or
because a file was moved, which has to be said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from conformance.errors import ReportError
from conformance.reports.model import CaseModel, Report
from conformance.text import one_line

Pair = tuple[CaseModel | None, CaseModel | None]


def engine_names(report: Report) -> list[str]:
    """Engines of a report that have cases, in order."""
    return list(dict.fromkeys(case.engine for case in report.cases))


def matched_engines(old: Report, new: Report, asked: Sequence[str] = ()) -> dict[str, str]:
    """The new name of every old engine whose name is another one now.

    Parameters
    ----------
    old, new : Report
        What is compared.
    asked : sequence of str
        ``OLDNAME=NEWNAME``; names may themselves have an equals sign in them.

    Raises
    ------
    ReportError
        If a pair does not name an engine of each, or names one twice.
    """
    before, after = engine_names(old), engine_names(new)
    renamed: dict[str, str] = {}
    for words in asked:
        name, other = _pair(words, before, after)
        if name in renamed or other in renamed.values():
            raise ReportError(f"--match names an engine twice: {one_line(words, 200)}")
        renamed[name] = other
    rest_before = [n for n in before if n not in renamed and n not in after]
    rest_after = [n for n in after if n not in renamed.values() and n not in before]
    for name in rest_before:
        same = [n for n in rest_after if _base(n) == _base(name)]
        if len(same) == 1 and sum(_base(n) == _base(name) for n in rest_before) == 1:
            renamed[name] = same[0]
    return {name: other for name, other in renamed.items() if name != other}


def pairs(old: Report, new: Report, renamed: dict[str, str]) -> list[Pair]:
    """Cases side by side, in the new report's order, then those that are gone.

    Raises
    ------
    ReportError
        If a report has a case twice, or there is no case in common.
    """
    before = _by_key(old.cases, renamed, "the old report")
    after = _by_key(new.cases, {}, "the new report")
    if not before.keys() & after.keys():
        raise ReportError(
            "the reports have no case in common, so nothing can be compared. Engines of the old "
            f"one: {_listed(engine_names(old))}; of the new one: {_listed(engine_names(new))}. If "
            "one of them was renamed, say so: --match OLDNAME=NEWNAME"
        )
    found: list[Pair] = [(before.get(key), case) for key, case in after.items()]
    return found + [(case, None) for key, case in before.items() if key not in after]


def _by_key(
    cases: Iterable[CaseModel], renamed: dict[str, str], whose: str
) -> dict[tuple[str, str, str], CaseModel]:
    found: dict[tuple[str, str, str], CaseModel] = {}
    for case in cases:
        key = (renamed.get(case.engine, case.engine), case.probe, case.decoding)
        if key in found:
            raise ReportError(f"{whose} has {one_line(case.id, 200)} twice")
        found[key] = case
    return found


def _pair(words: str, before: Sequence[str], after: Sequence[str]) -> tuple[str, str]:
    ends = [i for i, letter in enumerate(words) if letter == "="]
    fits = [
        (words[:i], words[i + 1 :]) for i in ends if words[:i] in before and words[i + 1 :] in after
    ]
    if len(fits) != 1:
        raise ReportError(
            f"--match {one_line(words, 200)} is not OLDNAME=NEWNAME with an engine of the old "
            f"report ({_listed(before)}) and one of the new report ({_listed(after)})"
        )
    return fits[0]


def _base(name: str) -> str:
    """The engine and its method, without options."""
    return name.split(",", 1)[0]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(one_line(name, 80) for name in names[:10])
    return (shown or "none") + (" ..." if len(names) > 10 else "")
