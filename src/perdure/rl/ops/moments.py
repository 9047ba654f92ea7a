"""Running mean and variance (Chan et al., 1983), and the scales built on them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Moments(NamedTuple):
    """Count, mean and summed squared deviation of everything absorbed so far."""

    count: jax.Array
    mean: jax.Array
    deviation: jax.Array

    @property
    def variance(self) -> jax.Array:
        """Population variance; 1 before anything was absorbed."""
        return jnp.where(self.count > 0, self.deviation / jnp.maximum(self.count, 1.0), 1.0)


def empty(shape: tuple[int, ...] = ()) -> Moments:
    """Nothing absorbed: mean 0, variance 1."""
    return Moments(jnp.zeros(()), jnp.zeros(shape), jnp.zeros(shape))


def extend(moments: Moments, x_B: jax.Array) -> Moments:
    """Absorb a batch along the first axis."""
    count = float(x_B.shape[0])
    mean = x_B.mean(0)
    deviation = jnp.square(x_B - mean).sum(0)
    total = moments.count + count
    delta = mean - moments.mean
    share = count / total
    return Moments(
        total,
        moments.mean + delta * share,
        moments.deviation + deviation + jnp.square(delta) * moments.count * share,
    )


def standardise(moments: Moments, x: jax.Array, limit: float = 10.0) -> jax.Array:
    """(x - mean) / standard deviation, clipped to +-`limit`."""
    scaled = (x - moments.mean) * jax.lax.rsqrt(moments.variance + 1e-8)
    return jnp.clip(scaled, -limit, limit)
