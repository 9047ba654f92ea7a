from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from perdure.rl import priorities


def held(values):
    values = jnp.asarray(values, jnp.float32)
    return priorities.assign(priorities.empty(len(values)), jnp.arange(len(values)), values)


def random_values(rows):
    """Of many sizes, a third of them 0."""
    random = np.random.default_rng(rows)
    return np.where(random.random(rows) < 1 / 3, 0.0, random.exponential(size=rows) ** 3).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 40, 5_000])
def test_every_level_sums_the_one_below(rows):
    values = random_values(rows) + np.float32(0.1)
    levels, maxima = held(values)
    assert len(levels) == (3 if rows == 5_000 else 2)
    np.testing.assert_array_equal(levels[0][:rows], values)
    for below, above in pairwise(levels):
        groups = np.asarray(below, np.float64).reshape(-1, priorities.WIDTH)
        np.testing.assert_allclose(above[: len(groups)], groups.sum(-1), rtol=1e-6)
        assert not np.asarray(above[len(groups) :]).any()
    np.testing.assert_array_equal(maxima, np.asarray(levels[0]).reshape(-1, priorities.WIDTH).max(-1))


def test_some_rows_change_and_their_sums_with_them():
    values = random_values(5_000)
    index = np.array([7, 4_999, 7, 31, 32, 2_048])
    new = np.array([3.0, 0.0, 3.0, 90.0, 0.5, 1.0], np.float32)
    found = priorities.assign(held(values), jnp.asarray(index), jnp.asarray(new))
    values[index] = new
    for ours, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(held(values)), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-6)
    assert float(found.highest) == values.max()


@pytest.mark.parametrize("rows", [40, 5_000])
def test_a_draw_falls_where_the_running_sum_passes_its_share(rows):
    values = random_values(rows)
    uniform = np.random.default_rng(1).random(512).astype(np.float32)
    index = np.asarray(jax.jit(priorities.draw)(held(values), jnp.asarray(uniform)))
    sums = np.cumsum(values.astype(np.float64))
    wanted = np.searchsorted(sums, (np.arange(512) + uniform.astype(np.float64)) / 512 * sums[-1], side="right")
    # In single precision a share may fall on the other side of an edge that it lies upon.
    assert (index == wanted).mean() > 0.99
    assert np.abs(sums[index] - sums[wanted]).max() < 0.01 * sums[-1]
    assert (values[index] > 0).all()


def test_rows_of_priority_zero_are_never_drawn():
    values = np.zeros(5_000, np.float32)
    values[[3, 64, 4_000]] = [1e-6, 1.0, 1e3]
    edges = jnp.array([0.0, 0.5, 1 - 2**-24] * 40)
    assert set(np.asarray(priorities.draw(held(values), edges)).tolist()) <= {3, 64, 4_000}
    alone = np.zeros(5_000, np.float32)
    alone[4_321] = 1e-3
    np.testing.assert_array_equal(priorities.draw(held(alone), edges), 4_321)


def test_rows_are_drawn_as_often_as_their_priorities_say():
    values = random_values(300) + np.float32(0.2)
    share = values.astype(np.float64) / values.astype(np.float64).sum()
    # One draw a batch: those of one batch are spread evenly, and agree with their shares better than chance would.
    uniform = jax.random.uniform(jax.random.key(3), (60_000, 1))
    index = np.asarray(jax.jit(jax.vmap(priorities.draw, (None, 0)))(held(values), uniform))[:, 0]
    counts = np.bincount(index, minlength=300)
    assert stats.chisquare(counts, share * 60_000).pvalue > 0.01


def test_a_batch_takes_one_row_from_each_equal_share():
    index = np.asarray(priorities.draw(held(np.ones(64)), jax.random.uniform(jax.random.key(0), (16,))))
    np.testing.assert_array_equal(index // 4, np.arange(16))
