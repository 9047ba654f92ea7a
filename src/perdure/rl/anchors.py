"""Parabolas that hold parameters, and what optimisers remember of gradients: pure functions on trees."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Anchor(NamedTuple):
    """Where parameters are held: sum of precision * (theta - centre)^2, plus a constant."""

    precision: Any
    centre: Any
    residual: jax.Array
    """The constant."""
    number: jax.Array
    """How many shifts it is made of."""


def unanchored(params: Any) -> Anchor:
    """An anchor that pulls at nothing."""
    nothing = jax.tree.map(jnp.zeros_like, params)
    return Anchor(nothing, params, jnp.zeros(()), jnp.zeros(()))


def moved(anchor: Anchor, precision: Any, params: Any) -> Anchor:
    """The anchor at a new place, with a new precision."""
    return Anchor(precision, params, anchor.residual, anchor.number + 1)


def joined(anchor: Anchor, precision: Any, params: Any) -> Anchor:
    """The sum of two parabolas: P (x - c)^2 + F (x - p)^2 = (P + F) (x - c')^2 + P F / (P + F) (c - p)^2."""
    total = jax.tree.map(jnp.add, anchor.precision, precision)
    share = jax.tree.map(lambda f, t: jnp.where(t > 0, f / jnp.where(t > 0, t, 1.0), 0.0), precision, total)
    centre = jax.tree.map(lambda c, s, p: (1.0 - s) * c + s * p, anchor.centre, share, params)
    waste = jax.tree.map(
        lambda old, s, c, p: (old * s * jnp.square(c - p)).sum(), anchor.precision, share, anchor.centre, params
    )
    residual = anchor.residual + sum(jax.tree.leaves(waste), jnp.zeros(()))
    return Anchor(total, centre, residual, anchor.number + 1)


def pull(anchor: Anchor, params: Any) -> jax.Array:
    """Sum of precision * (theta - centre)^2 over those of `params` that are held."""
    total = jnp.zeros(())
    for name in params.keys() & anchor.precision.keys():
        parts = jax.tree.map(
            lambda f, p, c: (f * jnp.square(p - c)).sum(), anchor.precision[name], params[name], anchor.centre[name]
        )
        total = total + sum(jax.tree.leaves(parts), jnp.zeros(()))
    return total


def mean_gradient(optimiser: Any, before: Any, after: Any) -> Any:
    """The gradient that an optimiser's mean took in between; of several, their mean in its own weighting.

    n steps leave mean = decay^n * old + (1 - decay^n) * what is returned; zeros where n is 0.
    """
    decay = optimiser.beta1 if hasattr(optimiser, "beta1") else optimiser.decay
    kept = jnp.float32(decay) ** (after.count - before.count).astype(jnp.float32)
    taken = jnp.where(after.count > before.count, 1.0 - kept, 1.0)
    return jax.tree.map(lambda new, old: (new - kept * old) / taken, after.mean, before.mean)
