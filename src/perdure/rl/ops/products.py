"""Layer products whose weight gradient is computed in the shape that a CPU is quick at.

XLA multiplies transpose(x) by a gradient of few columns ten times slower than a sum of products takes, and one
with many rows slower than the same in slices (benchmarks/README.md). Suffixes: B rows, D inputs, F outputs.
"""

from functools import partial

import jax
import jax.numpy as jnp

NARROW = 4
"""Outputs up to which the weight gradient is a sum of products, column by column."""
SLICE = 128
"""Rows of the slices that a longer batch is cut into."""


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def dense(x_BD: jax.Array, w_DF: jax.Array, precision: str) -> jax.Array:
    """x w in single precision, or of factors rounded to bfloat16 with sums in single precision: [B, F].

    Derivatives are taken in reverse mode, of any order; forward mode is refused by JAX.
    """
    return _times(x_BD, w_DF, precision)


def _forward(x, w, precision):
    return _times(x, w, precision), (x, w)


def _backward(precision, factors, gradient):
    x, w = factors
    rows = x.shape[0]
    if x.ndim != 2:
        _, transpose = jax.vjp(partial(_times, precision=precision), x, w)
        return transpose(gradient)
    if w.shape[1] <= NARROW:
        columns = [(x * gradient[:, column : column + 1]).sum(0) for column in range(w.shape[1])]
        weights = jnp.stack(columns, axis=1)
    elif rows > SLICE and rows % SLICE == 0:
        slices = lambda y: y.reshape(rows // SLICE, SLICE, y.shape[1])
        weights = jax.vmap(lambda a, b: _times(a.T, b, precision))(slices(x), slices(gradient)).sum(0)
    else:
        weights = _times(x.T, gradient, precision)
    # A row times a transpose becomes a loop over single numbers; the matrix times a column does not.
    inputs = _times(w, gradient[0], precision)[None] if rows == 1 else _times(gradient, w.T, precision)
    return inputs, weights


dense.defvjp(_forward, _backward)


def _times(left, right, precision):
    if precision == "bfloat16":
        return jnp.matmul(left.astype(jnp.bfloat16), right.astype(jnp.bfloat16), preferred_element_type=jnp.float32)
    return left @ right
