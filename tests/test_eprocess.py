"""The e-process: is it one, is it additive, and how near to Wald's bound does it stop?"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from conformance.faults import parse_fault
from conformance.law import Floats, softmax
from conformance.reference import Rule, acceptance, emitted_law, residual
from conformance.statistics import eprocess
from conformance.statistics.alternatives import (
    DIRECTIONS,
    DRAFT_AWARE,
    FULL,
    NAMES,
    token_log_ratios,
)
from conformance.statistics.tables import Ints

ALPHA = 1e-6


def lenient(factor: float) -> Rule:
    return Rule("lenient", lambda p, q: np.minimum(1, p / (factor * q)), residual)


ACCEPT_ALL = Rule("accept-all", lambda p, q: np.ones_like(p), residual)
RESAMPLE = Rule("resample-from-p", acceptance, lambda p, q: p)


def every_token(p: Floats) -> tuple[Ints, Ints]:
    """Every token of every row once."""
    prefix, token = np.indices(p.shape).reshape(2, -1)
    return prefix, token


def ratios(p: Floats, q: Floats | None) -> Floats:
    """r / p for every cell and alternative. [u, V, C]"""
    return np.exp(token_log_ratios(*every_token(p), p, q)).reshape(*p.shape, -1)


def truncated(p: Floats, keep: int) -> Floats:
    cut = np.sort(p, axis=1)[:, [-keep]]
    p = np.where(p >= cut, p, 0.0)
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def a_pair(v: int, rows: int = 30, seed: int = 0) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(v, 0.5), rows), rng.dirichlet(np.full(v, 0.5), rows)


# --- every alternative is a law -------------------------------------------------------------------


@pytest.mark.parametrize("v", [2, 7, 64])
def test_every_alternative_sums_to_one(v: int) -> None:
    p, q = a_pair(v)
    one_hot = np.eye(v)[q.argmax(axis=1)]
    for draft in (q, p, one_hot, None):
        mean = np.einsum("uv,uvc->uc", p, ratios(p, draft))
        np.testing.assert_allclose(mean, 1, atol=1e-12)


@pytest.mark.parametrize("keep", [1, 3])
def test_where_the_law_is_truncated_no_alternative_promises_more_than_one(keep: int) -> None:
    """What a draft puts on impossible tokens is lost to the martingale, never gained."""
    p, q = a_pair(12)
    p = truncated(p, keep)
    r = ratios(p, q)
    assert np.isfinite(np.log(r)).all()
    mean = np.einsum("uv,uvc->uc", p, r)
    assert mean.max() <= 1 + 1e-12
    np.testing.assert_allclose(mean[:, NAMES.index("temperature 0.5")], 1, atol=1e-12)
    # a draft that is truncated alike loses nothing
    mean = np.einsum("uv,uvc->uc", p, ratios(p, np.where(p > 0, 0.5 * p + 0.5 / keep, 0.0)))
    full = [c for c, name in enumerate(NAMES) if "softmax" not in name]
    np.testing.assert_allclose(mean[:, full], 1, atol=1e-12)


def test_ratios_stay_finite_whatever_the_laws() -> None:
    p = np.array([[1.0, 0.0, 0.0], [1 - 1e-300, 1e-300, 5e-324], [0.5, 0.5, 0.0]])
    q = np.array([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    found = token_log_ratios(*every_token(p), p, q)
    assert np.isfinite(found).all()
    impossible = (p == 0).ravel()
    assert (found[impossible] == 0).all()
    assert (found[~impossible] != 0).any()


def named(p: Floats, rule: Rule, q: Floats, name: str) -> None:
    wanted = 1 + FULL * (emitted_law(p, q, rule) / p - 1)
    np.testing.assert_allclose(ratios(p, q)[..., NAMES.index(name)], wanted, rtol=1e-9)


def test_alternatives_are_the_laws_that_faults_emit() -> None:
    p, q = a_pair(9)
    for rule, name in (
        (ACCEPT_ALL, "draft leak"),
        (lenient(0.9), "lenient 0.9"),
        (lenient(0.5), "lenient 0.5"),
        (RESAMPLE, "resample-from-p"),
    ):
        named(p, rule, q, name)
    soft = Rule("soft", acceptance, lambda p, q: softmax(np.maximum(p - q, 0)))
    named(p, soft, q, "softmax residual")
    bold = Rule("bold", lambda p, q: np.where(p >= 0.3, 1.0, acceptance(p, q)), residual)
    named(p, bold, q, "accept where p >= 0.3")


@pytest.mark.parametrize("v", [9, 40])
def test_one_alternative_is_the_relaxed_rule_of_the_catalogue(v: int) -> None:
    """Which accepts the ten likeliest, or all where there are fewer."""
    p, q = a_pair(v)
    _, relaxed = parse_fault("relaxed=1")
    assert relaxed is not None
    named(p, relaxed, q, "accept the 10 likeliest")


def test_alternatives_about_how_proposals_are_drawn() -> None:
    p, q = a_pair(9)
    for drawn, raised, name in (
        (np.eye(9)[q.argmax(axis=1)], q, "argmax draft"),
        (q, np.sqrt(q), "draft declared flatter than drawn"),
        (q, q**2, "draft declared sharper than drawn"),
    ):
        declared = raised / raised.sum(axis=1, keepdims=True)
        kept = drawn * acceptance(p, declared)
        emitted = kept + (1 - kept.sum(axis=1, keepdims=True)) * residual(p, declared)
        wanted = 1 + FULL * (emitted / p - 1)
        np.testing.assert_allclose(ratios(p, q)[..., NAMES.index(name)], wanted, rtol=1e-9)


def test_alternatives_that_need_no_draft() -> None:
    p, _ = a_pair(9)
    for power, t in ((2.0, "0.5"), (1.125, "0.889"), (0.5, "2")):
        tempered = p**power / (p**power).sum(axis=1, keepdims=True)
        wanted = 1 + FULL * (tempered / p - 1)
        found = ratios(p, None)[..., NAMES.index(f"temperature {t}")]
        np.testing.assert_allclose(found, wanted, rtol=1e-9)
    cut = np.where(p >= 1e-2, p, 0) / np.where(p >= 1e-2, p, 0).sum(axis=1, keepdims=True)
    lost = ratios(p, None)[..., NAMES.index("nothing rarer than 0.01")]
    np.testing.assert_allclose(lost, 1 + FULL * (cut / p - 1), rtol=1e-9)


def test_without_a_draft_its_alternatives_are_the_law() -> None:
    p, _ = a_pair(9)
    needs = sum(len(d.strengths) for d in DIRECTIONS[:DRAFT_AWARE])
    r = ratios(p, None)
    assert (r[..., :needs] == 1).all()
    assert (r[..., needs:] != 1).any()


def test_from_token_probabilities_alone() -> None:
    p, q = a_pair(9)
    prefix, token = every_token(p)
    whole = eprocess.log_ratios(prefix, token, p, q)
    alone = eprocess.pointwise(p[prefix, token], q[prefix, token])
    leak = np.array([name.startswith("draft leak") for name in NAMES])
    np.testing.assert_allclose(alone[leak], whole[leak])
    assert (alone[~leak] == 0).all()


# --- the state ------------------------------------------------------------------------------------


def test_evidence_adds_up_in_any_order() -> None:
    rng = np.random.default_rng(1)
    p, q = a_pair(16)
    prefix, token = rng.integers(0, 30, 40_000), rng.integers(0, 16, 40_000)
    whole = eprocess.log_ratios(prefix, token, p, q)
    shuffled = np.array_split(rng.permutation(40_000), 7)
    parts = [eprocess.log_ratios(prefix[i], token[i], p, q) for i in shuffled]
    np.testing.assert_allclose(eprocess.merge(parts), whole, rtol=1e-9)
    np.testing.assert_allclose(eprocess.merge(reversed(parts)), whole, rtol=1e-9)
    assert (eprocess.merge([]) == 0).all()
    single = eprocess.log_ratios(prefix, token, p.astype(np.float32), q.astype(np.float32))
    np.testing.assert_allclose(single, whole, rtol=1e-3, atol=1e-6)


def test_the_mixture() -> None:
    sums = np.random.default_rng(2).standard_normal((5, len(NAMES)))
    w = eprocess.weights()
    assert w.sum() == pytest.approx(1)
    assert (w > 0).all()
    np.testing.assert_allclose(eprocess.log_e(sums), np.log(np.exp(sums) @ w))
    np.testing.assert_allclose(eprocess.posterior(sums[0]).sum(), 1)
    huge = np.zeros(len(NAMES))
    huge[3] = 5000.0
    assert eprocess.log_e(huge) == pytest.approx(5000 + np.log(w[3]))
    assert eprocess.names()[int(eprocess.posterior(huge).argmax())] == NAMES[3]
    assert eprocess.log_e(np.zeros(len(NAMES))) == pytest.approx(0)
    assert eprocess.combine(0.0, 0.0) == pytest.approx(0)
    assert eprocess.combine(700.0, 0.0) == pytest.approx(700 + np.log(0.8))
    assert eprocess.combine(0.0, 700.0) == pytest.approx(700 + np.log(0.2))
    assert eprocess.p_value(np.log(1e6)) == pytest.approx(1e-6)
    assert eprocess.p_value(-3.0) == 1


# --- Dirichlet alternatives -----------------------------------------------------------------------


def test_a_dirichlet_alternative_is_its_predictions_multiplied() -> None:
    rng = np.random.default_rng(3)
    p = a_pair(5, rows=3)[0]
    prefix, token = rng.integers(0, 3, 400), rng.integers(0, 5, 400)
    counts = np.zeros((3, 5), dtype=np.int64)
    log = np.zeros(len(eprocess.CONCENTRATIONS))
    for h, x in zip(prefix, token, strict=True):
        a = eprocess.CONCENTRATIONS
        log += np.log((a * p[h, x] + counts[h, x]) / (a + counts[h].sum()) / p[h, x])
        counts[h, x] += 1
    np.testing.assert_allclose(eprocess.dirichlet_log_ratios(counts, p), log, atol=1e-8)
    assert eprocess.dirichlet_log_e(counts, p) == pytest.approx(np.log(np.exp(log).mean()))
    rows = sum(eprocess.dirichlet_log_ratios(counts[[i]], p[[i]]) for i in range(3))
    np.testing.assert_allclose(rows, log, atol=1e-8)


def test_a_dirichlet_alternative_is_worth_one_on_average() -> None:
    """Over every outcome of six draws, weighted by its probability."""
    p = np.array([[0.6, 0.3, 0.1]])
    total = 0.0
    for string in np.indices((3,) * 6).reshape(6, -1).T:
        counts = np.bincount(string, minlength=3)[None]
        total += float(np.prod(p[0, string])) * np.exp(eprocess.dirichlet_log_e(counts, p))
    assert total == pytest.approx(1, abs=1e-12)


def test_impossible_tokens_and_empty_tables_are_worth_nothing() -> None:
    p = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    found = eprocess.dirichlet_log_ratios(np.array([[0, 0, 3], [0, 0, 0]]), p)
    np.testing.assert_allclose(found, 0)
    both = eprocess.dirichlet_log_ratios(np.array([[9, 2, 3], [4, 0, 0]]), p)
    one = eprocess.dirichlet_log_ratios(np.array([[9, 2, 0]]), p[:1])
    np.testing.assert_allclose(both, one, atol=1e-12)


def test_a_departure_that_no_tilt_points_to_is_seen_where_prefixes_repeat() -> None:
    """Neighbouring ids exchanged: nothing that p and q know of."""
    rng = np.random.default_rng(4)
    p, q = a_pair(8, rows=4)
    wrong = p + 0.15 * (p.reshape(4, 4, 2)[..., ::-1].reshape(4, 8) - p)
    counts = np.stack([rng.multinomial(4000, w) for w in wrong])
    seen = eprocess.dirichlet_log_e(counts, p)
    exact = eprocess.dirichlet_log_e(np.stack([rng.multinomial(4000, w) for w in p]), p)
    assert seen > np.log(1 / ALPHA) > 5 > exact
    assert eprocess.combine(0.0, seen) > np.log(1 / ALPHA)
    prefix, token = every_token(p)
    times = np.repeat(np.arange(32), counts.ravel())
    tilts = eprocess.log_e(eprocess.log_ratios(prefix[times], token[times], p, q))
    assert float(tilts) < seen


# --- how soon does it stop? -----------------------------------------------------------------------


def laws_apart(v: int, rows: int, shape: str, tv: float, rng: np.random.Generator) -> tuple[
    Floats, Floats
]:  # fmt: skip
    """Laws of about 2 nats, or zipf-like, and drafts at the mean total variation given."""
    z, w = rng.standard_normal((2, rows, v))
    if shape == "zipf":
        logits = -1.2 * np.log(rng.permuted(np.tile(np.arange(1.0, v + 1), (rows, 1)), axis=1))
    else:

        def entropy(scale: float) -> float:
            p = softmax(scale * z)
            return float(-(p * np.log(np.maximum(p, 1e-300))).sum(axis=1).mean())

        logits = z * optimize.brentq(lambda s: entropy(s) - 2, 0.05, 60)
    p = softmax(logits)

    def apart(scale: float) -> float:
        return float(np.abs(softmax(logits + scale * w) - p).sum(axis=1).mean() / 2)

    return p, softmax(logits + w * optimize.brentq(lambda s: apart(s) - tv, 0, 60))


def leak(eps: float) -> Rule:
    return Rule("leak", lambda p, q: eps + (1 - eps) * acceptance(p, q), residual)


FAULTS = {
    "lenient .9": lenient(0.9),
    "lenient .98": lenient(0.98),
    "resample-from-p": RESAMPLE,
    "leak .01": leak(0.01),
    "leak .05": leak(0.05),
    "leak .3": leak(0.3),
    "accept-all": ACCEPT_ALL,
}


def times_wald(
    p: Floats, q: Floats, rule: Rule, reps: int, rng: np.random.Generator, longest: float
) -> float | None:
    """Median number of tokens to a rejection at ALPHA, over log(1 / ALPHA) / KL; None if that is
    above `longest`.
    """
    r = np.maximum(emitted_law(p, q, rule), 0)
    gain = np.log(np.maximum(r, 1e-300) / np.maximum(p, 1e-300))
    wald = np.log(1 / ALPHA) / float((r * np.where(r > 0, gain, 0)).sum(axis=1).mean())
    if wald > longest:
        return None
    step = max(1, int(wald / 40))  # looks at most this far apart
    prefix, token = every_token(p)
    cells = r.ravel() / r.sum()
    sums, stop = np.zeros((reps, len(NAMES))), np.full(reps, np.inf)
    table = None if p.size > 10_000 else token_log_ratios(prefix, token, p, q)
    for n in range(step, int(10 * wald) + 2, step):
        if table is not None:
            sums += rng.multinomial(step, cells, size=reps) @ table
        else:
            at = rng.choice(len(cells), p=cells, size=reps * step)
            new = token_log_ratios(prefix[at], token[at], p, q)
            sums += new.reshape(reps, step, -1).sum(axis=1)
        stop[np.isinf(stop) & (eprocess.log_e(sums) >= np.log(1 / ALPHA))] = n
        if np.isfinite(stop).mean() > 0.5:
            break
    return float(np.median(stop) / wald)


@pytest.mark.parametrize("shape", ["random", "zipf"])
@pytest.mark.parametrize("tv", [0.05, 0.25, 0.6])
def test_it_stops_within_twice_walds_bound(shape: str, tv: float) -> None:
    rng = np.random.default_rng([5, int(100 * tv), len(shape)])
    p, q = laws_apart(32, 40, shape, tv, rng)
    found = {f: times_wald(p, q, rule, 100, rng, longest=1e8) for f, rule in FAULTS.items()}
    print(shape, tv, found)
    assert all(x is not None and x <= 2 for x in found.values()), found


@pytest.mark.long
@pytest.mark.parametrize("shape", ["random", "zipf"])
@pytest.mark.parametrize("tv", [0.05, 0.25, 0.6])
def test_it_stops_within_twice_walds_bound_at_32_000_tokens(shape: str, tv: float) -> None:
    rng = np.random.default_rng([6, int(100 * tv), len(shape)])
    p, q = laws_apart(32_000, 4, shape, tv, rng)
    found = {f: times_wald(p, q, rule, 40, rng, longest=1e4) for f, rule in FAULTS.items()}
    print(shape, tv, found)
    seen = [x for x in found.values() if x is not None]
    assert len(seen) >= 3
    assert max(seen) <= 2, found
