"""Compiled episodes of a pure world under a policy without memory: what tests and measurements of worlds run."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from perdure.core.protocols import World
from perdure.core.records import Spec

Act = Callable[[jax.Array, jax.Array], jax.Array]
"""(key, observation) -> action, for one copy."""


class Rollout(NamedTuple):
    """Several copies side by side, each reset where an episode ends; arrays [steps, lanes, ...]."""

    observation: Any
    """The true successor of each step, before any reset."""
    reward: Any
    terminated: Any
    truncated: Any
    age: Any
    """Steps of the episode, this one included."""


def random_act(spec: Spec) -> Act:
    """Actions uniform over the world's own range, whatever is seen."""

    def act(key, observation):
        if spec.discrete:
            return jax.random.randint(key, (), 0, spec.action_dim)
        return jax.random.uniform(key, (spec.action_dim,), minval=jnp.array(spec.low), maxval=jnp.array(spec.high))

    return act


def run(world: World, task: Any, act: Act, key: jax.Array, steps: int, lanes: int) -> Rollout:
    """Step `lanes` copies for `steps` steps each, as NumPy arrays."""
    start_key, key = jax.random.split(key)
    # Split out here, where one compiled call serves every world, as compiling Threefry is most of a small program.
    starts, keys = jax.random.split(start_key, lanes), jax.random.split(key, (steps, 3, lanes))
    return jax.tree.map(np.asarray, _program(world, act)(starts, keys, task))


def returns(rollout: Rollout) -> np.ndarray:
    """Undiscounted return of every finished episode."""
    totals = []
    for reward_T, done_T in zip(rollout.reward.T, (rollout.terminated | rollout.truncated).T, strict=True):
        cumulative = np.cumsum(reward_T, dtype=np.float64)[done_T]
        totals.append(np.diff(cumulative, prepend=0.0))
    return np.concatenate(totals)


@functools.lru_cache(maxsize=32)
def _program(world, act):
    reset = jax.vmap(world.reset, (0, None))
    step = jax.vmap(world.step, (0, 0, 0, None))

    def advance(carry, keys, task):
        state, observation, age = carry
        act_keys, step_keys, reset_keys = keys
        result = step(step_keys, state, jax.vmap(act)(act_keys, observation), task)
        state, observation, reward, terminated, truncated = result[:5]
        age = age + 1
        row = Rollout(observation, reward, terminated, truncated, age)
        fresh = (*reset(reset_keys, task), jnp.zeros_like(age))
        select = functools.partial(_where, terminated | truncated)
        return jax.tree.map(select, fresh, (state, observation, age)), row

    @jax.jit
    def program(starts, keys, task):
        start = (*reset(starts, task), jnp.zeros(len(starts), jnp.int32))
        return jax.lax.scan(lambda carry, keys: advance(carry, keys, task), start, keys)[1]

    return program


def _where(mask, yes, no):
    return jnp.where(mask.reshape(mask.shape + (1,) * (yes.ndim - mask.ndim)), yes, no)
