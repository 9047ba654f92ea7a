"""Writing at a traced place: right alone and mapped, and no scatter where the place is shared."""

import jax
import jax.numpy as jnp
import numpy as np

from perdure.rl.ops import buffers


def test_rows_land_at_their_place_and_nowhere_else():
    written = jax.jit(buffers.put)(jnp.zeros((5, 2)), jnp.ones((2, 2)), 1)
    np.testing.assert_array_equal(written[:, 0], [0, 1, 1, 0, 0])


def test_mapped_over_seeds_each_gets_its_own_rows():
    stores, rows = jnp.zeros((3, 4, 2)), jnp.arange(1.0, 4.0)[:, None] * jnp.ones((3, 2))
    put = jax.vmap(buffers.put_one, (0, 0, None))
    expected = np.zeros((3, 4, 2))
    expected[:, 2] = rows
    np.testing.assert_array_equal(put(stores, rows, 2), expected)
    assert "scatter" not in jax.jit(put).lower(stores, rows, 2).as_text()


def test_what_is_common_to_the_seeds_is_written_for_each():
    np.testing.assert_array_equal(
        jax.vmap(buffers.put_one, (None, 0, None))(jnp.zeros(3), jnp.arange(2.0), 1)[1], [0, 1, 0]
    )
    np.testing.assert_array_equal(
        jax.vmap(buffers.put_one, (0, None, None))(jnp.zeros((2, 3)), 4.0 * jnp.ones(()), 0)[1], [4, 0, 0]
    )


def test_places_may_differ_between_the_seeds():
    written = jax.vmap(buffers.put_one)(jnp.zeros((2, 3)), jnp.array([5.0, 6.0]), jnp.array([0, 2]))
    np.testing.assert_array_equal(written, [[5, 0, 0], [0, 0, 6]])
