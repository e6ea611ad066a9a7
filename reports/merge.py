"""Evidence of several runs together: of every night since an engine was first judged, say.

What a run's bet against the law has gained is a sum over its requests for every alternative, and
sums of several runs are added. The mixture of the sums is one e-process over all of them: it loses
its prior once and not every night, and reaches 1 / alpha with probability at most alpha however
many runs are added, whenever one looks. So a departure that is too small for any one night shows in
the end, and all nights together raise a false alarm with the probability that one was given.

That holds of runs that were drawn independently of each other, and of all of them: whoever leaves
out some after having seen them bets on what is over.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from conformance.asked import SPECULATIVE
from conformance.betting import Bet
from conformance.errors import ReportError
from conformance.evidence import Evidence
from conformance.forms import PLAIN
from conformance.judge import ArmJudge
from conformance.plan import Case, RunPlan
from conformance.reading import EVERYWHERE
from conformance.reports.model import Report, load_report
from conformance.reports.stages import FILE, PROBES, REPORT, RunFile, read_run_file
from conformance.reports.verify.again import engine_arms, files_of
from conformance.runner import prepare
from conformance.served.plan import ServedCase
from conformance.statistics import eprocess
from conformance.statistics.leak import LeakSum
from conformance.tinylm import Tokens
from conformance.verdict import EXIT_CODES, Interval, Verdict
from conformance.verifier.plan import VerifierCase


@dataclass(frozen=True, slots=True)
class Night:
    """One run: its folder, its report and what was asked."""

    folder: Path
    report: Report
    run: RunFile


@dataclass(slots=True)
class Merged:
    """One case over all runs that asked it.

    Parameters
    ----------
    case : str
        The case's id.
    probes : dict of str to str
        Checksums of the probe, which every run must have used.
    runs : list of str
        Folders, in the order in which the runs were made.
    verdicts : list of Verdict
        What each run said by itself.
    versions : list of str
        Versions of the engine, as it told them.
    tokens : int
        Tokens that were judged.
    course : list of float
        Logarithm of the e-process after each run.
    needed : float
        What it takes to reject.
    """

    case: str
    probes: dict[str, str]
    needed: float = np.inf
    runs: list[str] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    tokens: int = 0
    course: list[float] = field(default_factory=list)
    _bet: Bet = field(default_factory=Bet)
    _leak: LeakSum = field(default_factory=LeakSum)
    _prompts: dict[tuple[int, ...], int] = field(default_factory=dict)
    _seen: dict[str, str] = field(default_factory=dict)

    @property
    def rejected(self) -> bool:
        """Whether the bet ever gained what it needs."""
        return max(self.course) >= self.needed

    @property
    def gained_as(self) -> str:
        """The alternative on which it gained most."""
        return eprocess.names()[int(np.argmax(self._bet.gains))]

    @property
    def leak(self) -> Interval | None:
        """Share of the draft in the output, with a 95 % interval; None where it cannot be seen."""
        found = self._leak.result()
        return None if found is None else found.interval

    def add(self, night: Night, plan: RunPlan, case: Case, evidence: Evidence) -> None:
        """Take in the speculative arm of one run.

        Raises
        ------
        ReportError
            If its answers are those of a run before, so that they tell nothing new.
        """
        self._check_new(night, case, evidence)
        reading = ArmJudge(plan, case, SPECULATIVE, evidence, complete=False).reading
        assert case.workload is not None
        ledger = reading.ledger.renumbered(self._numbers(case.workload.prompt_array))
        self._bet.take(ledger, 0, len(evidence.tokens))
        if EVERYWHERE in reading.leaks:
            self._leak = self._leak.merge(reading.leaks[EVERYWHERE])
        self.tokens += int(reading.open.sum())
        self.course.append(self._bet.log_e)
        self.runs.append(str(night.folder))
        self.verdicts += [c.verdict for c in night.report.cases if c.id == self.case]
        if case.card.version not in self.versions:
            self.versions.append(case.card.version)

    def _check_new(self, night: Night, case: Case, evidence: Evidence) -> None:
        if case.oracle.probe.checksums() != self.probes:
            raise ReportError(
                f"{night.folder} asked {self.case} of another probe than {self.runs[0]}: their "
                "laws differ, and there is nothing to add up"
            )
        digest = hashlib.sha256(evidence.tokens.tobytes()).hexdigest()
        if digest in self._seen:
            raise ReportError(
                f"{night.folder} has the same answers to {self.case} as {self._seen[digest]}: they "
                "tell nothing new; is it a copy, or does the engine keep its answers?"
            )
        self._seen[digest] = str(night.folder)

    def _numbers(self, prompts: Tokens) -> Tokens:
        """Numbers of a run's prompts among those of all runs. [P, L] -> [P]"""
        given = [tuple(int(x) for x in row) for row in prompts]
        return np.array([self._prompts.setdefault(p, len(self._prompts)) for p in given])


