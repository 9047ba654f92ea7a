from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.records import Spec
from perdure.rl import cloning
from perdure.rl.nets import Network
from perdure.rl.ops import moments, prng
from perdure.rl.optim import Adam
from perdure.rl.phases import Batch

TWO = Spec((2,), 2, False, (-1.0,) * 2, (1.0,) * 2)


def constant(*outputs):
    """A network of two inputs that always gives these numbers, and its context."""
    hidden = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float32)}
    head = {"w": np.zeros((3, len(outputs)), np.float32), "b": np.array(outputs, np.float32)}
    return Network(2, (3,), len(outputs)), [hidden, head]


def context(network, spec=TWO, agent=None):
    return SimpleNamespace(nets={"actor": network}, spec=spec, agent=agent)


def scored(ctx, params, obs, action):
    return jax.jit(lambda *given: cloning.loss(ctx, *given))(params, obs, action)


def normal(x, mean, std):
    return -0.5 * ((x - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)


OBS = np.zeros((1, 2), np.float32)
ACTION = np.array([[0.5, -0.25]], np.float32)


def test_a_normal_policy_is_scored_by_its_likelihood_with_a_spread_of_at_least_exp_minus_one():
    network, params = constant(0.1, -0.2)
    log_std = jnp.array([0.3, -4.0])
    found = scored(context(network), {"actor": params, "log_std": log_std}, OBS, ACTION)
    wanted = -normal(ACTION, np.array([0.1, -0.2]), np.exp([0.3, -1.0])).sum()
    np.testing.assert_allclose(found, [wanted], rtol=1e-5)


def test_a_squashed_policy_is_scored_in_front_of_the_squashing():
    network, params = constant(0.1, -0.2, 0.3, -4.0)
    found = scored(context(network), {"actor": params}, OBS, ACTION)
    std = np.exp([0.3, -1.0])
    density = normal(np.arctanh(ACTION), np.array([0.1, -0.2]), std) - np.log(1 - ACTION**2)
    np.testing.assert_allclose(found, [-density.sum()], rtol=1e-5)
    # At the bound, where the density has no value, the target is cut.
    bound = scored(context(network), {"actor": params}, OBS, jnp.array([[1.0, -1.0]]))
    cut = np.array([[0.999, -0.999]])
    density = normal(np.arctanh(cut), np.array([0.1, -0.2]), std) - np.log(1 - cut**2)
    np.testing.assert_allclose(bound, [-density.sum()], rtol=1e-4)


def test_a_deterministic_policy_is_scored_by_its_squared_error():
    network, params = constant(0.1, -0.2)
    found = scored(context(network), {"actor": params}, OBS, ACTION)
    np.testing.assert_allclose(found, [(0.4**2 + 0.05**2) / 2], rtol=1e-5)


def test_a_choice_is_scored_by_its_probability():
    network, params = constant(1.0, 2.0, 0.5)
    spec = Spec((2,), 3, discrete=True)
    found = scored(context(network, spec), {"actor": params}, jnp.zeros((2, 2)), jnp.array([1, 2]))
    logits = np.array([1.0, 2.0, 0.5])
    wanted = np.log(np.exp(logits).sum()) - logits[[1, 2]]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_folding_is_exact():
    network = Network(2, (5,), 3, activation="tanh", layer_norm=True)
    draw = lambda *shape: np.random.default_rng(0).normal(size=shape).astype(np.float32)
    params = [{"w": draw(2, 5), "b": np.arange(5, dtype=np.float32)}, {"w": draw(5, 3), "b": draw(3)}]
    obs, mean, spread = jnp.array([[3.0, -40.0], [5.0, 10.0]]), jnp.array([4.0, 7.0]), jnp.array([0.5, 20.0])
    apply = jax.jit(network.apply)
    raw = apply(cloning.folded(params, mean, spread), obs)
    np.testing.assert_allclose(raw, apply(params, (obs - mean) / spread), rtol=1e-4, atol=1e-5)
    assert not np.allclose(raw, apply(params, obs), atol=0.1)


def test_what_never_varies_is_only_centred_and_what_convolutions_read_is_left():
    observed = moments.extend(moments.empty((2,)), jnp.array([[3.0, 100.1], [5.0, 100.1], [4.0, 100.1]]))
    mean, spread = cloning.scale(context(Network(2, (3,), 1)), observed)
    np.testing.assert_allclose(mean, [4.0, 100.1], rtol=1e-6)
    np.testing.assert_allclose(spread, [np.sqrt(2 / 3), 1.0], rtol=1e-5)
    seeing = Network(16, (3,), 1, image=(4, 4, 1), convolutions=((2, 2, 1),))
    np.testing.assert_array_equal(cloning.scale(context(seeing), observed), [0.0, 1.0])


@pytest.mark.parametrize(("batch_size", "steps"), [(2, 2), (100, 1)])
def test_every_epoch_takes_every_row_but_those_that_fill_no_batch(batch_size, steps):
    """Adam's first steps are of its rate each: the last bias moves by no more than that for each batch."""
    network, params = constant(0.0, 0.0)
    rows = Batch(jnp.zeros((5, 2)), jnp.ones((5, 2)), *[None] * 4)
    agent = SimpleNamespace(optimiser=Adam(learning_rate=1e-3))
    ctx = context(network, agent=agent)
    fit = jax.jit(lambda key: cloning.fitted(ctx, {"actor": params}, rows, lambda obs: obs, key, 3, batch_size))
    fitted, losses = fit(prng.key(0))
    np.testing.assert_allclose(fitted["actor"][-1]["b"], 3 * steps * 1e-3, rtol=1e-2)
    after = lambda moves: (1 - 1e-3 * np.array(moves)) ** 2
    np.testing.assert_allclose(losses.first_loss, after(range(steps)).mean(), rtol=1e-4)
    np.testing.assert_allclose(losses.last_loss, after(range(2 * steps, 3 * steps)).mean(), rtol=1e-4)
