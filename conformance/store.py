"""Judged cases shared by the tests, and the xdist workers, of one pytest session.

The first test that asks for a case gathers and judges it under a lock; everybody else reads the
file it leaves. Which cases exist, and what each test may spend of alpha, is the same plan in every
process, since it depends on the options alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from filelock import FileLock

from conformance.forms import FAR, FORMS, SEVERAL
from conformance.plan import Case, RunPlan
from conformance.reports import stages
from conformance.reports.build import case_model
from conformance.reports.model import CaseModel, Expectation
from conformance.result import CaseResult
from conformance.runner import Settings, judge_cases, prepare
from conformance.verdict import CaseVerdict, Verdict
from conformance.verifier.plan import VerifierCase

QUESTIONS: dict[str, Callable[[Case], bool]] = {
    "worked-example": lambda c: c.probe == "worked-example",
    "verifier": lambda c: isinstance(c, VerifierCase),
    "greedy": lambda c: c.decoding.greedy,
    "temperature": lambda c: _sampled(c) and not c.decoding.truncates,
    "truncation": lambda c: _sampled(c) and c.decoding.truncates,
    "joint": lambda c: (
        not c.decoding.greedy and c.form not in FAR and not isinstance(c, VerifierCase)
    ),
    "far": lambda c: c.form in FAR,
    "returned": lambda c: c.decoding.logprobs and not isinstance(c, VerifierCase),
    "structured": lambda c: bool(c.decoding.grammar) and not isinstance(c, VerifierCase),
    "uneven": lambda c: FORMS[c.form].uneven,
    "several": lambda c: c.form == SEVERAL,
    "every": lambda c: True,
}


def _sampled(case: Case) -> bool:
    apart = case.probe == "worked-example" or isinstance(case, VerifierCase)
    return not case.decoding.greedy and not apart and case.form not in FAR


class Store:
    """The plan and the judged cases of a session.

    Parameters
    ----------
    settings : Settings
        What was asked for.
    folder : Path
        Shared by every process of the session.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder

    @cached_property
    def plan(self) -> RunPlan:
        """The session's plan."""
        return prepare(self.settings)

    def clear(self) -> None:
        """Forget what an earlier session left in this folder: it was another build's."""
        stages.clear(self.folder)

    def begin(self, expectations: Sequence[Expectation] = ()) -> None:
        """Leave what was asked for in the folder, before anything is sampled."""
        asked = stages.Resumed(self.settings, expectations=tuple(expectations))
        stages.begin_stage(asked, self.plan, self.folder)

    def end(self) -> None:
        """Forget what the written report holds."""
        stages.forget_judged(self.folder)

    def judged(self, case_id: str) -> CaseModel:
        """The judged case; gathered and judged now if nobody has."""
        (case,) = (c for c in self.plan.cases if c.id == case_id)
        path = self._path(case)
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():
                # if judging does not end, the case must not be forgotten with it
                self._asked(case).touch()
                (result,) = judge_cases(
                    self.plan,
                    self.folder,
                    [case],
                    timeout=self.settings.timeout,
                    python=self.settings.python,
                )
                half = path.with_suffix(".half")
                half.write_text(case_model(result).model_dump_json(), encoding="utf-8")
                os.replace(half, path)
        return self._read(path)

    def all_judged(self) -> list[CaseModel]:
        """Every case that some test asked for, in the plan's order.

        One that was asked for and has no result is an ERROR: nothing passes by being lost.
        """
        lost = CaseVerdict(Verdict.ERROR, "the case was asked for but judging it did not end")
        return [
            self._read(self._path(c)) if self._path(c).exists() else case_model(CaseResult(c, lost))
            for c in self.plan.cases
            if self._path(c).exists() or self._asked(c).exists()
        ]

    def _path(self, case: Case) -> Path:
        return self.folder / "judged" / f"{case.slug}.json"

    def _asked(self, case: Case) -> Path:
        return self._path(case).with_suffix(".asked")

    @staticmethod
    def _read(path: Path) -> CaseModel:
        return CaseModel.model_validate_json(path.read_bytes())
