"""Choosing between arrays by a mask of their leading axes."""

import jax
import jax.numpy as jnp


def widened(mask: jax.Array, like: jax.Array) -> jax.Array:
    """`mask` with as many further axes of length 1 as `like` has, so that it broadcasts over them."""
    return mask.reshape(mask.shape + (1,) * (like.ndim - mask.ndim))


def where(mask: jax.Array, chosen: jax.Array, other: jax.Array) -> jax.Array:
    """`chosen` in the rows of the mask, `other` in the rest; both have the mask's axes first."""
    return jnp.where(widened(mask, chosen), chosen, other)
