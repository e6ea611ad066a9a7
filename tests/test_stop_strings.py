"""Stop strings: where a text ends is told by the text itself; right engines pass, faults do not."""

from __future__ import annotations

from functools import cache

import in_process
import numpy as np
import pytest
from tokenizers import Tokenizer

from conformance.adapters.reference import ReferenceEngine, faulty
from conformance.contract import Completion
from conformance.decide import decide
from conformance.decoding import Decoding
from conformance.ends import end_of, ends_of, patterns
from conformance.errors import BadAnswerError, InvalidDecodingError
from conformance.evidence import Evidence
from conformance.faults.strings import STRINGS
from conformance.gather import Gathered
from conformance.plan import PROFILES, Case, RunPlan, make_plan
from conformance.probes import load_probe
from conformance.processors import ended, ends
from conformance.result import CaseResult
from conformance.strata import block_places
from conformance.suite import STRINGS as WORDS
from conformance.suite import SUITES
from conformance.verdict import Verdict
from conformance.wire import encode_completions

GREEDY, SAMPLED = SUITES["stop-strings"]


@cache
def plan(profile: str = "smoke") -> RunPlan:
    return make_plan(in_process.cases("mid", [GREEDY, SAMPLED]), PROFILES[profile])


def case_of(decoding: Decoding, profile: str = "smoke") -> Case:
    (case,) = (c for c in plan(profile).cases if c.decoding == decoding)
    return case


@cache
def arm_of(name: str | None, decoding: Decoding, arm: str, profile: str = "smoke") -> Evidence:
    engine = ReferenceEngine() if name is None else faulty(name)
    return in_process.gather_runs(engine, case_of(decoding, profile), arm, [plan(profile)])[0]


def judge(name: str | None, decoding: Decoding, profile: str = "smoke") -> CaseResult:
    arms = {
        "speculative": arm_of(name, decoding, "speculative", profile),
        "control": arm_of(None, decoding, "control", profile),
    }
    return decide(plan(profile), Gathered(case_of(decoding, profile), arms), explain=False)


# --- where a text ends ----------------------------------------------------------------------------


def test_an_output_ends_where_its_text_first_contains_a_stop_string() -> None:
    """By the probe's own tokenizer, and by looking at the text alone."""
    file = load_probe("mid").folder / "target" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 32, (2000, 10))
    over = ended(tokens, SAMPLED)
    inside = 0
    for row, gone in zip(tokens.tolist(), over, strict=True):
        texts = [tokenizer.decode(row[: t + 1]) for t in range(10)]
        found = [t for t, text in enumerate(texts) if any(s in text for s in WORDS)]
        end = found[0] if found else None
        assert end_of(row, SAMPLED) == end
        assert gone.tolist() == [end is not None and t >= end for t in range(10)]
        inside += end is not None and not any(texts[end].endswith(s) for s in WORDS)
    assert inside > 50  # ends inside a token, as w4 w1 in w4 w12
    assert [np.flatnonzero(row).tolist() for row in ends(tokens, SAMPLED)] == [
        ends_of(row, SAMPLED) for row in tokens.tolist()
    ]


def test_a_stop_string_is_read_as_it_is_written() -> None:
    assert Decoding.parse(str(GREEDY)) == GREEDY
    assert str(Decoding(stop_strings=("w7", "w4 w1"))) == "temperature=1,stop_strings=w7;w4 w1"
    for wrong in ("", "stop", "w7 ;w8", "w7  w8", "w07", "w7;w7"):
        with pytest.raises(InvalidDecodingError, match="stop strings are words of a probe"):
            Decoding.parse(f"greedy,stop_strings={wrong}")


def test_no_stop_string_can_begin_in_a_prompt() -> None:
    begin = {x for before, _ in patterns(WORDS) for x in before}
    for decoding in (GREEDY, SAMPLED):
        work = case_of(decoding).workload
        assert work is not None
        assert not {prompt[-1] for prompt in work.prompts} & begin


def test_an_answer_may_be_short_where_a_string_ends_it() -> None:
    (request, *_) = in_process.arm_requests(plan(), case_of(GREEDY), "control")
    (ended_there,) = encode_completions([Completion((3, 4, 12))], [request])
    assert ended_there["tokens"] == [3, 4, *[12] * 30]
    with pytest.raises(BadAnswerError, match="no stop token ends it"):
        encode_completions([Completion((3, 4, 2))], [request])


# --- engines --------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoding", [GREEDY, SAMPLED], ids=str)
def test_the_exact_engine_passes(decoding: Decoding) -> None:
    result = judge(None, decoding)
    assert result.verdict.verdict is Verdict.EXACT, result.verdict


def test_strings_end_at_every_place_of_a_block_and_across_two() -> None:
    evidence = arm_of(None, SAMPLED, "speculative")
    places = block_places(evidence)
    assert places is not None
    _, position, accepted = places
    bonus = recovered = across = 0
    seen: set[int] = set()
    assert evidence.rounds is not None
    first = range(min(2000, len(evidence.tokens)))
    blocks = [evidence.rounds[evidence.rounds[:, 0] == i] for i in first]
    for i, row in enumerate(evidence.tokens[: len(first)].tolist()):
        end = end_of(row, SAMPLED)
        if end is None:
            continue
        at = int(position[i, end])
        seen.add(at)
        last = blocks[i][-1]
        bonus += at == last[1] == last[2]
        recovered += at == last[2] < last[1]
        pair = not any(f"w{row[end]}".startswith(s) for s in WORDS if " " not in s)
        across += at == 0 and end > 0 and pair
    assert seen == set(range(5))
    assert min(bonus, recovered, across) >= 5  # the standard profile has five times as many
    assert accepted.any()


@pytest.mark.parametrize("name", [f.name for f in STRINGS])
@pytest.mark.parametrize(
    "decoding",
    [
        pytest.param(GREEDY, id="greedy"),
        pytest.param(SAMPLED, id="sampled", marks=pytest.mark.long),
    ],
)
def test_faults_fail_at_standard(name: str, decoding: Decoding) -> None:
    result = judge(name, decoding, "standard")
    assert result.verdict.verdict is Verdict.NOT_EXACT, result.verdict
