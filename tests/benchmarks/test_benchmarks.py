"""The quick benchmark runs, its page holds what its JSON holds, and its numbers keep their word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from scipy import stats

from benchmarks import detect, judging, page, prose, share
from benchmarks.incumbents import STATISTICS, draw_counts, hamming_mmd, pooled_pearson
from benchmarks.laws import LEAKS, departures, divergence, make_pair, rules, total_variation
from benchmarks.ours import FIXED, run_lengths
from benchmarks.published import DESIGNS
from conformance.law import Floats
from conformance.reference import EXACT, emitted_law

LUCK = 1e-6  # simulations below fail by bad luck less often than this


@pytest.fixture(scope="module")
def cells() -> list[dict[str, Any]]:
    """The quick benchmark's; takes about a minute."""
    return detect.cells(detect.QUICK)


@pytest.fixture(scope="module")
def few() -> list[dict[str, Any]]:
    """Enough for a page, quickly."""
    grid = replace(
        detect.QUICK, vocabularies=(32,), names=("accept-all", "resample-from-p"), runs=20,
        power_runs=20, null_runs={32: 1000},
    )  # fmt: skip
    return detect.cells(grid)


def results(cells: list[dict[str, Any]], **others: Any) -> dict[str, Any]:
    about = {
        "command": "make bench QUICK=1", "version": "0", "numpy": "0", "scipy": "0", "python": "0",
        "cpus": 1, "seconds": {"detection": 1.0},
    }  # fmt: skip
    detection = {"alpha": detect.ALPHA, "cells": cells, "designs": others.get("designs", [])}
    return {
        "about": about,
        "detection": detection,
        "judging": others.get("judging", {"cells": [], "exponents": {}}),
        "shares": others.get("shares", []),
    }


# --- what the benchmark promises ------------------------------------------------------------------


@pytest.mark.long
def test_what_leans_to_the_draft_is_detected_within_twice_walds_bound(
    cells: list[dict[str, Any]],
) -> None:
    leaning = [c for c in cells if c["leans"]]
    assert {c["departure"] for c in leaning} >= {"accept-all", "lenient", f"leak={LEAKS[0]:g}"}
    for cell in leaning:
        print(page.where(cell), cell["e_process"]["median"] / cell["wald"])
    assert page.slow(results(cells)) == []


@pytest.mark.long
def test_at_an_equal_false_alarm_rate_no_incumbent_is_ahead_on_what_leans_to_the_draft(
    cells: list[dict[str, Any]],
) -> None:
    for cell in cells:
        name, n = page.best_incumbent(cell)
        print(page.where(cell), cell["equal_rate"]["e_process"], name, n)
    assert [page.where(c) for c in page.behind([c for c in cells if c["leans"]])] == []


@pytest.mark.long
@pytest.mark.xfail(
    strict=True,
    reason="softmax-residual at V = 4096: it spreads mass over the whole vocabulary, and at a rate "
    "of 0.01 one rare token in 16 is enough for an unpooled Pearson test; the prior weight of that "
    "alternative costs the e-process as much as the level itself. At 1e-6 it is ahead (next test).",
)
def test_at_an_equal_false_alarm_rate_no_incumbent_is_ahead(cells: list[dict[str, Any]]) -> None:
    assert [page.where(c) for c in page.behind(cells)] == []


@pytest.mark.long
def test_at_one_in_a_million_the_e_process_is_ahead_of_an_exact_chi_square(
    cells: list[dict[str, Any]],
) -> None:
    assert [page.where(c) for c in page.behind_chi_square(cells)] == []


@pytest.mark.long
def test_fixed_tests_have_the_power_that_was_calculated(cells: list[dict[str, Any]]) -> None:
    runs = detect.QUICK.checks
    for cell in cells:
        for test, found in cell["fixed"].items():
            power = found["measured_at_n50"]
            print(page.where(cell), test, power)
            # a normal law is taken for a skewed one: near one half is what is claimed, PIT at least
            worst = 0.05 if test == "chi-square" else 0.2
            hits = round(power * runs)
            assert stats.binomtest(hits, runs, worst, alternative="less").pvalue > LUCK


