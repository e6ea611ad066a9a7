"""Bets on a law that is told: whoever has the law, within what is allowed, hardly ever wins."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from conformance.served.bets import LawBets, LawWatch
from conformance.served.bounds import Bounds
from conformance.served.server import CONTROL, END, SPECULATIVE

LAW = np.array([0.35, 0.25, 0.15, 0.1, 0.05, 0.1])  # the last is the rest
RUNS, ANSWERS = 300, 240


class Told:
    """Nodes of a single prompt."""

    def __init__(self, low=LAW, high=LAW, noise=0.0):
        law = Bounds(np.arange(5), np.asarray(low), np.asarray(high))
        self.laws = {(0, ()): law, (0, (0,)): law}
        self.expected = dict.fromkeys(self.laws, 100.0)
        self.noise, self.furthest = noise, 4 * noise


def drawn(rng, law, n=ANSWERS):
    return rng.choice(6, (n, 2), p=law / law.sum()).tolist()


def largest(nodes, answers, every=20):
    bets, most = LawBets(nodes), 0.0
    for i, answer in enumerate(answers):
        bets.add(0, answer)
        if i % every == every - 1:
            most = max(most, bets.log_e)
    return max(most, bets.log_e)


@pytest.mark.parametrize("case", ["exact", "corner", "noise"])
def test_the_bet_is_seldom_won_against_the_law(case):
    rng = np.random.default_rng(0)
    low, high, noise = LAW, LAW, 0.0
    if case == "corner":
        low, high = LAW * [0.8, 1, 1, 0.5, 0, 0.9], LAW * [1.2, 1, 1, 1.5, 2, 1.1]
    if case == "noise":
        noise = 0.15
    nodes, logs = Told(low, high, noise), []
    for _ in range(RUNS):
        law = np.where([1, 0, 0, 1, 1, 0], high, low) if case == "corner" else LAW
        if noise:  # half of what is allowed, as where `SAFETY` is 2
            law = LAW * np.exp(rng.normal(0, noise / 2, 6))
        logs.append(largest(nodes, drawn(rng, law)))
    for level in (0.2, 0.05):
        won = int((np.array(logs) >= -np.log(level)).sum())
        assert won <= stats.binom.isf(1e-4, RUNS, level), (level, won)


def test_it_is_won_against_another_law_and_less_so_where_the_law_is_less_known():
    rng = np.random.default_rng(1)
    sharp = LAW**1.6 / (LAW**1.6).sum()
    answers = drawn(rng, sharp, 1500)
    known = largest(Told(), answers, 500)
    wide = largest(Told(LAW * 0.9, LAW * 1.1), answers, 500)
    noisy = largest(Told(noise=0.1), answers, 500)
    assert known > 20
    assert wide < known
    assert noisy < known
    # nobody wins by what the bounds allow
    assert largest(Told(LAW * 0.3, LAW * 3), answers, 500) < 3


def test_what_is_not_at_a_known_node_is_not_bet_on():
    bets = LawBets(Told())
    bets.add(1, [0, 1])
    bets.add(0, [END])
    assert bets.log_e == pytest.approx(0.0, abs=1e-9)
    bets.add(0, [1, 3])  # the second is at a node that is not known
    assert bets._places.keys() == {(0, ())}


def test_a_token_that_the_law_excludes_pays_nothing():
    law = np.append(LAW[:-1], 0.0)
    bets = LawBets(Told(law, law))
    for _ in range(50):
        bets.add(0, [7])
    assert bets.log_e == pytest.approx(0.0, abs=1e-9)


def test_it_stops_nothing_where_the_control_arm_departs_as_well():
    rng = np.random.default_rng(2)
    sharp = drawn(rng, LAW**2, 800)
    watch, both = LawWatch(Told(), 1e-6), LawWatch(Told(), 1e-6)
    for a, plain in zip(sharp, drawn(rng, LAW, 800), strict=True):
        watch.add(SPECULATIVE, 0, a)
        watch.add(CONTROL, 0, plain)
        both.add(SPECULATIVE, 0, a)
        both.add(CONTROL, 0, a)
    assert watch.settled()
    assert not both.settled()
