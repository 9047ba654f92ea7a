import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.metrics import plasticity
from perdure.rl.ops.ranks import effective_rank


def test_singular_values_two_one_one_give_two_roots_of_two():
    matrix = np.zeros((5, 4), np.float32)
    matrix[:3, :3] = np.diag([2.0, 1.0, 1.0])
    assert float(effective_rank(jnp.array(matrix))) == pytest.approx(2 * np.sqrt(2), rel=1e-5)


def test_it_is_that_of_the_reports():
    features = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32) * [5, 3, 1, 1, 0.5, 0.1]
    found = jax.jit(effective_rank)(jnp.asarray(features, jnp.float32))
    assert float(found) == pytest.approx(plasticity.effective_rank_entropy(features), rel=1e-4)


def test_nothing_has_rank_zero():
    assert float(effective_rank(jnp.zeros((3, 2)))) == 0.0
