"""Keys: the same numbers as JAX's own generator, whatever is drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.rl.ops import prng

DRAWS = {
    "bits": lambda key: jax.random.bits(key, (5, 3)),
    "bytes": lambda key: jax.random.bits(key, (4,), jnp.uint8),
    "uniform": lambda key: jax.random.uniform(key, (7,)),
    "normal of a folded key": lambda key: jax.random.normal(jax.random.fold_in(key, jnp.uint32(0xFFFFFFFF)), (4, 2)),
    "split": lambda key: jax.random.key_data(jax.random.split(key, (2, 3))),
    "mapped": lambda key: jax.vmap(lambda each: jax.random.randint(each, (5,), 0, 11))(jax.random.split(key, 4)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_equal_those_of_jax(name):
    ours, theirs = prng.key(2**32 - 5), jax.random.key(2**32 - 5)
    np.testing.assert_array_equal(jax.jit(DRAWS[name])(ours), DRAWS[name](theirs))


def test_a_key_comes_back_from_its_data():
    key = jax.random.split(prng.key(3), 2)
    again = prng.wrapped(jax.random.key_data(key))
    assert again.dtype == key.dtype
    np.testing.assert_array_equal(jax.random.key_data(again), jax.random.key_data(key))


def test_no_loop_is_compiled_for_a_draw():
    program = jax.jit(lambda number: jax.random.normal(prng.key(number), (3,))).lower(np.uint32(1))
    assert "while" not in program.as_text()
