"""JAX's own random numbers, from a generator that compiles to one straight piece of arithmetic.

On CPUs JAX compiles threefry as a loop of small steps, each a thread-pool task: some 20 microseconds for
every key or handful of numbers. Written out, the same numbers cost one.
"""

import math
from typing import Any

import jax
import jax.extend.random
import jax.numpy as jnp

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def key(seed: Any) -> jax.Array:
    """A typed key that draws what `jax.random.key(seed)` draws; `seed` is a 32-bit number, traced or not."""
    return jax.random.key(seed, impl=IMPLEMENTATION)


def wrapped(words: jax.Array) -> jax.Array:
    """Keys from their data, uint32 [..., 2]."""
    return jax.random.wrap_key_data(words, impl=IMPLEMENTATION)


def threefry(words: jax.Array, high: jax.Array, low: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32 of 20 rounds (Salmon et al., 2011): two 32-bit words for every counter (high, low)."""
    # Fused with the arithmetic that made the key, the compiler repeats that for every use and takes minutes.
    words = jax.lax.optimization_barrier(words)
    schedule = (words[0], words[1], words[0] ^ words[1] ^ jnp.uint32(0x1BD11BDA))
    x, y = high + schedule[0], low + schedule[1]
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << rotation) | (y >> (32 - rotation)))
        x = x + schedule[(group + 1) % 3]
        y = y + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return x, y


def _counters(shape):
    return jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)


def _seed(number):
    low = jax.lax.convert_element_type(number, jnp.uint32)
    return jnp.stack([jnp.zeros_like(low), low])


def _split(words, shape):
    return jnp.stack(threefry(words, jnp.uint32(0), _counters(shape)), axis=-1)


def _fold_in(words, number):
    return jnp.stack(threefry(words, jnp.uint32(0), jax.lax.convert_element_type(number, jnp.uint32)))


def _random_bits(words, width, shape):
    if width == 64:
        raise NotImplementedError("perdure's keys draw numbers of at most 32 bits; leave jax_enable_x64 off")
    high, low = threefry(words, jnp.uint32(0), _counters(shape))
    bits = high ^ low
    return bits if width == 32 else jax.lax.convert_element_type(bits, jnp.dtype(f"uint{width}"))


IMPLEMENTATION = jax.extend.random.define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="threefry_unrolled",
    tag="fryu",
)
