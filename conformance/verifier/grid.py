"""The grid of laws every verifier is held to.

A law is made from its name and a seed alone, so that the process under test and the one that judges
it each make their own copy and exchange tokens only. Target and draft depend on the position in the
block, and most on the token before it, so that the laws of a neighbouring step are wrong ones.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from conformance.law import Floats
from conformance.reference import Ints
from conformance.verifier.contract import Dtype, VerifierCapabilities

SMALLEST = 1e-9  # probabilities below it are 0: every precision tells them from 0, or none has to
LARGE = 4096  # a vocabulary above it is too large to be pooled with others
Rng = np.random.Generator
Make = Callable[["Spec", Rng], tuple[Floats, Floats]]


@dataclass(frozen=True, slots=True)
class Spec:
    """How a law is made.

    Parameters
    ----------
    name : str
        Unique.
    vocab, block, contexts : int
        V, K, and C: the law at a position depends on the previous token modulo C.
    make : callable
        ``(spec, rng) -> (target [K + 1, C, V], draft [K, C, V])``, not yet normalised.
    certain : bool
        Whether the draft's laws are one-hot.
    given : bool
        False where a verifier gets None for them although it could be given them.
    batch : int
        Rows a call carries, where the verifier takes so many.
    share : float
        Blocks drawn from it, relative to other laws.
    dtype : str or None
        A precision that must be claimed; None for the verifier's own.
    """

    name: str
    vocab: int
    block: int
    contexts: int
    make: Make
    certain: bool = False
    given: bool = True
    batch: int = 256
    share: float = 1.0
    dtype: Dtype | None = None


@dataclass(frozen=True, slots=True)
class Law:
    """A law, ready to sample.

    Parameters
    ----------
    spec : Spec
        How it was made.
    target : (K + 1, C, V) float64
        p by position and context.
    draft : (K, C, V) float64
        q by position and context.
    """

    spec: Spec
    target: Floats
    draft: Floats

    def context(self, position: int, previous: Ints) -> Ints:
        """Which of the C laws holds at a position after these tokens; 0 at the first. [B]"""
        if position == 0:
            return np.zeros(len(previous), dtype=np.int64)
        return np.asarray(np.maximum(previous, 0) % self.spec.contexts)


@lru_cache(maxsize=64)  # all of one grid: some 20 MB
def make_law(name: str, seed: int) -> Law:
    """Make a law of the grid.

    Raises
    ------
    KeyError
        If the grid has no law of that name.
    """
    spec = BY_NAME[name]
    target, draft = spec.make(spec, np.random.default_rng([seed, zlib.crc32(name.encode())]))
    return Law(spec, _normalised(target), _normalised(draft))


def _normalised(weights: Floats) -> Floats:
    law = weights / weights.sum(axis=-1, keepdims=True)
    law = np.where(law < SMALLEST, 0.0, law)
    return np.asarray(law / law.sum(axis=-1, keepdims=True))


def is_given(spec: Spec, claims: VerifierCapabilities) -> bool:
    """Whether the verifier is given the draft's laws, or None for them."""
    return spec.given and claims.draft_probs


def refused(spec: Spec, claims: VerifierCapabilities) -> str | None:
    """What this law needs and the verifier does not claim, or None."""
    if spec.vocab > claims.max_vocab:
        return f"a vocabulary of {spec.vocab:,}"
    if spec.block > claims.max_block:
        return f"blocks of {spec.block}"
    if not spec.certain and not claims.draft_probs:
        return "draft laws that are not one-hot"
    if not is_given(spec, claims) and not claims.one_hot:
        return "None for the draft's laws"
    if spec.dtype is not None and spec.dtype not in claims.dtypes[1:]:
        return f"{spec.dtype} beside its own precision"
    return None


# --- makers ---------------------------------------------------------------------------------------


def _shape(spec: Spec) -> tuple[int, int, int]:
    return spec.block + 1, spec.contexts, spec.vocab


def _dirichlet(concentration: float) -> Make:
    def make(spec: Spec, rng: Rng) -> tuple[Floats, Floats]:
        p = rng.standard_gamma(concentration, _shape(spec)) + 1e-12
        q = rng.standard_gamma(concentration, _shape(spec)) + 1e-12
        return p, q[:-1]

    return make


