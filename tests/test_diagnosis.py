"""Diagnosis: is the fault that was run the one that is named, and is its place told rightly?"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy import stats

from conformance.adapters.reference import ReferenceEngine, faulty
from conformance.contract import Request
from conformance.decoding import Decoding
from conformance.diagnosis import CONVINCING, EXACT_NAME, Diagnosis, explain
from conformance.diagnosis.candidates import applicable, sized, verified_tokens
from conformance.diagnosis.cells import BONUS_TOKEN, CELLS, EVENTS, IMPOSSIBLE, Counts, count
from conformance.diagnosis.place import in_words, strata
from conformance.diagnosis.score import odds_in_words, polya, predicted, two_samples
from conformance.evidence import Evidence, first_requests
from conformance.faults import FAULTS
from conformance.plan import Case
from conformance.stacked import stack_rounds
from conformance.tinylm import Tokens
from conformance.workload import sampled_prompts

PLAIN = Decoding()
N = 1200


@cache
def case(decoding: Decoding = PLAIN, **claims: object) -> Case:
    engine = ReferenceEngine()
    capabilities = replace(engine.capabilities, **claims) if claims else engine.capabilities
    return Case("reference", "mid", decoding, engine.card, capabilities)


@cache
def prompts(decoding: Decoding = PLAIN) -> Tokens:
    return sampled_prompts(case(decoding).oracle, seed=0)


def evidence(engine: ReferenceEngine, n: int = N, decoding: Decoding = PLAIN) -> Evidence:
    given = prompts(decoding)
    engine.load(case(decoding).oracle.probe.pair)
    seeds = np.random.default_rng(3).choice(2**31, n, replace=False)
    which = np.arange(n) % len(given)
    asked = [
        Request(tuple(given[p].tolist()), 8, decoding, int(s))
        for p, s in zip(which, seeds, strict=True)
    ]
    done = engine.generate(asked)
    return Evidence(
        tokens=np.array([c.tokens for c in done]),
        prompt=which,
        seeds=seeds,
        rounds=stack_rounds([c.rounds for c in done]),
        seconds=0.0,
        planned=n,
    )


def diagnosed(text: str) -> Diagnosis:
    return explain(case(), prompts(), evidence(faulty(text)), seed=1)


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("resample-from-p", "at recovered tokens"),
        pytest.param("bonus-greedy", "at bonus tokens", marks=pytest.mark.long),
        pytest.param("same-stream", "", marks=pytest.mark.long),
        pytest.param("stale-cache", "at recovered tokens", marks=pytest.mark.long),
        pytest.param("first-unverified", "at accepted tokens", marks=pytest.mark.long),
        pytest.param("accept-late", "output index", marks=pytest.mark.long),
    ],
)
def test_a_fault_is_named_and_placed(fault: str, place: str) -> None:
    found = diagnosed(fault)
    says = str(found)
    assert found.ranked[0] == fault, says
    assert says.startswith(f"Likely cause: {fault} ({FAULTS[fault].summary}")
    assert found.scores[fault] - found.scores[EXACT_NAME] > 10 * CONVINCING
    assert found.fits > 1e-4
    assert "and it fits." in says
    assert place in says


@pytest.mark.long
def test_the_size_of_a_fault_is_found_too() -> None:
    found = diagnosed("lenient=0.7")
    assert found.ranked[0] == "lenient"
    assert found.faults["lenient"].parameter in (0.6, 0.7, 0.8)
    assert "of about 0." in str(found)


def test_nothing_is_blamed_on_an_exact_engine() -> None:
    found = explain(case(), prompts(), evidence(ReferenceEngine()), seed=1)
    assert "No fault in the catalogue explains it." in str(found)


def test_a_departure_that_is_in_no_catalogue_fits_nothing() -> None:
    """Every third token is any token of the vocabulary."""
    made = evidence(ReferenceEngine())
    tokens = made.tokens.copy()
    tokens[:, ::3] = np.random.default_rng(2).integers(0, 32, size=tokens[:, ::3].shape)
    found = explain(case(), prompts(), replace(made, tokens=tokens), seed=1)
    assert found.fits < 1e-4
    assert str(found).startswith("No fault in the catalogue fits; nearest is ")
    assert "Likely cause" not in str(found)


@pytest.mark.long
def test_without_rounds_a_fault_can_still_be_named() -> None:
    made = replace(evidence(faulty("accept-all")), rounds=None)
    found = explain(case(), prompts(), made, seed=1)
    assert "accept-all" in found.alike
    assert "accepted" not in found.place


def test_another_kind_of_draft_is_told_the_place_alone() -> None:
    made = evidence(faulty("boundary-repeated"))
    found = explain(case(draft="early-exit"), prompts(), made, seed=1)
    assert found.scores == {}
    assert "Likely cause" not in str(found)
    assert "output index" in str(found)


def test_little_evidence_and_none() -> None:
    made = evidence(faulty("accept-all"), n=40)
    assert "accept-all" in explain(case(), prompts(), made, seed=1).alike
    assert str(explain(case(), prompts(), first_requests(made, 0), seed=1)) == ""


# --- parts ----------------------------------------------------------------------------------------


def test_faults_are_tried_only_where_they_change_anything() -> None:
    names = {f.name for f in FAULTS.values() if applicable(f, PLAIN)}
    assert "raw-q" not in names
    assert "temperature-ignored" not in names
    assert "length-leak" not in names
    assert "accept-all" in names
    warm, cut = Decoding(temperature=0.7), Decoding(top_k=8)
    assert applicable(FAULTS["temperature-ignored"], warm)
    assert not applicable(FAULTS["temperature-ignored"], cut)
    assert applicable(FAULTS["raw-q"], cut)
    assert not applicable(FAULTS["lenient"], Decoding(greedy=True))


def test_the_size_is_that_which_explains_verified_tokens_best() -> None:
    made = evidence(faulty("strict=0.5"))
    sample = case().oracle.sample(prompts(), made.prompt, made.tokens)
    verified = verified_tokens(sample, made)
    assert sized(FAULTS["strict"], sample, verified).parameter in (0.3, 0.5, 0.6)
    # what has no rule to compute keeps its size; what its own size does not show is enlarged
    assert sized(FAULTS["stale-cache"], sample, verified).parameter == 1
    assert sized(FAULTS["tail-lost"], sample, verified).parameter == 0.005


def counts(made: Evidence, most: int = N) -> Counts:
    return count(case().oracle, prompts(), made, most, np.random.default_rng(0))


def test_every_token_is_counted_once() -> None:
    made = evidence(ReferenceEngine(), n=200)
    got = counts(made)
    assert got.cells.shape == (len(EVENTS), 8, CELLS)
    assert got.cells.sum() == got.index.sum() == got.prompts.sum()
    assert got.cells.sum() <= made.tokens.size
    assert got.cells[..., IMPOSSIBLE:].sum() == 0
    assert got.links["given before"].sum() == 200


def test_an_answer_given_too_often_is_not_counted_again() -> None:
    made = evidence(faulty("same-stream"), n=200)
    few, all_of_them = counts(made, most=3), counts(made)
    assert few.cells.sum() == pytest.approx(all_of_them.cells.sum() * 6 / 200)
    assert few.links["given before"].tolist() == [2, 198]


def test_ids_outside_the_vocabulary_and_impossible_tokens_have_cells() -> None:
    made = evidence(ReferenceEngine(), n=50)
    tokens = made.tokens.copy()
    tokens[0, 3], tokens[1, 0] = 99, -5
    got = counts(replace(made, tokens=tokens))
    assert got.cells[..., IMPOSSIBLE + 1].sum() == 2
    says = in_words(got, None)
    assert "2 tokens could not have been emitted" in says


def test_polya_is_a_law() -> None:
    """Over all ways to throw four tokens into three cells it sums to one."""
    alpha = np.array([0.7, 2.0, 5.5])
    total = 0.0
    for a in range(5):
        for b in range(5 - a):
            c = np.array([a, b, 4 - a - b])
            total += np.exp(polya(c, alpha) + stats.multinomial.logpmf(c, 4, [1 / 3] * 3)) * 3**4
    assert total == pytest.approx(1)


def test_a_row_that_is_as_it_should_be_borrows_from_the_exact_engine() -> None:
    rng = np.random.default_rng(0)
    law = rng.dirichlet(np.ones(20))
    exact, same = rng.multinomial(50_000, law), rng.multinomial(500, law)
    other = rng.multinomial(500, rng.dirichlet(np.ones(20)))
    for simulated, near in ((same, True), (other, False)):
        alpha = predicted(simulated[None], exact[None])[0]
        error = np.abs(alpha / alpha.sum() - law).sum()
        assert (error < 0.03) == near
        own = np.abs(alpha / alpha.sum() - simulated / 500).sum()
        assert near or own < 0.1


def test_two_samples_are_held_to_be_of_one_law_as_often_as_they_should() -> None:
    rng = np.random.default_rng(1)
    law = rng.dirichlet(np.full(30, 0.5))
    p = []
    for _ in range(400):
        found, df = two_samples(rng.multinomial(300, law), rng.multinomial(900, law))
        p.append(stats.chi2.sf(found, df))
    assert stats.kstest(p, "uniform").pvalue > 1e-6
    assert two_samples(np.array([3, 1]), np.array([50, 50])) == (0.0, 0)
    assert two_samples(np.array([50, 0]), np.array([0, 50]))[0] > 50


def test_strata_are_those_with_tokens() -> None:
    made = counts(evidence(ReferenceEngine()))
    found = strata(made, made)
    assert {s.kind for s in found} == {"event", "block position", "output index", "prompt"}
    assert all(s.p_value > 0.999 for s in found if s.kind == "event")
    assert EVENTS[BONUS_TOKEN] in {s.name for s in found}
    assert "unlabelled" not in {s.name for s in found}


def test_odds_are_readable() -> None:
    assert odds_in_words(np.log(1e7)) == "10^7 to 1"
    assert odds_in_words(np.log(30)) == "30 to 1"
    assert Diagnosis({}, {}, 1.0, "").__str__() == ""
