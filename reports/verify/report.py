"""A whole report against the one that is built again from its cases."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from conformance._version import __version__
from conformance.plan import RunPlan
from conformance.reports.build import build_report
from conformance.reports.model import CaseModel, Report, dump_json
from conformance.reports.stages import RunFile
from conformance.reports.verify.case import SHOWN_DIFFERENCES
from conformance.reports.verify.check import Check, agrees, differs, listed, stated
from conformance.reports.verify.same import differences

# What a run says of itself, and nobody can work out from its evidence.
WORD = ("tool_version", "created", "seconds", "command", "environment")


def check_report(
    run: RunFile, told: Report, plan: RunPlan, cases: Sequence[CaseModel]
) -> Iterator[Check]:
    """Build the report again, and compare.

    Parameters
    ----------
    run : RunFile
        What was asked.
    told : Report
        As it is in the bundle.
    plan : RunPlan
        At the last stage.
    cases : sequence of CaseModel
        All of them, as worked out again.
    """
    found = build_report(
        plan,
        cases,
        seconds=told.seconds,
        jobs=run.jobs,
        command=told.command,
        expectations=run.expectations,
        created=told.created,
    )
    mine, theirs = (json.loads(dump_json(r)) for r in (found, told))
    for name in WORD:
        mine.pop(name)
        theirs.pop(name)
    yield _measured(theirs.pop("measured"), mine.pop("measured"), told.tool_version)
    for what in ("settings", "engines", "probes"):
        yield _line(what, differences(theirs.pop(what), mine.pop(what), what), "as planned")
    # the rest of each case has a line of its own
    its, ours = ([_of_the_run(c) for c in r.pop("cases")] for r in (theirs, mine))
    adjusted, again = ([c.pop("adjusted_p") for c in side] for side in (its, ours))
    holm = differences(adjusted, again, "adjusted_p")
    yield _line("adjusted p-values", holm, "Holm's, over all tests")
    right = f"{told.verdict.value}, exit status {told.exit_code}"
    wrong = [*differences(theirs, mine), *differences(its, ours, "cases")]
    yield _line("verdict", iter(wrong), right)
    yield from _word(run, told)


def _of_the_run(case: dict[str, Any]) -> dict[str, Any]:
    """What a case has from the run: Holm's adjustment, and what was expected."""
    return {
        "id": case["id"],
        "expected": case["expected"],
        "adjusted_p": [{"adjusted_p": f["adjusted_p"]} for f in case["findings"]],
    }


def _line(what: str, wrong: Iterator[str], right: str) -> Check:
    shown = list(islice(wrong, SHOWN_DIFFERENCES))
    return differs(what, "; ".join(shown)) if shown else agrees(what, right)


def _measured(told: Any, found: Any, version: str) -> Check:
    """What the report says of the suite itself."""
    what = "how the suite was tested"
    if version != __version__:
        return stated(what, f"as version {version} said")
    if told == found:
        return agrees(what, "the tables of this version")
    return differs(what, "these are not the tables of this version")


def _word(run: RunFile, told: Report) -> Iterator[Check]:
    """Lines on what only the run's word is for."""
    for engine in told.engines:
        said = run.described[engine.name]
        claims = said.get("capabilities", said.get("verifier"))
        yield stated(
            f"engine {engine.name}",
            f"said to be {engine.card_name}, version {engine.version}, and to claim "
            f"{_short(claims)}",
        )
    if found := told.expectations:
        day, today = told.created.date(), datetime.now(UTC).date()
        late = [e.case for e in found.entries if day <= e.expires < today]
        since = f"; expired since: {listed(late)}" if late else ""
        yield stated(
            "expected failures",
            f"{len(found.entries)}, as of {day}, which is when the run says that it ended; "
            f"{found.as_expected} left out of the exit status{since}",
        )
    yield stated("times, command line, machine", "as the run wrote them down")


def _short(claims: Any) -> str:
    """Claims in a few words."""
    if not isinstance(claims, dict):
        return "nothing"
    told = (_claim(name.replace("_", " "), value) for name, value in claims.items())
    return ", ".join(text for text in told if text)


def _claim(name: str, value: Any) -> str:
    if value is None or name == "dialect":  # the dialect has a line in the report
        return ""
    if isinstance(value, list):
        value = " ".join(map(str, value)) or False
    return name if value is True else f"no {name}" if value is False else f"{name} {value}"
