"""What every fault does to the output: how much, and where. Measured on probe "mid".

Answers of the faulty and of the exact engine are counted in the cells of
`conformance.diagnosis.cells`. How much is told in nats a request: the log odds, fault against
exactness, of answers that were not used to learn either; and as the total variation of the cells of
accepted, recovered and bonus tokens.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import in_process
import numpy as np
import pytest
from scipy import stats

from conformance.contract import Capabilities, EngineCard
from conformance.decoding import Decoding
from conformance.diagnosis.candidates import EXACT_NAME, Setting, answers, applicable
from conformance.diagnosis.cells import (
    ACCEPTED,
    BONUS_TOKEN,
    EVENTS,
    IMPOSSIBLE,
    OUTSIDE,
    RECOVERED,
    Counts,
    count,
    multiplicities,
)
from conformance.diagnosis.score import score, strata, two_samples
from conformance.faults import FAULTS, Fault
from conformance.plan import Case
from conformance.workload import sampled_prompts

PLAIN = Decoding()
TRUNCATED = Decoding(temperature=0.7, top_p=0.8)
TOKENS = 8
LEVEL = 1e-6  # of every comparison that must not find a difference


@cache
def setting(decoding: Decoding) -> Setting:
    case = Case("reference", "mid", decoding, EngineCard("reference"), Capabilities())
    prompts = sampled_prompts(case.oracle, seed=0)
    return Setting(case.oracle, tuple(map(tuple, prompts.tolist())), TOKENS, 4, labelled=True)


@cache
def counted(decoding: Decoding, name: str, size: float | None, n: int, portion: int) -> Counts:
    at = setting(decoding)
    made = answers(at, name, size, n, portion)
    most = int(multiplicities(answers(at, EXACT_NAME, None, n, 0)).max()) + 1
    return count(at.oracle, at.prompt_array, made, most, np.random.default_rng(portion))


def shown_at(fault: Fault) -> float | None:
    return fault.parameter if fault.visible is None else fault.visible


def nats(decoding: Decoding, fault: Fault, n: int) -> float:
    """Log odds a request, of answers that neither side has learnt from.

    The two are learnt with the same random numbers, so a fault that does nothing has odds of 1.
    """
    near = counted(decoding, EXACT_NAME, None, n, 2)
    new = counted(decoding, fault.name, shown_at(fault), n, 1)
    learnt = counted(decoding, fault.name, shown_at(fault), n, 0)
    exact = counted(decoding, EXACT_NAME, None, n, 0)
    return (score(new, learnt, near, True) - score(new, exact, near, True)) / n


def distances(decoding: Decoding, fault: Fault, n: int) -> dict[str, float]:
    """TV between the faulty and the exact engine's cells, by event; NaN where either has none."""
    mine = counted(decoding, fault.name, shown_at(fault), n, 1).cells.sum(axis=1)
    exact = counted(decoding, EXACT_NAME, None, n, 2).cells.sum(axis=1)
    out = {}
    for e in (ACCEPTED, RECOVERED, BONUS_TOKEN):
        a, b = mine[e], exact[e]
        some = a.sum() > 0 and b.sum() > 0
        out[EVENTS[e]] = float(0.5 * np.abs(a / a.sum() - b / b.sum()).sum()) if some else np.nan
    return out


def table(decodings: tuple[Decoding, ...], n: int) -> list[dict[str, Any]]:
    rows = []
    for decoding in decodings:
        noise = counted(decoding, EXACT_NAME, None, n, 1).cells.sum(axis=1)
        exact = counted(decoding, EXACT_NAME, None, n, 2).cells.sum(axis=1)
        tv = 0.5 * np.abs(
            noise / np.maximum(noise.sum(axis=1, keepdims=True), 1)
            - exact / np.maximum(exact.sum(axis=1, keepdims=True), 1)
        ).sum(axis=1)
        print(f"{decoding!s:26} {'(sampling noise)':26}", *(f"{x:8.3f}" for x in tv[:3]))
        for fault in FAULTS.values():
            if not applicable(fault, decoding):
                continue
            far = distances(decoding, fault, n)
            gain = nats(decoding, fault, n)
            rows.append(
                {"decoding": str(decoding), "fault": fault.name, "size": shown_at(fault),
                 "nats_a_request": gain, **far}
            )  # fmt: skip
            print(
                f"{decoding!s:26} {fault.name:26}", *(f"{x:8.3f}" for x in far.values()),
                f"{gain:10.4f} nats a request",
            )  # fmt: skip
    return rows


