import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.errors import ConfigError
from perdure.rl import optim

GRADIENTS = np.random.default_rng(0).normal(size=(25, 6)) * np.array([1e-4, 1e-2, 1, 10, 1e3, 0.0])


def moved(optimiser, gradients, start=0.5):
    """Parameters after each of the gradients, from a tree of two leaves."""
    params = {"a": jnp.full(2, start, jnp.float32), "b": jnp.full(4, start, jnp.float32)}
    state, path = optimiser.init(params), []
    for row in gradients:
        grads = {"a": jnp.asarray(row[:2], jnp.float32), "b": jnp.asarray(row[2:], jnp.float32)}
        params, state = optimiser.step(params, state, grads)
        path.append(np.concatenate([params["a"], params["b"]]))
    return np.array(path)


def algorithm_1(gradients, rate, beta1, beta2, epsilon, start=0.5):
    """Adam as the paper's algorithm 1 has it, in double precision."""
    theta, first, second, path = np.full(6, start), np.zeros(6), np.zeros(6), []
    for t, gradient in enumerate(gradients, 1):
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        theta = theta - rate * (first / (1 - beta1**t)) / (np.sqrt(second / (1 - beta2**t)) + epsilon)
        path.append(theta)
    return np.array(path)


@pytest.mark.parametrize(("beta1", "epsilon"), [(0.9, 1e-8), (0.9, 1e-2), (0.0, 1e-5)])
def test_adam_follows_algorithm_1(beta1, epsilon):
    found = moved(optim.Adam(learning_rate=1e-2, beta1=beta1, epsilon=epsilon), GRADIENTS)
    np.testing.assert_allclose(found, algorithm_1(GRADIENTS, 1e-2, beta1, 0.999, epsilon), atol=1e-5)


def test_adams_first_step_has_the_length_of_the_rate():
    found = moved(optim.Adam(learning_rate=0.1), GRADIENTS[:1])[0]
    np.testing.assert_allclose(found, 0.5 - 0.1 * np.sign(GRADIENTS[0]), atol=1e-3)


def test_rmsprop_divides_by_the_root_of_the_variance():
    optimiser = optim.RMSProp(learning_rate=1e-2, decay=0.9, epsilon=1e-4)
    theta, mean, square, path = np.full(6, 0.5), np.zeros(6), np.zeros(6), []
    for gradient in GRADIENTS:
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.9 * square + 0.1 * gradient**2
        theta = theta - 1e-2 * gradient / np.sqrt(square - mean**2 + 1e-4)
        path.append(theta)
    np.testing.assert_allclose(moved(optimiser, GRADIENTS), path, rtol=1e-4, atol=1e-5)


def test_rmsprop_stays_finite_under_a_gradient_that_never_changes():
    found = moved(optim.RMSProp(decay=0.95, epsilon=1e-8), np.full((400, 6), 333.333))
    assert np.isfinite(found).all()


def test_gradients_beyond_the_limit_are_scaled_to_it_together():
    grads = {"a": jnp.array([3.0]), "b": jnp.array([[4.0]])}
    found = optim.clipped(grads, 1.0)
    assert float(found["a"][0]) == pytest.approx(0.6)
    assert float(found["b"][0, 0]) == pytest.approx(0.8)


@pytest.mark.parametrize("limit", [5.0, 100.0, None])
def test_gradients_within_the_limit_are_left_alone(limit):
    grads = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    found = optim.clipped(grads, limit)
    assert (float(found["a"][0]), float(found["b"][0])) == (3.0, 4.0)


def test_zero_gradients_can_be_clipped():
    assert float(optim.clipped({"a": jnp.zeros(3)}, 1.0)["a"].sum()) == 0.0


@pytest.mark.parametrize("optimiser", [optim.Adam, optim.RAdam, optim.RMSProp])
def test_clipping_comes_before_the_moments(optimiser):
    once = np.full((1, 6), 1e3)
    clipped = moved(optimiser(clip_norm=1.0, epsilon=1e-3), once)
    already = moved(optimiser(epsilon=1e-3), once / np.linalg.norm(once))
    np.testing.assert_allclose(clipped, already, rtol=1e-5)


@pytest.mark.parametrize("wrong", [{"learning_rate": 0.0}, {"learning_rate": -1.0}, {"clip_norm": 0.0}])
@pytest.mark.parametrize("optimiser", [optim.Adam, optim.RAdam, optim.RMSProp])
def test_rates_and_limits_must_be_positive(optimiser, wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        optimiser(**wrong)


def algorithm_2(gradients, rate, epsilon, start=0.5):
    """RAdam as its paper's algorithm 2 has it, in double precision."""
    theta, first, second, path = np.full(6, start), np.zeros(6), np.zeros(6), []
    longest = 2 / (1 - 0.999) - 1
    for t, gradient in enumerate(gradients, 1):
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        step, length = first / (1 - 0.9**t), longest - 2 * t * 0.999**t / (1 - 0.999**t)
        if length > 4:
            scale = np.sqrt(1 - 0.999**t) / (np.sqrt(second) + epsilon * np.sqrt(1 - 0.999**t))
            variance = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
            step = np.sqrt(variance) * scale * step
        theta = theta - rate * step
        path.append(theta)
    return np.array(path)


@pytest.mark.parametrize("length", [25, 400])
def test_radam_follows_algorithm_2(length):
    gradients = np.random.default_rng(1).normal(size=(length, 6)) * np.array([1e-2, 0.1, 1, 2, 10, 0.0])
    found = moved(optim.RAdam(learning_rate=1e-3, epsilon=1e-3), gradients)
    np.testing.assert_allclose(found, algorithm_2(gradients, 1e-3, 1e-3), rtol=1e-4, atol=1e-5)


def test_radam_takes_plain_steps_until_the_average_is_long_enough():
    found = moved(optim.RAdam(learning_rate=1e-2, beta1=0.0), np.ones((6, 6)))
    steps = -np.diff(found[:, 0], prepend=0.5)
    np.testing.assert_allclose(steps[:4], 1e-2, rtol=1e-4)
    assert (steps[4:] < 0.5e-2).all()


def test_a_threshold_below_four_is_refused():
    with pytest.raises(ConfigError, match="threshold is 3"):
        optim.RAdam(threshold=3.0)


def test_members_of_an_ensemble_are_clipped_each_by_its_own_length():
    grads = {"a": jnp.array([[3.0, 0.0], [0.3, 0.0]]), "b": jnp.array([[4.0], [0.4]])}
    found = optim.clipped_members(grads, 1.0)
    np.testing.assert_allclose(found["a"], [[0.6, 0.0], [0.3, 0.0]], rtol=1e-5)
    np.testing.assert_allclose(found["b"], [[0.8], [0.4]], rtol=1e-5)
    alone, shared = (optim.Adam(beta1=0.0, clip_norm=1.0, clip_scope=scope, epsilon=1.0) for scope in ("member", "all"))
    params = jax.tree.map(jnp.zeros_like, grads)
    second = lambda optimiser: abs(float(optimiser.step(params, optimiser.init(params), grads)[0]["b"][1, 0]))
    assert second(alone) > 2 * second(shared)
