"""CartPole: a pole hinged on a cart that is pushed left or right (Barto, Sutton and Anderson, 1983).

Equal to Gymnasium's CartPole-v1 step for step. The pole's length is given in full; Gymnasium's
attribute `length` is half of it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.records import Spec
from perdure.worlds.pure import physics

NAME = "perdure/cartpole"
TICK = 0.02
"""Seconds of one Euler step."""
FARTHEST = 2.4
"""Metres from the centre at which an episode ends."""
STEEPEST = 12 * 2 * jnp.pi / 360
"""Radians from upright at which an episode ends."""


class CartPoleTask(NamedTuple):
    """The constants of the physics; a regime gives any of them by name."""

    gravity: float = 9.8
    """Metres per second squared; may be zero or negative."""
    cart_mass: float = 1.0
    """Kilograms, above zero."""
    pole_mass: float = 0.1
    """Kilograms, above zero."""
    pole_length: float = 1.0
    """Metres from the hinge to the tip, above zero."""
    force: float = 10.0
    """Newtons of a push to the right by action 1; negative numbers swap the two actions."""


@component
class CartPole:
    """Keep the pole up: reward 1 for every step, observations (position, velocity, angle, angular velocity)."""

    horizon: int = 500

    def __post_init__(self):
        physics.check_horizon(self.horizon, NAME)

    @property
    def spec(self) -> Spec:
        """Four numbers seen, two actions."""
        return Spec(obs_shape=(4,), action_dim=2, discrete=True, horizon=self.horizon)

    def task(self, **params: float) -> CartPoleTask:
        """A task with some constants changed; raises ConfigError for an unknown or unphysical one."""
        return physics.task(CartPoleTask(), params, NAME, positive=("cart_mass", "pole_mass", "pole_length"))

    def reset(self, key: jax.Array, task: CartPoleTask) -> tuple[physics.State, jax.Array]:
        """Every coordinate uniform in +-0.05."""
        body = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        return physics.begin(body), body

    def step(self, key: jax.Array, state: physics.State, action: jax.Array, task: CartPoleTask) -> tuple:
        """One explicit Euler step; terminated beyond 2.4 m or 12 degrees."""
        _, velocity, angle, spin = state.body
        cart, hinge = _accelerations(angle, spin, jnp.where(action == 1, task.force, -task.force), task)
        body = state.body + TICK * jnp.stack([velocity, cart, spin, hinge])
        t = state.t + 1
        terminated = (jnp.abs(body[0]) > FARTHEST) | (jnp.abs(body[2]) > STEEPEST)
        return physics.State(body, t), body, jnp.ones((), jnp.float32), terminated, t >= self.horizon

    def bounds(self, task: CartPoleTask) -> tuple[float, float]:
        """Return of random actions and the largest possible one, on the default constants' scale whatever the task.

        Random actions score as much with the push reversed, and 29 where gravity is 20 and the pole 2 m long.
        """
        return 22.1, float(self.horizon)

    bounds_source = (
        "low: random actions under the default constants (benchmarks/bounds.py: 22.1 +- 0.1); high: one a step"
    )


def _accelerations(angle, spin, force, task):
    """Of the cart (m/s^2) and the pole (rad/s^2), without friction (Florian 2007, equations 23 and 24)."""
    sine, cosine = jnp.sin(angle), jnp.cos(angle)
    mass = task.cart_mass + task.pole_mass
    half = 0.5 * task.pole_length
    moment = task.pole_mass * half
    push = (force + moment * spin * spin * sine) / mass
    hinge = (task.gravity * sine - cosine * push) / (half * (4.0 / 3.0 - task.pole_mass * cosine * cosine / mass))
    return push - moment * hinge * cosine / mass, hinge