def test_ours_can_be_measured_anew_beside_incumbents_as_they_were(
    few: list[dict[str, Any]],
) -> None:
    grid = replace(
        detect.QUICK, vocabularies=(32,), names=("accept-all", "resample-from-p"), runs=9
    )
    before = {"cells": json.loads(json.dumps(few)), "designs": []}
    for cell in before["cells"]:
        cell["e_process"] = {"median": None, "q90": None}
        cell["equal_rate"] |= {"e_process": None, "e_process_at_least": None}
    with patch.object(detect, "DESIGNS", ()):
        found = detect.renewed(before, grid)["cells"]
    for cell, old in zip(found, few, strict=True):
        assert cell["equal_rate"]["incumbents"] == old["equal_rate"]["incumbents"]
        assert cell["fixed"] == old["fixed"]
        # nine runs against twenty
        assert 0.4 < cell["e_process"]["median"] / old["e_process"]["median"] < 2.5
        assert cell["equal_rate"]["e_process"] < cell["e_process"]["median"]
        assert cell["equal_rate"]["e_process_at_least"] is not None


def test_a_cell_takes_the_place_of_what_was_not_run() -> None:
    cells = [{"vocab": 32, "tokens": n, "seconds": s} for n, s in ((96, 1.0), (1000, None))]
    found = judging.with_cell(cells, {"vocab": 32, "tokens": 992, "seconds": 8.0}, 1000)
    assert [(r["tokens"], r["seconds"]) for r in found["cells"]] == [(96, 1.0), (992, 8.0)]
    assert found["exponents"]["tokens, V = 32"] == pytest.approx(np.log(8) / np.log(992 / 96))
    again = judging.with_cell(found["cells"], {"vocab": 32, "tokens": 992, "seconds": 7.0}, 1000)
    assert [r["seconds"] for r in again["cells"]] == [1.0, 7.0]


# --- the page -------------------------------------------------------------------------------------


def rows_of(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def test_the_page_is_a_valid_table_of_the_numbers(
    few: list[dict[str, Any]], tmp_path: Path
) -> None:
    grid = replace(detect.QUICK, names=("accept-all",), design_runs=2, exact_runs=4)
    everything = results(
        few,
        designs=[detect.published(grid, i) for i in range(len(DESIGNS))],
        judging={
            "cells": [*judging.cells([(32, 2000)], everything=True)],
            "exponents": {"tokens, V = 32": 1.0},
        },
        shares=[share.shares("reference", jobs=1)],
    )
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(everything, allow_nan=False))
    text = page.render(json.loads(path.read_text()))
    width = 0
    for before, line in zip(["", *text.splitlines()], text.splitlines(), strict=False):
        if line.startswith("|"):
            columns = line.count("|")
            assert columns == (columns if not before.startswith("|") else width), line
            width = columns
    found = list(rows_of(text))
    for cell in few:
        mine = [r for r in found if r[0] == cell["departure"]]
        assert any(page.times(cell["e_process"]["median"], cell["wald"]) in r for r in mine)
        assert any(page.number(cell["wald"]) in r for r in mine)
    for design in DESIGNS:
        assert f"**{design.name}.**" in text
    judged = everything["judging"]["cells"]
    assert judged[0]["findings"] > 0
    shares = everything["shares"][0]
    assert shares["starting"] > 0
    parts = shares["engine_seconds"] + shares["starting"]
    assert shares["wall"] == pytest.approx((1 + shares["overhead"]) * parts)


def test_the_page_names_what_is_not_ahead(few: list[dict[str, Any]]) -> None:
    worse = json.loads(json.dumps(few[0]))
    worse["equal_rate"]["e_process"] = worse["equal_rate"]["e_process_at_least"] = None
    worse["e_process"]["median"] = 3 * worse["wald"]
    text = page.render(results([worse]))
    assert prose.BEHIND in text
    assert f"Beyond {page.WITHIN:g}×" in text
    assert text.count(page.where(worse)) == 2


# --- the parts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("vocab", "tv"), [(10, 0.05), (32, 0.25), (4096, 0.6)])
def test_a_pair_has_the_distance_asked_for(vocab: int, tv: float) -> None:
    pair = make_pair(vocab, tv)
    assert total_variation(pair.p, pair.q) == pytest.approx(tv, rel=1e-6)
    assert pair.p.sum() == pytest.approx(1)
    assert pair.p.min() > 0
    everything = {d.name: d for d in departures(pair)}
    assert set(rules()) < set(everything)
    everyone = everything["accept-all"]
    assert everyone.kl == pytest.approx(divergence(pair.q, pair.p))
    assert everyone.leans
    assert not everything["aside=0.05"].leans
    assert total_variation(everything["aside=0.05"].law, pair.p) == pytest.approx(0.05)


