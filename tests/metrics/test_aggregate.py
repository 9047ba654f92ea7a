import numpy as np
import pytest

from perdure.core.errors import DataError
from perdure.metrics import aggregate


def test_the_interquartile_mean_cuts_a_quarter_at_each_end():
    assert aggregate.iqm([100, 1, 2, 3, 4, 5, 6, -100]) == 3.5
    assert aggregate.iqm([[1, 2], [3, 100]]) == 2.5
    assert aggregate.iqm([1, 2, 6]) == 3


def test_intervals_repeat_for_a_seed_and_differ_between_seeds():
    scores = np.random.default_rng(0).normal(size=(10, 2))
    first = aggregate.stratified_bootstrap(scores, aggregate.iqm, seed=3)
    assert first == aggregate.stratified_bootstrap(scores, aggregate.iqm, seed=3)
    assert first.low != aggregate.stratified_bootstrap(scores, aggregate.iqm, seed=4).low


def test_runs_are_resampled_within_their_task():
    # Tasks differ, runs of a task do not: stratified resampling cannot move the mean.
    found = aggregate.stratified_bootstrap([[0, 10], [0, 10], [0, 10]], aggregate.average)
    assert (found.value, found.low, found.high) == (5, 5, 5)


def test_tasks_are_resampled_apart_from_each_other():
    # Resampling whole runs could not move this mean either way: each run sums to 10.
    found = aggregate.stratified_bootstrap([[0, 10], [10, 0]] * 3, aggregate.average)
    assert found.low < 4
    assert found.high > 6


@pytest.mark.parametrize("statistic", [aggregate.iqm, aggregate.average])
def test_the_quick_statistics_equal_the_plain_ones(statistic):
    scores = np.random.default_rng(0).normal(size=(9, 3))
    quick = aggregate.stratified_bootstrap(scores, statistic, samples=200)
    plain = aggregate.stratified_bootstrap(scores, lambda table: statistic(table), samples=200)
    assert quick.low == pytest.approx(plain.low)
    assert quick.high == pytest.approx(plain.high)


def test_the_bootstrap_covers_the_mean_about_as_often_as_it_says():
    generator = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        found = aggregate.mean_interval(generator.normal(size=20), level=0.9, samples=300, seed=trial)
        covered += found.low <= 0 <= found.high
    assert 160 <= covered <= 195


def test_one_value_has_no_interval_and_says_why():
    found = aggregate.mean_interval([3.0])
    assert (found.value, found.low, found.high) == (3.0, None, None)
    assert "at least two runs" in found.reason


def test_improvement_counts_wins_and_half_of_the_ties():
    # Nine pairs: 3 beats 1 and 2 and ties 3; 2 beats 1 and ties 2; 1 ties 1: 3 wins + 3 halves.
    found = aggregate.probability_of_improvement([1, 2, 3], [1, 2, 3])
    assert found.value == pytest.approx(0.5)
    assert aggregate.probability_of_improvement([4, 5], [1, 2]).value == 1
    assert aggregate.probability_of_improvement([4, 5], [1, 2]).low == 1
    assert aggregate.probability_of_improvement([1, 5], [3, 3]).value == 0.5


def test_improvement_averages_over_tasks():
    found = aggregate.probability_of_improvement([[1, 0], [1, 0]], [[0, 1], [0, 0]])
    assert found.value == pytest.approx((1 + 0.25) / 2)


def test_improvement_needs_the_same_tasks():
    with pytest.raises(DataError, match="same tasks"):
        aggregate.probability_of_improvement([[1, 2]], [[1]])


def test_blocks_widen_the_interval_of_an_autocorrelated_series():
    steps = np.random.default_rng(0).normal(size=4000)
    series = np.convolve(steps, np.ones(50) / 50, mode="valid")
    blocked = aggregate.moving_block_interval(series)
    single = aggregate.moving_block_interval(series, block=1)
    assert blocked.high - blocked.low > 3 * (single.high - single.low)


def test_resampled_series_are_as_long_as_the_original():
    # 0..6 in blocks of 3 begin at 0..4, 2 on average: two whole blocks sum to 9 each, the cut one to 2.
    draws = aggregate.block_means(np.arange(7.0), 20_000, aggregate.generator_of(0), block=3)
    assert draws.mean() == pytest.approx((9 + 9 + 2) / 7, abs=0.03)


def test_short_and_empty_series_have_no_interval():
    assert aggregate.moving_block_interval([1, 2]).low is None
    assert aggregate.moving_block_interval([]).value is None


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(DataError, match="not finite"):
        aggregate.mean_interval([1, float("nan")])
    with pytest.raises(DataError, match="at least one run"):
        aggregate.mean_interval([])


def test_the_censored_median_counts_late_times_as_still_running():
    assert aggregate.censored_median([1, 2, 3], [False] * 3) == 2
    # Survival after 1: 2/3; the one censored at 2 leaves one at risk; at 3 it falls to 0.
    assert aggregate.censored_median([1, 2, 3], [False, True, False]) == 3
    assert aggregate.censored_median([1, 5, 5], [False, True, True]) is None
