"""Judging a case again from its evidence, at one stage of its run.

Evidence is that of the last stage to which the case came. It is cut where the stage to be judged
ended: seeds, prompts and order are the same however far a run went on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from conformance import decide as engines
from conformance.arm import check_planned
from conformance.cores import one_core
from conformance.decoding import Decoding
from conformance.errors import ConformanceError, EvidenceError
from conformance.evidence import Evidence, first_requests, read_evidence
from conformance.forms import FORMS, TOGETHER
from conformance.gather import Gathered, arm_seeds, evidence_path
from conformance.parquet import Meta
from conformance.parts import Parts, failure
from conformance.plan import AGAIN as ASKED_AGAIN
from conformance.plan import Case, RunPlan
from conformance.processors import ends
from conformance.reports.verify.check import listed
from conformance.result import CaseResult
from conformance.served import decide as servers
from conformance.served.evidence import first_answers, read_served
from conformance.served.gather import Gathered as ServedGathered
from conformance.served.gather import replayed, schedule
from conformance.served.laws import kept_laws
from conformance.served.plan import ServedCase
from conformance.served.server import ARMS, SPECULATIVE
from conformance.uneven import by_kind
from conformance.verifier import decide as verifiers
from conformance.verifier.book import Book, jobs_of
from conformance.verifier.evidence import AGAIN, EDGE, LAW, read_verifier_evidence
from conformance.verifier.gather import Gathered as VerifierGathered
from conformance.verifier.judge import ARM
from conformance.verifier.plan import VerifierCase
from conformance.watch import Watch

Found = TypeVar("Found")
# What a row takes on disk is more than a byte: seeds and digests of questions do not compress.
ROWS_ANYWAY = 10_000
FAILED = "the engine's failure or refusal, by the run's word"


@dataclass(frozen=True, slots=True)
class Judged:
    """A case as its evidence gives it.

    Parameters
    ----------
    result : CaseResult
        Verdict, findings and all that is reported of them.
    word : str
        What of it rests on a failure, or a refusal, of the engine, which no evidence can show.
    beyond : bool
        Whether there are answers that this stage did not ask for.
    counted_whole : bool
        Whether drafted tokens are known for all of these answers together alone, so that what was
        known of them at this stage is not.
    """

    result: CaseResult
    word: str = ""
    beyond: bool = False
    counted_whole: bool = False


def judge_again(plan: RunPlan, case: Case, folder: Path, most: int) -> Judged:
    """The verdict that a case's evidence gives, without the engine.

    Parameters
    ----------
    plan : RunPlan
        At the stage to be judged.
    case : Case
        One of its cases, with a workload.
    folder : Path
        The bundle.
    most : int
        Requests an arm that a later stage asked for; none that is fewer than this stage's counts.

    Raises
    ------
    EvidenceError
        If evidence is missing, damaged, incomplete without a reason, or another case's.
    """
    with one_core():
        if isinstance(case, VerifierCase):
            return _verifier(plan, case, folder)
        if isinstance(case, ServedCase):
            return _served(plan, case, folder, most)
        return _engine(plan, case, folder, most)


def files_of(folder: Path, case: Case) -> dict[str, tuple[Path, Path]]:
    """Where the evidence of each arm may be: of one that ended, and of one that failed."""
    arms = (ARM,) if isinstance(case, VerifierCase) else case.sampled_arms
    paths = {arm: evidence_path(folder, case, arm) for arm in arms}
    return {arm: (path, Parts(path).failed) for arm, path in paths.items()}


# --- what is on disk ------------------------------------------------------------------------------


def _read(
    folder: Path,
    case: Case,
    most: dict[str, int],
    read: Callable[[Path, int], tuple[Found, Meta]],
) -> tuple[dict[str, Found], ConformanceError | None]:
    """The evidence of every arm, and the failure that it ended with, if it did."""
    arms: dict[str, Found] = {}
    error: ConformanceError | None = None
    where = files_of(folder, case)
    failed = [os.path.lexists(partial) for _, partial in where.values()]
    for arm, (whole, partial) in where.items():
        path, other = (partial, whole) if any(failed) else (whole, partial)
        if os.path.lexists(other):
            raise EvidenceError(f"there is evidence of an end and of a failure ({other.name})")
        if not os.path.lexists(path):
            raise EvidenceError(f"the evidence of the {arm} arm is missing ({path.name})")
        arms[arm], meta = read(path, min(most[arm], max(ROWS_ANYWAY, path.lstat().st_size)))
        if any(failed):
            error, _ = failure(meta, path)
    return arms, error


# --- engines --------------------------------------------------------------------------------------


def engine_arms(
    plan: RunPlan, case: Case, folder: Path, most: int = 0
) -> tuple[dict[str, Evidence], ConformanceError | None, bool]:
    """The evidence of an engine's case, held to what was planned.

    Parameters
    ----------
    plan, case, folder, most
        As in `judge_again`.

    Returns
    -------
    tuple
        Every arm, the failure that it ended with if it did, and whether there are answers that
        were not asked for at this stage.

    Raises
    ------
    EvidenceError
        If evidence is missing, damaged or another case's.
    """
    planned = {}
    for arm in case.sampled_arms:
        workload = case.asked(arm).workload
        assert workload is not None
        planned[arm] = workload.requests
    # both arms in one have twice as many
    later = dict.fromkeys(case.arms, most) | {TOGETHER: 2 * most}
    asked = {arm: max(n, later.get(arm, 0)) for arm, n in planned.items()}
    found, error = _read(folder, case, asked, read_evidence)
    arms = {}
    for arm, whole in found.items():
        mine, path = case.asked(arm), evidence_path(folder, case, arm)
        cut = replace(first_requests(whole, planned[arm]), planned=planned[arm])
        check_planned(mine, arm, arm_seeds(plan, mine, arm), path, cut)
        for kind, part in by_kind(mine, cut).items():
            _check_told(kind, part, mine.decoding)
        _check_calls(mine, cut)
        arms[arm] = cut
    return arms, error, any(len(e.tokens) > planned[arm] for arm, e in found.items())


def _engine(plan: RunPlan, case: Case, folder: Path, most: int) -> Judged:
    arms, error, beyond = engine_arms(plan, case, folder, most)
    missing = {arm: e.planned - len(e.tokens) for arm, e in arms.items()}
    if not any(missing.values()):
        return Judged(engines.decide(plan, Gathered(case, arms)), beyond=beyond)
    _check_ends(beyond, missing, error, settled=_settled(plan, case, arms))
    detail = "" if error is None else error.detail
    result = engines.decide(plan, Gathered(case, arms, error, detail, stopped=error is None))
    return Judged(result, FAILED if error is not None else "")


def _settled(plan: RunPlan, case: Case, arms: dict[str, Evidence]) -> bool:
    """Whether the bets on this evidence allowed to stop there."""
    watch = Watch(plan, case)
    for arm in set(case.arms) & set(arms):
        watch.add(arm, arms[arm].tokens, arms[arm].prompt)
    return watch.settled()


def _check_calls(case: Case, e: Evidence) -> None:
    """Where calls were planned to be of several sizes, none may reach over the end of one: where a
    run was interrupted, or had fewer requests, it may only end before.
    """
    work = case.workload
    assert work is not None
    if e.batch is None or not FORMS[work.form].calls:
        return
    size = max(1, case.capabilities.max_batch)
    most = size // 2 + 1 if e.arm == ASKED_AGAIN else size
    ends = np.array([end for _, end in work.calls(0, most)], dtype=np.int64)
    ends = ends[ends < len(e.tokens)]
    if (e.batch[ends] == e.batch[ends - 1]).any():
        raise EvidenceError(f"the calls of the {e.arm} arm are larger than planned")


def _check_ends(
    beyond: bool, missing: dict[str, int], error: ConformanceError | None, settled: bool
) -> None:
    """May sampling have ended where the answers end?"""
    if settled and error is not None:
        raise EvidenceError(
            "it is said to have failed, but its answers before had already shown a departure"
        )
    if beyond or not (settled or error is not None):
        short = ", ".join(f"{n:,} of the {arm} arm" for arm, n in missing.items() if n)
        raise EvidenceError(f"requests have no answer ({short}), and nothing shows why")


def _check_told(arm: str, e: Evidence, decoding: Decoding) -> None:
    """What is told of blocks must account for the tokens, as when the engine answered: for those
    up to the end of an output, which an engine may overlook.
    """
    n = len(e.tokens)
    if n == 0:
        return
    if arm not in (SPECULATIVE, ASKED_AGAIN) and (e.rounds is not None or e.counts is not None):
        raise EvidenceError(f"blocks are told of the {arm} arm, which does not speculate")
    if e.rounds is None:
        return
    request, emitted = e.rounds[:, 0], e.rounds[:, 2] + 1
    each = np.bincount(request, minlength=n)
    total = np.bincount(request, emitted, minlength=n)
    last = np.zeros(n)
    last[request] = emitted  # of a request's blocks the last one stays
    stops = ends(e.tokens, decoding)
    width = e.asked_for
    length = np.where(stops.any(axis=1), np.minimum(stops.argmax(axis=1) + 1, width), width)
    if not ((each > 0) & (total >= length) & (total - last < width)).all():
        raise EvidenceError(f"the blocks told of the {arm} arm do not account for its tokens")


# --- servers --------------------------------------------------------------------------------------


def _served(plan: RunPlan, case: ServedCase, folder: Path, most: int) -> Judged:
    """The arms were asked in one order, and end together."""
    assert case.workload is not None
    planned = case.workload.requests
    asked = dict.fromkeys(ARMS, max(planned, most))
    found, error = _read(folder, case, asked, read_served)
    arms = {arm: replace(first_answers(e, planned), planned=planned) for arm, e in found.items()}
    arm_of, prompt_of = schedule(plan, case)
    done = sum(len(e.symbols) for e in arms.values())
    for k, (arm, e) in enumerate(arms.items()):
        n = len(e.symbols)
        for what, said, wanted in (
            ("case", e.case, case.id),
            ("arm", e.arm, arm),
            ("requests", n, int((arm_of[:done] == k).sum())),
            ("seeds", e.seeds, arm_seeds(plan, case, arm)[:n]),
            ("prompts", e.prompt, prompt_of[arm_of == k][:n]),
            ("texts", e.texts, case.texts),
            ("unit", e.unit, case.unit),
            ("width", e.symbols.shape[1], case.width),
        ):
            if not np.array_equal(np.asarray(said), np.asarray(wanted)):
                raise EvidenceError(f"the {what} of the {arm} arm are not those planned")
    laws = kept_laws(plan, case, folder)
    if case.by_law and laws is None and error is None:
        raise EvidenceError("what the control server told of its law is missing")
    missing = {arm: planned - len(e.symbols) for arm, e in arms.items()}
    beyond = any(len(e.symbols) > planned for e in found.values())
    if not any(missing.values()):
        whole = beyond and arms[SPECULATIVE].counts is None
        gathered = ServedGathered(case, arms, laws=laws)
        return Judged(servers.decide(plan, gathered), "", beyond, whole)
    settled = not case.decoding.greedy and replayed(plan, case, arms, laws).settled()
    _check_ends(beyond, missing, error, settled=settled)
    gathered = ServedGathered(case, arms, error, stopped=error is None, laws=laws)
    result = servers.decide(plan, gathered)
    return Judged(result, FAILED if error is not None else "")


# --- verifiers ------------------------------------------------------------------------------------


def _verifier(plan: RunPlan, case: VerifierCase, folder: Path) -> Judged:
    """Its blocks are planned one by one: those there must be some of these, and no others."""
    planned = {(j.kind, j.name): (0, 0) for j in jobs_of(case, plan.seed)}
    for j in jobs_of(case, plan.seed):
        rows, _ = planned[j.kind, j.name]
        planned[j.kind, j.name] = (rows + j.shape[0], j.shape[1])
    most = sum(rows for rows, _ in planned.values())
    found, error = _read(folder, case, {ARM: most}, read_verifier_evidence)
    e = found[ARM]
    if (e.case, e.arm) != (case.id, ARM):
        raise EvidenceError(f"it is evidence of {e.case!r:.200}, {e.arm!r:.40}")
    if (e.run, e.law_seed) != (plan.seed, case.law_seed):
        raise EvidenceError("the evidence was drawn with other seeds than the run's")
    there = {(LAW, name): t.shape for name, t in e.tokens.items()}
    there |= {(EDGE, name): t.shape for name, t in e.edges.items()}
    if e.again is not None:
        there[AGAIN, next(iter(e.tokens), "")] = e.again.shape
    for key, shape in there.items():
        rows, width = planned.get(key, (0, 0))
        if shape[0] > rows or shape[1] != width or key[1] in e.refused:
            raise EvidenceError(f"it has answers to {key[1]!r:.100} that were not asked for")
    if e.batch.items() - Book(case, plan.seed, None).batch.items():
        raise EvidenceError("blocks were asked in other calls than planned")
    missing = [key[1] for key in planned if key not in there and key[1] not in e.refused]
    if missing and error is None:
        raise EvidenceError(f"questions have no answer ({listed(missing)})")
    word = FAILED if error is not None else ""
    if e.refused and not word:
        word = f"questions that were refused, by the run's word: {listed(sorted(e.refused))}"
    return Judged(verifiers.decide(plan, VerifierGathered(case, e, error)), word)
