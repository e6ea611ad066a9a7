"""The catalogue of faults: names, parameters, its listing, and that each is run as it says."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from conformance.adapters.reference import ReferenceEngine, faulty
from conformance.cli import main
from conformance.contract import Completion, Request
from conformance.decoding import DEFAULT_DECODINGS, Decoding
from conformance.errors import UnknownEngineError
from conformance.faults import FAULTS, Fault, Span, parse_fault, rule_faults
from conformance.faults.steps import Steps
from conformance.probes import load_probe
from conformance.reference import Rule

PAGE = Path(__file__).parents[1] / "docs" / "faults.md"


def answers(
    engine: ReferenceEngine, probe: str, decodings: tuple[Decoding, ...], n: int
) -> list[Completion]:
    """Requests of two prompt lengths and two output lengths, in both arms."""
    made = load_probe(probe)
    engine.load(made.pair)
    rng = np.random.default_rng(5)
    prompts = [
        tuple(map(int, rng.integers(0, made.recipe.vocab_size, 12 + 3 * (i % 2)))) for i in range(8)
    ]
    return engine.generate(
        [
            Request(
                prompts[i % 8], 9 if i % 3 else 17, d, None if d.greedy else 1000 + i, i % 4 > 0
            )
            for d in decodings
            for i in range(n)
        ]
    )


def digest(completions: list[Completion]) -> str:
    h = hashlib.sha256()
    for c in completions:
        rounds = None if c.rounds is None else tuple(c.rounds)
        h.update(repr((tuple(c.tokens), c.finish_reason, rounds)).encode())
    return h.hexdigest()


@pytest.mark.parametrize(
    ("fault", "probe", "frozen"),
    [
        ("", "mid", "4eef0b84f198eb730411f808495f760a670ff8ac5e540a1c8a470caef3c04bdd"),
        ("", "small", "0786be7ff8e1a553f27343f3740ea1c1cb4416947fb00ed0877de292d5723dc7"),
        ("", "worked-example", "d6002842d83b385f2e7ee789f6c19799653e0a2dcc465084d1ff462d911f24d8"),
        ("accept-all", "mid", "4e21e9f8f1701783430ec02b7733fd74c1f3fc5dc8e1e28a49134b0b4256913d"),
        ("lenient=0.8", "mid", "26a013395e4b56807835206a7d59bd8348bd56f3f8c96bff05b3163641bedc8d"),
    ],
)
def test_the_reference_answers_as_it_did_before_there_was_a_catalogue(
    fault: str, probe: str, frozen: str
) -> None:
    """Recorded with the engine that had no steps to get wrong."""
    engine = faulty(fault) if fault else ReferenceEngine()
    assert digest(answers(engine, probe, DEFAULT_DECODINGS, 200)) == frozen


# --- the catalogue --------------------------------------------------------------------------------


def test_the_catalogue_is_large_and_every_entry_is_complete() -> None:
    assert len(FAULTS) >= 32
    for name, fault in FAULTS.items():
        assert fault.name == name
        assert name == name.lower()
        assert name.replace("-", "").isalpha()
        assert fault.summary[0].islower() or fault.summary[:2] in ("p ", "p,")
        assert not fault.summary.endswith(".")
        assert fault.shows
        assert (fault.parameter is None) == (fault.span is None)
        if fault.span is not None and fault.parameter is not None:
            assert fault.span.holds(fault.parameter)
        # where no thread is known, it says so
        assert fault.seen or fault.note


def test_rules_are_rules_and_the_others_are_steps() -> None:
    rules = rule_faults()
    assert set(rules) == {name for name, fault in FAULTS.items() if fault.tier == "rule"}
    for name, fault in FAULTS.items():
        assert isinstance(fault.steps(), Steps)
        rule = fault.rule()
        assert isinstance(rule, Rule) == (fault.tier == "rule"), name


def test_a_parameter_reaches_the_rule() -> None:
    p, q = np.array([0.1, 0.9]), np.array([0.5, 0.5])
    loose, strict = parse_fault("lenient=0.5")[1], FAULTS["lenient"].rule(1.0)
    assert loose is not None
    assert strict is not None
    assert loose.accept(p, q)[0] == pytest.approx(0.4)
    assert strict.accept(p, q)[0] == pytest.approx(0.2)
    assert parse_fault("lenient=0.5")[0].parameter == 0.5
    assert FAULTS["lenient"].parameter == 0.9


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("resample", "no fault named 'resample'; did you mean resample-from-p"),
        ("stale", "did you mean .*stale-cache"),
        ("", "no fault named ''; 'conformance faults' lists all"),
        ("accept-all=0.5", "fault accept-all takes no parameter, got '0.5'"),
        ("lenient=2", r"fault lenient takes a number in \(0, 1\], not '2'"),
        ("lenient=nan", r"fault lenient takes a number in \(0, 1\], not 'nan'"),
        ("lenient=x", r"not 'x'"),
        ("lenient=", r"not ''"),
        ("lenient=0", r"not '0'"),
        ("stale-cache=0", "takes a whole number from 1 to 64, not '0'"),
        ("stale-cache=1.5", "takes a whole number from 1 to 64, not '1.5'"),
        ("stale-cache=inf", "not 'inf'"),
    ],
)
def test_names_and_parameters_that_mean_nothing(text: str, sentence: str) -> None:
    with pytest.raises(UnknownEngineError, match=sentence):
        parse_fault(text)


def test_a_size_can_be_set_only_where_there_is_one() -> None:
    assert FAULTS["stale-cache"].sized(3).parameter == 3
    with pytest.raises(UnknownEngineError, match="accept-all takes no parameter"):
        FAULTS["accept-all"].sized(0.5)
    with pytest.raises(UnknownEngineError, match="takes a number in"):
        FAULTS["lenient"].rule(7.0)
    assert str(Span(0, 1, "x")) == "a number in (0, 1]"


# --- listings -------------------------------------------------------------------------------------


def listing(*options: str) -> str:
    result = CliRunner().invoke(main, ["faults", *options], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def test_faults_lists_every_name_with_its_thread() -> None:
    table = listing()
    for fault in FAULTS.values():
        assert f" {fault.name} " in table
    assert "vllm-ascend #2881" in table


def test_json_has_all_that_a_machine_needs() -> None:
    rows: list[dict[str, Any]] = json.loads(listing("--json"))
    assert [row["name"] for row in rows] == list(FAULTS)
    lenient = next(row for row in rows if row["name"] == "lenient")
    assert lenient["parameter"] == 0.9
    assert lenient["range"] == "a number in (0, 1]"
    assert lenient["tier"] == "rule"
    assert next(row for row in rows if row["name"] == "coarse-uniforms")["visible"] == 6


def test_the_page_is_up_to_date() -> None:
    """``conformance faults --markdown > docs/faults.md``"""
    assert PAGE.read_text(encoding="utf-8") == listing("--markdown")


# --- run as an engine -----------------------------------------------------------------------------

SAMPLED = Decoding(temperature=0.7, top_p=0.8)


@cache
def right_answers() -> list[Completion]:
    return answers(ReferenceEngine(), "mid", (SAMPLED,), 60)


# what a call of both kinds does to requests that do not speculate is what these are about
IN_BOTH_ARMS = ("plain-beside-speculating", "kind-of-the-first")


@pytest.mark.parametrize(
    "fault", [f for f in FAULTS.values() if f.name not in IN_BOTH_ARMS], ids=lambda f: f.name
)
def test_every_fault_keeps_the_contract_or_says_that_it_does_not(fault: Fault) -> None:
    engine = faulty(fault.name)
    exact = right_answers()
    got = answers(engine, "mid", (SAMPLED,), 60)
    assert engine.card.name == f"faulty:{fault.name}"
    assert fault.summary in engine.card.rule
    breaks = 0
    for i, (a, b) in enumerate(zip(got, exact, strict=True)):
        if i % 4 == 0:  # the control arm is right, whatever the fault
            assert a == b
            continue
        wanted = 9 if i % 3 else 17
        assert a.rounds is not None
        emitted = [accepted + 1 for _, accepted in a.rounds]
        assert all(0 <= accepted <= drafted for drafted, accepted in a.rounds)
        complete = len(a.tokens) == wanted
        breaks += not complete
        if complete:
            assert sum(emitted) >= wanted > sum(emitted[:-1])
    assert (breaks > 0) == fault.name.startswith("length-")


@pytest.mark.parametrize("name", ["lenient", "stale-cache", "bonus-late", "same-stream"])
def test_a_fault_answers_the_same_seed_with_the_same_tokens(name: str) -> None:
    first, second = (answers(faulty(name), "mid", (SAMPLED,), 20) for _ in range(2))
    assert first == second
