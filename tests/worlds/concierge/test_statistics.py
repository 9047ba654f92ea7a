import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import DataError
from perdure.worlds.concierge import baselines, scoring, settings, statistics, tasks


def test_the_brier_score_of_a_worked_example():
    found = statistics.brier([0.8, 0.8, 0.8, 0.2], [1, 1, 0, 0])
    assert found.score == pytest.approx((0.04 + 0.04 + 0.64 + 0.04) / 4)
    assert found.uncertainty == pytest.approx(0.25)
    assert found.resolution == pytest.approx((3 * (2 / 3 - 0.5) ** 2 + 0.25) / 4)
    assert found.reliability == pytest.approx((3 * (0.8 - 2 / 3) ** 2 + 0.04) / 4)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40))
def test_the_parts_of_the_brier_score_make_up_the_whole(pairs):
    found = statistics.brier(*zip(*pairs, strict=True))
    assert found.score == pytest.approx(found.reliability - found.resolution + found.uncertainty, abs=1e-9)


def test_calibration_error():
    assert statistics.expected_calibration_error([0.75] * 4, [1, 1, 1, 0]) == pytest.approx(0.0)
    assert statistics.expected_calibration_error([1.0, 1.0, 0.05, 0.05], [1, 0, 0, 0]) == pytest.approx(0.275)


def test_pass_hat_is_the_share_of_groups_of_k_that_all_succeed():
    trials = [[True, True, False, True], [False] * 4, [True] * 4]
    for k in (1, 2, 3, 4):
        counted = np.mean([np.mean([all(chosen) for chosen in itertools.combinations(each, k)]) for each in trials])
        assert statistics.pass_hat(trials, k) == pytest.approx(counted)
    with pytest.raises(DataError, match=r"pass\^5"):
        statistics.pass_hat(trials, 5)


def test_mcnemar_is_the_exact_binomial_test():
    first = [True] * 10 + [False] * 3 + [True] * 5
    second = [True] * 10 + [True] * 3 + [False] * 5
    found = statistics.mcnemar(first, second)
    tail = sum(math.comb(8, k) for k in range(4)) / 2**8
    assert found == (5, 3, pytest.approx(2 * tail))
    assert statistics.mcnemar(first, first).p_value == 1.0


def test_paired_intervals_see_a_shift_that_unpaired_ones_would_not():
    before = np.linspace(0, 1, 40)
    found = statistics.paired_difference(before, before + 0.05 + 0.01 * np.sin(np.arange(40)))
    assert found.value == pytest.approx(0.05, abs=0.002)
    assert 0.04 < found.low < found.high < 0.06
    assert statistics.paired_difference(before, before).value == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda: statistics.brier([], []),
        lambda: statistics.brier([1.2], [1]),
        lambda: statistics.brier([0.1, 0.2], [1]),
        lambda: statistics.mcnemar([True], []),
        lambda: statistics.paired_difference([1.0], [1.0, 2.0]),
    ],
)
def test_what_does_not_fit_is_refused(call):
    with pytest.raises(DataError):
        call()


@pytest.fixture(scope="module")
def played(data):
    chosen = settings.settings(data, {"stage": 2})
    posed = [tasks.generated(data, seed, chosen) for seed in range(80)]
    episodes = {
        name: [baselines.play(data, task, baselines.AGENTS[name]) for task in posed]
        for name in ("oracle", "drift_blind", "random")
    }
    return {name: (each, [scoring.scored(data, episode) for episode in each]) for name, each in episodes.items()}


def test_tables_by_language_and_pattern_add_up(played):
    episodes, results = played["oracle"]
    for rows in (statistics.by_language(episodes, results), statistics.by_pattern(episodes, results)):
        assert sum(row.episodes for row in rows) == 80
        assert all(row.success == 1 and row.false_claims == 0 for row in rows)
        assert all(row.recall in (None, 1.0) for row in rows)
        assert all(row.latency in (None, 1.0) for row in rows)
    names = [row.name for row in statistics.by_language(episodes, results)]
    assert names == sorted(names)
    calm = next(row for row in statistics.by_pattern(episodes, results) if row.name == "none")
    assert (calm.exposed, calm.recall) == (0, None)
    assert statistics.precision(results) == 1.0


def test_scripted_agents_rank_as_they_must_with_intervals(played):
    rewards = {name: [result.reward for result in results] for name, (_, results) in played.items()}
    for worse, better in (("random", "drift_blind"), ("drift_blind", "oracle")):
        assert statistics.paired_difference(rewards[worse], rewards[better]).low > 0
    successes = {name: [episode.success for episode in episodes] for name, (episodes, _) in played.items()}
    assert statistics.mcnemar(successes["drift_blind"], successes["oracle"]).p_value < 1e-6
