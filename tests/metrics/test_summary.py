import json

import pytest

from perdure.core.errors import DataError
from perdure.metrics import aggregate
from perdure.metrics.six import NAMES
from perdure.metrics.summary import summarise


@pytest.fixture
def arms(make_stream):
    """Two arms of four seeds; "good" never drops below 10 at the revisit, "bad" falls to its seed."""

    def stream(algorithm, seed):
        level = 10 if algorithm == "good" else seed
        rewards = [*[0] * 5, *[10 + seed] * 15, *[1] * 20, *[level] * 5, *[10] * 15]
        segments = [("a", "a", 20), ("b", "b", 20), ("a2", "a", 20)]
        return make_stream(rewards, segments, algorithm_id=algorithm, seed=seed, run_id=f"{algorithm}-{seed}")

    return [stream(algorithm, seed) for algorithm in ("good", "bad") for seed in (3, 2, 1, 0)]


def test_groups_hold_the_seeds_in_order(arms):
    summary = summarise(arms)
    assert [(group.algorithm_id, group.seeds) for group in summary.groups] == [
        ("bad", (0, 1, 2, 3)),
        ("good", (0, 1, 2, 3)),
    ]
    assert tuple(summary.groups[0].metrics)[:6] == NAMES


def test_four_seeds_are_summed_up_by_the_interquartile_mean(arms):
    # Forgetting of "good": (10 + seed) - 10 = seed; the interquartile mean of 0..3 is 1.5.
    found = summarise(arms).groups[1].metrics["forgetting"]
    assert found.values == (0, 1, 2, 3)
    assert (found.value, found.statistic, found.n) == (aggregate.iqm([0, 1, 2, 3]), "iqm", 4)
    assert found.interval == "seeds"
    assert found.low <= 1.5 <= found.high


def test_fewer_seeds_are_summed_up_by_the_mean(arms):
    found = summarise(arms[:3]).groups[0].metrics["forgetting"]
    assert (found.value, found.statistic) == (2, "mean")


def test_one_seed_keeps_its_own_interval(make_stream):
    found = summarise([make_stream([0, 1] * 50)]).groups[0].metrics["reward"]
    assert found.interval == "within_run"
    assert found.low < found.value < found.high


def test_comparisons_favour_the_better_arm_whatever_the_direction(arms):
    found = {comparison.metric: comparison for comparison in summarise(arms).comparisons}
    assert (found["forgetting"].first, found["forgetting"].second) == ("bad", "good")
    # "bad" forgets 10 each seed, "good" at most 3; lower is better.
    assert found["forgetting"].probability == 0
    assert found["reward"].probability < 0.5
    assert "performance_gap" not in found


def test_evaluations_add_the_matrix_metrics(arms, make_evaluations):
    table = {0: {"a": 0, "b": 0}, 20: {"a": 9, "b": 2}, 40: {"a": 3, "b": 8}, 60: {"a": 7, "b": 4}}
    rows = make_evaluations(table, run_id="good-0", algorithm_id="good", seed=0)
    bad, good = summarise(arms, rows).groups
    assert good.metrics["matrix_forgetting"].values == (3, None, None, None)
    assert "matrix_forgetting" not in bad.metrics


def test_evaluations_without_steps_leave_a_note(arms, make_evaluations):
    rows = make_evaluations({0: {"a": 0}}, run_id="lost", algorithm_id="good", seed=9)
    (note,) = summarise(arms, rows).notes
    assert "'lost'" in note
    assert "seed 9" in note


def test_the_dictionary_is_plain_json_without_nan(arms, make_stream):
    undefined = make_stream([1, 1], score="return", algorithm_id="none")
    text = json.dumps(summarise([*arms, undefined]).as_dict(), allow_nan=False)
    groups = json.loads(text)["groups"]
    nothing = next(group for group in groups if group["algorithm_id"] == "none")
    assert nothing["metrics"]["reward"]["value"] is None
    assert "no episode" in nothing["metrics"]["reward"]["reason"]
    assert nothing["runs"][0]["metrics"]["reward"]["details"]["origins"][0]["origin"] == "a"


def test_the_table_has_a_row_a_metric_and_a_column_an_algorithm(arms):
    headers, rows = summarise(arms).table()
    assert headers == ["task", "metric", "unit", "bad", "good"]
    by_metric = {row[1]: row for row in rows}
    assert by_metric["forgetting ↓"][3] == "10 [10, 10]"
    assert by_metric["performance_gap ↓"][3] == "-"
    assert by_metric["recovery_time ↓"][4].endswith("(4 censored)")
    assert all(len(row) == len(headers) for row in rows)


def test_no_runs_make_an_empty_summary():
    assert summarise([]).table() == (["task", "metric", "unit"], [])


def test_the_same_seed_twice_is_refused(arms):
    with pytest.raises(DataError, match=r"'good-3' and 'copy' are both good on world with seed 3"):
        summarise([*arms, arms[0]._replace(run_id="copy")])
