"""Events too rare for sampling, made certain: crafted laws, and coins given where a verifier takes
them.

One token that the target cannot emit is a proof. A verifier that cannot be handed its random
numbers is asked with laws that make the event likely, and with seeds whose first coin is known:
torch's generator, begun at `ZERO_COIN_SEEDS`, gives a float32 uniform of exactly 0, as it does once
in 2**24 draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from conformance.law import Floats
from conformance.reference import Ints
from conformance.verifier.contract import PAD, Dtype, VerifierCapabilities

# torch.manual_seed(s), then torch.rand(1) == 0: found by trying seeds from 0 upwards
ZERO_COIN_SEEDS = (5_528_393, 24_368_689, 32_788_713)
JUST_BELOW_1 = 1 - 2.0**-53
REPEATS = 1024


@dataclass(frozen=True, slots=True)
class Edge:
    """One question with a yes or no answer.

    Parameters
    ----------
    name : str
        Unique, and what a finding calls it.
    why : str
        What a fault here looks like, in one sentence.
    p, q, x
        As given to a verifier, (B, K + 1, V), (B, K, V) or None, (B, K).
    coins, last : (B, K) and (B,) float64, or None
        Random numbers to give; None leaves them to the verifier.
    wanted : (B, K + 1) int64 or None
        The only right answer where there is one; else any token of p > 0 will do.
    seeds : tuple of int
        For verifiers that draw their own numbers: one call of the one block with each.
    repeats : int
        How often the one block is asked otherwise, where nothing is given.
    dtype : str or None
        A precision that must be claimed.
    """

    name: str
    why: str
    p: Floats
    q: Floats | None
    x: Ints
    coins: Floats | None = None
    last: Floats | None = None
    wanted: Ints | None = None
    seeds: tuple[int, ...] = ()
    repeats: int = 1
    dtype: Dtype | None = None

    @property
    def answers(self) -> int:
        """Blocks that are answered."""
        return len(self.x) if self.coins is not None else len(self.seeds) or self.repeats

    def refused(self, claims: VerifierCapabilities, injects: bool) -> str | None:
        """Why this is not asked, or None."""
        reasons = (
            (claims.tree, "it verifies trees"),
            (claims.greedy, "it draws no random numbers"),
            (self.coins is not None and not injects, "no injected uniforms"),
            (self.q is None and not claims.one_hot, "None for the draft's laws is not claimed"),
            (self.q is not None and not claims.draft_probs, "draft laws are not claimed"),
            (
                self.dtype is not None and self.dtype not in claims.dtypes,
                f"{self.dtype} is not claimed",
            ),
        )
        return next((why for applies, why in reasons if applies), None)

    def departures(self, tokens: Ints) -> list[str]:
        """What is wrong with the answers, a sentence for each that is."""
        if len(self.x) > 1:
            found = (self._wrong(row, answer) for row, answer in enumerate(tokens))
            return [text for text in found if text is not None]
        answers, times = np.unique(tokens, axis=0, return_counts=True)
        return [
            text
            for answer, n in zip(answers, times, strict=True)
            if (text := self._wrong(0, answer)) is not None
            for _ in range(n)
        ]

    def _wrong(self, row: int, answer: Ints) -> str | None:
        text = _wrong(self.p[row], self.x[row], answer)
        if text is None and self.wanted is not None and (answer != self.wanted[row]).any():
            return f"answered {answer.tolist()} where {self.wanted[row].tolist()} is right"
        return text


def _wrong(p: Floats, x: Ints, answer: Ints) -> str | None:
    emitted = answer[: _length(answer)]
    if len(emitted) == 0:
        return "emitted nothing"
    if (answer[len(emitted) :] != PAD).any():
        return f"emitted a token after padding: {answer.tolist()}"
    if (emitted[:-1] != x[: len(emitted) - 1]).any():
        return f"went on after a token that was not proposed: {answer.tolist()}"
    return next((w for i, token in enumerate(emitted) if (w := _impossible(p[i], i, token))), None)


def _impossible(p: Floats, position: int, token: int) -> str | None:
    if not 0 <= token < len(p):
        return f"emitted id {token}, outside the vocabulary"
    if p[token] <= 0:
        return f"emitted token {token} at position {position}, whose probability is 0"
    return None


def _length(answer: Ints) -> int:
    padded = answer == PAD
    return int(padded.argmax()) if padded.any() else len(answer)


def _edge(
    name: str, why: str, p: ArrayLike, q: ArrayLike | None, x: ArrayLike, **fields: object
) -> Edge:
    draft = None if q is None else np.array(q, dtype=np.float64)
    return Edge(name, why, np.array(p, dtype=np.float64), draft, np.array(x), **fields)  # type: ignore[arg-type]


def _given(coins: ArrayLike, last: ArrayLike) -> dict[str, Floats]:
    return {
        "coins": np.array(coins, dtype=np.float64),
        "last": np.array(last, dtype=np.float64),
    }


_A = [0.3, 0.7]  # the worked example
_B = [0.6, 0.4]
_NEVER = [[[0.0, 0.5, 0.5], [0.2, 0.3, 0.5]]]  # token 0 cannot be emitted, and is proposed
_SURE = [[[1.0, 0.0, 0.0]]]
_FRAMED = [0.0, 0.5, 0.5, 0.0]  # the first and the last id have p = 0
_FRAMED_DRAFT = [0.5, 0.25, 0.0, 0.25]


def _frame() -> Edge:
    """Both ends of the last uniform, after a rejection and after a full block."""
    x = [[0], [0], [1], [1]]
    return _edge(
        "last uniform at either end",
        "the recovered or bonus token is one of probability 0, or one past the vocabulary",
        [[_FRAMED, _FRAMED]] * 4,
        [[_FRAMED_DRAFT]] * 4,
        x,
        wanted=np.array([[1, PAD], [2, PAD], [1, 1], [1, 2]]),
        **_given([[0.5], [0.5], [0.5], [0.5]], [0.0, JUST_BELOW_1, 0.0, JUST_BELOW_1]),
    )


def _rounding() -> Edge:
    """Acceptance a rounding error below 1, and a coin above it: nothing is left to draw from."""
    p = np.full(7, 1 / 7)
    q = np.nextafter(p, 1)
    coins, last = [[JUST_BELOW_1]] * 2, [0.0, JUST_BELOW_1]
    return _edge(
        "nothing left after a rejection",
        "an empty residual is normalised into NaN, or gives id 0 or V",
        [[p, p]] * 2,
        [[q]] * 2,
        [[3], [6]],
        **_given(coins, last),
    )


def _short_sums() -> Edge:
    p = np.array([0.25, 0.25, 0.5, 0.0]) * (1 - 1e-6)
    q = np.array([0.5, 0.25, 0.25, 0.0]) * (1 + 1e-6)
    return _edge(
        "sums that are not exactly 1",
        "the last uniform falls past the end of the cumulative sums",
        [[p, p]] * 3,
        [[q]] * 3,
        [[0], [0], [1]],
        **_given([[0.9], [0.1], [0.1]], [JUST_BELOW_1, 1 - 2.0**-24, JUST_BELOW_1]),
    )


def _by_hand() -> Edge:
    """The worked example with every outcome: accepted is strictly below min(1, p/q)."""
    return _edge(
        "worked example by hand",
        "the same random numbers lead to another token than in the algorithm",
        [[_A, _A]] * 6,
        [[_B]] * 6,
        [[0], [0], [0], [1], [1], [0]],
        wanted=np.array([[0, 0], [0, 1], [1, PAD], [1, 0], [1, 1], [1, PAD]]),
        **_given([[0.49], [0.49], [0.51], [0.99], [0.0], [0.75]], [0.1, 0.5, 0.1, 0.1, 0.9, 0.9]),
    )


def _small_excess() -> Edge:
    """The laws differ by 1e-7, all one way, since sums are rounded: the residual is rounding."""
    q = np.array([0.25, 0.25, 0.5, 0.0])
    p = q + np.array([1e-7, 1e-7, 1e-7, 0.0])
    return _edge(
        "a residual that is only rounding",
        "a residual of mass 1e-7 is divided by a guard, or drawn from as if it were empty",
        [[p, q]],
        [[q]],
        [[1]],
        repeats=REPEATS,
    )


def _equal_but_rounded() -> Edge:
    rng = np.random.default_rng(1)
    q = rng.dirichlet(np.ones(50))
    p = q * (1 + 2.0**-20 * rng.choice([-1, 1], 50))
    p[0] = q[0] = 0.0
    return _edge(
        "p = q up to rounding",
        "a rejection that should never be finds nothing to draw from",
        [[p / p.sum(), p / p.sum()]],
        [[q / q.sum()]],
        [[9]],
        repeats=REPEATS,
    )


def _framed_often() -> Edge:
    return _edge(
        "first and last id impossible",
        "the recovered or bonus token is one of probability 0, or one past the vocabulary",
        [[_FRAMED, _FRAMED]],
        [[_FRAMED_DRAFT]],
        [[0]],
        repeats=REPEATS,
    )


def _impossible_often(one_hot: bool) -> Edge:
    return _edge(
        "impossible proposal, certain draft" if not one_hot else "impossible proposal, no draft",
        "a proposal of probability 0 is accepted",
        _NEVER,
        None if one_hot else _SURE,
        [[0]],
        repeats=REPEATS,
    )


def _zero_coin(one_hot: bool) -> Edge:
    kind = "no draft" if one_hot else "certain draft"
    return _edge(
        f"zero coin of torch, {kind}",
        f"with torch's seeds {', '.join(map(str, ZERO_COIN_SEEDS))} the coin is exactly 0, as it "
        "is once in 16,777,216 draws, and a comparison u <= p/q then accepts a token of "
        "probability 0; u < p/q is right",
        _NEVER,
        None if one_hot else _SURE,
        [[0]],
        seeds=ZERO_COIN_SEEDS,
    )


def _rough_sums(dtype: Dtype) -> Edge:
    rng = np.random.default_rng(2)
    bits = 8 if dtype == "bfloat16" else 24
    p, q = (_rounded(rng.dirichlet(np.ones(40)), bits) for _ in range(2))
    p[[0, 39]] = 0.0
    return _edge(
        f"sums off by the rounding of {dtype}",
        "a token of probability 0, or one past the vocabulary, is emitted",
        [[p, p]],
        [[q]],
        [[int(np.argmax(q - p))]],
        repeats=REPEATS,
        dtype=dtype,
    )


def _rounded(values: Floats, bits: int) -> Floats:
    """Round to a number of significant bits."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits))


EDGES: tuple[Edge, ...] = (
    _by_hand(),
    _edge(
        "coin of 0 against p = 0",
        "a coin of exactly 0 accepts a token of probability 0: the comparison should be u < p/q",
        _NEVER * 2,
        _SURE * 2,
        [[0], [0]],
        wanted=np.array([[1, PAD], [2, PAD]]),
        **_given([[0.0], [0.0]], [0.1, 0.9]),
    ),
    _frame(),
    _rounding(),
    _short_sums(),
    _impossible_often(one_hot=False),
    _impossible_often(one_hot=True),
    _zero_coin(one_hot=False),
    _zero_coin(one_hot=True),
    _framed_often(),
    _equal_but_rounded(),
    _small_excess(),
    _rough_sums("float32"),
    _rough_sums("bfloat16"),
)
BY_NAME = {e.name: e for e in EDGES}
