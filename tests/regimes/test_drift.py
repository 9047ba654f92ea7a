import pytest

from perdure.core.errors import ConfigError
from perdure.regimes.drift import Drift
from perdure.regimes.schedules import boundaries, params_at, schedule


def test_a_line_is_one_segment_with_both_ends(build):
    (segment,) = build(Drift, start={"gravity": 10}, end={"gravity": 20}).plan(100)
    assert (segment.params, segment.params_end) == ({"gravity": 10.0}, {"gravity": 20.0})
    assert params_at(segment, 50) == {"gravity": 15.0}


def test_waypoints_are_legs_of_one_id(build):
    provider = build(
        Drift,
        start={"g": 0},
        waypoints=[
            {"steps": 10, "state": {"g": 1}},
            {"steps": 20, "state": {"g": 1}},
            {"steps": 10, "state": {"g": 0}},
        ],
    )
    segments = schedule(provider, 40).segments
    assert boundaries(segments) == ()
    assert [provider.at(step, {}).params["g"] for step in (0, 5, 10, 29, 35)] == [0.0, 0.5, 1.0, 1.0, 0.5]


def test_a_cycle_goes_there_and_back_and_may_be_cut(build):
    segments = build(Drift, start={"g": 0}, end={"g": 1}, period=8).plan(10)
    assert [segment.end for segment in segments] == [4, 8, 10]
    assert segments[-1].params_end == {"g": 0.5}


def test_only_the_first_step_of_a_drift_is_new():
    provider = Drift(start={"g": 0.0}, end={"g": 1.0}, period=8)
    assert [provider.at(step, {}).boundary for step in range(10)] == [True, *[False] * 9]


def test_a_line_does_not_know_where_it_is_without_the_run():
    with pytest.raises(ConfigError, match=r"regime\.end is reached where the run ends"):
        Drift(start={"g": 0.0}, end={"g": 1.0}).at(3, {})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "end and waypoints: give exactly one"),
        ({"end": {"g": 1}, "waypoints": [{"steps": 1, "state": {"g": 1}}]}, "end and waypoints: give exactly one"),
        ({"end": {"h": 1}}, "end: g, h must stand in both"),
        ({"end": {"g": 1}, "period": 7}, "period is 7; it must be even"),
        ({"end": {"g": 1}, "period": 0}, "period is 0"),
        ({"waypoints": [{"steps": 4, "state": {"g": 1}}], "period": 2}, "period is 2"),
        ({"waypoints": [{"steps": 0, "state": {"g": 1}}]}, r"waypoints\[0\]\.steps is 0"),
        ({"waypoints": [{"steps": 4, "state": {"h": 1}}]}, r"waypoints\[0\]\.state: g, h"),
    ],
)
def test_a_drift_that_leads_nowhere_is_refused(build, fields, message):
    with pytest.raises(ConfigError, match=message):
        build(Drift, start={"g": 0}, **fields)


def test_waypoints_must_last_as_long_as_the_run(build):
    provider = build(Drift, start={"g": 0}, waypoints=[{"steps": 10, "state": {"g": 1}}])
    with pytest.raises(ConfigError, match=r"regime\.waypoints add up to 10 steps, but rollout\.total_steps is 20"):
        provider.plan(20)
    with pytest.raises(ConfigError, match="end at step 10, before step 10"):
        provider.at(10, {})
