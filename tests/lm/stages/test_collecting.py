"""Episodes for the stages: determined by their seed, told with their regime, in the order of time."""

import pytest

from perdure.core.errors import Refused, RunFailed
from perdure.lm.stages import collecting
from perdure.lm.stages.collecting import Regime
from perdure.worlds.text.arithmetic import Arithmetic
from perdure.worlds.text.experts import ArithmeticExpert
from perdure.worlds.text.orders import Orders

TWO = [Regime("low", "low", {"bias": 0.0}), Regime("high", "low", {"bias": 1.0})]


@pytest.fixture
def policy(letters):
    return letters.policy(context=512)


def played(letters, policy, episodes=3, runs=2, **changes):
    make = lambda _: letters.Letters(**changes)
    return collecting.rollouts(make, policy, TWO, runs=runs, episodes=episodes, turns=4, seed=1)


def test_rollouts_depend_on_their_seed_alone(letters, policy):
    first, second = played(letters, policy), played(letters, letters.policy(context=512))
    assert [record.trajectory.ids for record in first] == [record.trajectory.ids for record in second]
    more = played(letters, policy, runs=1, episodes=collecting.AT_ONCE + 2)
    assert more[0].trajectory.ids == first[0].trajectory.ids
    assert more[collecting.AT_ONCE + 2].regime == "high"
    assert len({tuple(record.trajectory.ids) for record in first}) == 12


def test_rollouts_come_run_by_run_and_begin_in_other_regimes(letters, policy):
    found = played(letters, policy)
    assert [(record.seed, record.regime, record.origin) for record in found] == [
        *[(0, "low", "low")] * 3, *[(0, "high", "low")] * 3, *[(1, "high", "low")] * 3, *[(1, "low", "low")] * 3,
    ]  # fmt: skip
    assert all(record.reward == pytest.approx(record.trajectory.total) for record in found)
    assert found[3].reward >= 2, "the regime is in force"
    first = found[0]
    assert [message["role"] for message in first.messages] == ["user", "assistant"] * 2
    assert first.observations[1] == first.messages[2]["content"] == "turn 1"


def test_an_episode_that_fails_is_left_out_and_told(letters, policy):
    made, told = [], []

    def make(lane):
        made.append(letters.Letters(fail_at=None if made else 1))
        return made[-1]

    found = collecting.rollouts(make, policy, TWO[:1], runs=1, episodes=3, turns=2, seed=1, say=told.append)
    assert len(found) == 2
    assert told[0] == "warning: an episode of regime low failed and is left out: ValueError: the world broke"


def test_a_world_that_always_fails_ends_it(letters, policy):
    with pytest.raises(RunFailed, match="the world broke"):
        played(letters, policy, fail_at=1)


def test_an_expert_without_the_worlds_help(letters, policy):
    with pytest.raises(Refused, match="has no expert"):
        list(collecting.expert_episodes(lambda _: letters.Letters(), policy, TWO, episodes=1, turns=2, seed=0))
    regime = [Regime("r", "r", {"operator": 4.0, "format": 2.0, "cued": 0.0})]
    make = lambda _: Arithmetic()
    expert = ArithmeticExpert(operator=4, format=2)
    for chosen in (None, expert):
        found = list(collecting.expert_episodes(make, policy, regime, episodes=5, turns=1, seed=0, expert=chosen))
        assert [record.reward for record in found] == [1.0] * 5
        assert found[0].params == {"operator": 4.0, "format": 2.0, "cued": 0.0}
        assert len({record.messages[0]["content"] for record in found}) > 1


def test_an_expert_that_errs_goes_on_to_the_next_turn(policy):
    regime = [Regime("r", "r", None)]
    answers = iter(['{"item": "bolt"}', "nothing", "{}"])
    [found] = collecting.expert_episodes(
        lambda _: Orders(), policy, regime, episodes=1, turns=2, seed=0, expert=lambda _: next(answers)
    )
    assert len(found.trajectory.turns) == 2
    assert found.trajectory.truncated
    assert not found.verified
    assert [message["role"] for message in found.messages] == ["user", "assistant"] * 2