@dataclass(frozen=True, slots=True)
class Merge:
    """Runs, in the order in which they were made, and their cases added up."""

    nights: list[Night]
    cases: list[Merged]

    @property
    def alone(self) -> list[Night]:
        """Runs that found a departure by themselves: there are tests that no bet repeats."""
        return [n for n in self.nights if n.report.exit_code == EXIT_CODES[Verdict.NOT_EXACT]]

    @property
    def failed(self) -> list[Night]:
        """Runs of which something ended in an ERROR and was not judged."""
        return [n for n in self.nights if any(c.verdict is Verdict.ERROR for c in n.report.cases)]

    @property
    def exit_code(self) -> int:
        """Never better than what any of the runs says: 1 NOT EXACT, 2 an ERROR, else 0."""
        if self.alone or any(m.rejected for m in self.cases):
            return EXIT_CODES[Verdict.NOT_EXACT]
        return EXIT_CODES[Verdict.ERROR] if self.failed else 0


def merge(folders: Sequence[Path], alpha: float) -> Merge:
    """Add up the evidence of several runs, case by case.

    Parameters
    ----------
    folders : sequence of Path
        Bundles. Evidence is held to what was planned; `conformance verify` checks the rest.
    alpha : float
        Probability that all cases together are ever called NOT EXACT although every run's engine
        was exact.

    Raises
    ------
    ReportError
        If a folder holds no run that has ended, two runs drew with the same seed or have the same
        answers, or there is no case to merge.
    EvidenceError
        If evidence is missing, damaged, or not what was planned.
    """
    nights = sorted((read_night(f) for f in folders), key=lambda n: (n.report.created, n.run.seed))
    _check_seeds(nights)
    found: dict[str, Merged] = {}
    for night in nights:
        plan = prepare(night.run.settings(), night.run.said(), night.folder / PROBES)
        for case in plan.cases:
            if not mergeable(case):
                continue
            if not any(map(os.path.lexists, files_of(night.folder, case)[SPECULATIVE])):
                continue  # it failed before it answered, which the run's own report says
            arms, _, _ = engine_arms(plan, case, night.folder)
            mine = found.setdefault(case.id, Merged(case.id, case.oracle.probe.checksums()))
            mine.add(night, plan, case, arms[SPECULATIVE])
    if not found:
        raise ReportError(
            "no run has a case to merge: evidence is added up of engines, where tokens were sampled"
        )
    for merged in found.values():
        merged.needed = float(np.log(len(found) / alpha))
    return Merge(nights, list(found.values()))


def mergeable(case: Case) -> bool:
    """Whether a case has a bet over plain requests. Verifiers have none, a server's is held to its
    own answers, and where requests are not alike it is not the bet that tells.
    """
    if isinstance(case, VerifierCase | ServedCase) or case.workload is None:
        return False
    return case.form == PLAIN and not case.decoding.greedy


def read_night(folder: Path) -> Night:
    """What is in a run's folder.

    Raises
    ------
    ReportError
        If it holds no run that has ended.
    PlanError
        If its record of the run is damaged.
    """
    if not (folder / FILE).exists() or not (folder / REPORT).exists():
        raise ReportError(f"{folder} holds no run that has ended: it needs {FILE} and {REPORT}")
    return Night(folder, load_report(folder / REPORT), read_run_file(folder))


def _check_seeds(nights: Sequence[Night]) -> None:
    """Refuse runs that drew alike: the second would be counted as if it told something new."""
    by_seed: dict[int, Path] = {}
    for night in nights:
        seed = night.run.seed
        if seed in by_seed:
            raise ReportError(
                f"{by_seed[seed]} and {night.folder} drew with the same seed, {seed}: the second "
                "tells nothing new. Give every run its own: conformance run --seed, the date say"
            )
        by_seed[seed] = night.folder
