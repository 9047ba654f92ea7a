import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.metrics.visits import Pieces, first_hold, smoothing

POINTS = st.lists(st.tuples(st.integers(0, 39), st.integers(-5, 5)), min_size=1, unique_by=lambda point: point[0])


def _at(pieces, time):
    index = int(np.searchsorted(pieces.time, time, side="right")) - 1
    return None if index < 0 else float(pieces.value[index])


def _plain(points, window, time):
    """m_k(t) read off its definition."""
    inside = [value for step, value in points if time - window + 1 <= step <= time]
    before = [value for step, value in points if step <= time]
    return float(np.mean(inside)) if inside else (before[-1] if before else None)


@given(POINTS, st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_smoothing_equals_its_definition_at_every_step(points, window):
    points = sorted(points)
    step, value = np.array([p[0] for p in points]), np.array([float(p[1]) for p in points])
    pieces = smoothing(step, value, window, 40)
    for time in range(40):
        found, expected = _at(pieces, time), _plain(points, window, time)
        assert (found is None) == (expected is None)
        assert expected is None or abs(found - expected) < 1e-9


@given(st.lists(st.integers(0, 3), min_size=1, max_size=25), st.integers(1, 6), st.integers(0, 20))
@settings(max_examples=150, deadline=None)
def test_first_hold_equals_its_definition(values, hold, after):
    pieces = Pieces(np.arange(len(values)), np.array(values, float), len(values))
    starts = [t for t in range(after, len(values) - hold + 1) if all(v >= 2 for v in values[t : t + hold])]
    assert first_hold(pieces, 2.0, hold, after) == (starts[0] if starts else None)


def test_a_constant_score_is_smoothed_without_rounding():
    pieces = smoothing(np.arange(1000), np.full(1000, 0.1), 50, 1000)
    assert np.all(pieces.value == 0.1)
