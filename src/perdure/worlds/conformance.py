"""Tests that any world must pass: subclass `Conformance` (pure) or `HostConformance` (Gymnasium) in a pytest file.

class TestCartPole(Conformance):
    world = CartPole()
"""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perdure.core.errors import PerdureError
from perdure.core.records import Spec
from perdure.worlds import rollouts

LANES = 4
STEPS = 1000
MISSPELT = "no_such_parameter"


class Conformance:
    """The contract of `core.protocols.World`; the subclass gives `world`."""

    world: Any = None
    refuses_unknown_parameters: bool = True
    """Whether `task` must raise a PerdureError for a parameter that does not exist."""
    ends_itself_at_the_horizon: bool = False
    """Whether every episode rightly terminates at the step that is also its last allowed one."""

    def test_spec_describes_shapes_that_an_agent_can_use(self):
        spec = self.world.spec
        assert isinstance(spec, Spec)
        assert all(isinstance(size, int) and size > 0 for size in spec.obs_shape), "obs_shape holds positive ints"
        assert spec.action_dim >= 1, "action_dim counts actions or dimensions, at least one"
        assert spec.horizon >= 1, "horizon counts steps, at least one"
        bounds = 0 if spec.discrete else spec.action_dim
        assert len(spec.low) == len(spec.high) == bounds, "low and high have a number per continuous dimension"
        assert all(low < high for low, high in zip(spec.low, spec.high, strict=True)), "low lies below high"

    def test_reset_and_step_return_what_the_spec_says(self):
        spec, state, observation, result = self.world.spec, *_shapes(self.world)
        next_state, next_observation, reward, terminated, truncated = result[:5]
        for seen in (observation, next_observation):
            assert seen.shape == spec.obs_shape, f"observation has shape {seen.shape}, spec says {spec.obs_shape}"
            assert seen.dtype == jnp.float32, f"observation is {seen.dtype}, not float32"
        assert (reward.shape, reward.dtype) == ((), jnp.float32), f"reward is {reward}, not a float32 scalar"
        for end in (terminated, truncated):
            assert (end.shape, end.dtype) == ((), jnp.bool_), f"an end is {end}, not a boolean scalar"
        assert len(result) == 5 or isinstance(result[5], dict), "a sixth value is a mapping of arrays"
        assert jax.tree.structure(state) == jax.tree.structure(next_state), "step changes the structure of the state"
        for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(next_state), strict=True):
            assert (before.shape, before.dtype) == (after.shape, after.dtype), f"a state leaf {before} became {after}"

    def test_no_output_is_weakly_typed(self):
        state, observation, result = _shapes(self.world)
        weak = [leaf for leaf in jax.tree.leaves((state, observation, result[:5])) if getattr(leaf, "weak_type", False)]
        assert not weak, f"weakly typed outputs make a loop compile twice: {weak}"

    def test_reset_and_step_depend_on_their_arguments_alone(self):
        (run, _), task, keys = _compiled(self.world), self.world.task(), _keys()
        assert _equal(run(task, keys), run(task, keys)), "the same key, state, action and task gave different results"

    def test_compiled_copies_do_what_each_does_alone_and_uncompiled(self):
        (run, _), task, keys = _compiled(self.world), self.world.task(), _keys()
        together = run(task, keys)
        for lane in range(LANES):
            ours = jax.tree.map(operator.itemgetter(lane), together)
            assert _close(ours, _first_step(self.world, task, keys[lane])), f"jit and vmap change what copy {lane} does"

    def test_a_task_is_made_of_typed_arrays(self):
        for leaf in jax.tree.leaves(self.world.task()):
            assert isinstance(leaf, jax.Array), f"a task leaf is {leaf!r}, which a program would hold as a constant"
            assert not leaf.weak_type, f"a task leaf is weakly typed: {leaf!r}"

    def test_another_task_compiles_nothing(self):
        (run, traces), task = _compiled(self.world), self.world.task()
        run(task, _keys())
        run(jax.tree.map(lambda leaf: leaf * 2 if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, task), _keys())
        assert len(traces) == 1, "a task with other numbers was traced again"

    def test_an_unknown_parameter_is_refused(self):
        if not self.refuses_unknown_parameters:
            return
        self._refuses(MISSPELT, 1.0)

    def test_a_parameter_that_is_not_finite_is_refused(self):
        for name in getattr(self.world.task(), "_fields", ()):
            self._refuses(name, float("nan"))
            self._refuses(name, float("inf"))

    def test_random_actions_never_give_a_number_that_is_not_finite(self):
        rollout = _rollout(self.world)
        assert np.isfinite(rollout.observation).all(), "an observation is not finite"
        assert np.isfinite(rollout.reward).all(), "a reward is not finite"

    def test_truncation_is_at_the_horizon_exactly(self):
        rollout, spec = _rollout(self.world), self.world.spec
        wanted = rollout.age == spec.horizon if spec.episodic else np.zeros_like(rollout.truncated)
        assert (rollout.truncated == wanted).all(), f"truncated elsewhere than at step {spec.horizon} of an episode"

    def test_the_clock_runs_on_whatever_happens(self):
        spec = self.world.spec
        if not spec.episodic or spec.horizon > 10 * STEPS:
            return
        truncated_T = _unbroken(self.world, spec.horizon)
        assert not truncated_T[:-1].any(), f"truncated at step {int(np.argmax(truncated_T)) + 1} of {spec.horizon}"
        assert truncated_T[-1], f"not truncated at the horizon, step {spec.horizon}"

    def test_the_horizon_is_not_called_a_termination(self):
        rollout, spec = _rollout(self.world), self.world.spec
        assert spec.episodic or not rollout.terminated.any(), "a never-ending world terminated"
        last = rollout.terminated[rollout.truncated]
        assert self.ends_itself_at_the_horizon or not last.size or not last.all(), (
            "every episode that reached the horizon is called terminated as well"
        )

    def _refuses(self, name, value):
        message = ""
        try:
            self.world.task(**{name: value})
        except PerdureError as error:
            message = str(error)
        assert message, f"task accepted {name}={value}"
        assert name in message, f"the refusal does not name the parameter: {message}"


