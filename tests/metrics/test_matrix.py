import numpy as np
import pytest

from perdure.core.errors import DataError
from perdure.metrics import matrix
from perdure.metrics.matrix import EvaluationMatrix, evaluation_matrix

WORKED = [[0.9, 0.2, 0.1], [0.6, 0.8, 0.2], [0.5, 0.7, 1.0]]


def _square(values, start=None):
    """A matrix whose segment i trains configuration i; row 0 is zeros unless given."""
    size = len(values)
    names = tuple("abcdef"[:size])
    rows = np.array([start or [0.0] * size, *values], float)
    return EvaluationMatrix(rows, ("start", *names), names, tuple(range(0, 10 * size + 1, 10)), ("", *names))


def test_the_worked_example_of_continual_world_and_backward_transfer():
    worked = _square(WORKED)
    assert matrix.average_performance(worked).value == pytest.approx(2.2 / 3)
    assert matrix.forgetting(worked).value == pytest.approx((0.4 + 0.1 + 0) / 3)
    assert matrix.backward_transfer(worked).value == pytest.approx(-0.25)


def test_the_second_worked_example():
    worked = _square([[1, 0], [1, 1]])
    values = [f(worked).value for f in (matrix.average_performance, matrix.forgetting, matrix.backward_transfer)]
    assert values == [1, 0, 0]


def test_cora_measures_each_segment_against_the_one_before():
    # Forgetting: a by b (.9 - .6) / .9, a by c (.6 - .5) / .9, b by c (.8 - .7) / .8.
    worked = _square(WORKED)
    assert matrix.cora_forgetting(worked).value == pytest.approx((0.3 / 0.9 + 0.1 / 0.9 + 0.1 / 0.8) / 3)
    # Transfer: to b by a (.2 - 0) / .8, to c by a (.1 - 0) / 1, to c by b (.2 - .1) / 1.
    assert matrix.cora_transfer(worked).value == pytest.approx((0.25 + 0.1 + 0.1) / 3)


def test_maintenance_compares_with_the_latest_terminal_performance():
    # a after b -.3, a after c -.4, b after c -.1.
    assert matrix.performance_maintenance(_square(WORKED)).value == pytest.approx(-0.8 / 3)


def test_probe_forgetting_is_measured_from_the_best_so_far():
    assert matrix.probe_forgetting(_square(WORKED)).value == pytest.approx((0.4 + 0.1 + 0) / 3)


def test_forward_transfer_is_relative_to_what_is_left_to_gain():
    found = matrix.forward_transfer([0.8, 0.5], [0.6, 0.6])
    assert found.value == pytest.approx((0.5 - 0.25) / 2)
    assert matrix.forward_transfer([1.0], [1.0]).value is None
    assert "configuration 1 is missing" in matrix.forward_transfer([0.5, None], [0.5, 0.5]).reason
    with pytest.raises(DataError, match="between 0 and 1"):
        matrix.forward_transfer([1.5], [0.5])


def test_the_recovery_slope_is_the_median_of_the_pairwise_slopes():
    # Slopes -10, -10, 20 between neighbours, -10 and 5 over two boundaries, 0 over three.
    assert matrix.recovery_slope([30, 20, 10, 30]).value == (-10 + 0) / 2
    assert matrix.recovery_slope([30, None, 10]).value == -10
    assert "two boundaries; there are 1" in matrix.recovery_slope([30, None]).reason


