"""Whatever an engine does, it gets a verdict with a reason, and never an undeserved EXACT."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from conformance.contract import Request
from conformance.decoding import Decoding
from conformance.errors import BadAnswerError
from conformance.gather import evidence_path
from conformance.plan import PROFILES, Case, RunPlan, make_plan
from conformance.probes import load_probe
from conformance.resolve import resolve
from conformance.result import CaseResult
from conformance.runner import Settings, collect, judge_cases, prepare
from conformance.verdict import Verdict, run_verdict
from conformance.wire import encode_completions

pytestmark = pytest.mark.engines

HERE = Path(__file__).parent
GREEDY, SAMPLED = Decoding(greedy=True), Decoding()
TIMEOUT = 6.0  # long enough to load on a busy machine; what hangs costs this much

# What breaks the contract or the process: the sentence that an ERROR has to give as its reason.
ERRORS = {
    "engines:RaisesOnLoad": "OSError: weights are not readable",
    "engines:Raises": "the engine failed: ValueError: cannot",
    "engines:RaisesMemoryError": "MemoryError: out of memory on device 0",
    "engines:RaisesSystemExit": "ended with exit status 0 instead of answering",
    "engines:RaisesKeyboardInterrupt": r"ended (by signal 2|with exit status 1) instead",
    "engines:RaisesBaseException": "ended with exit status 1 instead of answering",
    "engines:RaisesUnprintable": "characters left out",
    "engines:RaisesOnThirdCall": "RuntimeError: third time unlucky",
    "engines:RaisesForSomePrompts": "RuntimeError: odd prompt",
    "engines:RefusesLater": r"refused some requests after answering \d+ of the case: changed my",
    "engines:FailsOnOneToken": "RuntimeError: token 7 has no text",
    "engines:AnswersNone": "broke the contract: generate returned NoneType",
    "engines:AnswersFewer": "broke the contract: 16 requests got 15 answers",
    "engines:TooFewTokens": "answer 0 has 31 tokens where 32 tokens were asked for",
    "engines:NanTokens": "tokens of answer 0 must be whole numbers: 'float'",
    "engines:RoundsTooMany": "that emit 160 tokens, but has 32",
    "processes:Exits": "the engine process ended with exit status 3 instead of answering",
    "processes:KillsItself": "the engine process ended by signal 9 instead of answering",
    "processes:Segfaults": "the engine process ended by signal 11 instead of answering",
    "processes:Hangs": "did not answer within 6 seconds and was stopped",
    "processes:ClosesItsOutput": "closed its output instead of answering",
    "processes:WritesToEveryPipe": "answered garbage",
    "processes:ForgesAnError": "the engine failed",
    "processes:LeavesAServer": "ended with exit status 1 instead of answering",
}
# And what is found in the answer alone, which needs no run to be shown.
BAD_ANSWERS = {
    "AnswersNothing": "2 requests got 0 answers",
    "AnswersMore": "2 requests got 3 answers",
    "AnswersGenerator": "returned generator, not a sequence of Completion",
    "AnswersTuples": "answer 0 is tuple, not Completion",
    "StringTokens": "tokens of answer 0 must be whole numbers: 'str'",
    "FloatTokens": "tokens of answer 0 must be whole numbers: 'float'",
    "NoTokens": "answer 0 has nothing where 8 tokens were asked for",
    "TooManyTokens": "answer 0 has too many tokens where 8 tokens were asked for",
    "EndlessTokens": "answer 0 has too many tokens",
    "RoundsTooFew": "that emit 7 tokens, but has 8",
    "RoundsNotPairs": "rounds of answer 0 must be pairs",
    "RoundsBeyondBelief": "answer 0 has a round",
    "AcceptsMoreThanProposed": r"a round \[0, 7\]; \(drafted, accepted\)",
}
REFUSALS = {
    "engines:Refuses": "refused the configuration: no such sampler here",
    "engines:RefusesInItsOwnWords": "refused the configuration: compile with -DSAMPLERS",
}
# What is only unusual: it must not be held against an exact engine.
HARMLESS = ("processes:NoisyButRight", "engines:NumpyTokens")

OUTSIDE = {
    "laws:EmitsVocabularySize": "id 32 at output index 31, outside the vocabulary",
    "laws:EmitsHugeId": "id 9223372036854775807 at output index 31, outside the vocabulary",
    "laws:PadsWithMinusOne": "id -1 at output index 31, outside the vocabulary",
}
UNSEEN = {
    "engines:NoRounds": "neither rounds nor counts, so nothing shows that speculation happened",
    "engines:NeverSpeculates": "speculation was hardly seen: 0 tokens proposed",
}
ANOTHER_LAW = {
    "laws:SameSeedForAll": (Verdict.NOT_EXACT, "control arm differ.*Law mismatch"),
    "laws:CachesByPrompt": (
        Verdict.NOT_EXACT,
        "Strongest evidence: .* Without a control.*Sampling was stopped",
    ),
    "laws:WrongInTheSecondHalf": (Verdict.NOT_EXACT, "leans to the draft"),
    "laws:LiesAboutRounds": (Verdict.NOT_EXACT, "leans to the draft"),
    "laws:AnotherDialectAndWrong": (Verdict.NOT_EXACT, "control arm differ.*Law mismatch"),
    "laws:AnotherDialect": (Verdict.INCONCLUSIVE, "Law mismatch.*were not seen to differ"),
}


def planned(names: Sequence[str], decoding: Decoding) -> RunPlan:
    cases = []
    for name in names:
        module, _, attribute = name.partition(":")
        full = f"{HERE / module}.py:{attribute}"
        engine = resolve(full)
        cases.append(Case(full, "mid", decoding, engine.card, engine.capabilities))
    return make_plan(cases, PROFILES["smoke"])


def judge(plan: RunPlan, folder: Path) -> dict[str, CaseResult]:
    results = collect(plan, list(judge_cases(plan, folder, jobs=2, timeout=TIMEOUT)))
    return {f"{Path(r.case.engine).stem}:{r.case.engine.rpartition(':')[2]}": r for r in results}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def left_behind(folder: Path) -> Path:
    """Where an engine leaves the id of a process that it has started."""
    return folder / "pid"


@pytest.fixture(scope="module")
def broken(folder: Path, left_behind: Path, probe_cache: Path) -> dict[str, CaseResult]:
    """All that break something, with two that do not among them, in one run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOSTILE_ENGINE_FILE", str(left_behind))
        names = [*ERRORS, HARMLESS[0], *REFUSALS, *HARMLESS[1:], *OUTSIDE, *UNSEEN]
        return judge(planned(names, GREEDY), folder)


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory, probe_cache: Path) -> dict[str, CaseResult]:
    """All that sample from another law, in one run."""
    return judge(planned(list(ANOTHER_LAW), SAMPLED), tmp_path_factory.mktemp("laws"))


