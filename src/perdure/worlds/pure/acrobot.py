"""Acrobot: swing the tip of two hanging links above a line, moving only the elbow (Sutton, 1996).

Equal to Gymnasium's Acrobot-v1 step for step, in its "book" form of the dynamics.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.records import Spec
from perdure.worlds.pure import physics

NAME = "perdure/acrobot"
TICK = 0.2
"""Seconds of one Runge-Kutta step."""
FASTEST = (4 * jnp.pi, 9 * jnp.pi)
"""Radians per second at which the spin of shoulder and elbow is cut."""


class AcrobotTask(NamedTuple):
    """The constants of the physics; a regime gives any of them by name.

    The second link's length enters neither the dynamics nor the goal, which counts angles only.
    """

    gravity: float = 9.8
    """Metres per second squared; may be zero or negative."""
    link_length_1: float = 1.0
    """Metres from shoulder to elbow, above zero."""
    link_mass_1: float = 1.0
    """Kilograms, above zero."""
    link_mass_2: float = 1.0
    """Kilograms, above zero."""
    link_com_1: float = 0.5
    """Metres from the shoulder to the first link's centre of mass, above zero."""
    link_com_2: float = 0.5
    """Metres from the elbow to the second link's centre of mass, above zero."""
    link_moi: float = 1.0
    """Moment of inertia of either link about its centre of mass, above zero."""
    torque: float = 1.0
    """Newton metres of action 2 (action 0 gives its negative); negative numbers swap the two."""


@component
class Acrobot:
    """Reach the line: reward -1 a step and 0 on reaching it, seen as cosines and sines of both angles and spins."""

    horizon: int = 500

    def __post_init__(self):
        physics.check_horizon(self.horizon, NAME)

    @property
    def spec(self) -> Spec:
        """Six numbers seen, three torques."""
        return Spec(obs_shape=(6,), action_dim=3, discrete=True, horizon=self.horizon)

    def task(self, **params: float) -> AcrobotTask:
        """A task with some constants changed; raises ConfigError for an unknown or unphysical one."""
        positive = [name for name in AcrobotTask._fields if name.startswith("link_")]
        return physics.task(AcrobotTask(), params, NAME, positive)

    def reset(self, key: jax.Array, task: AcrobotTask) -> tuple[physics.State, jax.Array]:
        """Every angle and spin uniform in +-0.1: hanging, nearly still."""
        body = jax.random.uniform(key, (4,), minval=-0.1, maxval=0.1)
        return physics.begin(body), _observation(body)

    def step(self, key: jax.Array, state: physics.State, action: jax.Array, task: AcrobotTask) -> tuple:
        """One fourth-order Runge-Kutta step; terminated when the tip is a link's length above the shoulder."""
        torque = (action - 1).astype(jnp.float32) * task.torque
        body = _limit(_runge_kutta(state.body, torque, task))
        t = state.t + 1
        terminated = -jnp.cos(body[0]) - jnp.cos(body[0] + body[1]) > 1.0
        reward = terminated.astype(jnp.float32) - 1.0
        return physics.State(body, t), _observation(body), reward, terminated, t >= self.horizon

    def bounds(self, task: AcrobotTask) -> tuple[float, float]:
        """Return of uniformly random torques and an attained one, on the default constants' scale whatever the task."""
        return -498.6, -76.1

    bounds_source = (
        "low: random torques (-498.6 +- 0.4); high: greedy policy of value iteration on a coarse grid (-76.1), both "
        "under the default constants (benchmarks/bounds.py); a little more can be had"
    )


def _runge_kutta(body, torque, task):
    first = _rates(body, torque, task)
    second = _rates(body + 0.5 * TICK * first, torque, task)
    third = _rates(body + 0.5 * TICK * second, torque, task)
    fourth = _rates(body + TICK * third, torque, task)
    return body + TICK / 6.0 * (first + 2 * second + 2 * third + fourth)


def _rates(body, torque, task):
    """Time derivatives of (shoulder, elbow, their spins), as printed in Sutton and Barto (1998), section 11.3."""
    shoulder, elbow, spin_1, spin_2 = body
    mass_1, mass_2, moi = task.link_mass_1, task.link_mass_2, task.link_moi
    com_2, length = task.link_com_2, task.link_length_1
    cosine, sine = jnp.cos(elbow), jnp.sin(elbow)
    coupling = mass_2 * length * com_2
    inertia_2 = mass_2 * com_2 * com_2 + moi
    d_1 = (
        mass_1 * task.link_com_1 * task.link_com_1 + mass_2 * length * length + 2 * coupling * cosine + inertia_2 + moi
    )
    d_2 = inertia_2 + coupling * cosine
    weight_2 = mass_2 * com_2 * task.gravity * jnp.sin(shoulder + elbow)
    weight_1 = (mass_1 * task.link_com_1 + mass_2 * length) * task.gravity * jnp.sin(shoulder) + weight_2
    phi_1 = weight_1 - coupling * spin_2 * (spin_2 + 2 * spin_1) * sine
    ratio = d_2 / d_1
    turn_2 = (torque + ratio * phi_1 - coupling * spin_1 * spin_1 * sine - weight_2) / (inertia_2 - d_2 * ratio)
    turn_1 = -(d_2 * turn_2 + phi_1) / d_1
    return jnp.stack([spin_1, spin_2, turn_1, turn_2])


def _limit(body):
    """Angles into (-pi, pi], spins cut at the fastest."""
    angles, spins = body[:2], body[2:]
    angles = angles - 2 * jnp.pi * jnp.ceil(angles / (2 * jnp.pi) - 0.5)
    fastest = jnp.array(FASTEST, jnp.float32)
    return jnp.concatenate([angles, jnp.clip(spins, -fastest, fastest)])


def _observation(body):
    cosine, sine = jnp.cos(body[:2]), jnp.sin(body[:2])
    return jnp.stack([cosine[0], sine[0], cosine[1], sine[1], body[2], body[3]])
