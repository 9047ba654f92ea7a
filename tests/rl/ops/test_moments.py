import jax.numpy as jnp
import numpy as np
import pytest

from perdure.rl.ops import moments


def absorbed(batches, shape):
    found = moments.empty(shape)
    for batch in batches:
        found = moments.extend(found, jnp.asarray(batch))
    return found


def test_mean_and_variance_equal_numpy_however_the_rows_are_cut():
    rows = np.random.default_rng(0).normal(3.0, 2.0, size=(300, 4)).astype(np.float32)
    for cuts in ([], [1, 2, 50], [299], [100, 200]):
        found = absorbed(np.split(rows, cuts), (4,))
        assert float(found.count) == 300
        np.testing.assert_allclose(found.mean, rows.mean(0), rtol=1e-5)
        np.testing.assert_allclose(found.variance, rows.var(0), rtol=1e-4)


def test_a_large_mean_does_not_drown_the_variance():
    rows = (1e4 + np.random.default_rng(1).normal(size=(2_000,))).astype(np.float32)
    found = absorbed(np.split(rows, 20), ())
    assert float(found.variance) == pytest.approx(rows.astype(np.float64).var(), rel=0.01)


def test_nothing_absorbed_leaves_numbers_as_they_are():
    np.testing.assert_allclose(moments.standardise(moments.empty((2,)), jnp.array([0.5, -3.0])), [0.5, -3.0], rtol=1e-6)


def test_standardised_rows_have_mean_zero_and_deviation_one():
    rows = np.random.default_rng(2).normal(5.0, 3.0, size=(1_000, 2)).astype(np.float32)
    seen = np.asarray(moments.standardise(absorbed([rows], (2,)), rows))
    np.testing.assert_allclose(seen.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(seen.std(0), 1, atol=1e-4)


def test_what_lies_far_out_is_clipped():
    found = absorbed([np.array([0.0, 1.0, 2.0], np.float32)], ())
    assert float(moments.standardise(found, jnp.float32(1e6))) == 10.0
    assert float(moments.standardise(found, jnp.float32(-1e6), limit=3.0)) == -3.0
