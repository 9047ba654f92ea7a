"""A uniform sample of a stream of unknown length, in a store of fixed size (Vitter, 1985, algorithm R).

Suffixes: N new rows, C rows of the store.
"""

from typing import Any

import jax
import jax.numpy as jnp


def places(key: jax.Array, seen: jax.Array, count: int, capacity: int) -> jax.Array:
    """Where each of `count` new rows is written after `seen` others: [N], `capacity` for a row that is dropped.

    While there is room a row takes the next free place. Later the row with number n (from 0) is
    kept with probability C / (n + 1), in a place drawn uniformly. Of several rows for one place the last has it, as
    if they had come one by one, so no place is named twice.
    """
    number_N = seen + jnp.arange(count, dtype=jnp.int32)
    drawn_N = jax.random.randint(key, (count,), 0, number_N + 1)
    place_N = jnp.minimum(jnp.where(number_N < capacity, number_N, drawn_N), capacity)
    later_NN = (place_N[None, :] == place_N[:, None]) & (jnp.arange(count)[None, :] > jnp.arange(count)[:, None])
    return jnp.where(later_NN.any(1), capacity, place_N)


def written(store: Any, rows: Any, place_N: jax.Array) -> Any:
    """The tree `store` of arrays [C, ...] with the tree `rows` [N, ...] at their `places`."""
    return jax.tree.map(lambda whole, new: whole.at[place_N].set(new, mode="drop"), store, rows)
