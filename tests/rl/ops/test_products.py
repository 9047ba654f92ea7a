"""Layer products: the gradients of a plain product, in every shape that is computed another way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.rl.ops import products

SHAPES = {
    "narrow": (6, 5, 2),
    "wide": (6, 5, 7),
    "in slices": (3 * products.SLICE, 5, 7),
    "long and ragged": (products.SLICE + 1, 5, 7),
}


def _factors(rows, inner, columns):
    draw = lambda number, shape: jax.random.normal(jax.random.key(number), shape)
    return draw(0, (rows, inner)), draw(1, (inner, columns)), draw(2, (rows, columns))


@pytest.mark.parametrize("name", SHAPES)
def test_gradients_are_those_of_a_product(name):
    x, w, weight = _factors(*SHAPES[name])
    ours = jax.grad(lambda x, w: (products.dense(x, w, "float32") * weight).sum(), (0, 1))(x, w)
    for found, expected in zip(ours, (weight @ w.T, x.T @ weight), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


def test_an_ensemble_on_common_rows_gets_a_gradient_for_each_member():
    x, w, _ = _factors(6, 5, 2)
    members = jnp.stack([w, 2 * w])
    loss = lambda members: jax.vmap(products.dense, (None, 0, None))(x, members, "float32").sum()
    expected = jnp.broadcast_to(x.sum(0)[:, None], (2, 5, 2))
    np.testing.assert_allclose(jax.grad(loss)(members), expected, rtol=1e-5, atol=1e-5)


def test_second_derivatives_exist_in_reverse_mode():
    x, w, _ = _factors(6, 5, 2)
    slope = lambda w: jax.grad(lambda w: jnp.square(products.dense(x, w, "float32")).sum())(w)
    twice = jax.grad(lambda w: slope(w).sum())(w)
    np.testing.assert_allclose(twice, 2 * x.T @ x @ jnp.ones_like(w), rtol=1e-4, atol=1e-4)


def test_bfloat16_rounds_the_factors_and_keeps_the_sums():
    x, w, _ = _factors(6, 5, 2)
    rounded = lambda matrix: matrix.astype(jnp.bfloat16).astype(jnp.float32)
    product = products.dense(x, w, "bfloat16")
    assert product.dtype == jnp.float32
    np.testing.assert_allclose(product, rounded(x) @ rounded(w), rtol=1e-5, atol=1e-5)
