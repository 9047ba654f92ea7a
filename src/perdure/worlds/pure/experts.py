"""Scripted experts of the classic-control worlds: good, not optimal, written from the physics alone.

Each is a stateless expert: a component called with one raw observation or a batch of them [..., D],
which returns actions in world units. Its fields are the constants that its rule reads, by default
the default task's, so that an expert of a changed task is one made with that task's constants.
"""

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.errors import ConfigError


@component
class CartPoleExpert:
    """Push to where a linear feedback of the state points: position, velocity, angle and spin to zero at once.

    To first order a pole of length L moves the point z = position + 2/3 L angle (its centre of oscillation,
    Huygens, 1673) with z'' = g angle alone: z is a flat output (Fliess et al., 1995), and the force acts on its
    fourth derivative. The force asked for puts all four poles of z at -`rate`; the cart is pushed by its sign.
    """

    gravity: float = 9.8
    """Metres per second squared, above zero."""
    cart_mass: float = 1.0
    pole_mass: float = 0.1
    pole_length: float = 1.0
    """Metres from the hinge to the tip, above zero."""
    force: float = 10.0
    """Newtons of action 1; a negative number swaps the two actions."""
    rate: float = 2.0
    """How fast errors die away, per second, above zero."""

    def __post_init__(self):
        _check_positive(self, "gravity", "cart_mass", "pole_mass", "pole_length", "rate")
        _check_nonzero(self, "force")

    def __call__(self, obs: jax.Array) -> jax.Array:
        """Observations [..., 4] -> actions [...], 0 or 1."""
        position, velocity, angle, spin = (obs[..., column] for column in range(4))
        place = position + 2 / 3 * self.pole_length * angle
        drift = velocity + 2 / 3 * self.pole_length * spin
        # z'''' = -(4 p z''' + 6 p^2 z'' + 4 p^3 z' + p^4 z), with z'' = g angle and angle'' = (g angle - push) / reach.
        p, g = self.rate, self.gravity
        wanted = 4 * p * g * spin + 6 * p**2 * g * angle + 4 * p**3 * drift + p**4 * place
        share = self.pole_mass / (self.cart_mass + self.pole_mass)
        reach = self.pole_length / 2 * (4 / 3 - share)
        push = g * angle + reach / g * wanted
        return ((push > 0) == (self.force > 0)).astype(jnp.int32)


@component
class PendulumExpert:
    """Bring the energy to that of standing upright, then balance by linear feedback.

    Swinging up by energy is Åström and Furuta, 2000 (Automatica 36, equation 8): a torque along the spin
    while energy is lacking, against it while there is too much. The feedback cancels gravity and puts both
    poles of the angle at -`rate`; it takes over wherever the motor is strong enough for what it asks.
    """

    gravity: float = 10.0
    """Metres per second squared."""
    mass: float = 1.0
    length: float = 1.0
    """Metres, above zero."""
    max_torque: float = 2.0
    """Newton metres, above zero; actions stay within +-2 all the same."""
    gain: float = 1.0
    """What the motor makes of the torque it is told, not zero."""
    rate: float = 4.0
    """How fast the balanced rod comes upright, per second, above zero."""
    eagerness: float = 10.0
    """Torque per spin and lacking energy while swinging up, above zero."""

    def __post_init__(self):
        _check_positive(self, "mass", "length", "max_torque", "rate", "eagerness")
        _check_nonzero(self, "gain")

    def __call__(self, obs: jax.Array) -> jax.Array:
        """Observations [..., 3] -> torques [..., 1] in newton metres."""
        cosine, sine, spin = (obs[..., column] for column in range(3))
        angle = jnp.arctan2(sine, cosine)
        inertia = self.mass * self.length**2 / 3
        weight = self.mass * self.gravity * self.length / 2
        strongest = min(self.max_torque, 2.0) * abs(self.gain)
        balance = -weight * sine - inertia * (2 * self.rate * spin + self.rate**2 * angle)
        lacking = weight - (inertia * spin**2 / 2 + weight * cosine)
        pump = self.eagerness * lacking * jnp.where(spin < 0, -1.0, 1.0)
        torque = jnp.where((jnp.abs(balance) <= strongest) & (cosine > 0), balance, pump)
        return (jnp.clip(torque, -strongest, strongest) / self.gain)[..., None].astype(jnp.float32)


@component
class AcrobotExpert:
    """Turn the elbow along its spin: the motor's power is torque times the elbow's spin, so energy only ever grows.

    Energy pumping for the acrobot is in Spong, 1995 (IEEE Control Systems 15), there towards a given energy. A few
    episodes end at the horizon, the elbow whirling while the shoulder hangs.
    """

    torque: float = 1.0
    """Newton metres of action 2, not zero; negative numbers swap actions 0 and 2."""

    def __post_init__(self):
        _check_nonzero(self, "torque")

    def __call__(self, obs: jax.Array) -> jax.Array:
        """Observations [..., 6] -> actions [...], 0 or 2."""
        return _along(obs[..., 5], self.torque)


@component
class MountainCarExpert:
    """Push along the velocity, so that every step adds energy; to the right from rest."""

    force: float = 0.001
    """Speed gained a step by action 2, not zero; negative numbers swap actions 0 and 2."""

    def __post_init__(self):
        _check_nonzero(self, "force")

    def __call__(self, obs: jax.Array) -> jax.Array:
        """Observations [..., 2] -> actions [...], 0 or 2."""
        return _along(obs[..., 1], self.force)


@component
class MountainCarContinuousExpert:
    """Push along the velocity at a fixed throttle: less of it takes longer and costs less."""

    power: float = 0.0015
    """Speed gained a step at full throttle, not zero; a negative number reverses the throttle."""
    throttle: float = 0.5
    """In (0, 1]; where `power` is small, little of it never leaves the valley."""

    def __post_init__(self):
        _check_nonzero(self, "power")
        if not 0 < self.throttle <= 1:
            raise ConfigError(f"throttle is {self.throttle}; it lies in (0, 1]")

    def __call__(self, obs: jax.Array) -> jax.Array:
        """Observations [..., 2] -> throttles [..., 1] in [-1, 1]."""
        forward = (obs[..., 1] >= 0) == (self.power > 0)
        return jnp.where(forward, self.throttle, -self.throttle)[..., None].astype(jnp.float32)


def _along(speed, strength):
    """Of three actions, the first or last: the push that has the sign of `speed`, forwards at rest."""
    return jnp.where((speed >= 0) == (strength > 0), 2, 0).astype(jnp.int32)


def _check_positive(part, *names):
    for name in names:
        if not 0 < getattr(part, name) < float("inf"):
            raise ConfigError(f"{name} is {getattr(part, name)}; it must be above zero")


def _check_nonzero(part, name):
    if not 0 < abs(getattr(part, name)) < float("inf"):
        raise ConfigError(f"{name} is {getattr(part, name)}; without a push nothing can be done: give another number")
