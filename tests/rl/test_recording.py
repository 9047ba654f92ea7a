"""Where datasets come from: an expert rolled in a world, the rows of a replay, a Minari dataset."""

import types

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.component import component
from perdure.core.errors import ConfigError, DataError
from perdure.rl import recording
from perdure.rl.recording import record
from perdure.worlds.pure import experts
from perdure.worlds.pure.cartpole import CartPole
from perdure.worlds.pure.mountain_car import MountainCar
from perdure.worlds.pure.pendulum import Pendulum


@component
class Counter:
    """Pushes a [-2, 6] box by the number of steps it has taken in the episode."""

    def init_state(self, n):
        return jnp.zeros(n)

    def __call__(self, state, obs):
        return state[:, None], state + 1


@pytest.fixture(scope="module")
def pendulum():
    """Twenty episodes of the pendulum's expert, half of the actions random, and another three."""
    world, expert = Pendulum(horizon=70), experts.PendulumExpert()
    return record(world, expert, episodes=20, random_share=0.5), record(world, expert, episodes=3, seed=1)


def test_what_was_done_is_in_agent_units_and_leads_to_the_successor(pendulum):
    mixed, _ = pendulum
    world = Pendulum()
    mixed.check_fits(world.spec, "recorded")
    # Cosine, sine and spin of Pendulum-v1: spin' = spin + (15 sin + 3 torque) / 20, and the angle follows.
    cosine, sine, spin = mixed.obs.astype(np.float64).T
    spun = np.clip(spin + (15 * sine + 3 * 2 * mixed.action[:, 0]) / 20, -8, 8)
    angle = np.arctan2(sine, cosine)
    torque = 2 * mixed.action[:, 0].astype(np.float64)
    np.testing.assert_allclose(mixed.reward, -(angle**2 + 0.1 * spin**2 + 0.001 * torque**2), atol=1e-3)
    wanted = np.stack([np.cos(angle + spun / 20), np.sin(angle + spun / 20), spun], 1)
    np.testing.assert_allclose(mixed.next_obs, wanted, atol=1e-4)


def test_every_episode_begins_anew_and_is_truncated_at_the_horizon(pendulum):
    mixed, plain = pendulum
    assert (mixed.episodes, mixed.rows, plain.episodes, plain.rows) == (20, 1400, 3, 210)
    assert not mixed.terminated.any()
    assert np.flatnonzero(mixed.truncated).tolist() == list(range(69, 1400, 70))
    assert len(np.unique(mixed.obs[mixed.starts], axis=0)) == 20
    assert len(np.unique(mixed.action, axis=0)) > 600


def test_rows_say_who_acted_and_what_the_expert_would_have_done(pendulum):
    mixed, plain = pendulum
    assert plain.is_expert.all()
    assert 0.45 < mixed.is_expert.mean() < 0.55
    told = np.asarray(experts.PendulumExpert()(jnp.asarray(mixed.obs))) / 2
    np.testing.assert_allclose(mixed.columns()["expert_action"], told, atol=1e-5)
    same = np.isclose(mixed.action, told, atol=1e-5)[:, 0]
    assert same[mixed.is_expert].all()
    assert same[~mixed.is_expert].mean() < 0.2
    assert np.abs(mixed.action[~mixed.is_expert].mean()) < 0.1
    assert np.abs(mixed.action[~mixed.is_expert]).max() > 0.95


def test_copies_choose_at_random_apart_from_each_other(pendulum):
    chosen = pendulum[0].is_expert.reshape(20, 70)
    assert (chosen.any(0) & ~chosen.all(0)).mean() > 0.95


def test_the_same_arguments_give_the_same_rows_and_another_seed_others():
    world, expert = MountainCar(), experts.MountainCarExpert()
    one, same, other = (record(world, expert, steps=150, seed=seed) for seed in (0, 0, 1))
    assert one == same
    assert one != other


def test_steps_are_rounded_up_to_whole_episodes():
    dataset = record(MountainCar(), experts.MountainCarExpert(), steps=150, seed=0)
    lengths = np.diff(dataset.starts, append=dataset.rows)
    assert dataset.rows >= 150 > dataset.rows - lengths[-1]
    assert dataset.terminated[dataset.ends].all()
    assert dataset.action.dtype == np.int32
    assert set(dataset.action.tolist()) == {0, 2}


def test_random_actions_of_all_kinds_take_the_place_of_the_experts():
    world, expert = CartPole(), experts.CartPoleExpert()
    dataset = record(world, expert, episodes=20, random_share=1.0)
    assert not dataset.is_expert.any()
    assert set(dataset.action.tolist()) == {0, 1}
    assert 15 < dataset.returns.mean() < 30  # 22 by random actions
    known = dataset.columns()["expert_action"]
    np.testing.assert_array_equal(known, expert(jnp.asarray(dataset.obs)))
    assert record(world, expert, episodes=20, max_steps=20).returns.tolist() == [20.0] * 20
    assert [record(world, expert, steps=steps, max_steps=20).rows for steps in (40, 41)] == [40, 60]


