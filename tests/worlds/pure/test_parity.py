"""The classic-control worlds against Gymnasium's own, at default and at shifted constants."""

import functools
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np
import pytest

from perdure.worlds.pure import physics
from perdure.worlds.pure.acrobot import Acrobot
from perdure.worlds.pure.cartpole import CartPole
from perdure.worlds.pure.mountain_car import MountainCar, MountainCarContinuous
from perdure.worlds.pure.pendulum import Pendulum

STEPS = 1000
UNUSED_KEY = jax.random.key(0)
STEP = jax.jit(lambda world, *arguments: world.step(*arguments), static_argnums=0)
RESET = jax.jit(lambda world, *arguments: world.reset(*arguments), static_argnums=0)


class Case(NamedTuple):
    env_id: str
    world: Any
    params: dict
    attributes: dict


CASES = {
    "cartpole": Case("CartPole-v1", CartPole(), {}, {}),
    "cartpole_reversed": Case("CartPole-v1", CartPole(), {"force": -10.0}, {"force_mag": -10.0}),
    "cartpole_heavy": Case(
        "CartPole-v1",
        CartPole(),
        {"gravity": 20.0, "cart_mass": 2.0, "pole_mass": 0.3, "pole_length": 2.0},
        {"gravity": 20.0, "masscart": 2.0, "masspole": 0.3, "total_mass": 2.3, "length": 1.0, "polemass_length": 0.3},
    ),
    "pendulum": Case("Pendulum-v1", Pendulum(), {}, {}),
    "pendulum_heavy": Case(
        "Pendulum-v1",
        Pendulum(),
        {"gravity": 4.0, "mass": 1.7, "length": 0.6, "max_torque": 1.2},
        {"g": 4.0, "m": 1.7, "l": 0.6, "max_torque": 1.2},
    ),
    "acrobot": Case("Acrobot-v1", Acrobot(), {}, {}),
    "acrobot_heavy": Case(
        "Acrobot-v1",
        Acrobot(),
        {
            "link_length_1": 1.4,
            "link_mass_1": 0.7,
            "link_mass_2": 1.5,
            "link_com_1": 0.8,
            "link_com_2": 0.3,
            "link_moi": 1.3,
            "torque": -0.5,
        },
        {
            "LINK_LENGTH_1": 1.4,
            "LINK_MASS_1": 0.7,
            "LINK_MASS_2": 1.5,
            "LINK_COM_POS_1": 0.8,
            "LINK_COM_POS_2": 0.3,
            "LINK_MOI": 1.3,
            "AVAIL_TORQUE": [0.5, 0.0, -0.5],
        },
    ),
    "mountain_car": Case("MountainCar-v0", MountainCar(), {}, {}),
    "mountain_car_strong": Case(
        "MountainCar-v0", MountainCar(), {"force": -0.004, "gravity": 0.002}, {"force": -0.004, "gravity": 0.002}
    ),
    "mountain_car_continuous": Case("MountainCarContinuous-v0", MountainCarContinuous(), {}, {}),
    "mountain_car_continuous_strong": Case(
        "MountainCarContinuous-v0", MountainCarContinuous(), {"power": 0.006}, {"power": 0.006}
    ),
}


CHAOTIC = Case("Acrobot-v1", Acrobot(), {"torque": -3.0}, {"AVAIL_TORQUE": [3.0, 0.0, -3.0]})


class Difference(NamedTuple):
    """Largest differences over a run, and how many episodes ended in it."""

    observation: float
    reward: float
    ends: int


@pytest.mark.parametrize("case", [*CASES.values(), CHAOTIC], ids=[*CASES, "acrobot_chaotic"])
def test_each_step_equals_gymnasium_from_the_same_state(case):
    difference = _compare(case, resynchronise=True)
    assert difference.observation < 1e-5
    assert difference.reward < 1e-5


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_whole_episodes_equal_gymnasium_from_the_same_start(case):
    difference = _compare(case, resynchronise=False)
    assert difference.ends >= 1
    assert difference.observation < 1e-3
    assert difference.reward < 1e-3


def _compare(case: Case, resynchronise: bool) -> Difference:
    """Same 1,000 random actions in both, with the end of every episode asserted to be the same.

    Both start an episode in the same single-precision state. Where the motion is chaotic, a strong
    acrobot above all, one rounding grows past any bound within an episode (Gymnasium's own
    does, started one rounding away from itself), so whole episodes are compared under constants that stay regular.
    """
    env = gymnasium.make(case.env_id)
    for attribute, value in case.attributes.items():
        assert hasattr(env.unwrapped, attribute)
        setattr(env.unwrapped, attribute, value)
    task, step = case.world.task(**case.params), functools.partial(STEP, case.world)
    env.action_space.seed(1)
    state = _start(env, case.world, task, 0)
    observation_gap, reward_gap, ends = 0.0, 0.0, 0
    for _ in range(STEPS):
        action = env.action_space.sample()
        wanted, wanted_reward, *wanted_end, _ = env.step(action)
        state, observation, reward, terminated, truncated = step(UNUSED_KEY, state, action, task)
        observation_gap = max(observation_gap, float(np.abs(np.asarray(observation) - wanted).max()))
        reward_gap = max(reward_gap, abs(float(reward) - float(wanted_reward)))
        assert [bool(terminated), bool(truncated)] == wanted_end
        if any(wanted_end):
            ends += 1
            state = _start(env, case.world, task, ends)
        elif resynchronise:
            state = state._replace(body=_body(env))
    env.close()
    return Difference(observation_gap, reward_gap, ends)


def _start(env, world, task, episode: int) -> physics.State:
    """Begin an episode in both, at the world's own random start."""
    env.reset(seed=episode)
    state, _ = RESET(world, jax.random.fold_in(jax.random.key(1), episode), task)
    env.unwrapped.state = np.array(state.body, np.float64)
    return state


def _body(env) -> np.ndarray:
    """The body that Gymnasium holds, its angle within a turn as the world's is."""
    body = np.array(env.unwrapped.state, np.float64)
    if env.unwrapped.spec.id == "Pendulum-v1":
        body[0] = (body[0] + np.pi) % (2 * np.pi) - np.pi
    return np.float32(body)
