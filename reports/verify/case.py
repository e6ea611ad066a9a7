"""One case of a report against the same case as its evidence gives it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from conformance.parts import LONGEST_REASON
from conformance.reports.model import CaseModel
from conformance.reports.verify.check import Check, agrees, differs, stated
from conformance.reports.verify.same import differences
from conformance.verdict import Verdict

SHOWN_DIFFERENCES = 4
# Told of the whole run, and compared with it.
ADJUSTED, EXPECTED = "adjusted_p", "expected"
TRACEBACK = "Traceback (most recent call last)"


def compared(told: CaseModel, found: CaseModel, word: str) -> Check:
    """The line of one case.

    Parameters
    ----------
    told, found : CaseModel
        As reported, and as worked out again.
    word : str
        What of it rests on a failure or refusal that no evidence can show; empty if nothing does.
    """
    what = f"case {told.id}"
    mine, theirs = (without(plain(m), (ADJUSTED,)) for m in (found, told))
    if same_error(told.error, found.error):
        mine.pop("error")
        theirs.pop("error")
    wrong = list(differences(theirs, mine))
    if wrong:
        if told.verdict is not found.verdict:
            wrong = [
                f"report says {told.verdict.value}, the evidence gives {found.verdict.value}: "
                f"{found.why}"
            ]
        return differs(what, "; ".join(wrong[:SHOWN_DIFFERENCES]))
    if told.verdict is Verdict.NOT_SUPPORTED or (word and told.verdict is Verdict.ERROR):
        return stated(what, f"{told.verdict.value}, no pass: {told.why}")
    ruled_out = f", {len(told.ruled_out)} certificates" if told.ruled_out else ""
    right = f"{told.verdict.value}, {len(told.findings)} findings{ruled_out}"
    return stated(what, f"{right}; {word}") if word else agrees(what, right)


def without_evidence(told: CaseModel, bare: CaseModel) -> bool:
    """Whether a case claims nothing but an ERROR."""
    return told.verdict is Verdict.ERROR and plain(told) == plain(bare)


def same_error(told: str | None, found: str | None) -> bool:
    """Whether two texts tell of one failure: evidence keeps the beginning of long ones, and a
    traceback names files of the machine that it is from.
    """
    if told is None or found is None:
        return told is found
    if told.startswith(TRACEBACK) and found.startswith(TRACEBACK):
        return told.rstrip().rpartition("\n")[2] == found.rstrip().rpartition("\n")[2]
    return told == found or told[:LONGEST_REASON] == found


def plain(case: CaseModel) -> Any:
    """A case as plain data, but for what was expected of it."""
    return json.loads(case.model_dump_json(exclude={EXPECTED}))


def without(data: Any, names: Sequence[str]) -> Any:
    """Plain data without some fields, however deep they are."""
    if isinstance(data, dict):
        return {k: without(v, names) for k, v in data.items() if k not in names}
    return [without(v, names) for v in data] if isinstance(data, list) else data