def _near(noise: float, concentration: float = 1.0) -> Make:
    def make(spec: Spec, rng: Rng) -> tuple[Floats, Floats]:
        p = rng.standard_gamma(concentration, _shape(spec)) + 1e-12
        return p, (p * np.exp(noise * rng.standard_normal(p.shape)))[:-1]

    return make


def _twin(spec: Spec, rng: Rng) -> tuple[Floats, Floats]:
    p = rng.standard_gamma(1.0, _shape(spec)) + 1e-12
    return p, p[:-1].copy()


def _disjoint(spec: Spec, rng: Rng) -> tuple[Floats, Floats]:
    p, q = _dirichlet(1.0)(spec, rng)
    mine = np.arange(spec.vocab) % 2 == 0
    return p * mine, q * ~mine


def _zero_in_target(spec: Spec, rng: Rng) -> tuple[Floats, Floats]:
    p, q = _near(0.5)(spec, rng)
    return np.where(rng.random(p.shape) < 0.5, 0.0, p) + _one_hot(p.argmax(axis=-1), spec.vocab), q


def _zero_in_draft(spec: Spec, rng: Rng) -> tuple[Floats, Floats]:
    p, q = _near(0.5)(spec, rng)
    return p, np.where(rng.random(q.shape) < 0.5, 0.0, q) + _one_hot(q.argmax(axis=-1), spec.vocab)


def _one_hot(token: Ints, vocab: int) -> Floats:
    return np.asarray(np.eye(vocab)[token])


def _best_guess(spec: Spec, rng: Rng) -> tuple[Floats, Floats]:
    p = rng.standard_gamma(0.4, _shape(spec)) + 1e-12
    return p, _one_hot(p[:-1].argmax(axis=-1), spec.vocab)


def _poor_guess(spec: Spec, rng: Rng) -> tuple[Floats, Floats]:
    """Any token, sometimes one that the target never emits."""
    p = rng.standard_gamma(1.0, _shape(spec)) + 1e-12
    guess = rng.integers(0, spec.vocab, p[:-1].shape[:2])
    never = _one_hot(guess, spec.vocab) * (rng.random(guess.shape) < 0.3)[..., None]
    p[:-1] = np.where(never > 0, 0.0, p[:-1])
    return p, _one_hot(guess, spec.vocab)


def _sure_guess(spec: Spec, rng: Rng) -> tuple[Floats, Floats]:
    p = np.exp(3 * rng.standard_normal(_shape(spec)))
    return p, _one_hot(p[:-1].argmax(axis=-1), spec.vocab)


def _zipf_guess(spec: Spec, rng: Rng) -> tuple[Floats, Floats]:
    p = _zipf(spec, rng)[0]
    q = np.zeros_like(p[:-1])
    np.put_along_axis(q, p[:-1].argmax(axis=-1)[..., None], 1.0, axis=-1)
    return p, q


def _worked_example(spec: Spec, rng: Rng) -> tuple[Floats, Floats]:
    del rng
    return np.tile([0.3, 0.7], (spec.block + 1, 1, 1)), np.tile([0.6, 0.4], (spec.block, 1, 1))


def _ties(spec: Spec, rng: Rng) -> tuple[Floats, Floats]:
    levels = np.array([1.0, 2.0, 4.0])
    return rng.choice(levels, _shape(spec)), rng.choice(levels, _shape(spec))[:-1]


def _shifted(spec: Spec, rng: Rng) -> tuple[Floats, Floats]:
    """One pair of laws, turned by one token a position: a neighbour's law is quite another one."""
    steps = np.arange(spec.block + 1)[:, None] + 3 * np.arange(spec.contexts)
    turn = (np.arange(spec.vocab) - steps[..., None]) % spec.vocab
    p = rng.permutation(0.6 ** np.arange(spec.vocab))
    q = p * np.exp(0.7 * rng.standard_normal(spec.vocab))
    return p[turn], q[turn][:-1]


def _reversed(spec: Spec, rng: Rng) -> tuple[Floats, Floats]:
    p = rng.standard_gamma(1.0, _shape(spec)) + 1e-3
    return p, (1 / p)[:-1]


def _greedy_ish(spec: Spec, rng: Rng) -> tuple[Floats, Floats]:
    logits = 6 * rng.standard_normal(_shape(spec))
    return np.exp(logits), np.exp(0.9 * logits + 0.5 * rng.standard_normal(logits.shape))[:-1]


