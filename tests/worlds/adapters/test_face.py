import functools
import json

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.capabilities import capability
from perdure.core.errors import ConfigError, DataError, PerdureError
from perdure.worlds.adapters.face import FIRST, WorldEnv
from perdure.worlds.adapters.gymnasium import face, spec_of
from perdure.worlds.conformance import HostConformance
from perdure.worlds.pure.cartpole import CartPole

SEEDS = (5, 6, 4_000_000_000)


class TestCartPole(HostConformance):
    def make(self):
        return face("perdure/cartpole")


class TestPendulum(HostConformance):
    def make(self):
        return face("perdure/pendulum", horizon=60)


class TestContinuousProbe(HostConformance):
    def make(self):
        return face("perdure/probe_policy", continuous=True)


@pytest.mark.parametrize("lane", range(len(SEEDS)))
def test_the_face_gives_the_trace_of_a_compiled_run_of_the_same_seed(lane):
    """Scripted actions, ends of episodes, and a shift of regime in the middle of one."""
    shift, steps = 50, 120
    compiled = _compiled_run(CartPole(), SEEDS, steps, shift, {"force": -10.0, "gravity": 15.0})
    env = face("perdure/cartpole")
    observation, _ = env.reset(seed=SEEDS[lane])
    ends = 0
    for t in range(steps):
        if t == shift:
            env.set_regime({"force": -10.0, "gravity": 15.0})
        np.testing.assert_allclose(observation, compiled["observation"][t, lane], atol=1e-5)
        observation, reward, terminated, truncated, _ = env.step(_script(observation))
        assert reward == compiled["reward"][t, lane]
        assert (terminated, truncated) == (compiled["terminated"][t, lane], compiled["truncated"][t, lane])
        if terminated or truncated:
            ends += 1
            observation, _ = env.reset()
    assert ends >= 2


def test_a_regime_changes_the_next_step_and_keeps_the_state():
    env, other = face("perdure/cartpole"), face("perdure/cartpole")
    first, same = env.reset(seed=0)[0], other.reset(seed=0)[0]
    np.testing.assert_array_equal(first, same)
    other.set_regime({"force": -10.0})
    np.testing.assert_array_equal(env.step(0)[0], other.step(1)[0])


def test_an_empty_regime_is_the_world_as_it_comes():
    env, other = face("perdure/cartpole"), face("perdure/cartpole")
    env.reset(seed=0), other.reset(seed=0)
    other.set_regime({"gravity": 1.0})
    other.set_regime({})
    np.testing.assert_array_equal(env.step(0)[0], other.step(0)[0])


def test_a_regime_with_an_unknown_parameter_is_refused():
    with pytest.raises(ConfigError, match="gravity"):
        face("perdure/cartpole").set_regime({"gravty": 1.0})


def test_a_seed_starts_the_lane_anew_and_no_seed_goes_on():
    env = face("perdure/pendulum")
    first, second, third = env.reset(seed=3)[0], env.reset()[0], env.reset()[0]
    assert len({row.tobytes() for row in (first, second, third)}) == 3
    np.testing.assert_array_equal(first, env.reset(seed=3)[0])


def test_two_lanes_without_a_seed_differ():
    assert not np.array_equal(face("perdure/pendulum").reset()[0], face("perdure/pendulum").reset()[0])


def test_a_step_after_a_termination_is_refused_until_reset():
    env = face("perdure/probe_constant")
    with pytest.raises(PerdureError, match="reset"):
        env.step(0)
    env.reset(seed=0)
    assert env.step(0)[2]
    with pytest.raises(PerdureError, match="reset"):
        env.step(0)
    env.reset()
    env.step(0)


def test_stepping_goes_on_after_a_truncation():
    env = face("perdure/pendulum", horizon=2)
    env.reset(seed=0)
    ends = [env.step([0.0])[3] for _ in range(4)]
    assert ends == [False, True, True, True]


def test_an_action_that_does_not_exist_is_refused():
    env = face("perdure/cartpole")
    env.reset(seed=0)
    with pytest.raises(PerdureError, match="action is 2; it has the actions 0 to 1"):
        env.step(2)


