"""Random matrices with orthonormal rows or columns."""

import jax
import jax.numpy as jnp


def orthogonal(key: jax.Array, fan_in: int, fan_out: int, gain: float) -> jax.Array:
    """A random matrix [fan_in, fan_out] with orthonormal rows or columns, times `gain` (Saxe et al., 2014).

    It is the polar factor of a Gaussian matrix, which is distributed uniformly, found by the
    Newton-Schulz iteration X <- X (3 - X'X) / 2: products alone. LAPACK's decompositions wait for
    threads of the pool that runs the program, and several of them in one program can wait for ever.
    """
    tall = jax.random.normal(key, (max(fan_in, fan_out), min(fan_in, fan_out)))
    identity = jnp.eye(tall.shape[1])

    def step(carry):
        count, x, gram = carry
        x = x @ (1.5 * identity - 0.5 * gram)
        return count + 1, x, x.T @ x

    def unfinished(carry):
        count, _, gram = carry
        return (count < 64) & (jnp.abs(gram - identity).max() > 1e-5)

    x = tall * jax.lax.rsqrt(jnp.square(tall).sum())
    _, q, _ = jax.lax.while_loop(unfinished, step, (0, x, x.T @ x))
    return gain * (q if fan_in >= fan_out else q.T)
