"""Mountain car: rock an engine that is too weak out of a valley (Moore, 1990), with three actions or a throttle.

Equal to Gymnasium's MountainCar-v0 and MountainCarContinuous-v0 step for step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.records import Spec
from perdure.worlds.pure import physics

NAME = "perdure/mountain_car"
NAME_CONTINUOUS = "perdure/mountain_car_continuous"
LEFTMOST, RIGHTMOST = -1.2, 0.6
FASTEST = 0.07
"""Speed per step at which the car is cut."""


class MountainCarTask(NamedTuple):
    """The constants of the physics; a regime gives any of them by name."""

    force: float = 0.001
    """Speed gained a step by action 2 (action 0 gives its negative); negative numbers swap the two."""
    gravity: float = 0.0025
    """Speed lost a step on a slope of one; may be zero or negative."""


class MountainCarContinuousTask(NamedTuple):
    """The constants of the physics; a regime gives any of them by name."""

    power: float = 0.0015
    """Speed gained a step at full throttle; a negative number reverses the throttle."""
    gravity: float = 0.0025
    """Speed lost a step on a slope of one; may be zero or negative."""


@component
class MountainCar:
    """Get out: reward -1 a step until the flag at 0.5, observations (position, velocity)."""

    horizon: int = 200

    def __post_init__(self):
        physics.check_horizon(self.horizon, NAME)

    @property
    def spec(self) -> Spec:
        """Two numbers seen, three actions."""
        return Spec(obs_shape=(2,), action_dim=3, discrete=True, horizon=self.horizon)

    def task(self, **params: float) -> MountainCarTask:
        """A task with some constants changed; raises ConfigError for an unknown or unphysical one."""
        return physics.task(MountainCarTask(), params, NAME)

    def reset(self, key: jax.Array, task: MountainCarTask) -> tuple[physics.State, jax.Array]:
        """At rest, uniform in [-0.6, -0.4]."""
        return _begin(key)

    def step(self, key: jax.Array, state: physics.State, action: jax.Array, task: MountainCarTask) -> tuple:
        """One step; terminated at the flag unless rolling backwards."""
        body = _roll(state.body, (action - 1).astype(jnp.float32) * task.force, task.gravity)
        t = state.t + 1
        terminated = (body[0] >= 0.5) & (body[1] >= 0.0)
        return physics.State(body, t), body, jnp.full((), -1.0, jnp.float32), terminated, t >= self.horizon

    def bounds(self, task: MountainCarTask) -> tuple[float, float]:
        """Return of uniformly random actions and an attained one, on the default constants' scale whatever the task."""
        return -float(self.horizon), -97.8

    bounds_source = (
        "low: one lost a step, as random actions do; high: greedy policy of value iteration on a grid (-97.8), under "
        "the default constants (benchmarks/bounds.py)"
    )


@component
class MountainCarContinuous:
    """Get out cheaply: 100 at the flag at 0.45, less 0.1 throttle^2 a step; observations (position, velocity)."""

    horizon: int = 999

    def __post_init__(self):
        physics.check_horizon(self.horizon, NAME_CONTINUOUS)

    @property
    def spec(self) -> Spec:
        """Two numbers seen, one throttle in [-1, 1]."""
        return Spec((2,), 1, discrete=False, low=(-1.0,), high=(1.0,), horizon=self.horizon)

    def task(self, **params: float) -> MountainCarContinuousTask:
        """A task with some constants changed; raises ConfigError for an unknown or unphysical one."""
        return physics.task(MountainCarContinuousTask(), params, NAME_CONTINUOUS)

    def reset(self, key: jax.Array, task: MountainCarContinuousTask) -> tuple[physics.State, jax.Array]:
        """At rest, uniform in [-0.6, -0.4]."""
        return _begin(key)

    def step(self, key: jax.Array, state: physics.State, action: jax.Array, task: MountainCarContinuousTask) -> tuple:
        """One step; the engine is cut at full throttle, the cost is of what was asked for."""
        throttle = action[0]
        body = _roll(state.body, jnp.clip(throttle, -1.0, 1.0) * task.power, task.gravity)
        t = state.t + 1
        terminated = (body[0] >= 0.45) & (body[1] >= 0.0)
        reward = 100.0 * terminated - 0.1 * throttle * throttle
        return physics.State(body, t), body, reward, terminated, t >= self.horizon

    def bounds(self, task: MountainCarContinuousTask) -> tuple[float, float]:
        """Return of standing still and an attained one, on the default constants' scale whatever the task."""
        return 0.0, 94.7

    bounds_source = (
        "low: standing still (random throttles lose 33); high: greedy policy of value iteration on a grid (94.7) "
        "under the default constants (benchmarks/bounds.py)"
    )


def _begin(key):
    body = jnp.stack([jax.random.uniform(key, (), minval=-0.6, maxval=-0.4), jnp.zeros((), jnp.float32)])
    return physics.begin(body), body


def _roll(body, push, gravity):
    """Position and velocity a step later; the wall on the left stops the car."""
    position, velocity = body
    velocity = jnp.clip(velocity + push - gravity * jnp.cos(3 * position), -FASTEST, FASTEST)
    position = jnp.clip(position + velocity, LEFTMOST, RIGHTMOST)
    velocity = jnp.where((position == LEFTMOST) & (velocity < 0), 0.0, velocity)
    return jnp.stack([position, velocity])
