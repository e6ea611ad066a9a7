"""What comes out of an engine whose pace is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes import FIRST, FakeAsker, Pace

from conformance.bench.clocks import block_ends, pace
from conformance.bench.measure import Timed
from conformance.bench.plan import Settings
from conformance.bench.run import run_bench
from conformance.contract import Capabilities, Request
from conformance.decoding import Decoding
from conformance.errors import (
    BadAnswerError,
    EngineFailure,
    EngineLoadError,
    NotSupportedError,
    PlanError,
    UnknownEngineError,
)
from conformance.reports.bench_model import BenchReport, CellModel

SETTINGS = Settings(
    ("fake",),
    (Decoding(),),
    batches=(1,),
    prompt_lengths=(8,),
    new_tokens=40,
    repeats=30,
    memory=False,
)
Fault = Callable[[Sequence[Request]], None]


def bench(
    engine: Pace, settings: Settings = SETTINGS, fault: Fault | None = None
) -> tuple[BenchReport, list[FakeAsker]]:
    made: list[FakeAsker] = []

    def make(_: str) -> FakeAsker:
        made.append(FakeAsker(engine, fault))
        return made[-1]

    return run_bench(settings, make, lambda _: None), made


def only(report: BenchReport) -> CellModel:
    (cell,) = report.cells
    return cell


def arm(cell: CellModel, name: str):
    return next(a for a in cell.arms if a.arm == name)


@pytest.mark.parametrize("streams", [True, False])
def test_steps_and_cost_are_those_of_the_engine(streams: bool) -> None:
    engine = Pace(target=0.01, draft=0.001, verify=0.012, accept=0.8, noise=0.0, streams=streams)
    cell = only(bench(engine)[0])
    assert cell.streamed is streams
    control, spec = arm(cell, "control"), arm(cell, "speculative")
    assert control.per_token.median.estimate == pytest.approx(0.01, rel=1e-6)
    assert control.first_token.median.estimate == pytest.approx(FIRST + 0.01, rel=1e-6)
    assert control.end_to_end.median.estimate == pytest.approx(FIRST + 40 * 0.01, rel=1e-6)
    assert control.tokens_per_second.estimate == pytest.approx(40 / (FIRST + 0.4), rel=1e-6)
    assert (spec.pauses is None) is not streams
    cost = cell.cost
    assert cost is not None
    assert cost.ratio.estimate == pytest.approx(0.1, rel=1e-6)
    assert cost.target == pytest.approx(0.01, rel=1e-6)
    assert cost.draft == pytest.approx(0.001, rel=1e-6)
    if streams:  # what is beyond drafting and one step is what verifying costs more
        assert cost.rest == pytest.approx(0.002, rel=0.05)
        # a block's tokens come at once, so that what is measured is what the blocks tell
        expected = cost.from_blocks * (cost.proposals * 0.1 + 1) * 0.01 / cost.block
        assert cost.measured.estimate == pytest.approx(expected, rel=0.05)


def test_the_formula_is_right_where_its_assumptions_hold() -> None:
    """Verifying costs one step, and proposals fare alike: predicted and measured are the same."""
    engine = Pace(target=0.01, draft=0.001, verify=0.01, accept=0.7)
    cost = only(bench(engine, replace(SETTINGS, new_tokens=200, repeats=40))[0]).cost
    assert cost is not None
    assert cost.predicted.low <= cost.measured.estimate <= cost.predicted.high
    assert cost.predicted.estimate == pytest.approx(cost.from_blocks, rel=0.05)


def test_speculation_that_pays_that_does_not_and_that_cannot_be_told() -> None:
    pays = only(bench(Pace(draft=0.0005, verify=0.01))[0])
    assert (pays.outcome, pays.speedup.low > 1) == ("pays", True)
    assert pays.sentence.startswith("Speculation pays: ")
    loses = only(bench(Pace(draft=0.01, accept=0.2))[0])
    assert (loses.outcome, loses.speedup.high < 1) == ("does not pay", True)
    assert loses.sentence.startswith("Speculation does not pay: ")
    # as much is lost by drafting as is gained, up to noise
    even = only(bench(Pace(draft=0.0, verify=0.01, accept=0.0, noise=0.2))[0])
    assert even.outcome == "cannot tell"
    assert even.speedup.low < 1 < even.speedup.high


def test_ratios_come_from_pairs() -> None:
    """A machine that grows slower and slower moves both arms alike, and not their ratio."""

    class Slowing(FakeAsker):
        def ask(self, pair, requests):
            answer = super().ask(pair, requests)
            slower = 1 + 0.02 * len(self.calls)  # seen from outside alone
            return replace(answer, seconds=answer.seconds * slower)

    engine = Pace(noise=0.0, accept=1.0, draft=0.001, k=4)
    cell = only(run_bench(SETTINGS, lambda _: Slowing(engine), lambda _: None))
    alone = only(bench(engine)[0])
    assert cell.speedup.estimate == pytest.approx(alone.speedup.estimate, rel=0.02)
    assert cell.speedup.high - cell.speedup.low < 0.1 * cell.speedup.estimate
    assert cell.drift is not None
    assert cell.drift > 0.1


def test_arms_differ_in_nothing_but_speculation() -> None:
    _, (described, main, alone) = bench(Pace(), replace(SETTINGS, batches=(3,)))
    del described
    spec = [r for _, rs in main.calls for r in rs if r.speculate]
    control = [r for _, rs in main.calls for r in rs if not r.speculate]
    assert {(r.prompt, r.seed, r.max_new_tokens, r.times) for r in spec} == {
        (r.prompt, r.seed, r.max_new_tokens, r.times) for r in control
    }
    assert len({r.seed for r in spec}) == len(spec) == 3 * 33
    assert all(r.times for r in spec)
    assert {r.seed for _, rs in alone.calls for r in rs} == {r.seed for r in spec}
    # which is first alternates, after three rounds of warm-up
    first = [rs[0].speculate for _, rs in main.calls[::2]]
    assert first[3:9] == [True, False] * 3


def test_warm_up_is_thrown_away() -> None:
    class Cold(FakeAsker):
        def ask(self, pair, requests):
            answer = super().ask(pair, requests)
            return replace(answer, seconds=answer.seconds * (100 if len(self.calls) <= 2 else 1))

    cell = only(run_bench(SETTINGS, lambda _: Cold(Pace(noise=0.0)), lambda _: None))
    assert max(arm(cell, "control").seconds) == pytest.approx(FIRST + 0.4)
    assert len(arm(cell, "control").seconds) == cell.repeats == 30


def test_what_takes_too_long_has_fewer_repeats_and_not_too_few() -> None:
    each = 3 * (FIRST + 0.4)  # three arms, at most
    cell = only(bench(Pace(), replace(SETTINGS, seconds=12 * each))[0])
    assert 10 <= cell.repeats < 30
    assert only(bench(Pace(), replace(SETTINGS, seconds=0.01))[0]).repeats == 6


def test_tails_need_their_samples() -> None:
    cell = only(bench(Pace(), replace(SETTINGS, repeats=28))[0])
    assert arm(cell, "control").end_to_end.p90 is None
    cell = only(bench(Pace(), replace(SETTINGS, repeats=29))[0])
    assert arm(cell, "control").end_to_end.p90 is not None
    assert arm(cell, "control").end_to_end.p99 is None


def test_acceptance_is_of_proposals_that_were_verified() -> None:
    acceptance = only(bench(Pace(accept=0.6), replace(SETTINGS, repeats=100))[0]).acceptance
    assert acceptance is not None
    assert acceptance.rate.low <= 0.6 <= acceptance.rate.high
    assert acceptance.of_proposed < 0.5
    assert sum(acceptance.accepted.values()) == sum(
        n for k, n in acceptance.drafted.items() if k > 0
    )
    # the fake's rounds are no sampling of the probe's laws, and that shows
    assert acceptance.most is not None
    assert "accepted" in acceptance.sentence


def test_the_most_is_not_claimed_for_a_law_that_is_not_computed() -> None:
    settings = replace(SETTINGS, decodings=(Decoding(repetition_penalty=1.3),))
    claims = Capabilities(verification="token", processors=("repetition_penalty",))
    acceptance = only(bench(Pace(capabilities=claims), settings)[0]).acceptance
    assert acceptance.most is None
    assert "penalties" in acceptance.sentence


def test_an_engine_that_never_proposes_does_not_pay_nor_lose() -> None:
    cell = only(bench(Pace(k=0))[0])
    assert cell.outcome == "did not speculate"


def test_without_rounds_nothing_is_made_up() -> None:
    cell = only(bench(Pace(tells_rounds=False))[0])
    assert cell.acceptance.rate is cell.acceptance.tokens_per_block is None
    assert cell.acceptance.sentence == "The engine tells no rounds."
    assert cell.cost.predicted is None
    assert cell.outcome == "pays"


def test_without_a_control_arm_there_is_no_ratio() -> None:
    claims = Capabilities(control=False, max_batch=8)
    cell = only(bench(Pace(capabilities=claims))[0])
    assert (cell.speedup, cell.cost, cell.outcome) == (None, None, "cannot tell")
    assert "no control arm" in cell.sentence
    assert [a.arm for a in cell.arms] == ["speculative"]


def test_an_engine_that_cannot_run_twice_has_its_draft_timed_first() -> None:
    claims = Capabilities(processes=1, verification="token")
    report, made = bench(Pace(noise=0.0, capabilities=claims))
    assert only(report).cost.ratio.estimate == pytest.approx(0.1)
    busy = [asker for asker in made if asker.calls]
    assert [{name.split(", ")[-1] for name, _ in a.calls} for a in busy] == [
        {"draft alone"},
        {"mid"},
    ]
    assert all(asker.closed for asker in made)


def test_a_draft_that_cannot_be_run_alone_costs_only_c() -> None:
    class NoDraft(FakeAsker):
        def ask(self, pair, requests):
            if "draft alone" in pair.name:
                raise EngineFailure("no such model")
            return super().ask(pair, requests)

    cell = only(run_bench(SETTINGS, lambda _: NoDraft(Pace()), lambda _: None))
    assert (cell.status, cell.outcome) == ("measured", "pays")
    assert (cell.cost.ratio, cell.cost.predicted) == (None, None)
    assert "could not be timed alone" in cell.cost.sentence


# --- refusals and failures ------------------------------------------------------------------------


def test_what_is_not_claimed_is_not_supported_and_never_made_smaller() -> None:
    settings = replace(
        SETTINGS,
        decodings=(Decoding(), Decoding(top_k=3)),
        batches=(1, 9),
        prompt_lengths=(8, 500),
    )
    claims = Capabilities(top_k=False, max_batch=8)
    report, (_, main, _) = bench(Pace(capabilities=claims), settings)
    why = {c.id: c.why for c in report.cells if c.status == "not supported"}
    assert why["fake / temperature=1 / batch 9 / prompt 8"].startswith("not supported by this")
    assert "context of 512" in why["fake / temperature=1 / batch 1 / prompt 500"]
    assert why["fake / temperature=1,top_k=3 / batch 1 / prompt 8"].endswith("top_k")
    assert len(why) == 7
    assert {len(rs) for _, rs in main.calls} == {1}


@pytest.mark.parametrize(
    "error", [EngineFailure("it hung"), BadAnswerError("39 tokens"), NotSupportedError("no greedy")]
)
def test_a_failure_costs_its_cell(error: Exception) -> None:
    def fault(requests: Sequence[Request]) -> None:
        if requests[0].decoding.greedy:
            raise error

    settings = replace(SETTINGS, decodings=(Decoding(greedy=True), Decoding(temperature=0.5)))
    first, second = bench(Pace(), settings, fault)[0].cells
    assert first.status == ("not supported" if isinstance(error, NotSupportedError) else "error")
    assert str(error) in first.why
    assert (first.arms, first.outcome) == ([], None)
    assert second.status == "measured"


def test_an_engine_that_cannot_load_is_not_asked_again() -> None:
    asked = []

    def fault(requests: Sequence[Request]) -> None:
        asked.append(requests)
        raise EngineLoadError("no torch")

    report, _ = bench(Pace(), replace(SETTINGS, prompt_lengths=(8, 9, 10)), fault)
    assert [c.why for c in report.cells] == ["no torch"] * 3
    assert len(asked) <= 3  # once, the draft alone, and once without it


def test_an_unknown_engine_is_an_error_before_anything_is_timed() -> None:
    class Unknown(FakeAsker):
        def describe(self):
            raise UnknownEngineError("no engine named fake")

    timed = FakeAsker(Pace())
    makers = iter([timed, Unknown(Pace())])
    with pytest.raises(UnknownEngineError):
        run_bench(replace(SETTINGS, engines=("a", "b")), lambda _: next(makers), lambda _: None)
    assert timed.calls == []


def test_an_interruption_keeps_what_was_measured() -> None:
    kept: list[BenchReport] = []

    def fault(requests: Sequence[Request]) -> None:
        if len(requests[0].prompt) == 9:
            raise KeyboardInterrupt

    made: list[FakeAsker] = []

    def make(_: str) -> FakeAsker:
        made.append(FakeAsker(Pace(), fault))
        return made[-1]

    with pytest.raises(KeyboardInterrupt):
        run_bench(replace(SETTINGS, prompt_lengths=(8, 9)), make, kept.append)
    (cell,) = kept[-1].cells
    assert (cell.status, kept[-1].finished) == ("measured", False)
    assert all(asker.closed for asker in made)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"repeats": 5}, "too few"),
        ({"engines": ("transformers:verifier",)}, "acceptance rule alone"),
        ({"engines": ("served,url=http://x",)}, "served has models of its own"),
        ({"decodings": (Decoding(stop=(3,)),)}, "leave stop out"),
        ({"models": (Path("a"), Path("b")), "probe": "mid"}, "not both"),
        ({"batches": tuple(range(1, 1002))}, "ask for fewer"),
    ],
)
def test_what_cannot_be_measured_is_refused(change: dict, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        bench(Pace(), replace(SETTINGS, **change))


@pytest.mark.parametrize("what", ["times", "inside"])
def test_a_time_that_has_not_passed_is_no_answer(what: str) -> None:
    class Boasting(FakeAsker):
        def ask(self, pair, requests):
            answer = super().ask(pair, requests)
            if what == "inside":
                return replace(answer, inside=answer.seconds * 1.1)
            return replace(answer, seconds=answer.seconds * 0.9)

    cell = only(run_bench(SETTINGS, lambda _: Boasting(Pace()), lambda _: None))
    assert cell.status == "error"
    assert "of a call that took" in cell.why


# --- clocks ---------------------------------------------------------------------------------------


def test_blocks_end_where_rounds_say() -> None:
    answer = {"tokens": [0] * 7, "rounds": [[4, 2], [4, 0], [4, 4]]}
    assert block_ends(answer) == [2, 3, 6]  # the last is cut
    assert block_ends({"tokens": [0] * 3, "rounds": None}) == [0, 1, 2]


def test_a_batch_moves_on_together() -> None:
    """Two requests side by side, a block each second: a token a second and row."""
    times = [1.0, 2.0, 3.0, 4.0]
    rows = tuple({"tokens": [0] * 4, "rounds": None, "times": times} for _ in range(2))
    found = pace([Timed("control", "full", 0, 4.5, 4.4, rows, ((1,), (1,)))], streamed=True)
    assert found.decode == (1.0,)
    assert found.first == ((1.0, 1.0),)
    # one after the other each has its own pace, and the batch moves on at half of it
    later = {"tokens": [0] * 4, "rounds": None, "times": [t + 4 for t in times]}
    found = pace([Timed("control", "full", 0, 8.5, 8.4, (rows[0], later), ())], streamed=True)
    assert found.per_token == ((1.0, 1.0),)
    assert found.decode[0] == pytest.approx(7 / 3)
    assert np.isclose(found.first[0][1], 5.0)
