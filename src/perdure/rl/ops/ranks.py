"""How many directions the rows of a matrix use."""

import jax
import jax.numpy as jnp

from perdure.rl.ops.diagnostics import singular_values


def effective_rank(feats: jax.Array) -> jax.Array:
    """exp of the entropy of the normalised singular values of [samples, units], in [1, min(samples, units)].

    Roy and Vetterli, 2007, definition 1: singular values (2, 1, 1) give 2 sqrt(2). 0 of a matrix of zeros.
    """
    values = singular_values(feats)
    total = values.sum()
    share = values / jnp.where(total > 0, total, 1.0)
    entropy = -jnp.where(share > 0, share * jnp.log(jnp.where(share > 0, share, 1.0)), 0.0).sum()
    return jnp.where(total > 0, jnp.exp(entropy), 0.0)
