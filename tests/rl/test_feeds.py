import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.errors import ConfigError
from perdure.rl.feeds import Epochs, Latest, Replay, Ring
from perdure.rl.phases import Batch, Clock

KEY = jax.random.key(0)


def updates_after(feed, n_envs, steps):
    """How many updates follow each vector step."""
    t = jnp.arange(steps // n_envs)
    clock = Clock(t, jnp.zeros_like(t), jnp.int32(steps))
    return np.asarray(feed.due(clock, n_envs))


def rows(numbers):
    numbers = jnp.asarray(numbers, jnp.float32)
    no = jnp.zeros(numbers.shape, bool)
    return Batch(numbers[:, None], numbers.astype(jnp.int32), numbers, no, no, numbers[:, None] + 0.5)


def ring_of(feed, n_envs, steps, total):
    """A ring after `steps` vector steps whose rows are numbered by their step."""
    empty = jax.tree.map(lambda x: jnp.full((feed.rows(total, n_envs), *x.shape[1:]), -1, x.dtype), rows([0.0]))
    ring = Ring(empty)
    for t in range(steps):
        ring = feed.write(ring, rows([t * n_envs + lane for lane in range(n_envs)]), jnp.int32(t))
    return ring


def test_a_quarter_of_an_update_a_step_is_one_every_fourth():
    found = updates_after(Replay(batch_size=1, ratio=0.25, learning_starts=0), 1, 40)
    np.testing.assert_array_equal(found, [0, 0, 0, 1] * 10)


@pytest.mark.parametrize("n_envs", [1, 2, 8, 16])
@pytest.mark.parametrize("ratio", [0.25, 0.3, 1.0, 1.5, 4.0])
def test_the_number_of_updates_does_not_depend_on_the_copies(n_envs, ratio):
    found = updates_after(Replay(batch_size=1, ratio=ratio, learning_starts=0), n_envs, 1_600)
    assert found.sum() == round(ratio * 1_600)
    assert found.max() - found.min() <= 1


@pytest.mark.parametrize("n_envs", [1, 4])
def test_updates_begin_once_the_warm_up_is_over(n_envs):
    found = updates_after(Replay(batch_size=1, learning_starts=20), n_envs, 40)
    seen = (np.arange(len(found)) + 1) * n_envs
    np.testing.assert_array_equal(found > 0, seen > 20)


@pytest.mark.parametrize("n_envs", [1, 3])
def test_the_ring_keeps_the_newest_rows(n_envs):
    feed = Replay(capacity=12, batch_size=1)
    ring = ring_of(feed, n_envs, steps=10, total=1_000)
    kept = np.sort(np.asarray(ring.rows.reward))
    np.testing.assert_array_equal(kept, np.arange(10 * n_envs)[-12:] if n_envs > 1 else np.r_[[-1, -1], np.arange(10)])
    wrapped = ring_of(feed, n_envs, steps=29, total=1_000)
    np.testing.assert_array_equal(np.sort(np.asarray(wrapped.rows.reward)), np.arange(29 * n_envs)[-12:])


def test_a_row_stays_whole_when_the_ring_wraps():
    ring = ring_of(Replay(capacity=12, batch_size=1), 3, steps=29, total=1_000)
    np.testing.assert_array_equal(ring.rows.obs[:, 0], ring.rows.reward)
    np.testing.assert_array_equal(ring.rows.next_obs[:, 0], ring.rows.reward + 0.5)
    np.testing.assert_array_equal(ring.rows.action, ring.rows.reward)


def test_the_ring_is_no_larger_than_the_run():
    assert Replay(capacity=1_000).rows(400, 4) == 400
    assert Replay(capacity=1_000).rows(10**9, 3) == 999


def test_only_rows_that_were_written_are_drawn():
    feed = Replay(capacity=100, batch_size=64)
    ring = ring_of(feed, 2, steps=5, total=1_000)
    drawn = np.asarray(feed.sample(ring, jnp.int32(10), KEY).reward)
    assert set(drawn.tolist()) == set(range(10))


def test_every_row_of_a_full_ring_can_be_drawn():
    feed = Replay(capacity=16, batch_size=16)
    ring = ring_of(feed, 2, steps=20, total=1_000)
    many = Replay(capacity=512, batch_size=512).sample(ring, jnp.int32(40), KEY)
    assert set(np.asarray(many.reward).tolist()) == set(range(24, 40))


def test_an_epoch_sees_every_row_once_and_whole():
    feed = Epochs(epochs=1, minibatches=4)
    shuffled = feed.shuffled(rows(range(24)), KEY)
    assert shuffled.reward.shape == (4, 6)
    np.testing.assert_array_equal(np.sort(np.asarray(shuffled.reward).ravel()), np.arange(24))
    np.testing.assert_array_equal(shuffled.obs[..., 0], shuffled.reward)


def test_a_window_that_does_not_split_is_refused():
    with pytest.raises(ConfigError, match=r"100 rows.*feed\.minibatches = 3"):
        Epochs(minibatches=3).check(100)


@pytest.mark.parametrize(
    "wrong",
    [{"batch_size": 0}, {"ratio": 0.0}, {"ratio": 1e-6}, {"learning_starts": -1}, {"capacity": 10, "batch_size": 11}],
)
def test_replay_sizes_are_checked(wrong):
    with pytest.raises(ConfigError, match=r"feed"):
        Replay(**wrong)


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"minibatches": 0}])
def test_epochs_are_checked(wrong):
    with pytest.raises(ConfigError, match="at least 1"):
        Epochs(**wrong)


@pytest.mark.parametrize("n_envs", [1, 3])
def test_the_latest_rows_are_each_seen_once_and_together(n_envs):
    feed, seen = Latest(), []
    empty = jax.tree.map(lambda x: jnp.full((feed.rows(1, n_envs), *x.shape[1:]), -1, x.dtype), rows([0.0]))
    ring = Ring(empty)
    for t in range(feed.KEPT + 3):
        ring = feed.write(ring, rows([t * n_envs + lane for lane in range(n_envs)]), jnp.int32(t))
        seen += np.asarray(feed.sample(ring, jnp.int32((t + 1) * n_envs), KEY).reward).tolist()
    assert seen == list(range((feed.KEPT + 3) * n_envs))


def test_the_latest_rows_bring_one_update_a_vector_step():
    clock = Clock(jnp.int32(0), jnp.int32(0), jnp.int32(10))
    assert int(Latest().due(clock, 8)) == Latest().most(8) == 1
