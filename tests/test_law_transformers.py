"""`conformance.law` against the logits processors that transformers itself builds and orders."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.decoding import Decoding, Dialect
from conformance.errors import InvalidLogitsError
from conformance.law import Floats, check_logits, law_at, warp
from conformance.probes import load_probe

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

NOISE = 1e-9
TINY = 1e-290  # below it, a probability may underflow to 0 in one implementation only


@pytest.fixture(scope="module")
def engine():
    from conformance.adapters.transformers import create

    engine = create()
    engine.load(load_probe("mid").pair)
    return engine


@functools.cache
def processors(engine, decoding):
    """The list that `generate` hands to its decoding loop for the adapter's own configuration."""
    caught = []

    def loop(model, input_ids, *, logits_processor, **_):
        caught.append(logits_processor)
        return input_ids

    engine._target.generate(
        torch.tensor([[1, 2, 3]]),
        generation_config=engine._config(decoding, 1, speculate=False),
        custom_generate=loop,
    )
    return caught[0]


def theirs(processor_list, z: Floats) -> Floats:
    ids = torch.zeros((len(z), 1), dtype=torch.long)
    return processor_list(ids, torch.tensor(z)).softmax(-1).numpy()


def check(processor_list, z: Floats, decoding: Decoding, noise: float = NOISE) -> float:
    """Compare on [N, V] logits; returns the share of rows that were set aside as ambiguous."""
    with np.errstate(all="ignore"):
        laws = law_at(z, decoding, noise=noise)
    other = theirs(processor_list, z)
    clear = ~laws.ambiguous
    ours_only = (laws.probs > TINY) & (other == 0)
    theirs_only = (laws.probs == 0) & (other > TINY)
    assert not (ours_only | theirs_only)[clear].any(), decoding
    # a temperature multiplies the rounding of a logit before it is exponentiated
    finite = np.where(np.isfinite(z), np.abs(z), 0.0).max(-1)
    tolerance = 1e-9 + 4 * np.finfo(float).eps * finite / decoding.temperature
    assert (np.abs(laws.probs - other).max(-1) < tolerance)[clear].all(), decoding
    assert not ((other > TINY) & ~laws.possible).any(), decoding
    assert np.allclose(laws.probs.sum(-1), 1)
    return float(laws.ambiguous.mean())


def logits(kind: str, n: int, vocab: int, rng: np.random.Generator) -> Floats:
    z = rng.standard_normal((n, vocab)) * 3
    if kind == "ties":
        z = rng.integers(-2, 3, (n, vocab)).astype(float)
    elif kind == "impossible":
        z[rng.random((n, vocab)) < 0.4] = -np.inf
        z[:, 0] = np.where(np.isfinite(z).any(-1), z[:, 0], 0.0)
    elif kind == "flat":
        z[:] = 1.5
    elif kind == "large":
        z *= 30
    return z


CONFIGURATIONS = [
    Decoding(temperature=t, top_k=k, top_p=p, min_p=m)
    for t, k, p, m in itertools.product(
        (1.0, 0.7, 1e-3), (None, 1, 3, 100), (None, 1.0, 0.8, 0.01), (None, 0.0, 0.1, 1.0)
    )
]


def test_the_library_orders_its_warps_as_the_default_dialect_says(engine):
    names = [type(p).__name__ for p in processors(engine, Decoding(False, 0.7, 5, 0.8, 0.1))]
    assert names == [
        "TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper",
    ]  # fmt: skip
    assert Dialect().order == ("temperature", "top_k", "top_p", "min_p")


def test_an_unset_filter_stays_unset(engine):
    # the library's own default is top_k = 50
    assert len(processors(engine, Decoding())) == 0
    assert len(processors(engine, Decoding(greedy=True))) == 0


@pytest.mark.parametrize("kind", ["normal", "ties", "impossible", "flat", "large"])
@pytest.mark.parametrize("vocab", [1, 32])
def test_same_law_on_many_configurations(engine, kind, vocab):
    rng = np.random.default_rng([vocab, len(kind)])
    aside = []
    for decoding in CONFIGURATIONS:
        z = logits(kind, 20, vocab, rng)
        aside.append(check(processors(engine, decoding), z, decoding))
    if kind in ("normal", "large", "impossible"):
        assert np.mean(aside) < 0.01  # nothing is in doubt: the comparison must not be empty


def test_same_law_over_a_large_vocabulary(engine):
    rng = np.random.default_rng(5)
    for decoding in (Decoding(top_p=0.9), Decoding(top_k=50, min_p=0.02), Decoding(False, 0.6)):
        z = rng.standard_normal((8, 50_000)) * 2
        check(processors(engine, decoding), z, decoding)


