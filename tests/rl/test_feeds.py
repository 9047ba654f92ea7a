import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from perdure.core.errors import ConfigError
from perdure.core.records import Spec
from perdure.rl.feeds import Epochs, Latest, Prioritised, Replay, Ring
from perdure.rl.phases import Batch, Clock, Context

KEY = jax.random.key(0)
SPEC = Spec((1,), 2, discrete=True)


def updates_after(feed, n_envs, steps):
    """How many updates follow each vector step."""
    t = jnp.arange(steps // n_envs)
    clock = Clock(t, jnp.zeros_like(t), jnp.int32(steps))
    return np.asarray(feed.due(clock, n_envs))


def rows(numbers):
    numbers = jnp.asarray(numbers, jnp.float32)
    no = jnp.zeros(numbers.shape, bool)
    return Batch(numbers[:, None], numbers.astype(jnp.int32), numbers, no, no, numbers[:, None] + 0.5)


def sampled(feed, ring, steps, n_envs=1, key=KEY, total=1_000, discount=0.5):
    """A batch after this many vector steps."""
    clock = Clock(jnp.int32(steps), jnp.int32(0), jnp.int32(total))
    return feed.sample(ring, Context(SPEC, {}, n_envs, clock), key, discount)


def ring_of(feed, n_envs, steps, total, ends=()):
    """A ring after `steps` vector steps whose rows are numbered by their step; `ends` are (number, column) pairs."""
    empty = jax.tree.map(lambda x: jnp.full((feed.rows(total, n_envs), *x.shape[1:]), -1, x.dtype), rows([0.0]))
    ring, write = feed.begin(empty), jax.jit(feed.write)
    for t in range(steps):
        numbers = [t * n_envs + lane for lane in range(n_envs)]
        over = {name: jnp.array([(number, name) in ends for number in numbers]) for name in ("terminated", "truncated")}
        ring = write(ring, rows(numbers)._replace(**over), jnp.int32(t))
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
    drawn = np.asarray(sampled(feed, ring, 5, 2).reward)
    assert set(drawn.tolist()) == set(range(10))


def test_every_row_of_a_full_ring_can_be_drawn():
    feed = Replay(capacity=16, batch_size=16)
    ring = ring_of(feed, 2, steps=20, total=1_000)
    many = sampled(Replay(capacity=512, batch_size=512), ring, 20, 2)
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
    [
        {"batch_size": 0},
        {"ratio": 0.0},
        {"ratio": 1e-6},
        {"learning_starts": -1},
        {"capacity": 10, "batch_size": 11},
        {"steps": 0},
    ],
)
@pytest.mark.parametrize("kind", [Replay, Prioritised])
def test_replay_sizes_are_checked(kind, wrong):
    with pytest.raises(ConfigError, match=r"feed"):
        kind(**wrong)


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"minibatches": 0}])
def test_epochs_are_checked(wrong):
    with pytest.raises(ConfigError, match="at least 1"):
        Epochs(**wrong)


@pytest.mark.parametrize("n_envs", [1, 3])
def test_the_latest_rows_are_each_seen_once_and_together(n_envs):
    feed, seen = Latest(), []
    empty = jax.tree.map(lambda x: jnp.full((feed.rows(1, n_envs), *x.shape[1:]), -1, x.dtype), rows([0.0]))
    ring, write = Ring(empty), jax.jit(feed.write)
    draw = jax.jit(lambda ring, steps: sampled(feed, ring, steps, n_envs).reward)
    for t in range(feed.KEPT + 3):
        ring = write(ring, rows([t * n_envs + lane for lane in range(n_envs)]), jnp.int32(t))
        seen += np.asarray(draw(ring, t + 1)).tolist()
    assert seen == list(range((feed.KEPT + 3) * n_envs))


def test_the_latest_rows_bring_one_update_a_vector_step():
    clock = Clock(jnp.int32(0), jnp.int32(0), jnp.int32(10))
    assert int(Latest().due(clock, 8)) == Latest().most(8) == 1


def walked(number, steps, n_envs, ends, discount=0.5):
    """(reward, span, number of the last row) of a copy's rows from `number` on, one by one."""
    reward, factor = 0.0, 1.0
    for span in range(1, steps + 1):
        reward, factor = reward + factor * number, factor * discount
        if span == steps or (number, "terminated") in ends or (number, "truncated") in ends:
            return reward, span, number
        number += n_envs


@pytest.mark.parametrize("kind", [Replay, Prioritised])
@pytest.mark.parametrize(("n_envs", "steps"), [(1, 9), (3, 23)])
def test_several_steps_sum_rewards_up_to_the_end_of_the_episode(kind, n_envs, steps):
    last = steps * n_envs
    ends = {(last - 7 * n_envs, "terminated"), (last - 5 * n_envs + 1, "truncated"), (last - 4 * n_envs, "truncated")}
    feed = kind(capacity=24, batch_size=24, steps=3)
    ring = ring_of(feed, n_envs, steps, total=1_000, ends=ends)
    drawn = jax.vmap(lambda key: sampled(feed, ring, steps, n_envs, key))(jax.random.split(KEY, 16))
    flat = jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:]), drawn)
    # The newest two vector steps wait for their followers; what was overwritten is never met.
    oldest = max(0, last - 24)
    assert set(flat.action.tolist()) == set(range(oldest, last - 2 * n_envs))
    assert {1, 2, 3} == set(flat.span.tolist())
    for number, obs, reward, span, following, terminated, truncated in zip(
        flat.action, flat.obs[:, 0], flat.reward, flat.span, flat.next_obs[:, 0], flat.terminated, flat.truncated,
        strict=True,
    ):  # fmt: skip
        wanted, length, end = walked(int(number), 3, n_envs, ends)
        assert (obs, reward, span, following) == (number, wanted, length, end + 0.5)
        assert terminated == ((end, "terminated") in ends)
        assert truncated == ((end, "truncated") in ends)


