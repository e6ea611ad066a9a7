"""The laws that are benchmarked: pairs (p, q) of a known distance, and what faults emit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import optimize

from conformance.faults import parse_fault, rule_faults
from conformance.law import Floats
from conformance.reference import Rule, emitted_law

DECAY = 1.3  # target probabilities fall like rank ** -DECAY, as those of language models do
SMALL = ("lenient=0.95", "lenient=0.98")
LEAKS = (0.1, 0.03)
HOT = 1.1
LEANING = np.sqrt(0.5)  # cosine between departure and draft, both as steps from p
ASIDE = 0.05  # total variation of the departure that looks neither to the draft nor to p


@dataclass(frozen=True, slots=True)
class Pair:
    """A target law and a draft law.

    Parameters
    ----------
    p, q : (V,) float64
        Target and draft laws; neither has a zero.
    tv : float
        Their total variation.
    """

    p: Floats
    q: Floats
    tv: float

    @property
    def vocab(self) -> int:
        return len(self.p)

    @property
    def label(self) -> str:
        return f"V = {self.vocab:,}, TV = {self.tv:g}"


@dataclass(frozen=True, slots=True)
class Departure:
    """A law that is emitted instead of p.

    Parameters
    ----------
    name : str
        As in the catalogue, or a plain description.
    law : (V,) float64
        What is emitted.
    kl : float
        Kullback-Leibler divergence from p, in nats a token; infinite if p cannot emit it.
    leans : bool
        Whether more than half of its chi-square distance from p lies in the direction of q.
    """

    name: str
    law: Floats
    kl: float
    leans: bool

    def wald(self, alpha: float) -> float:
        """Tokens that any test of level alpha needs on average (Wald 1945): log(1/alpha) / KL."""
        return float(np.log(1 / alpha) / self.kl)


def softmax(logits: Floats) -> Floats:
    """[..., V] -> [..., V]"""
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def total_variation(a: Floats, b: Floats) -> float:
    """Half of the L1 distance."""
    return float(0.5 * np.abs(a - b).sum())


def divergence(a: Floats, b: Floats) -> float:
    """KL(a || b) in nats."""
    on = a > 0
    if (b[on] == 0).any():
        return float("inf")
    return float((a[on] * np.log(a[on] / b[on])).sum())


def make_pair(vocab: int, tv: float, seed: int = 0) -> Pair:
    """A heavy-tailed target, and the same with logit noise of just the size that gives tv."""
    rng = np.random.default_rng([seed, vocab])
    logits = -DECAY * np.log(np.arange(1, vocab + 1)) + 0.5 * rng.standard_normal(vocab)
    noise = rng.standard_normal(vocab)
    p = softmax(logits)

    def excess(size: float) -> float:
        return total_variation(softmax(logits + size * noise), p) - tv

    high = 1.0
    while excess(high) < 0:
        high *= 2
    return Pair(p, softmax(logits + optimize.brentq(excess, 0.0, high, xtol=1e-12) * noise), tv)


def rules() -> dict[str, Rule]:
    """Every rule fault of the catalogue at its default, and small ones."""
    found = rule_faults()
    for name in SMALL:
        rule = parse_fault(name)[1]
        assert rule is not None
        found[name] = rule
    return found


def departures(pair: Pair, seed: int = 0) -> list[Departure]:
    """What rules emit, leaks, and two departures that have nothing to do with the draft."""
    p, q = pair.p, pair.q
    laws = {name: emitted_law(p, q, rule) for name, rule in rules().items()}
    laws |= {f"leak={eps:g}": (1 - eps) * p + eps * q for eps in LEAKS}
    laws[f"temperature={HOT:g}"] = softmax(np.log(p) / HOT)
    laws[f"aside={ASIDE:g}"] = _aside(p, seed)
    return [describe(name, law, pair) for name, law in laws.items()]


def describe(name: str, law: Floats, pair: Pair) -> Departure:
    """Work out what a law's departure from p looks like."""
    on = pair.p > 0
    root = np.sqrt(pair.p[on])
    step, lean = (law - pair.p)[on] / root, (pair.q - pair.p)[on] / root
    size = float(np.linalg.norm(step) * np.linalg.norm(lean))
    cosine = float(step @ lean) / size if size else 0.0
    return Departure(name, law, divergence(law, pair.p), bool(cosine > LEANING))


def _aside(p: Floats, seed: int) -> Floats:
    """Mass ASIDE moved between halves of the vocabulary that are drawn without regard to q."""
    rng = np.random.default_rng([seed, len(p), 1])
    into = rng.random(len(p)) < 0.5
    inside = p[into].sum()
    return np.asarray(p * np.where(into, 1 + ASIDE / inside, 1 - ASIDE / (1 - inside)))
