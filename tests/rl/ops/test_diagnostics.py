import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.metrics import plasticity
from perdure.rl.ops import diagnostics

RANDOM = np.random.default_rng(0)
JITTED = jax.jit(diagnostics.singular_values)
RANK = jax.jit(diagnostics.srank)


@pytest.mark.parametrize("shape", [(12, 7), (6, 9), (40, 1), (30, 16)])
def test_singular_values_are_those_of_the_decomposition(shape):
    matrix = RANDOM.normal(size=shape).astype(np.float32)
    found = JITTED(matrix)
    np.testing.assert_allclose(found, np.linalg.svd(matrix, compute_uv=False), rtol=1e-4, atol=1e-5)


def test_singular_values_of_poor_and_of_large_matrices():
    poor = (RANDOM.normal(size=(30, 2)) @ RANDOM.normal(size=(2, 16))).astype(np.float32)
    poor[:, 3] = poor[:, 5]
    found = np.asarray(JITTED(1e3 * poor))
    np.testing.assert_allclose(found[:2], 1e3 * np.linalg.svd(poor, compute_uv=False)[:2], rtol=1e-4)
    assert found[2:].max() < 1e-5 * found[0]
    np.testing.assert_array_equal(JITTED(jnp.zeros((30, 16))), 0.0)


def test_the_rank_counts_the_values_that_hold_almost_all():
    # Values 5, 4 and 1: shares .5, .9, 1.
    feats = jnp.diag(jnp.array([5.0, 1.0, 4.0]))
    assert [int(RANK(feats, delta)) for delta in (0.05, 0.1, 0.2, 0.6)] == [3, 2, 2, 1]
    assert [int(RANK(jnp.eye(3), delta)) for delta in (0.3, 1 / 3, 0.4)] == [3, 2, 2]
    assert int(RANK(jnp.zeros((3, 3)), 0.1)) == 0


def test_the_rank_and_the_dormant_share_agree_with_the_host_forms():
    feats = np.maximum(RANDOM.normal(size=(30, 16)) - np.linspace(0, 3, 16), 0).astype(np.float32)
    assert int(RANK(feats)) == plasticity.threshold_rank(feats)
    assert float(diagnostics.dormant_fraction(feats, 0.1)) == pytest.approx(plasticity.dormant_fraction(feats, 0.1))


def test_the_dormant_share_counts_units_far_below_the_mean():
    # Mean sizes 2, 0, .04; their mean is .68.
    feats = jnp.array([[1.0, 0.0, 0.02], [-3.0, 0.0, -0.06]])
    assert float(diagnostics.dormant_fraction(feats)) == pytest.approx(1 / 3)
    assert float(diagnostics.dormant_fraction(feats, 0.1)) == pytest.approx(2 / 3)
