import jax.numpy as jnp
import numpy as np
import pytest

from perdure.rl.ops import gates

Q_KN = jnp.array([[1.0, -2.0], [3.0, -2.5], [2.0, 0.5]])


def test_bounds_are_the_extremes_moved_apart_by_their_distance():
    # Least 1 and -2.5, greatest 3 and .5: distances 2 and 3.
    np.testing.assert_allclose(gates.lcb_score(Q_KN, 0.5), [0.0, -4.0])
    np.testing.assert_allclose(gates.ucb_score(Q_KN, 0.5), [4.0, 2.0])
    np.testing.assert_allclose(gates.lcb_score(Q_KN, 0.0), [1.0, -2.5])


@pytest.mark.parametrize(
    ("fraction", "beta"), [(-1.0, 3.0), (0.0, 3.0), (0.25, 3 * 0.75**2), (0.5, 0.75), (1.0, 0.0), (1.5, 0.0)]
)
def test_doubt_fades_by_the_power_of_what_is_left_of_the_run(fraction, beta):
    np.testing.assert_allclose(gates.lcb_beta(jnp.float32(fraction), 3.0, 2.0), beta, rtol=1e-6)


def test_a_share_is_the_mean_of_few_steps_and_forgets_after_many():
    share = gates.Share.begin()
    assert share.value == 0.0
    for mask in ([True, True], [True, False], [False, False]):
        share = share.seen(jnp.array(mask))
    # Weights .99^2, .99 and 1 of 1, .5 and 0.
    np.testing.assert_allclose(share.value, (0.99**2 + 0.5 * 0.99) / (0.99**2 + 0.99 + 1), rtol=1e-4)
    for _ in range(600):
        share = share.seen(jnp.array([True, False]))
    np.testing.assert_allclose(share.value, 0.5, atol=2e-3)
