"""The scripted experts, each in its world: what they score there, and in worlds whose constants have moved."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.errors import ConfigError
from perdure.worlds import rollouts
from perdure.worlds.pure import experts
from perdure.worlds.pure.acrobot import Acrobot
from perdure.worlds.pure.cartpole import CartPole
from perdure.worlds.pure.mountain_car import MountainCar, MountainCarContinuous
from perdure.worlds.pure.pendulum import Pendulum

SEEDS = 20
PAIRS = [
    (CartPole(), experts.CartPoleExpert(), 499.0),
    (Pendulum(), experts.PendulumExpert(), -200.0),
    (Acrobot(), experts.AcrobotExpert(), -110.0),
    (MountainCar(), experts.MountainCarExpert(), -125.0),
    (MountainCarContinuous(), experts.MountainCarContinuousExpert(), 93.0),
]
NAMES = [type(world).__name__ for world, *_ in PAIRS]


def mean_return(world, expert, **params):
    """Of the first episode under each of the seeds."""
    act = lambda key, obs: expert(obs)
    found = rollouts.run(world, world.task(**params), act, jax.random.key(0), world.spec.horizon, SEEDS)
    done_TN = found.terminated | found.truncated
    first_TN = np.cumsum(done_TN, axis=0) - done_TN == 0
    return (found.reward * first_TN).sum(0).mean()


@pytest.mark.parametrize(("world", "expert", "least"), PAIRS, ids=NAMES)
def test_an_expert_masters_its_world(world, expert, least):
    assert mean_return(world, expert) >= least


def test_an_expert_of_other_constants_masters_the_world_that_has_them():
    changed = {"force": -10.0, "gravity": 20.0, "cart_mass": 2.0, "pole_mass": 0.3, "pole_length": 2.0}
    assert mean_return(CartPole(), experts.CartPoleExpert(**changed), **changed) >= 499
    assert mean_return(CartPole(), experts.CartPoleExpert(), **changed) < 50
    changed = {"gravity": 12.0, "mass": 1.3, "length": 0.8, "gain": -1.0}
    assert mean_return(Pendulum(), experts.PendulumExpert(**changed), **changed) >= -250


@pytest.mark.parametrize(
    ("expert", "obs", "wanted"),
    [
        # The pole leans right: push right. Both reversed: push left.
        (experts.CartPoleExpert(), [[0, 0, 0.1, 0], [0, 0, -0.1, 0]], [1, 0]),
        (experts.CartPoleExpert(force=-10.0), [[0, 0, 0.1, 0], [0, 0, -0.1, 0]], [0, 1]),
        (experts.AcrobotExpert(), [[1, 0, 1, 0, -1, 2], [1, 0, 1, 0, 1, -2]], [2, 0]),
        (experts.AcrobotExpert(torque=-1.0), [[1, 0, 1, 0, -1, 2], [1, 0, 1, 0, 1, -2]], [0, 2]),
        (experts.MountainCarExpert(), [[-0.5, 0.0], [-0.5, -0.01]], [2, 0]),
        (experts.MountainCarContinuousExpert(), [[-0.5, 0.0], [-0.5, -0.01]], [[0.5], [-0.5]]),
        (experts.MountainCarContinuousExpert(-0.0015, 1.0), [[-0.5, 0.0], [-0.5, -0.01]], [[-1.0], [1.0]]),
    ],
)
def test_a_rule_has_the_worked_actions(expert, obs, wanted):
    np.testing.assert_allclose(expert(jnp.array(obs, jnp.float32)), wanted)


def test_the_pendulum_balances_pumps_and_brakes_by_its_energy():
    # Inertia 1/3, weight 5. Balancing at sine 0.1, spin -0.5: -5 sin a - (8 (-0.5) + 16 a) / 3.
    angle = np.arcsin(0.1)
    balanced = -0.5 - (-4.0 + 16 * angle) / 3
    hanging, whirling = [-1.0, 0.0, 0.1], [-1.0, 0.0, 7.9]
    # At rest below 10 joules lack; whirling 8 rad/s below, 62.41 / 6 = 10.4 joules are 0.4 too many.
    obs = jnp.array([[np.cos(angle), 0.1, -0.5], hanging, whirling])
    gentle = experts.PendulumExpert(eagerness=1.0)
    np.testing.assert_allclose(gentle(obs)[:, 0], [balanced, 2.0, 10 - 62.41 / 6], rtol=1e-4)
    reversed_motor = experts.PendulumExpert(eagerness=1.0, gain=-1.0)
    np.testing.assert_allclose(reversed_motor(obs), -gentle(obs), rtol=1e-6)


@pytest.mark.parametrize(("world", "expert", "least"), PAIRS, ids=NAMES)
def test_one_observation_and_a_batch_are_answered_alike(world, expert, least):
    obs = jax.random.normal(jax.random.key(1), (2, 3, *world.spec.obs_shape))
    wanted = [[np.asarray(expert(one)) for one in row] for row in obs]
    np.testing.assert_allclose(expert(obs), wanted, rtol=1e-6)
    shape = () if world.spec.discrete else (world.spec.action_dim,)
    assert expert(obs).shape == (2, 3, *shape)
    assert expert(obs).dtype == (jnp.int32 if world.spec.discrete else jnp.float32)


@pytest.mark.parametrize(
    ("expert", "values", "told"),
    [
        (experts.CartPoleExpert, {"gravity": 0.0}, "gravity is 0.0; it must be above zero"),
        (experts.CartPoleExpert, {"force": 0.0}, "force is 0.0; without a push nothing can be done"),
        (experts.PendulumExpert, {"gain": float("nan")}, "gain is nan"),
        (experts.PendulumExpert, {"rate": -1.0}, "rate is -1.0; it must be above zero"),
        (experts.AcrobotExpert, {"torque": 0.0}, "torque is 0.0"),
        (experts.MountainCarContinuousExpert, {"throttle": 1.5}, r"throttle is 1.5; it lies in \(0, 1\]"),
    ],
)
def test_constants_without_sense_are_refused(expert, values, told):
    with pytest.raises(ConfigError, match=told):
        expert(**values)
