import jax.numpy as jnp
import numpy as np
import pytest

from perdure.rl.ops import rates


def test_a_rate_moves_its_share_of_the_way():
    assert float(rates.track(jnp.float32(2.0), jnp.float32(4.0), 0.25)) == pytest.approx(2.5)


def test_the_first_of_all_is_taken_whole():
    found = rates.track_from_first(jnp.float32(2.0), jnp.float32(4.0), 0.25, jnp.array([True, False]))
    np.testing.assert_allclose(found, [4.0, 2.5])
