"""Is what is wrong caught? The kill matrix, and whether a certificate keeps its word.

The standard profile's own number of requests, the default alpha, and the levels of a real run of
the default decodings: what a user gets, not what would be convenient.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

import in_process
import kill_matrix
import numpy as np
import pytest
from _pytest.mark import ParameterSet
from places import VERIFIER_ONLY, plan_of
from scipy import stats

from conformance.adapters.exact_rules import EXACT_RULES
from conformance.adapters.exact_rules import exact as exact_engine
from conformance.adapters.reference import ReferenceEngine
from conformance.decide import decide
from conformance.decoding import DEFAULT_DECODINGS, Decoding
from conformance.faults import FAULTS
from conformance.faults.around import AROUND
from conformance.faults.greedy import GREEDY
from conformance.faults.masks import MASKS
from conformance.faults.returned import RETURNED
from conformance.faults.strings import STRINGS
from conformance.faults.uneven import UNEVEN
from conformance.forecast import forecast
from conformance.gather import Gathered
from conformance.judge import ArmJudge
from conformance.law import Floats
from conformance.plan import Case, RunPlan
from conformance.reference import draw
from conformance.statistics import certificate, exact
from conformance.statistics.leak import detectable, leak
from conformance.statistics.tables import Table, pooled_cells
from conformance.verdict import Finding, Verdict

LUCK = 1e-6  # simulations below fail by bad luck less often than this
SAMPLED = tuple(d for d in DEFAULT_DECODINGS if not d.greedy)


def case_of(plan: RunPlan, decoding: Decoding) -> Case:
    return next(c for c in plan.cases if c.probe == "mid" and c.decoding == decoding)


def judge(engine: ReferenceEngine, profile: str, decoding: Decoding, seed: int) -> list[Finding]:
    """The speculative arm of one run."""
    plan = in_process.with_seed(plan_of(profile), seed)
    case = case_of(plan, decoding)
    evidence = in_process.gather_runs(engine, case, "speculative", [plan])[0]
    return ArmJudge(plan, case, "speculative", evidence).findings()


# --- the kill matrix ------------------------------------------------------------------------------

# What is wrong with these is not the law: rounds that were invented, answers of the wrong length.
OTHERWISE = {
    "disabled": Verdict.INCONCLUSIVE,
    "length-leak": Verdict.ERROR,
    "length-drop": Verdict.ERROR,
}


# A few kinds, for a run of half a minute; `make test-kills` runs all.
QUICK = {"lenient", "resample-from-p", "stale-cache", "neighbours-share", "length-leak"}
# The suite `law` does not ask what they do wrong; the suites that do have tests of their own.
ELSEWHERE = {f.name for f in (*AROUND, *GREEDY, *MASKS, *RETURNED, *STRINGS, *UNEVEN)}


def marked(names: Iterable[str], quick: Container[str]) -> list[ParameterSet]:
    return [pytest.param(n, marks=() if n in quick else pytest.mark.long) for n in names]


@pytest.mark.parametrize(
    "name", marked((n for n in FAULTS if n not in {*VERIFIER_ONLY, *ELSEWHERE}), QUICK)
)
def test_every_fault_is_killed(name: str) -> None:
    """At the size it has in the wild, or, where a whole engine cannot show that, where it shows."""
    fault = FAULTS[name]
    sized = name if fault.visible is None else f"{name}={fault.visible:g}"
    found = kill_matrix.one(kill_matrix.Task(sized, "standard", 77))
    assert found.verdict is OTHERWISE.get(name, Verdict.NOT_EXACT), found


@pytest.mark.long
@pytest.mark.parametrize("sized", ["low-precision-draw", "coarse-uniforms=6", "tail-lost"])
def test_what_an_engine_is_too_slow_to_show_the_verifier_shows(sized: str) -> None:
    found = kill_matrix.one_verifier(kill_matrix.Task(sized, "standard", 77))
    assert found.verdict is Verdict.NOT_EXACT, found


@pytest.mark.parametrize("name", marked(sorted(EXACT_RULES), {"block-verification"}))
def test_no_exact_rule_is_killed(name: str) -> None:
    """In every decoding, at the default alpha."""
    plan = plan_of("standard")
    for case in plan.cases:
        spec = in_process.gather_runs(exact_engine(name), case, "speculative", [plan])[0]
        arms = {"speculative": spec, "control": kill_matrix.control_of(plan, case)}
        result = decide(plan, Gathered(case, arms))
        assert result.verdict.verdict is Verdict.EXACT, (case.id, result.verdict.why, result.error)


# --- certificates kept ----------------------------------------------------------------------------


def moved(law: Floats, tv: float, into: np.ndarray) -> Floats:
    """Mass `tv` moved into some cells from the others, in proportion to what they have."""
    inside = law[into].sum()
    factor = np.where(into, 1 + tv / inside, 1 - tv / (1 - inside))
    return np.asarray(law * factor)


def halves(law: Floats) -> np.ndarray:
    """Cells that hold about half of the mass: the hardest departure of a given TV to see."""
    into, mass = np.zeros(len(law), dtype=bool), 0.0
    for x in np.argsort(-law):
        if mass + law[x] <= 0.52:
            into[x], mass = True, mass + law[x]
    return into


@pytest.mark.parametrize("profile", ["smoke", "standard"])
@pytest.mark.parametrize("decoding", SAMPLED, ids=str)
@pytest.mark.parametrize("test", ["chi-square", "KL"])
def test_a_departure_of_the_certified_size_is_caught(
    profile: str, decoding: Decoding, test: str
) -> None:
    """At the first token, in the direction that is hardest to see, with the stated probability."""
    plan = plan_of(profile)
    case, power = case_of(plan, decoding), plan.profile.power
    assert case.workload is not None
    work = case.workload
    prompts = work.repeated_prompts
    none = np.zeros((len(prompts), 0), np.int64)
    laws = case.oracle.target_laws(prompts, none).probs
    total = np.bincount(work.prompt_of)[: len(laws)]
    kept, row, cell = pooled_cells(total, laws)
    assert len(kept) == len(laws)
    # the cells of the table: explicit ones and one remainder a row
    pooled = [np.append(c := laws[r][cell[row == r]], 1 - c.sum()) for r in range(len(laws))]
    tv = certificate.chi_square_tv(plan.level, power, len(row), int(total.sum()))
    assert tv <= plan.profile.delta
    wrong = [moved(law, tv, halves(law)) for law in pooled]
    for law, other in zip(pooled, wrong, strict=True):
        assert other.min() >= 0
        assert 0.5 * np.abs(other - law).sum() == pytest.approx(tv)
    rng = np.random.default_rng(5)
    reps = 1000 if test == "chi-square" else 250
    fit = exact.chi_square if test == "chi-square" else exact.likelihood_ratio
    caught = 0
    for _ in range(reps):
        counts = [rng.multinomial(n, p)[:-1] for n, p in zip(total, wrong, strict=True)]
        prob = np.concatenate([p[:-1] for p in pooled])
        found = fit(Table(total, row, np.concatenate(counts), prob), rng)
        caught += found.p_value <= plan.level
    print(f"{profile} {decoding} {test}: TV {tv:.3f}, caught {caught / reps:.4f}, stated {power}")
    assert stats.binomtest(caught, reps, power, alternative="less").pvalue > LUCK


@pytest.mark.parametrize("tokens", [2700, 14_000])
@pytest.mark.parametrize("sharp", [0.5, 2.0])
def test_a_leak_of_the_certified_size_is_caught(tokens: int, sharp: float) -> None:
    rng = np.random.default_rng([tokens, int(10 * sharp)])
    level, power, reps = 1e-8, 0.99, 250
    p = rng.dirichlet(np.full(32, 1 / sharp), 300)
    q = 0.6 * p + 0.4 * rng.dirichlet(np.full(32, 1 / sharp), 300)
    prefix = rng.integers(0, 300, tokens)
    plain = leak(prefix, draw(p[prefix], rng.random(tokens)), p, q)
    assert plain is not None
    times = np.bincount(prefix, minlength=len(p))
    eps = detectable(times, p, q, level, power)
    assert eps is not None
    # the normal formula promises too much
    z = stats.norm.isf(level / 2) + stats.norm.isf(1 - power)
    naive = float(z / np.sqrt(plain.information))
    assert naive < eps < 2 * naive
    mixed = (1 - eps) * p + eps * q
    caught = 0
    for _ in range(reps):
        found = leak(prefix, draw(mixed[prefix], rng.random(tokens)), p, q)
        assert found is not None
        caught += found.p_value <= level
    print(f"leak {eps:.3f} ({naive:.3f}), {tokens} tokens: caught {caught / reps:.4f} of {power}")
    assert stats.binomtest(caught, reps, power, alternative="less").pvalue > LUCK


@pytest.mark.parametrize("decoding", SAMPLED, ids=str)
def test_what_is_forecast_is_what_a_pass_reports(decoding: Decoding) -> None:
    plan = plan_of("smoke")
    expected = forecast(case_of(plan, decoding), plan)
    findings = judge(ReferenceEngine(), "smoke", decoding, seed=7)
    assert not [f for f in findings if f.rejected]
    got = {(f.test, f.scope): f.detectable for f in findings}
    assert got["chi-square", "output index 0"] == pytest.approx(expected.first_token_tv, rel=0.1)
    assert got["draft leak", "all tokens"] == pytest.approx(expected.leak, rel=0.1)
    assert got["PIT by p", "all tokens"] == pytest.approx(expected.rank_shift, rel=0.1)
