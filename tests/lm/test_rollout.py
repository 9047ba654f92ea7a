"""Several conversations at once: what is kept of them, and that none disturbs another."""

import numpy as np
import pytest

from perdure.core.errors import Refused, RunFailed
from perdure.lm.rollout import Episode, faults, play


@pytest.fixture
def played(letters):
    """`play(envs, seeds)`: the policy, and the episodes it has played."""

    def play_them(envs, seeds, copies=1, turns=4, **options):
        made = episodes(envs, seeds, copies)
        acting = letters.policy(**options)
        play(acting, made, copies=copies, turns=turns, sampling=acting.sampling)
        return acting, made

    return play_them


def episodes(envs, seeds, copies=1):
    made = []
    for lane, (env, seed) in enumerate(zip(envs, seeds, strict=True)):
        observation, _ = env.reset(seed=seed)
        made.append(Episode(env, observation, np.random.default_rng(lane), lane=lane, group=lane // copies))
    return made


def test_the_trajectory_is_prompt_answers_and_what_follows_them(letters, played):
    acting, (episode,) = played([letters.Letters(turns=2)], [3])
    trajectory, chat = episode.trajectory, acting.chat
    first, second = trajectory.turns
    opening = chat.prompt([{"role": "user", "content": "letter " + episode.rows[0].observation.split()[1]}])
    assert trajectory.ids[: first.start] == opening
    ended = trajectory.ids[first.end - 1] == chat.eos_id
    assert trajectory.ids[first.end : second.start] == chat.following("turn 1", ended=ended)
    assert len(trajectory) == second.end, "nothing follows the last answer"
    sampled = {at for turn in trajectory.turns for at in range(turn.start, turn.end)}
    assert [at in sampled for at in range(len(trajectory))] == trajectory.mask
    assert [row.reward for row in episode.rows] == [first.reward, second.reward]
    assert trajectory.terminated
    assert not trajectory.truncated


def test_copies_have_one_prompt_and_differ_in_what_they_draw(letters, played):
    _, made = played([letters.Letters() for _ in range(4)], [5, 5, 9, 9], copies=2)
    openings = [episode.trajectory.ids[: episode.trajectory.turns[0].start] for episode in made]
    assert openings[0] == openings[1] != openings[2] == openings[3]
    assert made[0].trajectory.ids != made[1].trajectory.ids
    assert [episode.trajectory.group for episode in made] == [0, 0, 1, 1]


def test_copies_with_different_starts_are_no_group(letters, played):
    with pytest.raises(Refused, match="no group"):
        played([letters.Letters(), letters.Letters()], [1, 2], copies=2)


def test_a_failing_world_changes_nothing_for_the_others(letters, played):
    _, sound = played([letters.Letters(), letters.Letters(), letters.Letters()], [1, 1, 1], copies=3)
    _, broken = played([letters.Letters(), letters.Letters(fail_at=1), letters.Letters()], [1, 1, 1], copies=3)
    for before, after in ((sound[0], broken[0]), (sound[2], broken[2])):
        assert before.trajectory == after.trajectory
    assert "the world broke" in broken[1].fault
    assert np.isnan(broken[1].score)
    assert faults(broken, "an update") == [broken[1].fault]
    with pytest.raises(RunFailed, match="all 1 episodes"):
        faults(broken[1:2], "an update")


def test_an_episode_that_the_world_does_not_end_is_truncated(letters, played):
    _, (episode,) = played([letters.Letters(turns=9)], [1], turns=3)
    assert len(episode.rows) == 3
    assert episode.trajectory.truncated
    assert not episode.trajectory.terminated
    assert [row.truncated for row in episode.rows] == [False, False, True]


def test_a_full_context_truncates(letters, played):
    acting, (episode,) = played([letters.Letters(turns=50)], [1], turns=50, context=128)
    assert len(episode.rows) < 50
    assert episode.trajectory.truncated
    assert episode.rows[-1].truncated
    assert len(episode.trajectory) <= acting.context


def test_an_answer_does_not_depend_on_who_else_speaks(letters, played):
    _, together = played([letters.Letters(turns=1 + lane) for lane in range(4)], [4, 4, 4, 4], copies=1)
    acting = letters.policy()
    (alone,) = episodes([letters.Letters(turns=3)], [4])
    alone.random = np.random.default_rng(2)
    play(acting, [alone], copies=1, turns=4, sampling=acting.sampling)
    assert alone.trajectory.ids == together[2].trajectory.ids
    np.testing.assert_allclose(alone.trajectory.logprobs, together[2].trajectory.logprobs, atol=1e-5)
