"""Is what is wrong caught? The kill matrix, and whether a certificate keeps its word.

The standard profile's own number of requests, the default alpha, and the levels of a real run of
the default decodings: what a user gets, not what would be convenient.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import in_process
import numpy as np
import pytest
from scipy import stats

from conformance.adapters.reference import ReferenceEngine, faulty
from conformance.decoding import DEFAULT_DECODINGS, Decoding
from conformance.diagnosis import diagnose
from conformance.faults import FAULTS
from conformance.judge import ArmJudge
from conformance.law import Floats
from conformance.plan import PROFILES, Case, RunPlan, forecast, make_plan
from conformance.reference import draw
from conformance.statistics import certificate, exact
from conformance.statistics.leak import detectable, leak
from conformance.statistics.tables import Table, pooled_cells
from conformance.verdict import Finding

LUCK = 1e-6  # simulations below fail by bad luck less often than this
SAMPLED = tuple(d for d in DEFAULT_DECODINGS if not d.greedy)
ALWAYS_KILLED = ("accept-all", "resample-from-p")
# small departures: killed wherever they lean to the draft by more than what a pass rules out
IF_PROMISED = ("lenient=0.9", "lenient=0.95")


@cache
def plan_of(profile: str) -> RunPlan:
    """What ``conformance run reference`` plans."""
    asked = in_process.cases("worked-example", [Decoding()])
    asked += in_process.cases("mid", DEFAULT_DECODINGS)
    return make_plan(asked, PROFILES[profile], seed=0)


def case_of(plan: RunPlan, decoding: Decoding) -> Case:
    return next(c for c in plan.cases if c.probe == "mid" and c.decoding == decoding)


@dataclass(frozen=True, slots=True)
class Judged:
    """The speculative arm of one run."""

    findings: list[Finding]
    diagnosis: str

    @property
    def rejected(self) -> list[Finding]:
        return [f for f in self.findings if f.rejected]


def judge(engine: ReferenceEngine, profile: str, decoding: Decoding, seed: int) -> Judged:
    plan = in_process.with_seed(plan_of(profile), seed)
    case = case_of(plan, decoding)
    evidence = in_process.gather_runs(engine, case, "speculative", [plan])[0]
    arm = ArmJudge(plan, case, "speculative", evidence)
    findings = arm.findings()
    cause = diagnose(arm, evidence) if any(f.rejected for f in findings) else ""
    return Judged(findings, cause)


# --- the kill matrix ------------------------------------------------------------------------------


def matrix(faults: tuple[str, ...], repetitions: int) -> list[dict[str, Any]]:
    rows = []
    for name in faults:
        for decoding in SAMPLED:
            runs = [judge(faulty(name), "standard", decoding, 100 + r) for r in range(repetitions)]
            killed = sum(bool(run.rejected) for run in runs)
            right = sum(
                run.diagnosis.startswith(f"Likely cause: {name.partition('=')[0]} ") for run in runs
            )
            by: dict[str, int] = {}
            for test in {f.test for run in runs for f in run.findings}:
                by[test] = sum(any(f.test == test for f in run.rejected) for run in runs)
            leaks = [f for run in runs for f in run.findings if f.test == "draft leak"]
            leaked = float(np.mean([f.effect["leak"].estimate for f in leaks]))
            certified = max(float(f.detectable or np.inf) for f in leaks)
            low, high = in_process.clopper_pearson(killed, repetitions)
            rows.append(
                {
                    "fault": name, "decoding": str(decoding), "runs": repetitions,
                    "killed": killed, "interval_95": (low, high), "named": right, "by_test": by,
                    "leak": leaked, "certified_leak": certified,
                }
            )  # fmt: skip
            print(
                f"{name:16} {decoding!s:26} killed {killed}/{repetitions} named {right} "
                f"leak {leaked:.3f} (certified {certified:.3f}) {by}"
            )
    return rows


def check(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        promised = row["fault"] in ALWAYS_KILLED or row["leak"] > row["certified_leak"]
        if promised:
            assert row["killed"] == row["runs"], row
        # whatever is killed is called by its name
        assert row["named"] >= 0.9 * row["killed"], row


def test_every_promised_fault_is_killed_and_named() -> None:
    rows = matrix((*ALWAYS_KILLED, "lenient=0.9"), repetitions=1)
    in_process.write_table("kill_matrix", rows)
    assert {row["fault"].partition("=")[0] for row in rows} == set(FAULTS)
    check(rows)
    assert sum(row["killed"] for row in rows if row["fault"] == "lenient=0.9") > 0


@pytest.mark.long
def test_kill_matrix() -> None:
    rows = matrix(ALWAYS_KILLED + IF_PROMISED, repetitions=20)
    in_process.write_table("kill_matrix_long", rows)
    check(rows)


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
    none = np.zeros((len(work.prompts), 0), np.int64)
    laws = case.oracle.target_laws(work.prompt_array, none).probs
    total = np.full(len(laws), work.requests // len(laws))
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
    judged = judge(ReferenceEngine(), "smoke", decoding, seed=7)
    assert not judged.rejected
    got = {(f.test, f.scope): f.detectable for f in judged.findings}
    assert got["chi-square", "output index 0"] == pytest.approx(expected.first_token_tv, rel=0.1)
    assert got["draft leak", "all tokens"] == pytest.approx(expected.leak, rel=0.1)
    assert got["PIT by p", "all tokens"] == pytest.approx(expected.rank_shift, rel=0.1)
