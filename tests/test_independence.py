"""Independence between requests: repeats, correlation, coincidences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats
from sources import Drawn, Source, numbered

from conformance.law import Floats
from conformance.reference import draw
from conformance.statistics.independence import (
    LOG_ODDS,
    Coincidences,
    _Chains,
    coincidences,
    correlation_at_lag,
)
from conformance.statistics.repeats import Repeats, _before, repeats_anywhere, repeats_at_lag

LUCK = 1e-6
ALPHA = 1e-6


def at_lag(d: Drawn, lag: int, rng: np.random.Generator) -> Repeats:
    found = repeats_at_lag(d.prefix, d.token, d.token_prob, d.token >= 0, lag, rng)
    assert found is not None
    return found


def anywhere(d: Drawn, rng: np.random.Generator) -> Repeats:
    found = repeats_anywhere(d.prefix, d.token, d.token_prob, d.token >= 0, rng)
    assert found is not None
    return found


def test_the_last_bits_of_a_transform_near_its_end_change_nothing() -> None:
    """A wrong engine emits tokens of hardly any probability, where processors round otherwise."""
    rng = np.random.default_rng(9)
    u = rng.random((200, 8))
    u[::3] = 1 - 2.0**-52
    u[1::3] = 2.0**-60
    there = np.ones(u.shape, dtype=bool)
    here, elsewhere = (
        correlation_at_lag(np.clip(x, 1e-300, 1.0), there) for x in (u, u * (1 - 2.0**-52))
    )
    assert here is not None
    assert elsewhere is not None
    assert elsewhere.statistic == pytest.approx(here.statistic, rel=1e-9)


# --- repeats --------------------------------------------------------------------------------------


def test_depth_of_agreement_becomes_the_uniform_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests, probabilities by hand, the randomisation set to 1/2."""
    seen: list[Floats] = []
    monkeypatch.setattr(
        "conformance.statistics.repeats._scan", lambda u: (seen.append(u), (1.0, 1.0))[1]
    )

    class Half:
        def random(self, n: int) -> Floats:
            return np.full(n, 0.5)

    prob = np.array([[0.5, 0.2, 0.1]])
    judged = np.ones((2, 3), dtype=bool)
    for second, wanted in (
        ((9, 9, 9), 0.5 + 0.5 * 0.5),  # differs at once: uniform on (.5, 1)
        ((1, 9, 9), 0.5 * (0.2 + 0.5 * 0.8)),
        ((1, 2, 9), 0.1 * (0.1 + 0.5 * 0.9)),
        ((1, 2, 3), 0.5 * 0.01),
    ):
        token = np.array([(1, 2, 3), second])
        prefix = numbered(np.zeros(2, int), token)
        args = prefix, token, np.concatenate([prob, prob]), judged
        repeats_at_lag(*args, 1, Half())  # type: ignore[arg-type]
        repeats_anywhere(*args, Half())  # type: ignore[arg-type]
        np.testing.assert_allclose(np.concatenate(seen), wanted)
        # a second token without a law: agreement there costs nothing, and its end proves nothing
        judged[:, 1] = False
        repeats_at_lag(*args, 1, Half())  # type: ignore[arg-type]
        judged[:, 1] = True
        free = {(9, 9, 9): 0.75, (1, 9, 9): 0.25, (1, 2, 9): 0.5 * 0.55, (1, 2, 3): 0.025}
        np.testing.assert_allclose(seen[-1], free[second])
        seen.clear()


def test_any_earlier_request_counts_not_only_the_last() -> None:
    token = np.array([[1, 2], [1, 3], [4, 4], [1, 2]])
    prob = np.array([[0.5, 0.2], [0.5, 0.3], [0.1, 0.9], [0.5, 0.2]])
    prefix = numbered(np.zeros(4, int), token)
    rng = np.random.default_rng(0)
    found = repeats_anywhere(prefix, token, prob, token >= 0, rng)
    assert found is not None
    assert (found.n, found.observed) == (3, 1)
    # strings seen before the 2nd, 3rd, 4th request: .1, .1 + .15, .1 + .15 + .09
    assert found.expected == pytest.approx(0.1 + 0.25 + 0.34)
    # a copy of (1, 2) meets {1, 4} and then {2, 3}
    np.testing.assert_allclose(found.reach, [0.6 * 0.5, 0.6 * 0.9, 0.6 * 0.5])


def test_sums_within_groups_keep_rare_tokens() -> None:
    rng = np.random.default_rng(1)
    group = rng.integers(0, 40, 3000)
    value = 10.0 ** rng.integers(-14, 1, 40)[group] * rng.random(3000)
    wanted = [value[:i][group[:i] == group[i]].sum() for i in range(3000)]
    np.testing.assert_allclose(_before(group, value), wanted, rtol=1e-12)
    assert len(_before(np.zeros(0, int), np.zeros(0))) == 0


