"""Writing into long arrays at a traced place, in place, also where seeds are mapped over."""

import jax
import jax.numpy as jnp


@jax.custom_batching.custom_vmap
def put(buffer: jax.Array, rows: jax.Array, start: jax.Array) -> jax.Array:
    """`buffer` with `rows` written along its first axis from `start` on.

    JAX maps a slice update into a scatter, which costs several small operations for each write;
    the place is common to all seeds, so a slice update along the next axis does.
    """
    return jax.lax.dynamic_update_slice_in_dim(buffer, rows, start, axis=0)


@put.def_vmap
def _put_mapped(size, mapped, buffer, rows, start):
    if mapped[2]:
        update = lambda *operands: jax.lax.dynamic_update_slice_in_dim(*operands, axis=0)
        return jax.vmap(update, [0 if each else None for each in mapped])(buffer, rows, start), True
    wide = lambda x, has_axis: x if has_axis else jnp.broadcast_to(x, (size, *x.shape))
    return jax.lax.dynamic_update_slice_in_dim(wide(buffer, mapped[0]), wide(rows, mapped[1]), start, axis=1), True


def put_one(buffer: jax.Array, row: jax.Array, index: jax.Array) -> jax.Array:
    """`buffer` with one `row` written at `index`."""
    return put(buffer, row[None], index)