def test_a_continuous_action_is_cut_at_the_bounds():
    env, other = face("perdure/mountain_car_continuous"), face("perdure/mountain_car_continuous")
    env.reset(seed=0), other.reset(seed=0)
    assert env.step([5.0])[1] == other.step([1.0])[1]


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_is_no_32_bit_number_is_refused(seed):
    with pytest.raises((ConfigError, gymnasium.error.Error), match=str(seed)):
        face("perdure/cartpole").reset(seed=seed)


def test_a_state_survives_json_in_the_middle_and_at_the_end_of_an_episode():
    for steps in (3, 5):
        env, other = face("perdure/pendulum", horizon=5), face("perdure/pendulum", horizon=5)
        env.reset(seed=1)
        env.set_regime({"mass": 2.0})
        for _ in range(steps):
            env.step([0.3])
        other.set_state(json.loads(json.dumps(env.get_state())))
        for _ in range(12):
            one, two = env.step([-1.0]), other.step([-1.0])
            np.testing.assert_array_equal(one[0], two[0])
            assert one[1:4] == two[1:4]
            if one[3]:
                np.testing.assert_array_equal(env.reset()[0], other.reset()[0])


def test_a_state_before_the_first_reset_is_restored_as_such():
    env, other = face("perdure/cartpole"), face("perdure/cartpole")
    other.reset(seed=0)
    other.set_state(env.get_state())
    with pytest.raises(PerdureError, match="reset"):
        other.step(0)


def test_the_state_of_another_world_is_refused():
    with pytest.raises(DataError, match="CartPole"):
        face("perdure/pendulum").set_state(face("perdure/cartpole").get_state())


def test_the_face_declares_the_worlds_spec():
    for name in ("perdure/cartpole", "perdure/pendulum", "perdure/mountain_car_continuous"):
        env = face(name)
        assert spec_of(env) == env.world.spec
        assert env.spec.id == name


def test_a_never_ending_world_is_persistent():
    class Endless(CartPole):
        @property
        def spec(self):
            return CartPole().spec._replace(episodic=False)

    env = WorldEnv(Endless())
    assert capability(env, "persistent")
    assert not spec_of(env).episodic


def test_every_face_of_a_world_shares_one_compiled_step():
    traced = []

    class Counted(CartPole):
        def step(self, key, state, action, task):
            traced.append(1)
            return super().step(key, state, action, task)

    for seed in range(3):
        env = WorldEnv(Counted())
        env.reset(seed=seed)
        env.set_regime({"gravity": 9.0 + seed})
        env.step(0)
        env.step(1)
    assert len(traced) == 1


def _script(observation):
    """Balances for a while under the default push; falls at once under the reversed one."""
    return int(np.float32(observation[2]) + np.float32(observation[3]) > 0.02)


def _compiled_run(world, seeds, steps, shift, params):
    """The documented keys in one compiled loop over several lanes."""
    fold = jax.vmap(jax.random.fold_in, (0, None))
    reset, step = jax.vmap(world.reset, (0, None)), jax.vmap(world.step, (0, 0, 0, None))
    before, after = world.task(), world.task(**params)

    @jax.jit
    def run(lanes):
        def advance(carry, t):
            state, observation = carry
            task = jax.tree.map(functools.partial(jnp.where, t < shift), before, after)
            pairs = jax.vmap(jax.random.split)(fold(lanes, t))
            action = (observation[:, 2] + observation[:, 3] > 0.02).astype(jnp.int32)
            following, seen, reward, terminated, truncated = step(pairs[:, 0], state, action, task)
            done = terminated | truncated
            carry = jax.tree.map(functools.partial(_where, done), reset(pairs[:, 1], task), (following, seen))
            row = {"observation": observation, "reward": reward, "terminated": terminated, "truncated": truncated}
            return carry, row

        start = reset(fold(lanes, FIRST), before)
        return jax.lax.scan(advance, start, jnp.arange(steps))[1]

    return jax.tree.map(np.asarray, run(jnp.stack([jax.random.key(seed) for seed in seeds])))


def _where(mask, yes, no):
    return jnp.where(mask.reshape(mask.shape + (1,) * (yes.ndim - 1)), yes, no)
