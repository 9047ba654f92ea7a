import numpy as np

from perdure.metrics.curves import recovery_curves, smoothed


def test_the_smoothed_score_follows_the_window(golden_stream):
    curve = smoothed(golden_stream(), points=60)
    assert curve.step.tolist() == list(range(60))
    assert curve.value[[0, 9, 19, 20, 39, 40, 59]].tolist() == [0, 9, 10, 0, 5, 4, 10]


def test_a_line_breaks_where_nothing_is_scored(make_stream):
    stream = make_stream([1] * 20, [("a", "a", 10), ("b", "b", 20)], ended=[4, 9], score="return")
    curve = smoothed(stream, points=30)
    assert np.isnan(curve.value[:4]).all()
    assert curve.value[4:10].tolist() == [5] * 6
    assert np.isnan(curve.value[10:]).all()


def test_seeds_share_a_grid(make_stream):
    full, half = make_stream([1] * 100), make_stream([1] * 50, [("a", "a", 100)])
    assert smoothed(full, points=17).step.tolist() == smoothed(half, points=17).step.tolist()


def test_recovery_curves_are_aligned_at_the_boundary(golden_stream):
    into_b, into_a = recovery_curves(golden_stream())
    assert (into_b.ending, into_b.starting, into_b.step, into_b.previous) == ("a", "b", 20, 10)
    assert (into_a.starting, into_a.starting_origin) == ("a2", "a")
    assert into_b.offset.tolist() == list(range(-4, 20))
    assert into_b.value.tolist() == [10] * 4 + [0] * 10 + [5] * 10


def test_a_boundary_without_scores_is_left_out(make_stream):
    stream = make_stream([1] * 10, [("a", "a", 10), ("b", "b", 10)])
    assert recovery_curves(stream) == []
