import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.records import Spec
from perdure.rl import acting


def spec(low, high):
    return Spec((1,), len(low), discrete=False, low=tuple(low), high=tuple(high))


def test_actions_fill_the_box():
    box = spec([-2.0, 0.0], [6.0, 1.0])
    found = acting.executed(box, jnp.array([[-1.0, 1.0], [0.0, 0.0], [1.0, -1.0]]))
    np.testing.assert_allclose(found, [[-2.0, 1.0], [2.0, 0.5], [6.0, 0.0]])


def test_actions_beyond_the_box_are_cut():
    np.testing.assert_allclose(acting.executed(spec([-2.0], [6.0]), jnp.array([[-9.0], [1.5]])), [[-2.0], [6.0]])


def test_an_unbounded_dimension_keeps_the_number_within_what_bounds_it_has():
    box = spec([-np.inf, -0.5, -np.inf], [np.inf, np.inf, 0.5])
    np.testing.assert_allclose(acting.executed(box, jnp.array([[0.25, -1.0, 0.8]])), [[0.25, -0.5, 0.5]])


def test_discrete_actions_are_left_alone():
    action = jnp.array([0, 2])
    assert acting.executed(Spec((1,), 3, discrete=True), action) is action


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_every_copy_starts_its_own_episodes(name, tiny):
    """The mark seen through an episode is drawn at its start, alike in no two episodes and copies."""
    made = tiny.made(name)
    state = made.init(tiny.SEEDS)
    marks = []
    for _ in range(3):
        marks.append(np.asarray(state.train.seeds.lanes.obs)[..., 1])
        state, _, _ = tiny.train(made, 32, state=state)
    assert len(np.unique(marks)) == np.size(marks)
    np.testing.assert_array_equal(np.asarray(state.train.seeds.lanes.obs)[..., 0], 48 % 5)


def test_a_row_holds_the_true_successor_where_an_episode_ends(tiny):
    state, columns, _ = tiny.train(tiny.made("dqn"), 64)
    rows = state.train.seeds.store.rows
    obs, after = np.asarray(rows.obs)[0, :64], np.asarray(rows.next_obs)[0, :64]
    ended = np.asarray(rows.terminated)[0, :64]
    np.testing.assert_array_equal(ended, columns["terminated"][:64])
    assert ended.sum() == 12
    np.testing.assert_array_equal(after[:, 0], obs[:, 0] + 1)  # Five at the end, and never the zero of the next reset.
    np.testing.assert_array_equal(after[:, 1], obs[:, 1])
    np.testing.assert_array_equal(obs[2:, 0], np.where(ended[:-2], 0, after[:-2, 0]))


def test_truncation_is_stored_as_truncation(tiny):
    state, columns, _ = tiny.train(tiny.made("dqn", world=tiny.Clockwork(truncates=True)), 64)
    rows = state.train.seeds.store.rows
    assert not np.asarray(rows.terminated).any()
    assert np.asarray(rows.truncated)[0, :64].sum() == columns["truncated"][:64].sum() == 12