def _zipf(spec: Spec, rng: Rng) -> tuple[Floats, Floats]:
    """Frequencies as in text; the draft has them a little wrong, and truncates the tail."""
    rank = np.argsort(rng.random(_shape(spec)), axis=-1)
    p = 1.0 / (rank + 3.0)
    q = p * np.exp(0.5 * rng.standard_normal(p.shape)) * (rank < spec.vocab // 2)
    return np.asarray(p, dtype=np.float64), np.asarray(q[:-1], dtype=np.float64)


TAIL_TOKEN = 5.5e-8  # 2**-24 is 6e-8


def _deep_tail(spec: Spec, rng: Rng) -> tuple[Floats, Floats]:
    """A few likely tokens, and all others each below float16's smallest number and below the step
    of a float32 near 1; together they have almost a hundredth of the mass, and a rule that computes
    too coarsely never emits one of them.
    """
    head = rng.dirichlet(np.full(4, 20.0))
    p = np.full(_shape(spec), TAIL_TOKEN)
    p[..., : len(head)] = head * (1 - TAIL_TOKEN * (spec.vocab - len(head)))
    q = p.copy()
    q[..., : len(head)] = np.roll(p[..., : len(head)], 1, axis=-1)
    return p, q[:-1]


def _dyadic(spec: Spec, rng: Rng) -> tuple[Floats, Floats]:
    """Multiples of 1/256, which every precision holds exactly and whose sums are exactly 1."""

    def draw() -> Floats:
        flat = rng.multinomial(256, np.full(spec.vocab, 1 / spec.vocab), _shape(spec)[:2])
        return np.asarray(flat, dtype=np.float64)

    return draw(), draw()[:-1]


GRID: tuple[Spec, ...] = (
    Spec("worked-example", 2, 1, 1, _worked_example),
    Spec("coin", 2, 4, 2, _dirichlet(1.0)),
    Spec("random-8", 8, 4, 3, _dirichlet(1.0)),
    Spec("random-32", 32, 5, 3, _dirichlet(1.0)),
    Spec("peaked-32", 32, 4, 3, _dirichlet(0.1)),
    Spec("near-32", 32, 4, 3, _near(0.3)),
    Spec("near-peaked-32", 32, 6, 3, _near(0.6, 0.2)),
    Spec("twin-12", 12, 8, 2, _twin),
    Spec("disjoint-12", 12, 3, 2, _disjoint),
    Spec("zero-in-target-24", 24, 4, 3, _zero_in_target),
    Spec("zero-in-draft-24", 24, 4, 3, _zero_in_draft),
    Spec("ties-16", 16, 4, 3, _ties),
    Spec("shifted-10", 10, 5, 3, _shifted),
    Spec("reversed-16", 16, 3, 2, _reversed),
    Spec("greedy-ish-16", 16, 16, 2, _greedy_ish),
    Spec("long-6", 6, 16, 2, _near(0.15)),
    Spec("alone-8", 8, 3, 2, _dirichlet(1.0), batch=1, share=0.1),
    Spec("crowd-8", 8, 2, 2, _near(0.7), batch=2048),
    Spec("best-guess-16", 16, 5, 3, _best_guess, certain=True),
    Spec("poor-guess-8", 8, 3, 2, _poor_guess, certain=True),
    Spec("lookup-coin", 2, 1, 1, _best_guess, certain=True, given=False),
    Spec("lookup-16", 16, 6, 3, _best_guess, certain=True, given=False),
    Spec("lookup-poor-8", 8, 3, 2, _poor_guess, certain=True, given=False),
    Spec("lookup-long-12", 12, 16, 3, _sure_guess, certain=True, given=False),
    Spec("lookup-32000", 32_000, 2, 2, _zipf_guess, certain=True, given=False, share=0.05),
    Spec("flat-1000", 1000, 2, 2, _dirichlet(1.0), share=0.25),
    Spec("zipf-4096", 4096, 2, 2, _zipf, share=0.1),
    Spec("zipf-32000", 32_000, 2, 2, _zipf, share=0.05),
    Spec("zipf-150000", 150_000, 1, 1, _zipf, share=0.02),
    Spec("deep-tail-150000", 150_000, 1, 1, _deep_tail, share=0.25),
    Spec("float32-16", 16, 4, 2, _dyadic, dtype="float32"),
    Spec("bfloat16-16", 16, 4, 2, _dyadic, dtype="bfloat16"),
)
BY_NAME = {s.name: s for s in GRID}
