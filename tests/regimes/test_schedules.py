import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import ConfigError, Refused
from perdure.core.records import Segment
from perdure.regimes import schedules
from perdure.regimes.providers import Constant, Drift, Environment, Piece, Schedule

DRIFT = Segment("d", "d", 10, 20, {"g": 1.0}, {"g": 3.0})


def test_pieces_are_laid_end_to_end_from_zero():
    segments = schedules.lay([("a", "a", 3, None), ("b", "b", 4, None)])
    assert [(segment.start, segment.end) for segment in segments] == [(0, 3), (3, 7)]
    assert schedules.labels_only(segments)


def test_one_piece_with_parameters_makes_the_others_the_world_as_it_comes():
    segments = schedules.lay([("a", "a", 3, None), ("b", "b", 4, {"g": 2.0})])
    assert [segment.params for segment in segments] == [{}, {"g": 2.0}]
    assert not schedules.labels_only(segments)


def test_parameters_of_a_drift_lie_on_the_line_between_its_ends():
    assert schedules.params_at(DRIFT, 10) == {"g": 1.0}
    assert schedules.params_at(DRIFT, 15) == {"g": 2.0}


def test_a_drift_that_is_cut_ends_where_it_then_stands():
    (kept,) = schedules.cut([DRIFT._replace(start=0, end=10)], 4)
    assert kept.end == 4
    assert kept.params_end["g"] == pytest.approx(1.8)
    assert schedules.params_at(kept, 2)["g"] == pytest.approx(1.4)


def test_segments_that_share_an_id_have_no_boundary_between_them():
    segments = schedules.lay([("a", "a", 3, None), ("a", "a", 3, None), ("b", "b", 3, None)])
    assert schedules.boundaries(segments) == (6,)
    assert [schedules.state_at(segments, step).boundary for step in range(9)] == [
        True,
        *[False] * 5,
        True,
        False,
        False,
    ]


def test_the_state_names_the_regime_its_origin_and_parameters():
    provider = Schedule((Piece("a", 2), Piece("b", 2, params={"g": 2.0}), Piece("c", 2, origin="a")))
    states = [provider.at(step, {}) for step in range(6)]
    assert [state.id for state in states] == ["a", "a", "b", "b", "c", "c"]
    assert states[4] == schedules.RegimeState("c", True, "a", {})
    assert states[3] == schedules.RegimeState("b", False, "b", {"g": 2.0})


def test_a_boundary_source_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match=r"regime\.boundary_source is 'orakel'.*did you mean 'oracle'"):
        schedules.schedule(Constant(), 10, "orakel")


@pytest.mark.parametrize("steps", [0, -5])
def test_a_run_without_steps_is_refused(steps):
    with pytest.raises(ConfigError, match=rf"rollout\.total_steps is {steps}"):
        schedules.schedule(Constant(), steps)


def test_a_segment_that_ends_inside_a_step_of_all_copies_is_refused():
    provider = Schedule((Piece("a", 9), Piece("b", 7)))
    with pytest.raises(ConfigError, match=r"regime\.segments\[0\] \(a\) ends at step 9, .*rollout\.n_envs"):
        schedules.schedule(provider, 16, n_envs=4)
    assert schedules.schedule(provider, 16, n_envs=1).total_steps == 16


def test_a_total_that_is_no_whole_number_of_rounds_is_refused():
    with pytest.raises(ConfigError, match="ends at step 10, inside a step of all 4 copies"):
        schedules.schedule(Constant(), 10, n_envs=4)


def test_labels_that_only_the_environment_knows_make_no_schedule():
    with pytest.raises(Refused, match="host environment that reports"):
        schedules.schedule(Environment(), 10)


def test_the_boundary_source_is_recorded():
    assert schedules.schedule(Constant(), 10, "oracle").boundary_source == "oracle"
    assert schedules.schedule(Constant(), 10).boundary_source == "none"


@given(
    steps=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    names=st.lists(st.sampled_from("abcd"), min_size=12, max_size=12),
)
def test_any_list_of_segments_covers_the_run_exactly(steps, names):
    pieces = tuple(Piece(name, length) for name, length in zip(names, steps, strict=False))
    found = schedules.schedule(Schedule(pieces), sum(steps))
    _assert_covers(found.segments, sum(steps))
    assert [segment.id for segment in found.segments] == names[: len(steps)]


@given(
    steps=st.lists(st.integers(1, 50), min_size=1, max_size=6),
    extra=st.integers(0, 500),
)
def test_a_repeated_list_covers_any_longer_run_exactly_and_keeps_its_order(steps, extra):
    provider = Schedule(tuple(Piece(f"r{index}", length) for index, length in enumerate(steps)), repeat=True)
    total = sum(steps) + extra
    found = schedules.schedule(provider, total)
    _assert_covers(found.segments, total)
    for step in {0, total // 2, total - 1}:
        assert provider.at(step, {}).id == found.segments[found.index_at(step)].id


@given(period=st.integers(1, 40).map(lambda half: 2 * half), total=st.integers(1, 300))
def test_a_cyclic_drift_covers_any_run_in_one_id_and_swings_between_its_ends(period, total):
    provider = Drift(start={"g": 0.0}, end={"g": 1.0}, period=period)
    found = schedules.schedule(provider, total)
    _assert_covers(found.segments, total)
    assert schedules.boundaries(found.segments) == ()
    for step in range(0, total, max(1, total // 7)):
        phase = (step % period) / period
        expected = 2 * phase if phase <= 0.5 else 2 - 2 * phase
        assert provider.at(step, {}).params["g"] == pytest.approx(expected, abs=1e-9)


def _assert_covers(segments, total):
    assert segments[0].start == 0
    assert segments[-1].end == total
    assert all(before.end == after.start for before, after in itertools.pairwise(segments))
    assert all(segment.start < segment.end for segment in segments)
