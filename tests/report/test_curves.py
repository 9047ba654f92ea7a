"""perdure.report.curves."""

import numpy as np
import pytest

from perdure.core.records import EvaluationRow
from perdure.report import curves
from perdure.report.curves import Curve


def _row(seed, step, returns, regime="earth", **metrics) -> EvaluationRow:
    return EvaluationRow("run", "ppo", "task", seed, step, regime, tuple(returns), (1,) * len(returns), metrics)


def test_the_mean_lies_inside_its_interval_and_the_interval_inside_the_seeds():
    values = np.array([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]])
    curve = curves.over_seeds(np.arange(2.0), values)
    assert curve.y.tolist() == [2.0, 1.0]
    assert 0 <= curve.low[0] < 2 < curve.high[0] <= 4
    assert curve.low[1] == curve.high[1] == 1


def test_one_seed_has_no_interval():
    curve = curves.over_seeds(np.arange(2.0), np.array([[3.0, 4.0]]))
    assert curve.y.tolist() == [3.0, 4.0]
    assert curve.low is None


def test_missing_values_are_left_out_of_the_mean():
    values = np.array([[1.0, np.nan, np.nan], [3.0, 5.0, np.nan]])
    curve = curves.over_seeds(np.arange(3.0), values)
    assert curve.y[:2].tolist() == [2.0, 5.0]
    assert np.isnan(curve.y[2])
    assert np.isnan(curve.low[1])


def test_intervals_are_the_same_every_time():
    values = np.random.default_rng(0).normal(size=(4, 5))
    first, second = (curves.over_seeds(np.arange(5.0), values) for _ in range(2))
    assert first.low.tolist() == second.low.tolist()


def test_a_curve_is_not_read_across_the_shift():
    x, y = np.array([-2.0, -1.0, 3.0, 4.0]), np.array([9.0, 9.0, 1.0, 1.0])
    assert curves.read_at(x, y, np.array([-1.0, 0.0, 2.0, 3.5])).tolist()[::3] == [9.0, 1.0]
    assert np.isnan(curves.read_at(x, y, np.array([0.0, 2.0]))).all()


def test_a_curve_breaks_at_each_edge():
    curve = curves.broken(Curve(np.arange(4.0), np.arange(4.0), None, None), [2.0, 99.0])
    assert np.isnan(curve.x).tolist() == [False, False, True, False, False]
    assert curve.low is None


def test_marks_average_episodes_then_seeds():
    rows = [_row(0, 0, [1.0, 3.0]), _row(1, 0, [4.0]), _row(0, 10, [5.0]), _row(1, 10, [7.0])]
    curve = curves.at_marks(rows)
    assert curve.x.tolist() == [0, 10]
    assert curve.y.tolist() == [3.0, 6.0]


def test_a_metric_is_averaged_over_the_regimes_of_a_mark():
    rows = [_row(0, 0, [1.0], "earth", rank=2.0), _row(0, 0, [1.0], "heavy", rank=4.0), _row(0, 5, [1.0])]
    curve = curves.at_marks(rows, "rank")
    assert (curve.x.tolist(), curve.y.tolist()) == ([0], [3.0])


@pytest.mark.parametrize("rows", [[], [_row(0, 0, [])]])
def test_no_values_make_an_empty_curve(rows):
    assert len(curves.at_marks(rows).x) == 0
