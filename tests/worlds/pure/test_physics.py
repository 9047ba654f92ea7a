import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core import component
from perdure.core.errors import ConfigError
from perdure.worlds.pure.acrobot import Acrobot
from perdure.worlds.pure.cartpole import CartPole
from perdure.worlds.pure.mountain_car import MountainCar, MountainCarContinuous
from perdure.worlds.pure.pendulum import Pendulum

KEY = jax.random.key(0)


def test_a_task_holds_what_was_given_and_defaults_for_the_rest():
    task = CartPole().task(pole_length=2.0)
    assert task.pole_length == 2.0
    assert task.gravity == np.float32(9.8)
    assert all(leaf.dtype == jnp.float32 and leaf.shape == () for leaf in task)


def test_a_misspelt_parameter_names_the_world_and_the_nearest_one():
    with pytest.raises(ConfigError, match=r"perdure/cartpole has no parameter 'gravty'; did you mean 'gravity'\?"):
        CartPole().task(gravty=1.0)


@pytest.mark.parametrize(
    ("world", "name"),
    [
        (CartPole(), "cart_mass"),
        (CartPole(), "pole_mass"),
        (CartPole(), "pole_length"),
        (Pendulum(), "mass"),
        (Pendulum(), "length"),
        (Pendulum(), "max_torque"),
        (Acrobot(), "link_length_1"),
        (Acrobot(), "link_moi"),
    ],
)
@pytest.mark.parametrize("value", [0.0, -1.0, 1e-60])
def test_an_unphysical_mass_or_length_is_refused_by_name(world, name, value):
    with pytest.raises(ConfigError, match=f"{name} is .* above zero"):
        world.task(**{name: value})


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 1e39, "10", None, True, [1.0]])
def test_a_value_that_is_no_finite_single_precision_number_is_refused(value):
    with pytest.raises(ConfigError, match=r"perdure/cartpole: force is .*; it must be a finite number"):
        CartPole().task(force=value)


@pytest.mark.parametrize("horizon", [0, -3, 1.5, True])
def test_a_horizon_that_is_no_positive_whole_number_is_refused(horizon):
    with pytest.raises(ConfigError, match="horizon"):
        CartPole(horizon=horizon)


def test_a_document_can_set_the_horizon_and_nothing_it_does_not_have():
    assert component.make(Pendulum, {"horizon": 50}, "environment.kwargs").spec.horizon == 50
    with pytest.raises(ConfigError, match=r"environment.kwargs.horizn .* did you mean 'horizon'"):
        component.make(Pendulum, {"horizn": 50}, "environment.kwargs")


def test_a_negative_force_makes_each_push_the_other():
    world = CartPole()
    state, _ = world.reset(KEY, world.task())
    _, left, *_ = world.step(KEY, state, jnp.int32(0), world.task())
    _, reversed_right, *_ = world.step(KEY, state, jnp.int32(1), world.task(force=-10.0))
    _, right, *_ = world.step(KEY, state, jnp.int32(1), world.task())
    np.testing.assert_array_equal(left, reversed_right)
    assert not np.array_equal(left, right)


def test_a_negative_gain_reverses_the_motor_and_keeps_the_cost():
    world = Pendulum()
    state, _ = world.reset(KEY, world.task())
    push, pull = jnp.array([1.5]), jnp.array([-1.5])
    _, wanted, cost, *_ = world.step(KEY, state, pull, world.task())
    _, seen, reversed_cost, *_ = world.step(KEY, state, push, world.task(gain=-1.0))
    np.testing.assert_array_equal(wanted, seen)
    assert cost == reversed_cost


def test_a_task_halfway_between_two_is_the_physics_halfway_between():
    world = CartPole()
    low, high = world.task(gravity=5.0, pole_length=1.0), world.task(gravity=15.0, pole_length=2.0)
    halfway = jax.tree.map(lambda a, b: (a + b) / 2, low, high)
    assert halfway == world.task(gravity=10.0, pole_length=1.5)


def test_both_mountain_cars_roll_alike_under_equal_pushes():
    """Gymnasium has the continuous car's gravity in its equations, so that a shifted one is checked here."""
    discrete, continuous = MountainCar(), MountainCarContinuous()
    state, _ = discrete.reset(KEY, discrete.task())
    one, two = discrete.task(force=0.002, gravity=0.004), continuous.task(power=0.002, gravity=0.004)
    ours = theirs = state
    for push in (1, 1, 0, 2, 2, 2, 0):
        ours, _, *_ = discrete.step(KEY, ours, jnp.int32(push), one)
        theirs, _, *_ = continuous.step(KEY, theirs, jnp.array([push - 1.0]), two)
    np.testing.assert_allclose(ours.body, theirs.body, atol=1e-7)


def test_a_continuous_car_pays_for_the_throttle_it_asks_for():
    world = MountainCarContinuous()
    state, _ = world.reset(KEY, world.task())
    _, full, *_ = world.step(KEY, state, jnp.array([1.0]), world.task())
    _, more, reward, *_ = world.step(KEY, state, jnp.array([3.0]), world.task())
    np.testing.assert_array_equal(full, more)
    assert reward == pytest.approx(-0.9)


def test_acrobot_gravity_is_a_parameter():
    """Gymnasium has 9.8 in its equations; without gravity, torque and spin nothing moves."""
    world = Acrobot()
    still = world.reset(KEY, world.task())[0]._replace(body=jnp.array([1.0, 0.5, 0.0, 0.0]))
    floating, *_ = world.step(KEY, still, jnp.int32(1), world.task(gravity=0.0))
    falling, *_ = world.step(KEY, still, jnp.int32(1), world.task())
    np.testing.assert_allclose(floating.body, still.body, atol=1e-6)
    assert falling.body[2] < -0.1


@pytest.mark.parametrize("world", [CartPole(), Pendulum(), Acrobot(), MountainCar(), MountainCarContinuous()], ids=str)
def test_bounds_are_ordered_and_say_where_they_come_from(world):
    low, high = world.bounds(world.task())
    assert low < high
    assert "low" in world.bounds_source
    assert "high" in world.bounds_source
