"""Windows of an episode's last observations: what an agent with a memory sees in place of single ones.

A window of W observations of D numbers is flat: W times D + 1 numbers, oldest first, the last of each D + 1 saying
whether the episode had begun (1) or not (0, and then all are 0). Functions that are given a world leave
observations as they are where it is not a `Windowed` one.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from perdure.core.component import component
from perdure.core.records import Spec
from perdure.rl import experts
from perdure.rl.dataset import TransitionDataset


class Kept(NamedTuple):
    """Where an episode stands, and what was seen of it last."""

    env: Any
    frames: jax.Array
    """[W, D + 1]."""


@component
class Windowed:
    """A pure world whose observations are windows of another's; all else is as there."""

    world: Any
    window: int
    """W, at least 1."""

    def __getattr__(self, name: str) -> Any:
        """What the world has beside the functions of every world: bounds, a name."""
        if name == "world":  # Not yet set while a copy is being made.
            raise AttributeError(name)
        return getattr(self.world, name)

    @property
    def frame(self) -> int:
        """D."""
        return self.world.spec.obs_shape[0]

    @property
    def spec(self) -> Spec:
        """Flat windows seen."""
        return self.world.spec._replace(obs_shape=(self.window * (self.frame + 1),))

    def task(self, **params: float) -> Any:
        """A task of the world."""
        return self.world.task(**params)

    def reset(self, key: jax.Array, task: Any) -> tuple[Kept, jax.Array]:
        """A window with the first observation alone."""
        env, obs = self.world.reset(key, task)
        frames = _pushed(jnp.zeros((self.window, self.frame + 1)), obs)
        return Kept(env, frames), frames.reshape(-1)

    def step(self, key: jax.Array, state: Kept, action: jax.Array, task: Any) -> tuple:
        """One step of the world; its observation joins the window, the oldest leaves."""
        env, obs, *rest = self.world.step(key, state.env, action, task)
        frames = _pushed(state.frames, obs)
        return Kept(env, frames), frames.reshape(-1), *rest


@component
class LastFrame:
    """An expert for single observations, asked about the last of a window."""

    expert: Any
    world: Windowed

    def __call__(self, obs: jax.Array) -> jax.Array:
        """Actions for windows [..., W * (D + 1)], in world units."""
        return self.expert(last(self.world, obs))


@component
class LastFrameStateful:
    """A stateful expert for single observations, asked about the last of a window."""

    expert: Any
    world: Windowed

    def init_state(self, n: int) -> Any:
        """The expert's own."""
        return self.expert.init_state(n)

    def __call__(self, state: Any, obs: jax.Array) -> tuple[jax.Array, Any]:
        """Actions for windows [N, W * (D + 1)], in world units, and the state after it."""
        return self.expert(state, last(self.world, obs))


class Following:
    """A policy of windows as one of single observations: it keeps the window, which `reset` empties.

    Call `reset` where an episode begins; a fresh one stands at a beginning.
    """

    def __init__(self, act: Callable[[np.ndarray], Any], world: Windowed):
        self._act, self._world = act, world
        self.reset()

    def reset(self) -> None:
        """A new episode begins."""
        self._frames = np.zeros((self._world.window, self._world.frame + 1), np.float32)

    def __call__(self, observation: Any) -> Any:
        """The action for the next observation [D] of the episode."""
        seen = np.append(np.asarray(observation, np.float32), np.float32(1.0))
        self._frames = np.concatenate([self._frames[1:], seen[None]])
        return self._act(self._frames.reshape(-1))


def frame_spec(world: Any) -> Spec:
    """The spec of single observations, which networks are made for."""
    return world.world.spec if isinstance(world, Windowed) else world.spec


def last(world: Any, obs: jax.Array) -> jax.Array:
    """The present observation [..., D] of windows [..., W * (D + 1)]."""
    return obs[..., -world.frame - 1 : -1] if isinstance(world, Windowed) else obs


def framewise(world: Any, change: Callable[[jax.Array], jax.Array], obs: jax.Array) -> jax.Array:
    """Windows with every observation [..., D] that is there changed."""
    if not isinstance(world, Windowed):
        return change(obs)
    frames = obs.reshape(*obs.shape[:-1], world.window, world.frame + 1)
    there = frames[..., -1:]
    changed = jnp.where(there > 0.5, change(frames[..., :-1]), 0.0)
    return jnp.concatenate([changed, there], axis=-1).reshape(obs.shape)


def expert(world: Any, given: Any) -> Any:
    """An expert for single observations as one for the world's; None stays None."""
    if given is None or not isinstance(world, Windowed):
        return given
    return (LastFrameStateful if experts.is_stateful(given) else LastFrame)(given, world)


def dataset(world: Any, given: TransitionDataset) -> TransitionDataset:
    """A dataset of single observations as one of the world's; one that has other shapes is returned as it is."""
    if not isinstance(world, Windowed) or given.obs.shape[1:] != (world.frame,):
        return given
    begun = given.starts[given.episode]
    columns = given.columns() | {
        "obs": _windows(world, given.obs, given.obs, begun, 0),
        "next_obs": _windows(world, given.obs, given.next_obs, begun, 1),
    }
    return TransitionDataset(**columns)


def extension(world: Any, given: Any) -> Any:
    """An extension with the experts and datasets among its fields made for the world's observations."""
    if not isinstance(world, Windowed):
        return given
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(given):
        value = getattr(given, field.name)
        if isinstance(value, TransitionDataset):
            changed[field.name] = dataset(world, value)
        elif field.name == "expert_policy" and value is not None:
            changed[field.name] = expert(world, value)
    return dataclasses.replace(given, **changed) if changed else given


def _pushed(frames_WF, obs):
    """The window a step later."""
    seen = jnp.append(jnp.asarray(obs, jnp.float32), 1.0)
    return jnp.concatenate([frames_WF[1:], seen[None]])


def _windows(world, obs, newest, begun, ahead):
    """[R, W * (D + 1)]: before `newest` [R, D] the rows of `obs` that lead to it, those of the same episode alone.

    `begun` [R] is the row that each row's episode begins with, `ahead` how many rows `newest` is ahead of `obs`.
    """
    rows = np.arange(len(obs))
    frames = np.zeros((len(obs), world.window, world.frame + 1), np.float32)
    for back in range(world.window):
        at = rows + ahead - back
        there = at >= begun
        seen = newest if back == 0 else obs[np.clip(at, 0, len(obs) - 1)]
        frames[there, -1 - back, :-1], frames[there, -1 - back, -1] = seen[there], 1.0
    return frames.reshape(len(obs), -1)
