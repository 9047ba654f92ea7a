"""gymnax as pure worlds; skipped where the extra is not installed, but for the message that says so."""

import importlib.util

import jax
import numpy as np
import pytest

from perdure.core.errors import ConfigError, MissingExtra, UnknownName
from perdure.worlds import catalogue
from perdure.worlds.adapters.gymnax import GymnaxWorld
from perdure.worlds.conformance import Conformance
from perdure.worlds.pure.cartpole import CartPole

installed = pytest.mark.skipif(importlib.util.find_spec("gymnax") is None, reason="the extra gymnax is not installed")
KEY = jax.random.key(0)


@installed
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Catch-bsuite"])
class TestGymnax(Conformance):
    @pytest.fixture(autouse=True)
    def _world(self, env_id):
        self.world = GymnaxWorld(env_id)


@installed
def test_cartpole_moves_as_perdures_own_does():
    theirs, ours = catalogue.pure("gymnax/CartPole-v1"), CartPole()
    their_task, our_task = theirs.task(masspole=0.4, length=1.0), ours.task(pole_mass=0.4, pole_length=2.0)
    their_state, seen = theirs.reset(KEY, their_task)
    our_state, _ = ours.reset(KEY, our_task)
    np.testing.assert_array_equal(seen, our_state.body)
    for action in (0, 1, 1, 0, 1):
        their_state, seen, *_ = theirs.step(KEY, their_state, action, their_task)
        our_state, wanted, *_ = ours.step(KEY, our_state, action, our_task)
        np.testing.assert_allclose(seen, wanted, atol=1e-5)


@installed
def test_a_time_limit_is_a_truncation_alone():
    world = GymnaxWorld("Pendulum-v1")
    task = world.task()
    state, _ = world.reset(KEY, task)
    step = jax.jit(world.step)
    for _ in range(world.spec.horizon):
        state, _, _, terminated, truncated = step(KEY, state, np.zeros(1, np.float32), task)
    assert (bool(terminated), bool(truncated)) == (False, True)


@installed
def test_unknown_fixed_and_bad_parameters_are_refused():
    world = GymnaxWorld("CartPole-v1")
    with pytest.raises(ConfigError, match=r"'gravty' is not a parameter; did you mean 'gravity'\?"):
        world.task(gravty=1.0)
    with pytest.raises(ConfigError, match="'max_steps_in_episode' is fixed"):
        world.task(max_steps_in_episode=5)
    with pytest.raises(ConfigError, match="gravity is nan"):
        world.task(gravity=float("nan"))


@installed
def test_an_unknown_environment_names_the_nearest_one():
    with pytest.raises(UnknownName, match=r"did you mean 'CartPole-v1'\?"):
        GymnaxWorld("CartPol-v1")


@installed
def test_an_argument_that_the_constructor_lacks_is_refused():
    with pytest.raises(ConfigError, match=r"gymnax/CartPole-v1 cannot be built with .*wrong"):
        catalogue.pure("gymnax/CartPole-v1", {"wrong": 1})


@pytest.mark.skipif(importlib.util.find_spec("gymnax") is not None, reason="gymnax is installed")
def test_without_gymnax_the_extra_is_named():
    with pytest.raises(MissingExtra, match=r"perdure\[gymnax\]"):
        catalogue.pure("gymnax/CartPole-v1")