@pytest.mark.parametrize("temperature", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4, 1e30])
def test_same_law_at_extreme_temperatures_and_logits(engine, temperature, scale):
    z = np.random.default_rng(3).standard_normal((200, 16)) * scale
    # the library divides before it shifts, so its rounding grows with the logit itself
    noise = max(NOISE if temperature == 1 else 1e-12, 2 * np.finfo(float).eps * np.abs(z).max())
    for decoding in (
        Decoding(temperature=temperature),
        Decoding(temperature=temperature, top_k=4),
        Decoding(temperature=temperature, top_p=0.9),
        Decoding(temperature=temperature, min_p=0.3),
    ):
        check(processors(engine, decoding), z, decoding, noise)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    z=st.lists(
        st.one_of(st.sampled_from([0.0, 1.0, -1.0, -np.inf, np.log(2)]), st.floats(-20, 20)),
        min_size=1,
        max_size=9,
    ).filter(lambda z: bool(np.isfinite(z).any())),
    temperature=st.sampled_from([0.01, 0.5, 1.0, 2.0]),
    filters=st.tuples(
        st.none() | st.integers(1, 12),
        st.none() | st.sampled_from([0.25, 0.5, 0.75, 1.0]) | st.floats(1e-6, 1),
        st.none() | st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1),
    ),
)
def test_same_law_on_adversarial_logits(engine, z, temperature, filters):
    decoding = Decoding(False, temperature, *filters)
    check(processors(engine, decoding), np.array([z]), decoding)


def test_greedy_is_the_first_largest_logit():
    z = np.array([[1.0, 3.0, 3.0], [5.0, 0.0, -np.inf]])
    assert warp(z, Decoding(greedy=True)).argmax(-1).tolist() == torch.tensor(z).argmax(-1).tolist()
    laws = law_at(z, Decoding(greedy=True), noise=NOISE)
    assert laws.ambiguous.tolist() == [True, False]
    assert laws.possible.tolist() == [[False, True, True], [True, False, False]]


# --- the ambiguity band ---------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(
    z=st.lists(st.floats(-4, 4).map(lambda x: round(x, 2)), min_size=2, max_size=8),
    filters=st.tuples(
        st.none() | st.integers(1, 8),
        st.none() | st.floats(0.05, 1),
        st.none() | st.floats(0.0, 0.9),
    ),
    order=st.permutations(("temperature", "top_k", "top_p", "min_p")),
    seed=st.integers(0, 2**31),
)
def test_no_logits_within_the_noise_leave_the_band(z, filters, order, seed):
    noise = 0.01
    decoding, dialect = Decoding(False, 0.8, *filters), Dialect(order=tuple(order))
    row = np.array([z])
    laws = law_at(row, decoding, dialect, noise)
    rng = np.random.default_rng(seed)
    moved = row + noise * rng.choice([-1.0, 1.0], (64, len(z))) * rng.choice([0.1, 0.999], (64, 1))
    kept = warp(moved, decoding, dialect) > 0
    if not laws.ambiguous[0]:
        assert (kept == (laws.probs[0] > 0)).all()
    assert not (kept & ~laws.possible[0]).any()


def test_a_doubtful_top_p_edge_leaves_every_tied_token_possible():
    # the mass before the second token is top_p to the last bit: whether one more token comes in is
    # up to rounding, and which of the two equal ones too
    z = np.log(np.array([[0.5, 0.25, 0.25]]))
    laws = law_at(z, Decoding(top_p=0.5), noise=NOISE)
    assert laws.ambiguous.all()
    assert laws.possible.all()


def test_a_top_k_larger_than_what_an_earlier_filter_left_is_not_ambiguous():
    z = np.log(np.array([[0.6, 0.3, 0.08, 0.02]]))
    dialect = Dialect(order=("temperature", "min_p", "top_p", "top_k"))
    laws = law_at(z, Decoding(top_k=3, min_p=0.25), dialect, NOISE)
    assert laws.probs[0].round(12).tolist() == [round(2 / 3, 12), round(1 / 3, 12), 0.0, 0.0]
    assert not laws.ambiguous.any()


def test_the_band_grows_with_the_noise():
    z = np.random.default_rng(1).standard_normal((2000, 32)) * 2
    shares = [law_at(z, Decoding(top_p=0.8), noise=n).ambiguous.mean() for n in (0, 1e-4, 1e-2)]
    assert shares[0] == 0
    assert 0 < shares[1] < 0.02 < shares[2] < 1


# --- logits that define no law --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("z", "words"),
    [
        ([0.0, np.nan], "NaN"),
        ([0.0, np.inf], "inf"),
        ([-np.inf, -np.inf], "no token is possible"),
        ([[0.0, 1.0], [-np.inf, -np.inf]], "no token is possible"),
        (1.0, "vocabulary"),
        ([], "vocabulary"),
        (np.zeros((3, 0)), "vocabulary"),
    ],
)
@pytest.mark.parametrize("decoding", [Decoding(), Decoding(greedy=True), Decoding(top_p=0.5)])
def test_logits_without_a_law_are_refused(z, words, decoding):
    for function in (warp, law_at):
        with pytest.raises(InvalidLogitsError, match=words):
            function(z, decoding)
    with pytest.raises(InvalidLogitsError, match=words):
        check_logits(z)