class HostConformance:
    """What perdure asks of a Gymnasium environment; the subclass gives `make`."""

    steps: int = 300

    def make(self) -> Any:
        """A new environment."""
        raise NotImplementedError("a HostConformance subclass defines make(), which returns a new environment")

    def test_the_spaces_are_ones_that_perdure_reads(self):
        from perdure.worlds.adapters import gymnasium as hosts

        env = self.make()
        assert isinstance(hosts.spec_of(env), Spec)
        env.close()

    def test_the_same_seed_and_actions_give_the_same_run(self):
        first, second = self._run(seed=5), self._run(seed=5)
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert np.array_equal(one[0], other[0]), "the same seed gave another observation"
            assert one[1:] == other[1:], "the same seed gave another reward or end"

    def test_steps_return_observations_of_the_space_and_plain_numbers(self):
        env = self.make()
        observation, info = env.reset(seed=0)
        env.action_space.seed(0)
        assert isinstance(info, dict)
        for _ in range(self.steps):
            assert env.observation_space.contains(observation), f"observation {observation!r} is outside its space"
            observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
            assert np.isfinite(float(reward)), f"reward {reward!r} is not finite"
            assert isinstance(terminated, bool | np.bool_), f"terminated is {terminated!r}"
            assert isinstance(truncated, bool | np.bool_), f"truncated is {truncated!r}"
            assert isinstance(info, dict)
            if terminated or truncated:
                observation, info = env.reset()
        env.close()

    def test_a_stored_state_continues_as_the_original_does(self):
        env, other = self.make(), self.make()
        if not (env.has_wrapper_attr("get_state") and env.has_wrapper_attr("set_state")):
            return
        env.reset(seed=1)
        other.reset(seed=2)
        env.action_space.seed(0)
        self._walk(env, [env.action_space.sample() for _ in range(7)])
        other.get_wrapper_attr("set_state")(env.get_wrapper_attr("get_state")())
        actions = [env.action_space.sample() for _ in range(self.steps)]
        for one, two in zip(self._walk(env, actions), self._walk(other, actions), strict=True):
            assert np.array_equal(one[0], two[0]), "an observation differs after set_state"
            assert one[1:] == two[1:], "a reward or end differs after set_state"

    def _run(self, seed):
        env = self.make()
        env.action_space.seed(seed)
        actions = [env.action_space.sample() for _ in range(self.steps)]
        observation, _ = env.reset(seed=seed)
        rows = [(observation, 0.0, False, False), *self._walk(env, actions)]
        env.close()
        return rows

    def _walk(self, env, actions):
        rows = []
        for action in actions:
            observation, reward, terminated, truncated, _ = env.step(action)
            rows.append((np.copy(observation), float(reward), bool(terminated), bool(truncated)))
            if terminated or truncated:
                rows.append((np.copy(env.reset()[0]), 0.0, False, False))
        return rows


def _first_step(world, task, keys):
    """A reset and a random step, from three keys."""
    reset_key, act_key, step_key = keys
    state, observation = world.reset(reset_key, task)
    action = rollouts.random_act(world.spec)(act_key, observation)
    return state, observation, world.step(step_key, state, action, task)


@functools.cache
def _compiled(world):
    """First steps of several copies in one program, and a list that grows whenever it is traced."""
    traces = []

    @jax.jit
    def run(task, keys):
        traces.append(keys)
        return jax.vmap(functools.partial(_first_step, world, task))(keys)

    return run, traces


def _keys():
    return jax.random.split(jax.random.key(11), (LANES, 3))


def _shapes(world):
    key, task = jax.random.key(0), world.task()
    state, observation = jax.eval_shape(world.reset, key, task)
    action = jax.eval_shape(rollouts.random_act(world.spec), key, observation)
    return state, observation, jax.eval_shape(world.step, key, state, action, task)


@functools.cache
def _rollout(world):
    return rollouts.run(world, world.task(), rollouts.random_act(world.spec), jax.random.key(7), STEPS, LANES)


def _unbroken(world, steps):
    """Truncation flags of one copy that is stepped on whether or not it terminates."""
    act = rollouts.random_act(world.spec)

    def advance(carry, key, task):
        state, observation = carry
        result = world.step(key, state, act(key, observation), task)
        return result[:2], result[4]

    @jax.jit
    def run(key, task):
        keys = jax.random.split(key, steps)
        return jax.lax.scan(lambda carry, key: advance(carry, key, task), world.reset(key, task), keys)[1]

    return np.asarray(run(jax.random.key(0), world.task()))


def _equal(one, other):
    return jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(_plain(a), _plain(b)), one, other))


def _close(one, other):
    return jax.tree.all(jax.tree.map(lambda a, b: np.allclose(_plain(a), _plain(b), rtol=1e-4, atol=1e-5), one, other))


def _plain(leaf):
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