# Faults that a few hundred requests do not show in these cells, and why
SLIGHT = {
    "accept-some-prompts": "none of the two prompts may be among those it is about",
    "neighbours-share": "neighbours have different prompts: only their uniforms are shared",
    "tail-lost": "what is lost is rare",
    "low-precision-draw": "32 partial sums round little",
    "coarse-uniforms": "a grid of 1/64 moves little mass",
    "zero-coin": "a handful of impossible tokens, each of them proof, and each one count here",
}


@pytest.mark.long
def test_every_fault_changes_what_is_emitted() -> None:
    n = 800
    rows = table((PLAIN, TRUNCATED), n)
    in_process.write_table("fault_effects", rows)
    # others change nothing under these decodings, and have suites of their own
    names = {n for n, f in FAULTS.items() if any(applicable(f, d) for d in (PLAIN, TRUNCATED))}
    assert {row["fault"] for row in rows} == names
    most = {name: max(r["nats_a_request"] for r in rows if r["fault"] == name) for name in names}
    # ten nats in all: odds of 20,000 to 1, out of reach of a fault that does nothing
    assert {name for name, gain in most.items() if gain * n < 10} <= set(SLIGHT)


@pytest.mark.parametrize("fault", [f for f in FAULTS.values() if f.visible is not None],
                         ids=lambda f: f.name)  # fmt: skip
def test_a_fault_that_is_slight_in_the_wild_shows_at_its_visible_size(fault: Fault) -> None:
    """With the same random numbers, answers differ from the exact engine's only by the fault."""
    # a filter has cut the tail already, so it is looked for without one
    at, n = setting(PLAIN if fault.needs == "sampling" else TRUNCATED), 300
    exact = answers(at, EXACT_NAME, None, n).tokens

    def changed(size: float | None) -> int:
        return int((answers(at, fault.name, size, n).tokens != exact).any(axis=1).sum())

    assert changed(fault.parameter) <= 0.1 * n
    assert changed(fault.visible) > max(2 * changed(fault.parameter), 2)


def test_a_fault_that_does_nothing_has_no_effect() -> None:
    """The measure can be zero: no filter, nothing to skip."""
    assert nats(PLAIN, FAULTS["filters-on-bonus-only"], 200) == 0
    assert nats(PLAIN, FAULTS["stale-cache"], 200) > 0.1


# --- where ----------------------------------------------------------------------------------------

N = 1000


def p_value(mine: np.ndarray, exact: np.ndarray) -> float:
    found = [two_samples(a, b) for a, b in zip(mine, exact, strict=True)]
    df = sum(f[1] for f in found)
    assert df > 0
    return float(stats.chi2.sf(sum(f[0] for f in found), df))


def both(fault: str, decoding: Decoding = PLAIN) -> tuple[Counts, Counts]:
    mine = counted(decoding, fault, shown_at(FAULTS[fault]), N, 1)
    return mine, counted(decoding, EXACT_NAME, None, N, 2)


ONLY_RECOVERED = (
    "resample-from-p",
    "softmax-residual",
    "absolute-residual",
    "ratio-in-place",
    "argmax-recovered",
    "unnormalised-residual",
    "rejected-zeroed",
    "recovered-from-last",
)


@pytest.mark.parametrize("fault", ONLY_RECOVERED)
def test_only_recovered_tokens_differ(fault: str) -> None:
    mine, exact = both(fault)
    assert p_value(mine.cells[RECOVERED], exact.cells[RECOVERED]) < LEVEL
    # at the first position, which every block has, whatever the history
    for event in (ACCEPTED,):
        assert p_value(mine.cells[event][:1], exact.cells[event][:1]) > LEVEL


@pytest.mark.parametrize("fault", ["bonus-from-q", "bonus-late", "bonus-greedy"])
def test_only_bonus_tokens_differ(fault: str) -> None:
    mine, exact = both(fault)
    assert p_value(mine.cells[BONUS_TOKEN], exact.cells[BONUS_TOKEN]) < LEVEL
    for event in (ACCEPTED, RECOVERED):
        assert p_value(mine.cells[event], exact.cells[event]) > LEVEL