def test_a_return_of_a_configuration_shares_its_column(make_segments, make_evaluations):
    segments = make_segments([("a", "a", 10), ("b", "b", 10), ("a2", "a", 10)])
    table = {0: {"a": 0, "b": 0}, 10: {"a": 9, "b": 2}, 20: {"a": 3, "b": 8}, 30: {"a2": 7, "b": 4}, 15: {"a": 99}}
    built = evaluation_matrix(make_evaluations(table), segments)
    assert built.regimes == ("a", "b")
    assert built.row_labels == ("start", "a", "b", "a2")
    assert built.steps == (0, 10, 20, 30)
    assert built.values.tolist() == [[0, 0], [9, 2], [3, 8], [7, 4]]
    # Forgetting looks back to the last visit before the final row: a 9 - 7, b 8 - 4.
    assert matrix.forgetting(built).value == 3
    # Backward transfer looks back to the first: a 7 - 9, b 4 - 8.
    assert matrix.backward_transfer(built).value == -3
    # Maintenance: a after b 3 - 9, b after a2 4 - 8.
    assert matrix.performance_maintenance(built).value == -5
    # CORA: a by b (9 - 3) / 9, b by a2 (8 - 4) / 8; transfer to b by a 2 / 8.
    assert matrix.cora_forgetting(built).value == pytest.approx((6 / 9 + 4 / 8) / 2)
    assert matrix.cora_transfer(built).value == 0.25


def test_ids_of_one_configuration_are_averaged_and_a_later_line_replaces_an_earlier(make_segments, make_evaluations):
    segments = make_segments([("a", "a", 10), ("a2", "a", 10)])
    rows = make_evaluations({10: {"a": 1}}) + make_evaluations({10: {"a": 4, "a2": 6}})
    assert evaluation_matrix(rows, segments).values[1].tolist() == [5]


def test_configurations_that_are_never_trained_have_a_column_but_no_say(make_segments, make_evaluations):
    segments = make_segments([("a", "a", 10)])
    built = evaluation_matrix(make_evaluations({0: {"a": 0}, 10: {"a": 2, "held_out": 100}}), segments)
    assert built.regimes == ("a", "held_out")
    assert matrix.average_performance(built).value == 2


def test_a_missing_evaluation_is_named_by_every_measure_that_needs_it(make_segments, make_evaluations):
    segments = make_segments([("a", "a", 10), ("b", "b", 10)])
    built = evaluation_matrix(make_evaluations({10: {"a": 1, "b": 1}, 20: {"b": 1}}), segments)
    found = matrix.matrix_metrics(built)
    assert all(metric.value is None for metric in found.values())
    assert found["average_performance"].reason == "'a' was not evaluated after segment 'b' (step 20)"
    assert found["cora_transfer"].reason == "'b' was not evaluated before training (step 0)"


def test_without_evaluations_every_measure_has_a_reason(make_segments):
    found = matrix.matrix_metrics(evaluation_matrix([], make_segments([("a", "a", 10), ("b", "b", 10)])))
    assert all(metric.value is None and metric.reason for metric in found.values())


def test_one_segment_has_a_performance_and_no_transfer(make_segments, make_evaluations):
    built = evaluation_matrix(make_evaluations({0: {"a": 1}, 10: {"a": 3}}), make_segments([("a", "a", 10)]))
    found = matrix.matrix_metrics(built)
    assert found["average_performance"].value == 3
    assert found["matrix_forgetting"].value == 0
    for name in ("backward_transfer", "cora_forgetting", "cora_transfer", "performance_maintenance"):
        assert found[name].value is None
        assert found[name].reason


def test_a_column_of_zeros_neither_gains_nor_loses():
    assert matrix.cora_forgetting(_square([[0, 1], [0, 1]])).value == 0


def test_evaluations_of_several_seeds_are_refused(make_segments, make_evaluations):
    rows = make_evaluations({0: {"a": 1}}) + make_evaluations({0: {"a": 1}}, seed=1)
    with pytest.raises(DataError, match="one matrix a seed"):
        evaluation_matrix(rows, make_segments([("a", "a", 10)]))


def test_a_return_that_is_not_finite_is_refused(make_segments, make_evaluations):
    with pytest.raises(DataError, match="evaluation on 'a' at step 0"):
        evaluation_matrix(make_evaluations({0: {"a": float("inf")}}), make_segments([("a", "a", 10)]))