def check(result: CaseResult, verdict: Verdict, why: str) -> None:
    assert (result.verdict.verdict, bool(re.search(why, result.verdict.why, re.DOTALL))) == (
        verdict,
        True,
    ), result.verdict.why


@pytest.mark.parametrize("name", ERRORS)
def test_breaking_contract_or_process_is_an_error(broken: dict[str, CaseResult], name: str) -> None:
    check(broken[name], Verdict.ERROR, ERRORS[name])


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_listed_and_not_counted(broken: dict[str, CaseResult], name: str) -> None:
    check(broken[name], Verdict.NOT_SUPPORTED, REFUSALS[name])


@pytest.mark.parametrize("name", HARMLESS)
def test_others_and_oddities_do_not_spoil_a_verdict(
    broken: dict[str, CaseResult], name: str
) -> None:
    """Among thirty engines that die and hang, in the same worker pool, two that are right."""
    check(broken[name], Verdict.EXACT, "no departure")
    assert broken[name].speculation.accepted >= 30


def test_one_refusal_and_one_error_do_not_make_exact(broken: dict[str, CaseResult]) -> None:
    verdicts = [broken[n].verdict.verdict for n in ("engines:Refuses", HARMLESS[0])]
    assert run_verdict(verdicts) is Verdict.EXACT
    assert run_verdict([*verdicts, broken["engines:Raises"].verdict.verdict]) is Verdict.ERROR
    assert run_verdict(verdicts[:1]) is Verdict.INCONCLUSIVE


def test_what_an_engine_says_can_be_stored_and_is_not_endless(
    broken: dict[str, CaseResult],
) -> None:
    result = broken["engines:RaisesUnprintable"]
    assert len(result.verdict.why) < 3000
    for text in (result.verdict.why, result.error):
        assert text is not None
        text.encode("utf-8")  # no lone surrogates, which JSON in UTF-8 cannot hold


