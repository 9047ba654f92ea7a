"""Each of the six on traces whose answers were worked out by hand; the arithmetic stands in the comments."""

import math

import pytest

from perdure.core.errors import ConfigError, DataError
from perdure.metrics.six import NAMES, Options, six_metrics


def test_the_six_come_in_order(golden_stream):
    assert tuple(six_metrics(golden_stream())) == NAMES


def test_reward_is_the_mean_over_configurations(golden_stream):
    # R(a) = (45 + 100 + 20 + 150) / 40 = 7.875 over both visits, R(b) = 50 / 20 = 2.5.
    found = six_metrics(golden_stream())["reward"]
    assert found.value == pytest.approx((7.875 + 2.5) / 2)
    assert found.n == 2
    assert [row["reward"] for row in found.details["origins"]] == pytest.approx([7.875, 2.5])
    assert [row["reward"] for row in found.details["segments"]] == pytest.approx([7.25, 2.5, 8.5])
    assert [row["tail"] for row in found.details["segments"]] == pytest.approx([10, 5, 10])
    assert [row["head"] for row in found.details["segments"]] == pytest.approx([0, 0, 4])


def test_adaptation_speed_is_one_minus_the_share_of_steps_to_the_level(golden_stream):
    # Levels 9, 4.5 and 9.4 are reached after 9, 10 and 5 of 20 steps.
    found = six_metrics(golden_stream())["adaptation_speed"]
    assert [row["steps"] for row in found.details["segments"]] == [9, 10, 5]
    assert found.value == pytest.approx((0.55 + 0.5 + 0.75) / 3)
    assert found.details["after_shifts"] == pytest.approx((0.5 + 0.75) / 2)
    assert (found.n, found.censored, found.higher_is_better) == (3, 0, True)


def test_forgetting_is_the_earlier_tail_minus_the_new_head(golden_stream):
    found = six_metrics(golden_stream())["forgetting"]
    assert found.value == pytest.approx(10 - 4)
    assert found.details["relative"] == pytest.approx(0.6)
    assert found.details["revisits"][0]["before"] == "a"
    assert (found.n, found.unit, found.higher_is_better) == (1, "score", False)


def test_each_revisit_looks_back_to_the_latest_visit(make_stream):
    rewards = [1] * 20 + [0] * 20 + [5] * 20 + [0] * 20 + [3] * 20
    segments = [("a", "a", 20), ("b", "b", 20), ("a2", "a", 20), ("b2", "b", 20), ("a3", "a", 20)]
    found = six_metrics(make_stream(rewards, segments))["forgetting"]
    # a2: 1 - 5, b2: 0 - 0, a3: 5 - 3.
    assert [row["forgetting"] for row in found.details["revisits"]] == [-4, 0, 2]


def test_recovery_time_counts_to_the_previous_level_and_censors_at_the_end(golden_stream):
    # Into b: from 0 to 5, never near 10: censored at 20 steps. Into a2: from 4 back to 4.95 after 5 steps.
    found = six_metrics(golden_stream())["recovery_time"]
    assert [row["steps"] for row in found.details["boundaries"]] == [20, 5]
    assert [row["drop"] for row in found.details["boundaries"]] == pytest.approx([10, 1])
    assert [row["area_lost"] for row in found.details["boundaries"]] == pytest.approx([10 * 10 + 10 * 5, 5 * 1])
    assert found.value == pytest.approx(12.5)
    assert (found.n, found.censored, found.unit) == (2, 1, "steps")
    assert found.details["median_steps"] == 5


def test_stability_falls_with_the_spread_after_adaptation(golden_stream):
    # a from step 9: one 9 and ten 10s, mean 109 / 11, sd sqrt(10) / 11; b and a2 are flat.
    found = six_metrics(golden_stream())["stability"]
    first = 1 / (1 + math.sqrt(10) / 109)
    assert found.value == pytest.approx((first + 1 + 1) / 3)
    assert found.details["segments"][0]["sd"] == pytest.approx(math.sqrt(10) / 11)
    assert found.details["segments"][0]["worst_mean"] == 9


def test_performance_gap_is_the_upper_bound_minus_the_reward(golden_stream):
    # 10 - 7.875 and 6 - 2.5; in units of the range (b: 6 - 1) 0.2125 and 0.7.
    stream = golden_stream(bounds={"a": (0.0, 10.0), "b": (1.0, 6.0)})
    found = six_metrics(stream, Options(attainable={"b": 5.0}))["performance_gap"]
    assert found.value == pytest.approx((2.125 + 3.5) / 2)
    assert found.details["relative"] == pytest.approx((0.2125 + 0.7) / 2)
    assert found.details["attainable_gap"] == pytest.approx(2.5)
    assert found.details["origins"][0]["attainable_gap"] is None


def test_without_bounds_the_gap_says_why(golden_stream):
    found = six_metrics(golden_stream())["performance_gap"]
    assert found.value is None
    assert "no configuration has an upper bound" in found.reason


def test_recovery_compares_score_forms_where_both_bounds_are_known(golden_stream):
    # In b the best possible is 5: reaching it is a full recovery of u, after 10 steps.
    stream = golden_stream(bounds={"a": (0.0, 10.0), "b": (0.0, 5.0)})
    boundary = six_metrics(stream)["recovery_time"].details["boundaries"][0]
    assert (boundary["steps"], boundary["form"], boundary["drop"]) == (10, "u", 1)


def test_the_area_form_of_adaptation_is_the_mean_of_u(golden_stream):
    stream = golden_stream(bounds={"a": (0.0, 10.0)})
    found = six_metrics(stream)["adaptation_speed"].details
    assert [row["area"] for row in found["segments"]] == [pytest.approx(0.725), None, pytest.approx(0.85)]


