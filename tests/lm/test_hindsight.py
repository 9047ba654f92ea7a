import itertools
import math
import random
from types import SimpleNamespace

import gymnasium as gym
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import ConfigError, DataError
from perdure.lm.hindsight import (
    GoalRelabeler,
    GoalStrategy,
    HERBuffer,
    RelabelStrategy,
    Remembered,
    episodes,
    relabel_episode,
)

REWARDS = st.lists(st.floats(-10, 10), max_size=12)


class Scripted(random.Random):
    """Draws that are given one by one."""

    def __init__(self, draws):
        super().__init__(0)
        self.draws = list(draws)

    def random(self):
        return self.draws.pop(0)


def batch(rewards, lengths=None):
    return SimpleNamespace(tokens=[f"t{i}" for i in range(len(rewards))], rewards=rewards, episode_lengths=lengths)


def test_the_last_reward_is_clamped_from_below():
    rewards = [0, 0.2, -0.1]
    assert relabel_episode(rewards, success_reward=0.5) == [0, 0.2, 0.5]
    assert rewards == [0, 0.2, -0.1]
    assert relabel_episode([0.1, 0.9], success_reward=0.5) == [0.1, 0.9]
    assert relabel_episode([], success_reward=0.5) == []


def test_future_clamps_each_earlier_step_with_its_own_probability():
    # Thresholds of an episode of 4 are 1/4, 1/3 and 1/2; only the second draw lies below its own.
    below = relabel_episode(
        [0.0] * 4, success_reward=1.0, strategy=RelabelStrategy.FUTURE, rng=Scripted([0.26, 0.33, 0.51])
    )
    assert below == [0, 1, 0, 1]
    at = relabel_episode([0.0] * 4, success_reward=1.0, strategy="future", rng=Scripted([0.24, 0.34, 0.49]))
    assert at == [1, 0, 1, 1]


def test_future_clamps_25_of_12_on_average_in_an_episode_of_4():
    rng = random.Random(1)
    clamps = sum(
        sum(relabel_episode([0.0] * 4, success_reward=1.0, strategy=RelabelStrategy.FUTURE, rng=rng))
        for _ in range(20_000)
    )
    # The sum's variance is 3/16 + 2/9 + 1/4; five standard errors of the mean.
    assert abs(clamps / 20_000 - 25 / 12) < 5 * math.sqrt((3 / 16 + 2 / 9 + 1 / 4) / 20_000)


@given(REWARDS, st.floats(-5, 5), st.integers(0, 99))
def test_relabelling_only_raises_and_only_to_the_success(rewards, success, seed):
    found = relabel_episode(rewards, success_reward=success, strategy=RelabelStrategy.FUTURE, rng=random.Random(seed))
    assert len(found) == len(rewards)
    assert all(new in (old, max(old, success)) for old, new in zip(rewards, found, strict=True))
    assert not found or found[-1] == max(rewards[-1], success)


@pytest.mark.parametrize(
    ("lengths", "cut"),
    [([2, 1], [(0, 2), (2, 3)]), (None, [(0, 3)]), ([2, 2], [(0, 3)]), ([3, 0], [(0, 3)]), ([4, -1], [(0, 3)])],
)
def test_lengths_that_do_not_add_up_make_one_episode(lengths, cut):
    assert episodes(lengths, 3) == cut


def test_no_rows_are_no_episode():
    assert episodes(None, 0) == episodes([], 0) == []


def test_a_buffer_relabels_by_episodes_and_admits_what_is_strictly_above_its_threshold():
    buffer = HERBuffer(10, admission_threshold=0.5, success_reward=0.5)
    assert buffer.add(batch([0.6, 0.1, 0.5, 0.7], [2, 2])) == 2
    assert list(buffer) == [Remembered("t0", 0.6), Remembered("t3", 0.7)]
    default = HERBuffer(10)
    assert default.add(batch([0.0, -1.0, 1e-9], [1, 1, 1])) == 3
    assert [sample.reward for sample in default] == [0.5, 0.5, 0.5]


def test_without_lengths_the_whole_batch_is_one_episode():
    buffer = HERBuffer(10)
    assert buffer.add(batch([0.0, -1.0, 0.2, 0.0])) == 2
    assert list(buffer) == [Remembered("t2", 0.2), Remembered("t3", 0.5)]


@pytest.mark.parametrize(("capacity", "kept"), [(-1, []), (0, ["t3"]), (1, ["t3"]), (3, ["t1", "t2", "t3"])])
def test_capacity_minus_one_stores_nothing_and_0_is_one_slot(capacity, kept):
    buffer = HERBuffer(capacity)
    buffer.add(batch([1.0] * 4))
    assert [sample.tokens for sample in buffer] == kept
    assert buffer.enabled == (capacity >= 0)