def test_without_a_shared_prompt_there_is_nothing_to_repeat() -> None:
    token = np.array([[1, 2], [1, 2]])
    prefix = numbered(np.arange(2), token)
    rng = np.random.default_rng(0)
    assert repeats_at_lag(prefix, token, np.ones((2, 2)), token >= 0, 1, rng) is None
    assert repeats_anywhere(prefix, token, np.ones((2, 2)), token >= 0, rng) is None


@pytest.mark.parametrize("lag", [1, 4])
def test_two_copies_among_a_thousand_long_answers_are_caught(lag: int) -> None:
    source = Source(16, 1.0, 2, seed=2)
    exact = source.draw(1000, 12)
    assert at_lag(exact, lag, source.rng).p_value > 1e-4
    assert anywhere(exact, source.rng).p_value > 1e-4
    tokens = exact.token.copy()
    tokens[[20, 700]] = tokens[[20 - lag, 700 - lag]]
    d = source.judge(np.arange(1000) // 500, tokens)
    found = at_lag(d, lag, source.rng)
    assert found.p_value < ALPHA
    assert found.observed >= 2
    assert found.rate.low > 0
    assert at_lag(d, lag + 1, source.rng).p_value > 1e-4
    assert anywhere(d, source.rng).p_value < ALPHA


def test_a_copy_of_a_far_request_is_caught() -> None:
    source = Source(16, 1.0, 2, seed=3)
    tokens = source.draw(1000, 12).token.copy()
    far = source.rng.integers(0, 400, 6)
    tokens[[450, 460, 470, 480, 490, 495]] = tokens[far]
    found = anywhere(source.judge(np.arange(1000) // 500, tokens), source.rng)
    assert found.p_value < ALPHA
    assert found.rate.low > 0


def test_requests_that_never_repeat_are_caught_too() -> None:
    """Sampling without replacement: every answer of two tokens given once."""
    source = Source(8, 0.5, 1, seed=4)
    tokens = source.rng.permutation(np.indices((8, 8)).reshape(2, -1).T)
    found = anywhere(source.judge(np.zeros(64, int), tokens), source.rng)
    assert found.observed == 0
    assert found.expected > 10
    assert found.p_value < 1e-3
    assert found.statistic < 0


@pytest.mark.parametrize(
    ("where", "length", "requests"),
    [("lag", 2, 2000), ("lag", 8, 500), ("anywhere", 4, 800), ("anywhere", 8, 500)],
)
def test_the_stated_share_of_copies_is_caught(length: int, requests: int, where: str) -> None:
    power, reps = 0.9, 60
    source = Source(16, 1.0, 2, seed=5)

    def judged(copied: float) -> Repeats:
        d = source.draw(requests, length, copied)
        return at_lag(d, 1, source.rng) if where == "lag" else anywhere(d, source.rng)

    rate = judged(0.0).detectable(ALPHA, power)
    assert rate is not None
    caught = sum(judged(rate).p_value <= ALPHA for _ in range(reps))
    print(f"{where} T={length} N={requests}: {rate:.4f} stated {power}, caught {caught / reps:.2f}")
    assert stats.binomtest(caught, reps, power, alternative="less").pvalue > LUCK
    # and it is not idle: a quarter of that share is not caught so often
    fewer = sum(judged(rate / 4).p_value <= ALPHA for _ in range(reps // 3))
    assert fewer / (reps // 3) < power


@pytest.mark.parametrize("where", ["lag", "anywhere"])
def test_tokens_without_a_law_say_nothing_about_how_often_requests_repeat(where: str) -> None:
    """A third of the prefixes has no law to be held to; exact requests repeat as chance has it."""
    source, covered, reps = Source(8, 0.6, 2, seed=8), 0, 60
    for _ in range(reps):
        d = source.draw(400, 2)
        judged = d.prefix % 3 != 0
        args = d.prefix, d.token, d.token_prob, judged
        found = (
            repeats_at_lag(*args, 1, source.rng)
            if where == "lag"
            else repeats_anywhere(*args, source.rng)
        )
        assert found is not None
        assert found.observed > 0
        covered += found.rate.low <= 0 <= found.rate.high
    assert stats.binomtest(covered, reps, 0.95, alternative="less").pvalue > LUCK


def test_answers_that_leave_no_choice_have_nothing_to_tell() -> None:
    token = np.zeros((50, 4), dtype=np.int64)
    prefix = numbered(np.zeros(50, int), token)
    rng = np.random.default_rng(6)
    found = repeats_anywhere(prefix, token, np.ones((50, 4)), token >= 0, rng)
    assert found is not None
    assert found.p_value > 1e-4
    assert found.detectable(ALPHA, 0.9) is None
    # nor have two tokens where every string has been seen
    short = anywhere(Source(16, 1.0, 2, seed=5).draw(2000, 2), rng)
    assert short.detectable(ALPHA, 0.9) is None


# --- correlation ----------------------------------------------------------------------------------


def test_cumulants_against_the_determinant() -> None:
    """K(t) = -1/2 log det(I - 2 t A) for the quadratic form of each run."""
    paths = np.array([[2, 3], [5, 1], [9, 2]])
    chain = _Chains(paths)
    for t in (-0.4, 0.1, 0.45):
        wanted = 0.0
        for m, times in paths:
            a = 0.5 * (np.eye(m, k=1) + np.eye(m, k=-1))
            wanted -= 0.5 * times * np.linalg.slogdet(np.eye(m) - 2 * t * a)[1]
        k, slope, curvature = chain(t)
        assert k == pytest.approx(wanted)
        h = 1e-5
        assert slope == pytest.approx((chain(t + h)[0] - chain(t - h)[0]) / (2 * h), rel=1e-6)
        assert curvature == pytest.approx((chain(t + h)[1] - chain(t - h)[1]) / (2 * h), rel=1e-6)
    assert chain.spread == pytest.approx(np.sqrt(3 * 1 + 4 + 2 * 8))


@pytest.mark.parametrize("tail", [1e-3, 1e-6, 1e-9])
def test_deep_tails_of_a_correlation_by_importance_sampling(tail: float) -> None:
    """A sum of products of independent pairs, tilted: each pair becomes a correlated one."""
    rng = np.random.default_rng(7)
    n, reps = 22, 4000
    chain = _Chains(np.array([[2, n]]))
    # under the tilt t a pair is normal with precision [[1, -t], [-t, 1]]
    t = optimize.brentq(lambda t: np.exp(chain(t)[0] - t * chain(t)[1]) - 3 * tail, 1e-3, 0.99)
    scale = 1 / (1 - t * t)
    pairs = rng.multivariate_normal([0, 0], scale * np.array([[1, t], [t, 1]]), (reps, n))
    total = pairs.prod(axis=2).sum(axis=1)
    weight = np.exp(chain(t)[0] - t * total)
    u = stats.norm.cdf(pairs)  # [reps, n, 2]
    found = [correlation_at_lag(x.T, np.ones((2, n), bool)) for x in u]
    p = np.array([f.p_value for f in found if f is not None])
    inside = (p <= tail) & (total > 0)
    ratio = (weight * inside).mean() / (tail / 2)
    se = (weight * inside).std() / np.sqrt(len(p)) / (tail / 2)
    print(f"P(p <= {tail:g}) is {ratio:.3f} +- {se:.3f} of what it should be")
    assert inside.mean() > 0.1
    assert abs(ratio - 1) < 0.1 + 5 * se


def test_shared_uniforms_with_different_prompts_are_caught() -> None:
    """Every request draws by inverse cumulative sums from one stream; only transforms show it."""
    source = Source(16, 1.0, 60, seed=8)
    prompt = np.arange(60)
    for shared in (False, True):
        tokens = np.zeros((60, 20), dtype=np.int64)
        row = 16 + prompt
        for t in range(20):
            coin = source.rng.random(1 if shared else 60)
            tokens[:, t] = draw(source.law[row], np.broadcast_to(coin, 60))
            row = tokens[:, t]
        d = source.judge(prompt, tokens)
        found = correlation_at_lag(d.u, d.token >= 0, 1)
        assert found is not None
        if shared:
            assert found.p_value < 1e-9
            assert found.correlation.low > 0.1
        else:
            assert found.p_value > 1e-4
            assert found.correlation.low < 0 < found.correlation.high
        assert found.n == 59 * 20


def test_within_a_sequence_and_where_little_is_judged() -> None:
    rng = np.random.default_rng(9)
    u = rng.random((30, 40))
    u[:, 1::2] = 1 - u[:, ::2]  # each coin used twice
    judged = rng.random(u.shape) < 0.8
    found = correlation_at_lag(u.T, judged.T)
    assert found is not None
    assert found.p_value < 1e-9
    assert found.correlation.high < 0
    assert found.n == (judged[:, 1:] & judged[:, :-1]).sum()
    assert ((found.paths[:, 0] - 1) * found.paths[:, 1]).sum() == found.n
    few = np.zeros_like(judged)
    few[:3, :5] = True
    assert correlation_at_lag(u.T, few.T) is None


def test_the_stated_correlation_is_caught() -> None:
    rng = np.random.default_rng(10)
    n, reps, power = 800, 300, 0.9
    first = correlation_at_lag(rng.random((2, n)), np.ones((2, n), bool))
    assert first is not None
    rho = first.detectable(ALPHA, power)
    assert rho is not None
    caught = covered = 0
    for _ in range(reps):
        z = rng.standard_normal((2, n))
        z[1] = rho * z[0] + np.sqrt(1 - rho * rho) * z[1]
        found = correlation_at_lag(stats.norm.cdf(z), np.ones((2, n), bool))
        assert found is not None
        caught += found.p_value <= ALPHA
        covered += found.correlation.low <= rho <= found.correlation.high
    print(
        f"rho {rho:.3f}: stated {power}, caught {caught / reps:.3f}, covered {covered / reps:.3f}"
    )
    assert stats.binomtest(caught, reps, power).pvalue > LUCK
    assert stats.binomtest(covered, reps, 0.95).pvalue > LUCK
    tiny = correlation_at_lag(rng.random((2, 25)), np.ones((2, 25), bool))
    assert tiny is not None
    assert tiny.detectable(1e-12, 0.9) is None


# --- coincidences ---------------------------------------------------------------------------------


def neighbours(source: Source, d: Drawn) -> Coincidences:
    other = d.token[:-1]
    prob = source.law[d.row[1:], other]
    return coincidences(d.token[1:], other, prob, d.prefix[1:] != d.prefix[:-1])


def test_shared_gumbel_noise_is_caught() -> None:
    """The same noise per token id for two requests, as torch.multinomial with one seed has."""
    source = Source(16, 1.5, 50, seed=11)
    prompt = np.arange(50)
    for shared in (False, True):
        tokens = np.zeros((50, 12), dtype=np.int64)
        row = 16 + prompt
        for t in range(12):
            noise = source.rng.gumbel(size=(1 if shared else 50, 16))
            tokens[:, t] = (np.log(source.law[row]) + noise).argmax(axis=1)
            row = tokens[:, t]
        found = neighbours(source, source.judge(prompt, tokens))
        print(shared, found.n, found.observed, found.expected, found.p_value)
        if shared:
            assert found.p_value < 1e-9
            assert found.rate.low > 0.05
        else:
            assert found.p_value > 1e-3
            assert abs(found.statistic) < 5


def test_coincidences_add_up() -> None:
    rng = np.random.default_rng(12)
    token, other = rng.integers(0, 5, (2, 40, 6))
    prob, use = rng.random((40, 6)), rng.random((40, 6)) < 0.7
    whole = coincidences(token, other, prob, use)
    parts = [coincidences(token[s], other[s], prob[s], use[s]) for s in np.split(np.arange(40), 4)]
    merged = parts[3].merge(parts[1]).merge(parts[0]).merge(parts[2])
    assert (merged.n, merged.observed) == (whole.n, whole.observed)
    np.testing.assert_allclose(merged.log_ratios, whole.log_ratios)
    assert merged.expected == pytest.approx(whole.expected)
    assert merged.log_e == pytest.approx(whole.log_e)


def test_a_coincidence_is_worth_one_on_average() -> None:
    for pi in (1e-6, 0.1, 0.7, 1.0):
        value = 0.0
        for other, mass in ((0, pi), (1, 1 - pi)):
            one = np.array([other])
            found = coincidences(np.zeros(1, int), one, np.array([pi]), np.array([True]))
            value += mass * np.exp(found.log_e)
        assert value == pytest.approx(1)
    impossible = coincidences(
        np.zeros(1, int), np.zeros(1, int), np.zeros(1), np.ones(1, dtype=bool)
    )
    assert impossible.log_e == 0
    assert coincidences(*np.zeros((2, 0), int), np.zeros(0), np.zeros(0, bool)).p_value == 1


@pytest.mark.parametrize("pi", [0.02, 0.3])
def test_the_stated_excess_of_coincidences_is_caught(pi: float) -> None:
    rng = np.random.default_rng(13)
    n, reps, power = 4000, 300, 0.9
    ones = np.ones(n, dtype=bool)

    def drawn(rate: float) -> Coincidences:
        token = (rng.random(n) < rate).astype(np.int64)
        return coincidences(token, np.ones(n, int), np.full(n, pi), ones)

    excess = drawn(pi).detectable(ALPHA, power)
    assert excess is not None
    caught = sum(drawn(pi + excess).p_value <= ALPHA for _ in range(reps))
    print(f"pi={pi}: excess {excess:.4f}, stated {power}, caught {caught / reps:.3f}")
    assert stats.binomtest(caught, reps, power, alternative="less").pvalue > LUCK
    fewer = sum(drawn(pi + excess / 2).p_value <= ALPHA for _ in range(reps))
    assert fewer / reps < power
    assert len(LOG_ODDS) == len(drawn(pi).log_ratios)