def test_filters_on_the_bonus_token_only() -> None:
    mine, _ = both("filters-on-bonus-only", TRUNCATED)
    assert mine.cells[BONUS_TOKEN, :, IMPOSSIBLE].sum() == 0
    assert mine.cells[RECOVERED, :, IMPOSSIBLE].sum() > 0
    mine, _ = both("bonus-unfiltered", TRUNCATED)
    assert mine.cells[BONUS_TOKEN, :, IMPOSSIBLE].sum() > 0
    assert mine.cells[[ACCEPTED, RECOVERED], :, IMPOSSIBLE].sum() == 0


@pytest.mark.parametrize("fault", ["misaligned-q", "stale-q", "misaligned-p"])
def test_the_first_position_of_a_block_is_right_and_later_ones_are_not(fault: str) -> None:
    mine, exact = both(fault)
    assert p_value(mine.cells[:2, 1:4].reshape(6, -1), exact.cells[:2, 1:4].reshape(6, -1)) < LEVEL
    # what is emitted there, accepted or recovered, in the first block of each answer
    first = mine.index[:2, :, 0].sum(axis=0), exact.index[:2, :, 0].sum(axis=0)
    assert p_value(first[0][None], first[1][None]) > LEVEL


def test_the_first_position_alone_is_unverified() -> None:
    mine, exact = both("first-unverified")
    assert strata(mine).reshape(len(EVENTS), -1)[RECOVERED, 0] == 0
    assert strata(exact).reshape(len(EVENTS), -1)[RECOVERED, 0] > 0
    assert p_value(mine.cells[ACCEPTED, :1], exact.cells[ACCEPTED, :1]) < LEVEL


@pytest.mark.parametrize(("fault", "wrong"), [("sharpened-every", {3, 7}), ("accept-late", {6, 7})])
def test_only_some_output_indices_differ(fault: str, wrong: set[int]) -> None:
    mine, exact = both(fault)
    for t in range(TOKENS):
        p = p_value(mine.index[..., t].sum(axis=0)[None], exact.index[..., t].sum(axis=0)[None])
        assert (p < 1e-3) if t in wrong else (p > LEVEL), (t, p)


@pytest.mark.parametrize("fault", ["stale-cache", "over-trimmed-cache", "ragged-batch"])
def test_a_slipped_cache_is_right_until_the_second_block(fault: str) -> None:
    mine, exact = both(fault)
    first = mine.index[..., 0].sum(axis=0), exact.index[..., 0].sum(axis=0)
    assert p_value(first[0][None], first[1][None]) > LEVEL
    assert p_value(mine.cells[RECOVERED], exact.cells[RECOVERED]) < LEVEL


@pytest.mark.parametrize(
    ("fault", "link"),
    [
        ("same-stream", "given before"),
        ("repeated-answers", "as the one before"),
        ("restarted-stream", "blocks"),
    ],
)
def test_requests_and_blocks_are_tied_together(fault: str, link: str) -> None:
    mine, exact = both(fault)
    assert p_value(mine.links[link][None], exact.links[link][None]) < LEVEL


def test_neighbours_of_one_prompt_share_their_answers() -> None:
    at = setting(PLAIN)
    made = answers(at, "neighbours-share", 4.0, 200)
    alike = (made.tokens[0::4] == made.tokens[2::4]).all(axis=1)
    assert alike.all()
    assert not (made.tokens[0::4] == made.tokens[1::4]).all(axis=1).any()


def test_disabled_speculation_is_exact_and_its_rounds_are_not() -> None:
    mine, exact = both("disabled")
    ranks = mine.cells.sum(axis=(0, 1))[:IMPOSSIBLE].reshape(10, -1).sum(axis=1)
    assert stats.chisquare(ranks).pvalue > LEVEL
    assert p_value(mine.cells[ACCEPTED], exact.cells[ACCEPTED]) < LEVEL


def test_ids_and_tokens_that_cannot_be() -> None:
    mine, exact = both("outside-vocabulary")
    assert mine.cells[..., OUTSIDE].sum() > 0
    assert exact.cells[..., OUTSIDE:].sum() == exact.cells[..., IMPOSSIBLE].sum() == 0
    mine, _ = both("zero-coin", TRUNCATED)
    assert mine.cells[ACCEPTED, :, IMPOSSIBLE].sum() > 0
    assert mine.cells[[RECOVERED, BONUS_TOKEN], :, IMPOSSIBLE].sum() == 0
