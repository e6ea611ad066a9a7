"""Faults of the catalogue hidden behind the interface of a server: none of their laws is used."""

from __future__ import annotations

import numpy as np
import pytest
from hidden import Hidden, only, planned, texts
from scipy import stats

from conformance.adapters.reference import faulty, reference
from conformance.decoding import Decoding
from conformance.plan import PROFILES
from conformance.probes import load_probe
from conformance.served.decide import decide
from conformance.served.gather import gather
from conformance.served.plan import OPENINGS, requests_needed
from conformance.statistics import certificate
from conformance.statistics.tree import compared
from conformance.verdict import Verdict

pytestmark = pytest.mark.engines

WARM = Decoding(temperature=0.8)


@pytest.fixture
def judge(probe_cache, tmp_path):
    probe, prompts = load_probe("mid", probe_cache), texts(8, 32)

    def run(engine, profile, decoding=WARM, **plan):
        asked = planned(prompts, decoding, profile, **plan)
        source = Hidden(engine, probe.pair, prompts)
        folder = tmp_path / str(asked.seed)
        gathered = gather(asked, only(asked), folder, source=source)
        assert gathered.error is None, gathered.error
        return decide(asked, gathered)

    return run


def test_the_reference_is_exact_and_accepting_everything_is_not(judge):
    assert judge(reference(), "smoke").verdict.verdict is Verdict.EXACT
    found = judge(faulty("accept-all"), "smoke", seed=1)
    assert found.verdict.verdict is Verdict.NOT_EXACT
    assert found.arms[0].requests < found.arms[0].planned


def test_a_server_that_makes_its_counts_up_is_believed(judge):
    """A limit of this tier: without a draft's law, nothing shows that counted drafts were real."""
    assert judge(faulty("disabled"), "smoke").verdict.verdict is Verdict.EXACT


@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    [
        "accept-all",
        "lenient=0.8",
        "threshold",
        "resample-from-p",
        "argmax-recovered",
        "temperature-ignored",
        "same-stream",
    ],
)
def test_faults_are_found_at_the_standard_profile(judge, fault):
    assert judge(faulty(fault), "standard").verdict.verdict is Verdict.NOT_EXACT


def test_the_number_of_requests_is_enough_for_any_model():
    """The worst case of the bound: as many cells as are ever used, all of them equally likely, and
    a departure of just the profile's size, spread over all of them.
    """
    rng, prompts, level = np.random.default_rng(0), 4, 6e-8
    profile = PROFILES["smoke"]
    n = requests_needed(level, profile, prompts) // prompts * prompts
    law = np.full(OPENINGS + 1, 1 / (OPENINGS + 1))
    sign = np.where(np.arange(OPENINGS) % 2, 1, -1)
    other = law + np.append(sign, 0) * 2 * profile.delta / OPENINGS
    assert 0.5 * np.abs(other - law).sum() == pytest.approx(profile.delta)
    caught, runs = 0, 100
    for _ in range(runs):
        prompt, first = np.arange(3 * n) % prompts, np.arange(3 * n) < n
        plain = rng.choice(OPENINGS + 1, 3 * n, p=law)
        symbols = np.where(first, rng.choice(OPENINGS + 1, 3 * n, p=other), plain)[:, None]
        cells = compared(symbols, prompt, first, rng, OPENINGS)
        caught += cells.chi_square().p_value <= level
        reached = certificate.chi_square_tv(
            level, profile.power, len(cells.z), int(cells.effective)
        )
        assert reached <= profile.delta
    assert stats.binom.cdf(caught, runs, profile.power) > 1e-3, caught
