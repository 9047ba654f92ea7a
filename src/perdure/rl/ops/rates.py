"""Running rates: what average-reward agents keep of the past."""

import jax
import jax.numpy as jnp


def track(rate: jax.Array, seen: jax.Array, step: float) -> jax.Array:
    """(1 - step) rate + step seen: an exponential average, `step` in (0, 1]."""
    return (1.0 - step) * rate + step * seen


def track_from_first(rate: jax.Array, seen: jax.Array, step: float, first: jax.Array) -> jax.Array:
    """`track`, but `seen` itself where it is the first of all."""
    return jnp.where(first, seen, track(rate, seen, step))
