"""The Gymnasium face of a pure world: the same numbers as in a compiled run of the same seed.

Keys. A lane's key comes from the seed given to `reset`; its first state is drawn from that key
folded with `FIRST`. Step t, counted over all episodes of the lane from 0, splits the key folded
with t into a step key and a reset key; should the episode end there, the next one begins from the
reset key, under the task in force at step t.
"""

import functools
from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.envs.registration import EnvSpec

from perdure.core.errors import ConfigError, DataError, PerdureError

FIRST = np.uint32(0xFFFFFFFF)


class WorldEnv(gymnasium.Env):
    """A pure world as a Gymnasium environment, with regimes and exact resume.

    Continuous actions are in world units and cut at the bounds of the action space. A step after a
    termination is refused; after a truncation it goes on. `reset` without a seed continues the lane:
    it begins the next episode, which in the middle of one is drawn from a key of its own.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium declares it so)

    def __init__(self, world: Any, name: str | None = None, kwargs: Mapping[str, Any] | None = None):
        spec = world.spec
        self.world = world
        self.persistent = not spec.episodic
        self._name = name or type(world).__name__
        self.spec = EnvSpec(
            id=self._name,
            entry_point="perdure.worlds.adapters.gymnasium:face",
            max_episode_steps=spec.horizon if spec.episodic else None,
            kwargs={"world": name, **(kwargs or {})},
        )
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, spec.obs_shape, np.float32)
        if spec.discrete:
            self.action_space = gymnasium.spaces.Discrete(spec.action_dim)
        else:
            self.action_space = gymnasium.spaces.Box(np.float32(spec.low), np.float32(spec.high), dtype=np.float32)
        self._seed: int | None = None
        self._lane_key: Any = None
        self._t = self._resets = 0
        self._state: Any = None
        self._fresh: Any = None
        self._terminated = False
        self.set_regime({})

    def set_regime(self, params: Mapping[str, float]) -> None:
        """Put `task(**params)` in force from the next step on; the state is kept."""
        self._task = self.world.task(**params)
        self._params = {name: float(value) for name, value in params.items()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The first observation of an episode; a seed (below 2**32) starts the lane anew."""
        super().reset(seed=seed)
        if seed is None and self._seed is None:
            seed = int(self.np_random.integers(2**32))
        if seed is not None:
            self._begin_lane(seed)
            self._fresh = _reset(self.world, jax.random.fold_in(self._lane_key, FIRST), self._task)
        elif self._fresh is None:
            out_of_turn = jax.random.fold_in(jax.random.fold_in(self._lane_key, FIRST), self._resets)
            self._fresh = _reset(self.world, out_of_turn, self._task)
            self._resets += 1
        (self._state, observation), self._fresh = self._fresh, None
        self._terminated = False
        return np.asarray(observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step of the lane."""
        if self._state is None or self._terminated:
            raise PerdureError(f"{self._name} is at no episode's step; call reset() before step()")
        result = _step(self.world, self._lane_key, np.int32(self._t), self._state, self._legal(action), self._task)
        self._state, rest = result[0], jax.device_get(result[1:])
        observation, reward, terminated, truncated, *info = rest
        self._terminated, self._fresh = bool(terminated), None
        if terminated or truncated:
            self._fresh = _reset_after(self.world, self._lane_key, np.int32(self._t), self._task)
        self._t += 1
        return observation, float(reward), bool(terminated), bool(truncated), info[0] if info else {}

    def get_state(self) -> dict[str, Any]:
        """Everything that `reset` and `step` depend on, as JSON values."""
        return {
            "world": repr(self.world),
            "seed": self._seed,
            "t": self._t,
            "resets": self._resets,
            "terminated": self._terminated,
            "params": dict(self._params),
            "state": _numbers(self._state),
            "fresh": _numbers(self._fresh),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `get_state` was asked; raises DataError for the state of another world."""
        if state.get("world") != repr(self.world):
            raise DataError(
                f"this state is of {state.get('world')}, not of {self.world!r}; use the run's own checkpoint"
            )
        self.set_regime(state["params"])
        if state["seed"] is None:
            self._seed = self._lane_key = self._state = self._fresh = None
            return
        self._begin_lane(state["seed"])
        self._t, self._resets, self._terminated = state["t"], state["resets"], state["terminated"]
        fresh = jax.eval_shape(self.world.reset, self._lane_key, self._task)
        self._state = _arrays(state["state"], fresh[0])
        self._fresh = _arrays(state["fresh"], fresh)

    def _begin_lane(self, seed: int) -> None:
        if not 0 <= seed < 2**32:
            raise ConfigError(f"{self._name}: seed is {seed}; a lane's seed lies in [0, 2**32)")
        self._seed, self._lane_key = seed, jax.random.key(seed)
        self._t = self._resets = 0

    def _legal(self, action: Any) -> Any:
        if isinstance(self.action_space, gymnasium.spaces.Box):
            return np.clip(np.asarray(action, np.float32), self.action_space.low, self.action_space.high)
        count = self.world.spec.action_dim
        if not 0 <= action < count:
            raise PerdureError(f"{self._name}: action is {action!r}; it has the actions 0 to {count - 1}")
        return np.int32(action)


@functools.partial(jax.jit, static_argnums=0)
def _reset(world, key, task):
    return world.reset(key, task)


@functools.partial(jax.jit, static_argnums=0)
def _step(world, lane_key, t, state, action, task):
    step_key, _ = jax.random.split(jax.random.fold_in(lane_key, t))
    return world.step(step_key, state, action, task)


@functools.partial(jax.jit, static_argnums=0)
def _reset_after(world, lane_key, t, task):
    _, reset_key = jax.random.split(jax.random.fold_in(lane_key, t))
    return world.reset(reset_key, task)


def _numbers(tree):
    """The leaves of a tree as nested lists, None for None."""
    return None if tree is None else [_plain(leaf).tolist() for leaf in jax.tree.leaves(tree)]


def _arrays(numbers, like):
    """The tree whose leaves `_numbers` listed; `like` has its structure and types."""
    if numbers is None:
        return None
    leaves, structure = jax.tree.flatten(like)
    return jax.tree.unflatten(structure, [_restored(*pair) for pair in zip(numbers, leaves, strict=True)])


def _plain(leaf):
    return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)


def _restored(numbers, like):
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.array(numbers, jnp.uint32))
    return jnp.asarray(np.array(numbers, like.dtype))