def test_samples_are_distinct_and_every_set_is_as_likely():
    buffer = HERBuffer(4, seed=3)
    buffer.add(batch([1.0] * 4))
    counts = dict.fromkeys(itertools.combinations(["t0", "t1", "t2", "t3"], 2), 0)
    for _ in range(3000):
        counts[tuple(sorted(sample.tokens for sample in buffer.sample(2)))] += 1
    assert all(abs(count - 500) < 5 * math.sqrt(500 * 5 / 6) for count in counts.values())
    assert sorted(sample.tokens for sample in buffer.sample(9)) == ["t0", "t1", "t2", "t3"]
    assert buffer.sample(-1) == buffer.sample(0) == []


def test_a_faulted_episode_is_not_made_a_success():
    buffer = HERBuffer(10)
    assert buffer.add(batch([math.nan, 0.0, -1.0, 0.0], [2, 2])) == 1
    assert list(buffer) == [Remembered("t3", 0.5)]


def test_a_restored_buffer_goes_on_as_the_first_would():
    first = HERBuffer(8, strategy=RelabelStrategy.FUTURE, seed=5)
    first.add(batch([0.0] * 6, [3, 3]))
    second = HERBuffer(8, strategy=RelabelStrategy.FUTURE, seed=99)
    second.load(first.state())
    for buffer in (first, second):
        buffer.add(batch([0.0] * 6, [3, 3]))
    assert list(first) == list(second)
    assert [first.sample(2) for _ in range(5)] == [second.sample(2) for _ in range(5)]


def test_a_buffer_refuses_what_means_nothing():
    with pytest.raises(ConfigError, match="capacity is -2"):
        HERBuffer(-2)
    with pytest.raises(ConfigError, match="success_reward is nan"):
        HERBuffer(1, success_reward=math.nan)
    with pytest.raises(DataError, match="3 samples and 2 rewards"):
        HERBuffer(1).add(SimpleNamespace(tokens=[1, 2, 3], rewards=[1, 2], episode_lengths=None))


def reached(achieved, goal):
    return 1.0 if achieved == goal else -1.0


def test_the_final_outcome_becomes_the_goal():
    (found,) = GoalRelabeler(reached, strategy=GoalStrategy.FINAL).relabel(["a", "b", "b"])
    assert found.goals == ["b", "b", "b"]
    assert found.rewards == [-1, 1, 1]


def test_future_goals_are_of_that_step_or_later_and_episode_goals_of_any():
    outcomes = [0, 1, 2, 3]
    for strategy, allowed in (("future", lambda t: set(outcomes[t:])), ("episode", lambda t: set(outcomes))):
        relabeler = GoalRelabeler(reached, strategy=GoalStrategy(strategy), copies=400, seed=1)
        versions = relabeler.relabel(outcomes)
        for step in range(4):
            assert {version.goals[step] for version in versions} == allowed(step)
        assert all(
            version.rewards == [reached(a, g) for a, g in zip(outcomes, version.goals, strict=True)]
            for version in versions
        )


def test_steps_that_reached_nothing_are_left_out():
    (found,) = GoalRelabeler(reached, strategy=GoalStrategy.FINAL).relabel([None, "a", None])
    assert found.goals == ["a", "a", "a"]
    assert math.isnan(found.rewards[0])
    assert found.rewards[1] == 1
    assert math.isnan(found.rewards[2])
    (nothing,) = GoalRelabeler(reached).relabel([None])
    assert nothing.goals == [None]
    assert math.isnan(nothing.rewards[0])


class Goals(gym.Env):
    def goal_reward(self, achieved, goal):
        return -abs(achieved - goal)

    def achieved_goal(self, info):
        return info["position"]


def test_a_worlds_own_goals_are_found_through_wrappers():
    relabeler = GoalRelabeler.of_world(gym.Wrapper(Goals()), strategy=GoalStrategy.FINAL)
    outcomes = [relabeler.achieved_goal({"position": position}) for position in (1, 4)]
    assert relabeler.relabel(outcomes)[0].rewards == [-3, 0]
    with pytest.raises(ConfigError, match="offers no goal_reward"):
        GoalRelabeler.of_world(gym.Env())


def test_a_restored_relabeler_draws_on():
    first = GoalRelabeler(reached, copies=5, seed=2)
    first.relabel([0, 1, 2])
    second = GoalRelabeler(reached, copies=5)
    second.load(first.state())
    assert first.relabel([0, 1, 2, 3]) == second.relabel([0, 1, 2, 3])


def test_no_copy_is_refused():
    with pytest.raises(ConfigError, match="copies is 0"):
        GoalRelabeler(reached, copies=0)
