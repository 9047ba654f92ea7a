import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from perdure.rl.ops import policies

KEY = jax.random.key(7)


def packed(mean, log_std):
    return jnp.concatenate([jnp.asarray(mean, jnp.float32), jnp.asarray(log_std, jnp.float32)], axis=-1)


def test_squashed_log_probability_is_that_of_the_transformed_normal():
    mean, log_std = np.array([[0.3, -0.8]] * 500), np.array([[-0.5, 0.1]] * 500)
    action, log_prob = policies.squashed_gaussian(packed(mean, log_std), KEY)
    raw = np.arctanh(np.asarray(action, np.float64))
    wanted = stats.norm.logpdf(raw, mean, np.exp(log_std)) - np.log1p(-np.square(np.asarray(action, np.float64)))
    near = np.abs(action).max(-1) < 0.999  # Beyond, arctanh of a single-precision number says little.
    assert near.sum() > 400
    np.testing.assert_allclose(log_prob[near], wanted.sum(-1)[near], atol=2e-3)


def test_squashed_density_integrates_to_one():
    mean, std = 0.4, 0.7
    density = lambda a: stats.norm.pdf(np.arctanh(a), mean, std) / (1 - a * a)
    expected = lambda f: integrate.quad(lambda a: f(a) * density(a), -1 + 1e-9, 1 - 1e-9, limit=200)[0]
    action, log_prob = policies.squashed_gaussian(packed([[mean]] * 20_000, [[np.log(std)]] * 20_000), KEY)
    assert float(action.mean()) == pytest.approx(expected(lambda a: a), abs=0.01)
    assert float(log_prob.mean()) == pytest.approx(expected(lambda a: np.log(density(a))), abs=0.02)


def test_squashed_log_probability_is_finite_far_out():
    _, log_prob = policies.squashed_gaussian(packed([[40.0], [-40.0]], [[-3.0], [2.0]]), KEY)
    assert np.isfinite(log_prob).all()


def test_log_standard_deviation_is_held_in_its_range():
    wild = policies.squashed_gaussian(packed([[0.0]] * 3, [[50.0], [-50.0], [0.0]]), KEY)[1]
    held = policies.squashed_gaussian(packed([[0.0]] * 3, [[2.0], [-20.0], [0.0]]), KEY)[1]
    np.testing.assert_array_equal(wild, held)


def test_the_squashed_mode_is_the_squashed_mean():
    np.testing.assert_allclose(
        policies.squashed_mode(packed([[0.5, -2.0]], [[1.0, 1.0]])), np.tanh([[0.5, -2.0]]), rtol=1e-6
    )


def test_gaussian_log_probability_equals_scipy():
    random = np.random.default_rng(0)
    mean, action = random.normal(size=(2, 6, 3)).astype(np.float32)
    log_std = np.array([-1.0, 0.0, 0.7], np.float32)
    wanted = stats.norm.logpdf(action, mean, np.exp(log_std)).sum(-1)
    np.testing.assert_allclose(policies.gaussian_log_prob(mean, log_std, action), wanted, rtol=1e-5)


def test_gaussian_entropy_equals_scipy():
    log_std = np.array([-1.0, 0.0, 0.7], np.float32)
    assert float(policies.gaussian_entropy(log_std)) == pytest.approx(
        stats.norm.entropy(0, np.exp(log_std)).sum(), rel=1e-6
    )


def test_categorical_log_probability_and_entropy_equal_scipy():
    logits = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    chance = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    action = np.array([0, 3, 2, 1, 3])
    wanted = [np.log(row[a]) for row, a in zip(chance, action, strict=True)]
    np.testing.assert_allclose(policies.categorical_log_prob(logits, action), wanted, rtol=1e-5)
    np.testing.assert_allclose(policies.categorical_entropy(logits), stats.entropy(chance, axis=-1), rtol=1e-5)


def test_categorical_log_probability_is_finite_for_extreme_logits():
    found = policies.categorical_log_prob(np.array([[1e4, -1e4]], np.float32), np.array([1]))
    assert float(found[0]) == pytest.approx(-2e4)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.1, 2.0, -2.2, -2.0),  # Within the clip.
        (1.5, 2.0, -2.4, 0.0),  # Better already, and far: no further push.
        (0.5, 2.0, -1.0, -2.0),  # Worse: pushed, however far.
        (0.5, -2.0, 1.6, 0.0),
        (1.5, -2.0, 3.0, 2.0),
    ],
)
def test_the_clipped_surrogate_pushes_only_where_the_policy_may_still_move(ratio, advantage, loss, slope):
    value, gradient = jax.value_and_grad(policies.clipped_surrogate)(jnp.array([ratio]), jnp.array([advantage]), 0.2)
    assert float(value) == pytest.approx(loss, rel=1e-6)
    assert float(gradient[0]) == pytest.approx(slope, rel=1e-6)


def test_epsilon_greedy_mixes_the_best_action_with_uniform_ones():
    q = jnp.tile(jnp.array([[0.0, 3.0, 1.0]]), (30_000, 1))
    share = np.bincount(policies.epsilon_greedy(q, jax.random.uniform(KEY, (2, 30_000)), 0.3), minlength=3) / 30_000
    np.testing.assert_allclose(share, [0.1, 0.8, 0.1], atol=0.01)


def test_epsilon_zero_is_greedy_and_one_is_uniform():
    q = jnp.tile(jnp.array([[0.0, 3.0, 1.0]]), (9_000, 1))
    uniform = jax.random.uniform(KEY, (2, 9_000))
    assert (policies.epsilon_greedy(q, uniform, 0.0) == 1).all()
    counts = np.bincount(policies.epsilon_greedy(q, uniform, 1.0), minlength=3)
    assert stats.chisquare(counts).pvalue > 0.001
