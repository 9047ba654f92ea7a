"""Permutations without sorting: a keyed bijection on the indices."""

import jax
import jax.numpy as jnp

ROUNDS = 6


def permutation(key: jax.Array, count: int) -> jax.Array:
    """A pseudo-random permutation of 0..count-1, int32 [count].

    Each round adds a key, multiplies by an odd key and folds the high bits onto the low ones,
    all modulo the next power of two: three maps that are one to one, so their chain is. Where
    `count` is no power of two, indices that leave the range walk on along their cycle until they
    are back inside it. It costs microseconds where sorting random numbers costs milliseconds.
    """
    bits = max(1, (count - 1).bit_length())
    keys = jax.random.bits(key, (2, ROUNDS), jnp.uint32)
    inside = _mix(jnp.arange(count, dtype=jnp.uint32), keys, bits)
    if count != 1 << bits:
        walk = lambda index: jnp.where(index >= count, _mix(index, keys, bits), index)
        inside = jax.lax.while_loop(lambda index: (index >= count).any(), walk, inside)
    return inside.astype(jnp.int32)


def _mix(index, keys, bits):
    mask, shift = jnp.uint32((1 << bits) - 1), (bits + 1) // 2
    for offset, factor in zip(keys[0], keys[1], strict=True):
        index = ((index + offset) * (factor | 1)) & mask
        index = index ^ (index >> shift)
    return index
