"""What holds for every stream: no exception, no NaN, a reason for each hole, and the symmetries of the definitions."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.core.records import Segment, Stream
from perdure.metrics.six import Options, recovery_curves, six_metrics, smoothed

QUICK = Options(samples=20)
ANY_REWARD = st.one_of(st.floats(-1e99, 1e99), st.floats(-10, 10), st.integers(-2, 2).map(float))


@st.composite
def streams(draw, rewards=ANY_REWARD):
    lanes = draw(st.integers(1, 3))
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=8))
    origins = draw(st.lists(st.sampled_from("abc"), min_size=len(lengths), max_size=len(lengths)))
    ends = np.cumsum(lengths) * lanes
    segments = tuple(
        Segment(f"{origin}{k}", origin, int(end) - length * lanes, int(end))
        for k, (origin, length, end) in enumerate(zip(origins, lengths, ends, strict=True))
    )
    rows = draw(st.integers(0, int(ends[-1]) // lanes)) * lanes if draw(st.booleans()) else int(ends[-1])
    constant = draw(st.booleans())
    values = [draw(rewards)] * rows if constant else draw(st.lists(rewards, min_size=rows, max_size=rows))
    flags = np.array(draw(st.lists(st.integers(0, 5), min_size=rows, max_size=rows)), int)
    bound = st.one_of(st.none(), st.floats(-1e9, 1e9))
    return Stream(
        run_id="run",
        algorithm_id="agent",
        task="world",
        seed=draw(st.integers(0, 3)),
        step=np.arange(rows),
        lane=np.arange(rows) % lanes,
        reward=np.array(values, np.float64),
        terminated=flags == 0,
        truncated=flags == 1,
        segments=segments,
        score=draw(st.sampled_from(["return", "reward"])),
        bounds={origin: (draw(bound), draw(bound)) for origin in draw(st.sets(st.sampled_from("abc")))},
    )


def _check(found):
    for name, metric in found.items():
        assert metric.name == name
        assert (metric.value is None) == (metric.reason is not None) == (metric.n == 0)
        assert (metric.low is None) == (metric.high is None)
        json.dumps([metric.value, metric.low, metric.high, metric.details], allow_nan=False)


@given(streams())
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_any_stream_is_measured_without_nan(stream):
    found = six_metrics(stream, QUICK)
    _check(found)
    for name in ("adaptation_speed", "stability"):
        assert found[name].value is None or 0 <= found[name].value <= 1
    assert found["recovery_time"].value is None or found["recovery_time"].value >= 0


@given(streams())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_any_stream_has_curves(stream):
    curve = smoothed(stream, points=30)
    assert len(curve.step) == len(curve.value) == min(30, stream.segments[-1].end)
    for recovery in recovery_curves(stream, points=20):
        assert np.isfinite(recovery.value).all()
        assert len(recovery.offset) == len(recovery.value)


@given(streams(st.integers(-8, 8).map(float)), st.sampled_from([0.5, 2.0, 4.0]), st.integers(-3, 3))
@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
def test_times_do_not_depend_on_the_unit_or_zero_of_the_reward(stream, scale, shift):
    stream = stream._replace(score="reward", bounds={})
    changed = six_metrics(stream._replace(reward=scale * stream.reward + shift), QUICK)
    found = six_metrics(stream, QUICK)
    for name in ("adaptation_speed", "recovery_time"):
        assert changed[name].value == pytest.approx(found[name].value)
    if found["forgetting"].value is not None:
        assert changed["forgetting"].value == pytest.approx(scale * found["forgetting"].value, abs=1e-6)


def test_hundreds_of_segments_are_measured(make_stream):
    rewards = np.random.default_rng(0).normal(size=300 * 40)
    stream = make_stream(rewards, [(f"s{k}", f"o{k % 7}", 40) for k in range(300)])
    found = six_metrics(stream, QUICK)
    _check(found)
    assert (found["reward"].n, found["forgetting"].n, found["recovery_time"].n) == (7, 293, 299)
    assert found["recovery_time"].low <= found["recovery_time"].value <= found["recovery_time"].high


def test_one_step_is_measured(make_stream):
    for score in ("return", "reward"):
        _check(six_metrics(make_stream([1.0], ended=[0], score=score)))
