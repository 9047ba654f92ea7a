import jax
import numpy as np
import pytest
from scipy import stats

from perdure.rl.ops import shuffle


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 12, 31, 32, 33, 100, 127, 128, 500, 1000, 2048, 4096, 5000])
def test_every_index_comes_exactly_once(count):
    for seed in range(3):
        order = np.asarray(shuffle.permutation(jax.random.key(seed), count))
        np.testing.assert_array_equal(np.sort(order), np.arange(count))


@pytest.mark.parametrize("count", [12, 16])
def test_pairs_are_uniform_over_keys(count):
    keys = jax.random.split(jax.random.key(3), 20_000)
    orders = np.asarray(jax.vmap(lambda key: shuffle.permutation(key, count))(keys))
    for one, other in ((0, 1), (2, count - 1), (count // 2, count // 2 + 1)):
        pairs = np.bincount(orders[:, one] * count + orders[:, other], minlength=count * count)
        apart = pairs.reshape(count, count)[~np.eye(count, dtype=bool)]
        # A pairwise bijection of few bits is not exactly uniform; a tenth of a cell's share is let pass.
        excess = np.sqrt(max(stats.chisquare(apart).statistic - len(apart), 0.0) / 20_000)
        assert excess < 0.1, (one, other, excess)


def test_each_place_sees_every_index_alike():
    keys = jax.random.split(jax.random.key(4), 20_000)
    orders = np.asarray(jax.vmap(lambda key: shuffle.permutation(key, 16))(keys))
    for place in range(16):
        assert stats.chisquare(np.bincount(orders[:, place], minlength=16)).pvalue > 1e-4


def test_keys_give_different_orders():
    keys = jax.random.split(jax.random.key(0), 50)
    orders = np.asarray(jax.vmap(lambda key: shuffle.permutation(key, 1000))(keys))
    assert len(np.unique(orders, axis=0)) == 50


def test_neighbours_do_not_stay_neighbours():
    order = np.asarray(shuffle.permutation(jax.random.key(1), 4096)).astype(int)
    steps = np.diff(order)
    assert (np.abs(steps) == 1).mean() < 0.01
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05
