"""From windows and recorded conversations to rows."""

from dataclasses import replace

import pytest

from perdure.core.errors import RunFailed
from perdure.core.records import RolloutWindow, Transition
from perdure.lm.batch import of_window, per_turn, split
from perdure.lm.conversation import Recorded
from perdure.lm.trajectory import Sampled, Stop


def row(*answers, lane=0, prompt=3):
    """A conversation: three tokens of the environment before each answer, whose tokens count up from 100."""
    made = Recorded(lane=lane)
    for number, length in enumerate(answers):
        made.observe([number] * prompt)
        made.answer(Sampled([100 + at for at in range(length)], [-0.5] * length, Stop.END))
    return made


def window(*steps):
    """(lane, reward, terminated, truncated) a step."""
    return RolloutWindow(
        [
            Transition(number, "o", "a", reward, terminated, truncated, lane=lane, next_observation=f"after {number}")
            for number, (lane, reward, terminated, truncated) in enumerate(steps)
        ]
    )


def tail(recorded, observation):
    return [len(recorded), int(observation.split()[1])]


def test_rewards_meet_answers_lane_by_lane():
    steps = window((0, 1.0, False, False), (1, 2.0, True, False), (0, 3.0, True, False), (1, 4.0, False, False))
    batch, beyond = of_window(steps, [row(2, 1), row(1, lane=1), row(2, lane=1)], tail)
    assert beyond == []
    assert [each.lane for each in batch.rows] == [0, 1, 1]
    assert batch.rewards == [1.0, 3.0, 2.0, 4.0]
    assert [turn.step for each in batch.rows for turn in each.turns] == [0, 2, 1, 3]
    assert batch.episode_lengths == (2, 1, 1)
    assert batch.tails == ((), (), (5, 3))
    assert len(batch) == batch.count + 1 == 4


def test_truncation_and_the_windows_end_are_followed_by_a_state_and_termination_is_not():
    steps = window((0, 0, False, True), (0, 0, True, False), (0, 0, False, False))
    batch, _ = of_window(steps, [row(1), row(1), row(1)], tail)
    assert batch.episode_lengths == (1, 1, 1)
    assert batch.tails == ((4, 0), (), (4, 2))
    assert of_window(steps, [row(1), row(1), row(1)], None)[0].tails == ((), (), ())


def test_an_episode_may_span_rows():
    steps = window((0, 0, False, False), (0, 0, False, False), (0, 0, True, False))
    batch, _ = of_window(steps, [row(1, 1), row(1)], tail)
    assert batch.episode_lengths == (3,)


def test_a_window_cut_in_two_leaves_the_later_answers_for_its_second_part():
    steps = window((0, 1.0, False, False), (0, 2.0, False, False), (0, 3.0, True, False))
    first, beyond = of_window(replace(steps, transitions=steps.transitions[:1], columns={}), [row(2, 1, 1)], tail)
    assert first.rewards == [1.0]
    assert first.rows[0].ids == [0, 0, 0, 100, 101]
    second, beyond = of_window(replace(steps, transitions=steps.transitions[1:], columns={}), beyond, tail)
    assert beyond == []
    assert second.rewards == [2.0, 3.0]
    assert second.rows[0].ids[:5] == [0, 0, 0, 100, 101]
    assert not any(second.rows[0].mask[:8])


def test_samples_are_turns_with_what_was_said_before_as_context():
    whole = row(2, 1, 3)
    whole.terminated = True
    singles = per_turn(whole)
    assert [each.ids for each in singles] == [whole.ids[: turn.end] for turn in whole.turns]
    assert [sum(each.mask) for each in singles] == [2, 1, 3]
    assert [each.mask[each.turns[0].start] for each in singles] == [True] * 3
    assert [each.terminated for each in singles] == [False, False, True]
    assert per_turn(singles[0]) == [singles[0]]


def test_a_split_keeps_every_turn_once():
    whole = row(2, 1, 3)
    first, later = split(whole, whole.turns[1].end)
    assert [len(first.turns), len(later.turns)] == [2, 1]
    assert later.mask.count(True) == 3
    assert first.mask.count(True) == 3
    assert split(whole, len(whole))[1] is None


@pytest.mark.parametrize(
    ("rows", "steps", "complaint"),
    [
        ([row(1)], [(0, 0, False, False)] * 2, r"lane 0: the window has 2 steps, the policy recorded 1 answers"),
        ([row(1)], [(1, 0, False, False)], r"lane 1: the window has 1 steps, the policy recorded 0 answers"),
        (
            [row(1, 1)],
            [(0, 0, True, False), (0, 0, True, False)],
            r"lane 0, step 0 or later: an episode ended in a conv",
        ),
    ],
)
def test_steps_and_answers_that_do_not_belong_together_are_refused(rows, steps, complaint):
    with pytest.raises(RunFailed, match=complaint):
        of_window(window(*steps), rows, tail)


def test_an_answer_of_another_step_is_refused():
    other = row(1)
    other.turns[0].step = 7
    with pytest.raises(RunFailed, match=r"an answer of step 7 met step 0; call policy.record"):
        of_window(window((0, 0, True, False)), [other], tail)
