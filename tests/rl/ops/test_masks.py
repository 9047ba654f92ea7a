"""Masks of few axes against arrays of more."""

import jax.numpy as jnp
import numpy as np

from perdure.rl.ops import masks


def test_a_mask_gains_the_axes_it_lacks():
    mask = jnp.array([True, False])
    assert masks.widened(mask, jnp.zeros((2, 3, 4))).shape == (2, 1, 1)
    assert masks.widened(mask, mask).shape == (2,)


def test_where_takes_whole_rows():
    new, old = jnp.ones((2, 3)), jnp.zeros((2, 3))
    np.testing.assert_array_equal(masks.where(jnp.array([False, True]), new, old), [[0, 0, 0], [1, 1, 1]])