def test_the_task_is_the_one_asked_for():
    world, expert = CartPole(), experts.CartPoleExpert()
    dataset = record(world, expert, episodes=20, params={"force": -10.0})
    assert dataset.returns.mean() < 20
    with pytest.raises(ConfigError, match="no parameter 'forse'"):
        record(world, expert, episodes=20, params={"forse": 1.0})


def test_a_stateful_expert_begins_every_episode_anew(tiny):
    world = tiny.Clockwork(length=4, truncates=True, continuous=True)
    dataset = record(world, Counter(), episodes=17)
    # 0, 1, 2, 3 on the box [-2, 6].
    np.testing.assert_allclose(dataset.action.reshape(17, 4), [[-0.5, -0.25, 0.0, 0.25]] * 17, atol=1e-6)


def test_an_episode_without_end_is_truncated(tiny):
    dataset = record(tiny.Clockwork(continuous=True, episodic=False), Counter(), episodes=2, max_steps=9)
    assert (dataset.rows, np.flatnonzero(dataset.truncated).tolist()) == (18, [8, 17])
    assert record(tiny.Clockwork(continuous=True, episodic=False), Counter(), episodes=2).rows == 40


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "episodes is None and steps None; give one of the two"),
        ({"episodes": 1, "steps": 1}, "episodes is 1 and steps 1; give one"),
        ({"episodes": 0}, "episodes is 0; give a whole number, at least 1"),
        ({"steps": 2.5}, "steps is 2.5; give a whole number"),
        ({"episodes": 1, "max_steps": 0}, "max_steps is 0; give a whole number"),
        ({"episodes": 1, "random_share": 1.1}, r"random_share is 1.1; it lies in \[0, 1\]"),
    ],
)
def test_arguments_out_of_range_are_refused(values, told):
    with pytest.raises(ConfigError, match=told):
        record(CartPole(), experts.CartPoleExpert(), **values)


def test_an_expert_of_another_world_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match=r"expert .*give float32\[1\]"):
        record(Pendulum(), experts.CartPoleExpert(), episodes=1)


def rows_of_two_copies():
    """Six steps of two copies; the first ends at steps 1 and 4, the second at 2."""
    obs = np.arange(12.0).reshape(6, 2, 1)
    ends = np.zeros((6, 2), bool)
    ends[[1, 4], 0] = ends[2, 1] = True
    return {
        "obs": obs,
        "action": np.arange(12).reshape(6, 2) % 3,
        "reward": np.arange(12.0).reshape(6, 2),
        "terminated": ends,
        "truncated": np.zeros((6, 2), bool),
        "next_obs": obs + 2,
        "target": None,
    }


def test_whole_episodes_are_exported_copy_after_copy():
    dataset = recording.export(rows_of_two_copies(), wrapped=False)
    assert dataset.reward.tolist() == [0, 2, 4, 6, 8, 1, 3, 5]
    assert dataset.episode.tolist() == [0, 0, 1, 1, 1, 2, 2, 2]
    assert dataset.obs[:, 0].tolist() == dataset.reward.tolist()


def test_of_a_wrapped_store_the_first_episodes_are_left_out():
    rows = rows_of_two_copies() | {"is_expert": np.arange(12).reshape(6, 2) == 6}
    dataset = recording.export(rows, wrapped=True)
    assert dataset.reward.tolist() == [4, 6, 8]
    assert dataset.is_expert.tolist() == [False, True, False]


def test_rows_without_a_whole_episode_or_a_column_are_refused():
    rows = rows_of_two_copies()
    short = {name: column[2:4] for name, column in rows.items() if column is not None}
    with pytest.raises(DataError, match="the 4 rows hold no whole episode; export more"):
        recording.export(short, wrapped=True)
    with pytest.raises(ConfigError, match="rows have no column 'reward'; give all of obs, action"):
        recording.export({name: rows[name] for name in rows if name != "reward"}, wrapped=False)
    with pytest.raises(ConfigError, match=r"action has shape \[6\], reward \[6, 2\]; give every column as"):
        recording.export(rows | {"action": np.zeros(6)}, wrapped=False)


def test_actions_of_a_minari_dataset_become_agent_units():
    episode = types.SimpleNamespace(
        observations=np.array([[0.0], [1.0], [2.0]]),
        actions=np.array([[2.0], [7.0]]),
        rewards=np.array([1.0, 2.0]),
        terminations=np.array([False, True]),
        truncations=np.array([False, False]),
    )

    class Minari(list):
        id = "made/up-v0"
        env_spec = None
        observation_space = gymnasium.spaces.Box(-1.0, 9.0, (1,))
        action_space = gymnasium.spaces.Box(-2.0, 6.0, (1,))

    dataset = recording.from_minari(Minari([episode, episode]), is_expert=True)
    # 2 of [-2, 6] is the middle; 7 is cut to 6.
    assert dataset.action[:, 0].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert dataset.next_obs[:, 0].tolist() == [1.0, 2.0, 1.0, 2.0]
    assert (dataset.episodes, dataset.is_expert.tolist()) == (2, [True] * 4)
