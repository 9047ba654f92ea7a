import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.component import make
from perdure.core.errors import ConfigError
from perdure.rl.feeds import Replay, Ring
from perdure.rl.phases import Batch, Clock, Context
from perdure.rl.reservoir import Reservoir


def rows(numbers):
    numbers = jnp.asarray(numbers, jnp.float32)
    no = jnp.zeros(numbers.shape, bool)
    return Batch(numbers[:, None], numbers.astype(jnp.int32), numbers, no, no, numbers[:, None] + 0.5)


def store_of(feed, n_envs, steps, total):
    """The store after `steps` vector steps whose rows are numbered by their step."""
    empty = jax.tree.map(lambda x: jnp.full((feed.rows(total, n_envs), *x.shape[1:]), -1, x.dtype), rows([0.0]))
    step = lambda t, ring: feed.write(ring, rows(t * n_envs + jnp.arange(n_envs)), t)
    return jax.jit(lambda: jax.lax.fori_loop(0, steps, step, Ring(empty)))().rows


def test_until_it_is_full_it_is_plain_replay():
    feeds = Reservoir(capacity=24, batch_size=4), Replay(capacity=24, batch_size=4)
    one, other = (store_of(feed, 3, 8, 1_000) for feed in feeds)
    np.testing.assert_array_equal(one.reward, other.reward)
    key = jax.random.key(0)
    ctx = Context(None, {}, 3, Clock(jnp.int32(8), jnp.int32(0), jnp.int32(1_000)))
    drawn = [feed.sample(Ring(one), ctx, key, 0.9).reward for feed in feeds]
    np.testing.assert_array_equal(*drawn)


def test_a_full_store_holds_the_whole_run_evenly_and_rows_stay_whole():
    # 300 of 3,000 rows: each tenth of the run has 30 of them, deviation sqrt(300 * .1 * .9) = 5.2.
    kept = store_of(Reservoir(capacity=300, batch_size=4), 3, 1_000, 10_000)
    numbers = np.asarray(kept.reward)
    assert len(set(numbers.tolist())) == 300
    tenths = np.bincount((numbers // 300).astype(int), minlength=10)
    assert np.abs(tenths - 30).max() < 4 * 5.2
    np.testing.assert_array_equal(kept.obs[:, 0], numbers)
    np.testing.assert_array_equal(kept.next_obs[:, 0], numbers + 0.5)
    np.testing.assert_array_equal(kept.action, numbers)


def test_updates_come_as_with_replay():
    clock = Clock(jnp.arange(40), jnp.zeros(40, jnp.int32), jnp.int32(400))
    settings = {"capacity": 100, "batch_size": 4, "ratio": 0.3, "learning_starts": 20}
    np.testing.assert_array_equal(Reservoir(**settings).due(clock, 2), Replay(**settings).due(clock, 2))
    assert Reservoir(**settings).most(2) == 0.6
    assert Reservoir(**settings).rows(50, 4) == 48


def test_its_settings_are_those_of_replay():
    assert make(Reservoir, {"kind": "reservoir", "capacity": 10, "batch_size": 2}, "feed").capacity == 10
    with pytest.raises(ConfigError, match=r"feed\.capacity is 10"):
        Reservoir(capacity=10, batch_size=11)


def test_an_agent_trains_from_it(tiny):
    feed = Reservoir(capacity=40, batch_size=16, learning_starts=20)
    made = tiny.learner.JaxLearner(
        tiny.learner.trainer(
            tiny.DQN(feed=feed, hidden=(8,)), tiny.Clockwork(), n_envs=2, window_steps=16, total_steps=1_000
        ),
        tiny.SEEDS,
    )
    state, _, metrics = tiny.train(made, 192)
    assert np.isfinite(metrics[-1]["loss/critic"]).all()
    assert state.train.seeds.store.rows.reward.shape == (2, 40)