def test_the_window_smooths_before_the_level_is_looked_for(make_stream):
    # 80 steps: W = 4. After the jump at step 40 the mean of four reaches 0.9 at step 43.
    found = six_metrics(make_stream([0] * 40 + [1] * 40))["adaptation_speed"]
    assert found.value == pytest.approx(1 - 43 / 80)


def test_a_level_that_is_not_held_does_not_count(make_stream):
    # The spike lifts the mean of four to 1 for a single step; a hold takes W / 2 = 2 steps.
    rewards = [0] * 10 + [1] * 4 + [0] * 46 + [1] * 20
    assert six_metrics(make_stream(rewards))["adaptation_speed"].details["segments"][0]["steps"] == 63


def test_a_hold_that_would_leave_the_segment_is_censored(make_stream):
    found = six_metrics(make_stream([0] * 79 + [1]))["adaptation_speed"]
    assert (found.value, found.censored, found.n) == (0.0, 1, 1)


def test_without_a_climb_adaptation_takes_one_window(make_stream):
    found = six_metrics(make_stream([3] * 80))["adaptation_speed"]
    assert found.value == pytest.approx(1 - 4 / 80)
    assert found.details["segments"][0]["climbed"] is False


def test_a_score_that_never_drops_recovers_in_no_time(make_stream):
    found = six_metrics(make_stream([1] * 20 + [2] * 20, [("a", "a", 20), ("b", "b", 20)]))["recovery_time"]
    assert (found.value, found.details["boundaries"][0]["dropped"]) == (0, False)


def test_steps_before_the_drop_are_no_recovery(make_stream):
    # The first 5 steps still stand at the old level; the drop is made good at step 12.
    rewards = [1] * 20 + [1] * 5 + [0] * 7 + [1] * 8
    found = six_metrics(make_stream(rewards, [("a", "a", 20), ("b", "b", 20)]))["recovery_time"]
    assert found.value == 12


def test_an_episodic_world_is_scored_by_returns(make_stream):
    # Two copies of 40 steps in all: W = 2. Episodes of 4 rows in lane 0 end at 6, 14, ..., 38.
    stream = make_stream([1] * 40, ended=[6, 14, 22, 30, 38], lanes=2, score="return")
    found = six_metrics(stream)["reward"]
    assert found.value == 4
    assert found.details["origins"][0]["scores"] == 5


def test_the_first_score_stands_for_a_head_in_which_no_episode_ended(make_stream):
    stream = make_stream([1] * 40, ended=[9, 19, 29, 39], score="return")
    segment = six_metrics(stream)["reward"].details["segments"][0]
    assert (segment["head"], segment["tail"]) == (10, 10)


def test_the_worst_tenth_and_the_drawdown(make_stream):
    # Flat head and tail: measured from step W = 1 on. Cumulative 3 + 3, then down by 8 in all, then up.
    rewards = [3, 3, 3, -5, -3, *[3] * 15]
    row = six_metrics(make_stream(rewards))["stability"].details["segments"][0]
    assert row["drawdown"] == pytest.approx(8)
    assert row["worst_mean"] == pytest.approx(-5)  # a tenth of 19 scores is one


def test_an_unfinished_segment_has_no_tail_and_the_reason_says_so(make_stream):
    found = six_metrics(make_stream([1] * 10, [("a", "a", 20)]))
    assert found["reward"].value == 1
    assert found["adaptation_speed"].value is None
    assert "let the run finish" in found["adaptation_speed"].reason


def test_a_recovery_cut_short_is_censored_where_the_rows_end(make_stream):
    found = six_metrics(make_stream([1] * 20 + [0] * 7, [("a", "a", 20), ("b", "b", 20)]))["recovery_time"]
    assert (found.value, found.censored) == (7, 1)


def test_one_segment_has_neither_shift_nor_revisit(make_stream):
    found = six_metrics(make_stream([1] * 20))
    assert found["forgetting"].reason == "no configuration is visited twice"
    assert "no shift" in found["recovery_time"].reason


def test_no_finished_episode_leaves_reasons(make_stream):
    found = six_metrics(make_stream([1] * 20, score="return"))
    assert all(metric.value is None for metric in found.values())
    assert "no episode began and ended" in found["reward"].reason


def test_a_run_without_steps_leaves_reasons(make_stream):
    assert six_metrics(make_stream([]))["stability"].reason == "the run has no steps yet"


def test_intervals_surround_the_value_and_repeat(make_stream):
    import numpy as np

    stream = make_stream(np.random.default_rng(1).normal(5, 1, 4000), [("a", "a", 2000), ("b", "b", 2000)])
    first, again = six_metrics(stream)["reward"], six_metrics(stream)["reward"]
    assert (first.low, first.high) == (again.low, again.high)
    assert first.low < first.value < first.high
    # The standard error of 4,000 independent values of deviation 1 is 0.016.
    assert 0.04 < first.high - first.low < 0.09
    assert six_metrics(stream._replace(seed=1))["reward"].low != first.low


def test_a_reward_that_is_not_finite_is_refused(make_stream):
    with pytest.raises(DataError, match="step 2"):
        six_metrics(make_stream([0, 0, float("nan")]))


@pytest.mark.parametrize(
    "options", [Options(window_fraction=0), Options(level=1), Options(epsilon=0), Options(samples=0)]
)
def test_an_option_out_of_range_is_named(make_stream, options):
    with pytest.raises(ConfigError, match=r"options\."):
        six_metrics(make_stream([0]), options)
