import numpy as np
import pytest

from perdure.core.errors import DataError
from perdure.metrics.scores import score_points


def test_a_return_stands_at_the_episodes_last_row(make_stream):
    scores = score_points(make_stream([1, 2, 3, 4, 5], ended=[1, 4], score="return"))
    assert scores.step.tolist() == [1, 4]
    assert scores.value.tolist() == [3, 12]


def test_truncation_ends_an_episode_too(make_stream):
    stream = make_stream([1, 2, 3], score="return")
    stream = stream._replace(truncated=np.array([False, True, False]))
    assert score_points(stream).value.tolist() == [3]


def test_lanes_are_separate_episodes(make_stream):
    # Lane 0 holds rows 0, 2, 4; lane 1 rows 1, 3, 5.
    scores = score_points(make_stream([1, 10, 2, 20, 3, 30], ended=[3, 4], lanes=2, score="return"))
    assert scores.step.tolist() == [3, 4]
    assert scores.value.tolist() == [30, 6]
    assert scores.unfinished == 1


def test_an_episode_over_a_shift_counts_in_neither_segment(make_stream):
    stream = make_stream([1] * 8, [("a", "a", 4), ("b", "b", 4)], ended=[1, 5, 7], score="return")
    scores = score_points(stream)
    assert scores.step.tolist() == [1, 7]
    assert scores.edges.tolist() == [0, 1, 2]
    assert scores.straddling == 1


def test_an_episode_that_begins_on_the_boundary_belongs_to_the_new_segment(make_stream):
    stream = make_stream([1] * 8, [("a", "a", 4), ("b", "b", 4)], ended=[3, 6], score="return")
    scores = score_points(stream)
    assert scores.edges.tolist() == [0, 1, 2]
    assert scores.unfinished == 1


def test_reward_scores_every_row(make_stream):
    scores = score_points(make_stream([1, 2, 3], [("a", "a", 1), ("b", "b", 2)], ended=[0]))
    assert scores.value.tolist() == [1, 2, 3]
    assert scores.edges.tolist() == [0, 1, 3]


def test_many_lanes_give_the_same_points_as_a_plain_loop(make_stream):
    generator = np.random.default_rng(0)
    rewards, ended = generator.normal(size=600), np.flatnonzero(generator.random(600) < 0.1)
    stream = make_stream(rewards, [("a", "a", 240), ("b", "b", 360)], ended=ended, lanes=4, score="return")
    expected = []
    for lane in range(4):
        total, first = 0.0, None
        for step in range(lane, 600, 4):
            first = step if first is None else first
            total += rewards[step]
            if step in ended:
                if (first < 240) == (step < 240):
                    expected.append((step, total))
                total, first = 0.0, None
    expected.sort()
    scores = score_points(stream)
    assert scores.step.tolist() == [step for step, _ in expected]
    np.testing.assert_allclose(scores.value, [value for _, value in expected], rtol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
def test_a_reward_that_is_not_usable_is_refused_with_its_step(make_stream, bad):
    with pytest.raises(DataError, match=r"seed 0: the reward at step 1 is"):
        score_points(make_stream([0.0, bad, 0.0]))


def test_rows_out_of_order_and_doubled_rows_are_refused(make_stream):
    for steps in ([0, 2, 1], [0, 1, 1]):
        with pytest.raises(DataError, match="row 2 has step 1 after step"):
            score_points(make_stream([0.0] * 3)._replace(step=np.array(steps)))


def test_rows_outside_the_segments_are_refused(make_stream):
    with pytest.raises(DataError, match=r"leave the segments, which cover \[0, 2\)"):
        score_points(make_stream([0.0] * 3, [("a", "a", 2)]))


def test_segments_with_a_gap_or_without_steps_are_refused(make_stream, make_segments):
    first, second = make_segments([("a", "a", 2), ("b", "b", 2)])
    with pytest.raises(DataError, match=r"segments\[1\] starts at 3; the one before ends at 2"):
        score_points(make_stream([0.0])._replace(segments=(first, second._replace(start=3))))
    with pytest.raises(DataError, match=r"segments\[0\] ends at 0"):
        score_points(make_stream([0.0])._replace(segments=(first._replace(end=0),)))
    with pytest.raises(DataError, match="no segments"):
        score_points(make_stream([0.0])._replace(segments=()))


def test_columns_of_different_lengths_are_refused(make_stream):
    with pytest.raises(DataError, match="columns have shapes"):
        score_points(make_stream([0.0] * 3)._replace(lane=np.zeros(2, int)))


def test_an_unknown_score_is_refused(make_stream):
    with pytest.raises(DataError, match="score is 'sum'"):
        score_points(make_stream([0.0], score="sum"))


def test_bounds_that_are_not_finite_are_refused(make_stream):
    with pytest.raises(DataError, match=r"bounds\['a'\] holds nan"):
        score_points(make_stream([0.0], bounds={"a": (float("nan"), 1.0)}))


def test_single_precision_rewards_are_summed_in_double(make_stream):
    stream = make_stream([0.0] * 30_000, ended=[29_999], score="return")
    stream = stream._replace(reward=np.full(30_000, 0.1, np.float32))
    assert score_points(stream).value[0] == pytest.approx(30_000 * float(np.float32(0.1)), rel=1e-12)
