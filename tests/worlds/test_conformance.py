"""Every pure world and probe under the conformance tests, and broken worlds caught by them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from perdure.worlds import probes
from perdure.worlds.conformance import Conformance
from perdure.worlds.pure.acrobot import Acrobot
from perdure.worlds.pure.cartpole import CartPole
from perdure.worlds.pure.mountain_car import MountainCar, MountainCarContinuous
from perdure.worlds.pure.pendulum import Pendulum

WORLDS = (
    CartPole(),
    Pendulum(),
    Acrobot(),
    MountainCar(),
    MountainCarContinuous(),
    *probes.ladder().values(),
    probes.ActionValue(continuous=True),
    probes.ActionFromObservation(continuous=True),
)


@pytest.mark.parametrize("world", WORLDS, ids=str)
class TestWorlds(Conformance):
    @pytest.fixture(autouse=True)
    def _world(self, world):
        self.world = world


@dataclasses.dataclass(frozen=True)
class Broken:
    """A pendulum whose step is spoilt by `spoil(result, task)`."""

    spoil: Any

    spec = property(lambda self: Pendulum().spec)
    reset = staticmethod(Pendulum().reset)

    def task(self, **params):
        return Pendulum().task(**params)

    def step(self, key, state, action, task):
        return self.spoil(Pendulum().step(key, state, action, task), task)


def _conflate(result, task):
    return (*result[:3], result[4], result[4])


def _late(result, task):
    return (*result[:4], result[0].t >= 201)


def _flat(result, task):
    return (result[0], result[1][:2], *result[2:])


def _blow_up(result, task):
    return (result[0], jnp.where(result[0].t == 50, jnp.nan, result[1]), *result[2:])


def _weak(result, task):
    return (*result[:2], jnp.where(result[3], 0.0, 1.0), *result[3:])


def _read_the_number(result, task):
    return (*result[:2], result[2] * float(task.gravity), *result[3:])


@pytest.mark.parametrize(
    ("spoil", "test"),
    [
        (_conflate, "test_the_horizon_is_not_called_a_termination"),
        (_late, "test_truncation_is_at_the_horizon_exactly"),
        (_late, "test_the_clock_runs_on_whatever_happens"),
        (_flat, "test_reset_and_step_return_what_the_spec_says"),
        (_blow_up, "test_random_actions_never_give_a_number_that_is_not_finite"),
        (_weak, "test_no_output_is_weakly_typed"),
    ],
)
def test_a_broken_world_is_caught(spoil, test):
    suite = Conformance()
    suite.world = Broken(spoil)
    with pytest.raises(AssertionError):
        getattr(suite, test)()


def test_a_world_that_reads_its_task_as_a_python_number_is_caught():
    suite = Conformance()
    suite.world = Broken(_read_the_number)
    with pytest.raises(jax.errors.ConcretizationTypeError):
        suite.test_another_task_compiles_nothing()


def test_a_world_that_takes_any_parameter_is_caught():
    class Careless(Broken):
        def task(self, **params):
            return Pendulum().task()

    suite = Conformance()
    suite.world = Careless(lambda result, task: result)
    with pytest.raises(AssertionError, match="accepted"):
        suite.test_an_unknown_parameter_is_refused()