def test_one_step_has_no_span():
    feed = Replay(capacity=24, batch_size=4)
    assert sampled(feed, ring_of(feed, 1, 9, 1_000), 9).span == ()


def test_the_successor_of_several_steps_is_told_of_by_every_column_of_it():
    feed = Replay(capacity=8, batch_size=8, steps=2)
    numbers = jnp.arange(8.0)
    names = ("raw_next_obs", "next_expert_action", "next_action", "reset_obs")
    later = dict.fromkeys(names, 100 + numbers)
    ring = Ring(rows(numbers)._replace(**later, raw_obs=numbers, expert_action=numbers, return_to_go=numbers))
    drawn = sampled(feed, ring, 8)
    for name in later:
        np.testing.assert_array_equal(getattr(drawn, name), 101 + drawn.action)
    for name in ("raw_obs", "expert_action", "return_to_go"):
        np.testing.assert_array_equal(getattr(drawn, name), drawn.action)


@pytest.mark.parametrize("kind", [Replay, Prioritised])
def test_updates_wait_for_the_first_whole_row(kind):
    found = updates_after(kind(batch_size=1, learning_starts=0, steps=4), 2, 20)
    np.testing.assert_array_equal(found, [0, 0, 0, *[2] * 7])


def test_a_store_must_hold_the_steps_of_a_row():
    with pytest.raises(ConfigError, match=r"feed\.steps is 5, but feed\.capacity 16 holds 4 steps of 4 copies"):
        Replay(capacity=16, batch_size=1, steps=5).rows(1_000, 4)


def test_feeds_say_what_an_agent_must_be_able_to_learn_from():
    assert Replay().needs == Latest().needs == Epochs().needs == frozenset()
    assert Replay(steps=2).needs == {"n_step"}
    assert Prioritised().needs == {"priorities"}
    assert Prioritised(steps=2).needs == {"n_step", "priorities"}


EAGER = Prioritised(capacity=40, batch_size=16, exponent=0.5, importance=0.4, epsilon=0.5)


def test_weights_make_up_for_priorities_by_the_formula():
    ring = EAGER.reweigh(ring_of(EAGER, 1, 40, 1_000), jnp.arange(40), jnp.linspace(-3.0, 3.0, 40))
    drawn = sampled(EAGER, ring, 500)
    np.testing.assert_array_equal(drawn.reward, ring.rows.reward[drawn.index])
    chance = (np.abs(np.linspace(-3.0, 3.0, 40)) + 0.5) ** 0.5
    chance /= chance.sum()
    # Half of the run is over, so beta is half way from .4 to 1.
    weight = (40 * chance[np.asarray(drawn.index)]) ** -0.7
    np.testing.assert_allclose(drawn.weight, weight / weight.max(), rtol=1e-4)
    assert weight.min() < 0.8 * weight.max()


def test_rows_are_drawn_by_the_power_of_their_errors():
    ring = EAGER.reweigh(ring_of(EAGER, 1, 40, 1_000), jnp.arange(40), jnp.linspace(-3.0, 3.0, 40))
    alone = dataclasses.replace(EAGER, batch_size=1)
    draw = jax.jit(jax.vmap(lambda key: sampled(alone, ring, 40, key=key).index[0]))
    counts = np.bincount(np.asarray(draw(jax.random.split(KEY, 20_000))), minlength=40)
    chance = (np.abs(np.linspace(-3.0, 3.0, 40)) + 0.5) ** 0.5
    assert stats.chisquare(counts, 20_000 * chance / chance.sum()).pvalue > 0.01


def test_new_rows_have_the_largest_priority_there_is():
    ring = ring_of(EAGER, 2, 3, 1_000)
    held = lambda: np.asarray(ring.priorities.levels[0][:8])
    np.testing.assert_array_equal(held(), [1] * 6 + [0] * 2)
    ring = EAGER.reweigh(ring, jnp.array([0, 3]), jnp.array([-15.5, 0.0]))
    ring = EAGER.write(ring, rows([6, 7]), jnp.int32(3))
    np.testing.assert_allclose(held(), [4, 1, 1, 0.5**0.5, 1, 1, 4, 4], rtol=1e-6)
    # Once the large errors are gone, so is their claim on new rows.
    ring = EAGER.reweigh(ring, jnp.arange(8), jnp.full(8, 1.75))
    ring = EAGER.write(ring, rows([8, 9]), jnp.int32(4))
    np.testing.assert_allclose(np.asarray(ring.priorities.levels[0][:10]), 1.5, rtol=1e-6)


def test_a_row_that_is_not_whole_cannot_be_drawn():
    feed = Prioritised(capacity=12, batch_size=8, steps=3)
    for steps, open_rows in [(2, range(12)), (3, range(1, 12)), (9, [7, 8, 9, 10, 11]), (14, [0, 1])]:
        held = np.asarray(ring_of(feed, 1, steps, 1_000).priorities.levels[0][:12])
        np.testing.assert_array_equal(np.flatnonzero(held == 0), open_rows)


@pytest.mark.parametrize("wrong", [{"exponent": -0.1}, {"exponent": 1.1}, {"importance": 2.0}, {"epsilon": 0.0}])
def test_powers_and_their_floor_are_checked(wrong):
    with pytest.raises(ConfigError, match=r"the first two lie in \[0, 1\], the last is positive"):
        Prioritised(**wrong)