@pytest.mark.parametrize("vocab", [10, 32])
def test_an_exact_engine_is_not_rejected_more_often_than_the_level(vocab: int) -> None:
    pair, level, runs = make_pair(vocab, 0.25), 0.05, 400
    found = run_lengths(pair, pair.p, (level,), runs, np.random.default_rng(1), limit=4000)
    hits = int(np.isfinite(found[level].tokens).sum())
    assert stats.binomtest(hits, runs, level, alternative="greater").pvalue > LUCK


def test_a_token_that_p_cannot_emit_ends_a_run() -> None:
    pair = make_pair(32, 0.25)
    p = np.where(np.arange(32) == 5, 0.0, pair.p)
    wrong = 0.9 * p / p.sum() + 0.1 * (np.arange(32) == 5)
    holed = replace(pair, p=p / p.sum())
    found = run_lengths(holed, wrong, (1e-6,), 400, np.random.default_rng(2))[1e-6].tokens
    # the first strike is geometric with mean 10
    assert abs(found.mean() - 10) < 6 * np.sqrt(90 / 400)


def test_every_statistic_grows_with_the_departure() -> None:
    pair, rng = make_pair(32, 0.25), np.random.default_rng(3)
    for name, statistic in STATISTICS.items():
        medians = [
            float(np.median(statistic(draw_counts(20_000, law, pair.p, 200, rng), pair.p, rng)))
            for law in (pair.p, 0.7 * pair.p + 0.3 * pair.q, pair.q)
        ]
        assert medians == sorted(medians), name
        assert medians[0] < medians[2], name


def test_pearsons_statistic_is_scipys() -> None:
    rng = np.random.default_rng(4)
    p: Floats = np.full(8, 1 / 8)
    counts = rng.multinomial(200, p)
    x2, df = pooled_pearson(counts[None], p)
    assert df == 7
    assert x2[0] == pytest.approx(stats.chisquare(counts).statistic)


@pytest.mark.parametrize("design", DESIGNS, ids=lambda d: d.name)
def test_a_design_kills_a_draft_in_disguise_and_spares_the_exact_rule(design: Any) -> None:
    rng = np.random.default_rng(5)
    everything = rules()["accept-all"]
    assert all(design.rejects(design.pair(rng), everything, 1, rng) for _ in range(5))
    alarms = sum(design.rejects(design.pair(rng), EXACT, 1, rng) for _ in range(20))
    assert stats.binomtest(alarms, 20, 0.06, alternative="greater").pvalue > LUCK


def test_a_difference_of_divergences_is_held_to_its_limit() -> None:
    """Where every possible token is sampled, so that both divergences are finite."""
    design = next(d for d in DESIGNS if d.name.startswith("TensorRT-LLM"))
    rng = np.random.default_rng(6)
    pair, rule = design.pair(rng), rules()["resample-from-p"]
    assert divergence(pair.p, design.emitted(pair, rule)) > 0.02
    assert all(design.rejects(pair, rule, 1, rng) for _ in range(5))
    assert not any(design.rejects(pair, EXACT, 1, rng) for _ in range(5))


def test_the_discrepancy_is_unbiased() -> None:
    pair, rng = make_pair(32, 0.25), np.random.default_rng(7)
    for law in (pair.p, pair.q):
        found = hamming_mmd(draw_counts(300, law, pair.p, 4000, rng), pair.p, rng)
        error = found.std() / np.sqrt(len(found))
        assert abs(found.mean() - ((law - pair.p) ** 2).sum()) < 5 * error


def test_calculated_power_grows_with_tokens() -> None:
    pair = make_pair(32, 0.25)
    lenient = next(d for d in departures(pair) if d.name == "lenient")
    assert lenient.law == pytest.approx(emitted_law(pair.p, pair.q, rules()["lenient"]))
    for name, power in FIXED.items():
        found = [power(pair, lenient, 1e-6, n) for n in (1000, 8000, 64_000)]
        assert found == sorted(found), name
        assert found[-1] > 0.99, name