def test_the_last_output_is_kept_when_the_process_dies(broken: dict[str, CaseResult]) -> None:
    assert "Unforeseen: not even an Exception" in (
        broken["engines:RaisesBaseException"].error or ""
    )


def test_nothing_an_engine_started_is_left(
    broken: dict[str, CaseResult], left_behind: Path
) -> None:
    assert broken
    pid = int(left_behind.read_text())
    deadline = time.monotonic() + 5
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")  # dead but not yet reaped by whoever inherited it
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_answers_before_a_failure_are_kept_and_never_taken_for_the_whole(
    tmp_path: Path, probe_cache: Path
) -> None:
    # one worker: with two, which arm the third call falls in would be up to the scheduler; the arms
    # take turns, so the third call is the second of the speculative arm
    plan = planned(["engines:RaisesOnThirdCall"], GREEDY)
    (result,) = judge_cases(plan, tmp_path, jobs=1, timeout=TIMEOUT)
    check(result, Verdict.ERROR, ERRORS["engines:RaisesOnThirdCall"])
    (arm,) = (a for a in result.arms if a.arm == "speculative")
    assert (arm.requests, arm.planned) == (4, 16)
    whole = evidence_path(tmp_path, result.case, "speculative")
    assert whole.with_suffix(".partial.parquet").exists()
    assert not whole.exists()


@pytest.mark.parametrize("name", ANOTHER_LAW)
def test_another_law_is_never_exact(sampled: dict[str, CaseResult], name: str) -> None:
    check(sampled[name], *ANOTHER_LAW[name])


@pytest.mark.parametrize("name", UNSEEN)
def test_without_speculation_nothing_is_claimed(broken: dict[str, CaseResult], name: str) -> None:
    check(broken[name], Verdict.INCONCLUSIVE, UNSEEN[name])


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_id_outside_the_vocabulary_is_proof(broken: dict[str, CaseResult], name: str) -> None:
    """Although both arms emit it: no dialect has such tokens, so that is no law mismatch."""
    check(broken[name], Verdict.NOT_EXACT, OUTSIDE[name])
    rejected = {f.arm for f in broken[name].findings if f.test == "support" and f.rejected}
    assert rejected == {"speculative", "control"}


def test_failing_on_some_outputs_leaves_nothing_to_judge(broken: dict[str, CaseResult]) -> None:
    """What is left after the failures is selected."""
    assert broken["engines:FailsOnOneToken"].findings == ()


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_a_bad_answer_is_refused(name: str, probe_cache: Path) -> None:
    engine = resolve(f"{HERE / 'engines.py'}:{name}")
    engine.load(load_probe("mid").pair)
    requests = [Request((1, 2, 3), 8, SAMPLED, seed) for seed in (1, 2)]
    with pytest.raises(BadAnswerError, match=BAD_ANSWERS[name]):
        encode_completions(engine.generate(requests), requests)


def test_a_process_that_no_longer_reads_does_not_stop_the_run(
    tmp_path: Path, probe_cache: Path
) -> None:
    plan = planned(["processes:Stops"], SAMPLED)
    (result,) = judge_cases(plan, tmp_path, timeout=4.0)
    check(result, Verdict.ERROR, "did not answer within 4 seconds|ended by signal")


def test_an_engine_that_cannot_be_constructed_is_an_error(probe_cache: Path) -> None:
    name = f"{HERE / 'engines.py'}:RaisesOnConstruct"
    plan = prepare(Settings((name,), (GREEDY, SAMPLED), "smoke", timeout=60))
    results = list(judge_cases(plan, Path("unused")))
    assert len(results) == 2
    for result in results:
        check(result, Verdict.ERROR, "RuntimeError: no licence key")


def test_claiming_nothing_is_inconclusive(tmp_path: Path, probe_cache: Path) -> None:
    plan = prepare(Settings((f"{HERE / 'engines.py'}:ClaimsNothing",), (GREEDY, SAMPLED), "smoke"))
    results = list(judge_cases(plan, tmp_path))
    check(results[0], Verdict.NOT_SUPPORTED, "does not claim greedy; not tested")
    check(results[1], Verdict.NOT_SUPPORTED, "does not claim sampling; not tested")
    assert run_verdict(r.verdict.verdict for r in results) is Verdict.INCONCLUSIVE
