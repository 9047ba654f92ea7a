"""Pendulum: swing a rod up and hold it there with a weak motor. Equal to Gymnasium's Pendulum-v1 step for step."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.records import Spec
from perdure.worlds.pure import physics

NAME = "perdure/pendulum"
TICK = 0.05
"""Seconds of one semi-implicit Euler step."""
FASTEST = 8.0
"""Radians per second at which the spin is cut."""
STRONGEST = 2.0
"""Bound of the action in newton metres, whatever the task's `max_torque`."""


class PendulumTask(NamedTuple):
    """The constants of the physics; a regime gives any of them by name."""

    gravity: float = 10.0
    """Metres per second squared; may be zero or negative."""
    mass: float = 1.0
    """Kilograms, above zero."""
    length: float = 1.0
    """Metres, above zero."""
    max_torque: float = 2.0
    """Newton metres at which the motor is cut, above zero; actions themselves stay within +-2."""
    gain: float = 1.0
    """What the motor makes of the torque it is told, after the cut; -1 reverses it. The cost is of the torque told."""


@component
class Pendulum:
    """Stay upright: reward -(angle^2 + 0.1 spin^2 + 0.001 torque^2), seen as (cosine, sine, spin); never terminates."""

    horizon: int = 200

    def __post_init__(self):
        physics.check_horizon(self.horizon, NAME)

    @property
    def spec(self) -> Spec:
        """Three numbers seen, one torque."""
        return Spec((3,), 1, discrete=False, low=(-STRONGEST,), high=(STRONGEST,), horizon=self.horizon)

    def task(self, **params: float) -> PendulumTask:
        """A task with some constants changed; raises ConfigError for an unknown or unphysical one."""
        return physics.task(PendulumTask(), params, NAME, positive=("mass", "length", "max_torque"))

    def reset(self, key: jax.Array, task: PendulumTask) -> tuple[physics.State, jax.Array]:
        """Any angle, spin uniform in +-1."""
        body = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0) * jnp.array([jnp.pi, 1.0], jnp.float32)
        return physics.begin(body), _observation(body[0], body[1])

    def step(self, key: jax.Array, state: physics.State, action: jax.Array, task: PendulumTask) -> tuple:
        """One step: the spin first, then the angle with the new spin. The cost is of the state before it."""
        angle, spin = state.body
        torque = jnp.clip(action[0], -task.max_torque, task.max_torque)
        cost = angle * angle + 0.1 * spin * spin + 0.001 * torque * torque
        pull = 1.5 * task.gravity / task.length * jnp.sin(angle)
        turn = 3.0 / (task.mass * task.length * task.length) * (task.gain * torque)
        spin = jnp.clip(spin + (pull + turn) * TICK, -FASTEST, FASTEST)
        angle = _wrap(angle + spin * TICK)
        t = state.t + 1
        state = physics.State(jnp.stack([angle, spin]), t)
        return state, _observation(angle, spin), -cost, jnp.zeros((), bool), t >= self.horizon

    def bounds(self, task: PendulumTask) -> tuple[float, float]:
        """Return of uniformly random torques and an attained one, on the default constants' scale whatever the task."""
        return -1220.0, -136.0

    bounds_source = (
        "low: random torques (-1222 +- 9); high: greedy policy of value iteration on a grid (-136), both over 1,024 "
        "episodes under the default constants (benchmarks/bounds.py)"
    )


def _wrap(angle):
    """Into [-pi, pi): a small angle keeps single precision over a whole episode, and is what the cost needs."""
    return angle - 2 * jnp.pi * jnp.floor(angle / (2 * jnp.pi) + 0.5)


def _observation(angle, spin):
    return jnp.stack([jnp.cos(angle), jnp.sin(angle), spin])
