import pytest

from perdure.core.errors import ConfigError, RunFailed
from perdure.regimes.providers import CANONICAL, Canonical, Constant, Environment, Piece, Schedule
from perdure.regimes.schedules import RegimeState, boundaries, labels_only, schedule

DESIGN = [
    {"id": "earth", "steps": 100},
    {"id": "reversed", "steps": 100, "params": {"force": -10.0}},
    {"id": "earth_again", "origin": "earth", "steps": 50},
]


def test_constant_is_one_segment_that_only_labels():
    (segment,) = Constant().plan(30)
    assert (segment.id, segment.start, segment.end, segment.params) == ("constant", 0, 30, None)


def test_constant_with_a_state_sets_it(build):
    provider = build(Constant, id="heavy", state={"gravity": 20})
    assert provider.at(3, {}) == RegimeState("heavy", False, "heavy", {"gravity": 20.0})


def test_a_document_becomes_segments(build):
    segments = build(Schedule, segments=DESIGN).plan(250)
    assert [segment.id for segment in segments] == ["earth", "reversed", "earth_again"]
    assert [segment.origin for segment in segments] == ["earth", "reversed", "earth"]
    assert [segment.end for segment in segments] == [100, 200, 250]
    assert [segment.params for segment in segments] == [{}, {"force": -10.0}, {}]


def test_an_origin_without_parameters_inherits_them_also_through_another():
    pieces = (Piece("a", 1, params={"g": 1.0}), Piece("b", 1, origin="a"), Piece("c", 1, origin="b"))
    segments = Schedule(pieces).plan(3)
    assert [segment.params for segment in segments] == [{"g": 1.0}] * 3
    assert [segment.origin for segment in segments] == ["a", "a", "a"]


def test_an_id_that_occurs_again_is_the_same_configuration():
    segments = Schedule((Piece("a", 1, params={"g": 1.0}), Piece("b", 1), Piece("a", 1))).plan(3)
    assert segments[2].params == {"g": 1.0}
    assert boundaries(segments) == (1, 2)


@pytest.mark.parametrize("piece", [Piece("a", 1, params={"g": 2.0}), Piece("c", 1, origin="a", params={"g": 2.0})])
def test_a_repeat_with_other_parameters_is_refused(piece):
    with pytest.raises(ConfigError, match=r"segments\[1\]\.params is \{'g': 2\.0\}, but 'a', which it repeats"):
        Schedule((Piece("a", 1, params={"g": 1.0}), piece))


def test_a_repeat_may_state_the_same_parameters():
    assert Schedule((Piece("a", 1, params={"g": 1.0}), Piece("b", 1, origin="a", params={"g": 1.0}))).plan(2)


def test_an_unknown_origin_is_refused_with_the_nearest_id():
    with pytest.raises(ConfigError, match=r"segments\[1\]\.origin is 'erth', .*did you mean 'earth'"):
        Schedule((Piece("earth", 1), Piece("b", 1, origin="erth")))


def test_a_later_segment_is_no_origin():
    with pytest.raises(ConfigError, match=r"segments\[0\]\.origin is 'b', .*first segment has none before it"):
        Schedule((Piece("a", 1, origin="b"), Piece("b", 1)))


def test_an_id_cannot_repeat_two_configurations():
    with pytest.raises(ConfigError, match=r"segments\[3\]\.id 'c' already repeats 'a'"):
        Schedule((Piece("a", 1), Piece("b", 1), Piece("c", 1, origin="a"), Piece("c", 1, origin="b")))


@pytest.mark.parametrize("steps", [0, -3])
def test_a_segment_without_steps_is_refused_by_its_place(build, steps):
    with pytest.raises(ConfigError, match=rf"segments\[1\]\.steps is {steps}; a segment needs at least one step"):
        build(Schedule, segments=[{"id": "a", "steps": 5}, {"id": "b", "steps": steps}])


def test_an_empty_schedule_is_refused(build):
    with pytest.raises(ConfigError, match="segments is empty"):
        build(Schedule, segments=[])


def test_a_total_that_differs_from_the_sum_is_refused_with_both_numbers():
    provider = Schedule((Piece("a", 100), Piece("b", 100)))
    with pytest.raises(ConfigError, match=r"regime\.segments add up to 200 steps, but rollout\.total_steps is 300"):
        provider.plan(300)


def test_a_segment_that_would_never_occur_is_named():
    provider = Schedule((Piece("a", 100), Piece("b", 100)))
    with pytest.raises(ConfigError, match="so 'b' never occurs"):
        provider.plan(100)
    repeated = Schedule((Piece("a", 100), Piece("b", 100)), repeat=True)
    with pytest.raises(ConfigError, match=r"regime\.segments\[1\] \(b\) never occurs: it starts at step 100 of 100"):
        repeated.plan(100)
    assert repeated.plan(101)[-1].end == 101


def test_a_schedule_that_does_not_repeat_has_an_end():
    with pytest.raises(ConfigError, match="end at step 5, before step 5"):
        Schedule((Piece("a", 5),)).at(5, {})


def test_the_canonical_six_come_in_order_and_the_last_repeats_the_first():
    segments = Canonical().plan(600)
    assert tuple(segment.id for segment in segments) == CANONICAL
    assert segments[-1].origin == "baseline"
    assert {segment.end - segment.start for segment in segments} == {100}
    assert labels_only(segments)


def test_canonical_parts_are_equal_up_to_one_round_of_all_copies():
    segments = schedule(Canonical(), 4 * 20, n_envs=4).segments
    assert [segment.end - segment.start for segment in segments] == [16, 16, 12, 12, 12, 12]


def test_canonical_takes_one_length_or_six(build):
    assert [segment.end for segment in build(Canonical, steps=10).plan(60)] == [10, 20, 30, 40, 50, 60]
    listed = build(Canonical, steps=[1, 2, 3, 4, 5, 6])
    assert [segment.end for segment in listed.plan(21)] == [1, 3, 6, 10, 15, 21]
    assert listed.at(20, {}).origin == "baseline"
    with pytest.raises(ConfigError, match=r"regime\.steps add up to 21 steps, but rollout\.total_steps is 20"):
        listed.plan(20)


@pytest.mark.parametrize(("steps", "message"), [([1, 2], "2 entries"), (0, "at least one step")])
def test_canonical_lengths_that_do_not_fit_are_refused(build, steps, message):
    with pytest.raises(ConfigError, match=message):
        build(Canonical, steps=steps)


def test_canonical_parameters_reach_the_revisit_too(build):
    segments = build(Canonical, states={"baseline": {"g": 1.0}, "edi_spike": {"g": 2.0}}).plan(600)
    assert [segment.params for segment in segments] == [{"g": 1.0}, {"g": 2.0}, {}, {}, {}, {"g": 1.0}]


@pytest.mark.parametrize(
    ("name", "message"),
    [("edi_spik", "did you mean 'edi_spike'"), ("baseline_revisit", "set states.baseline instead")],
)
def test_parameters_of_a_regime_that_never_occurs_are_refused(build, name, message):
    with pytest.raises(ConfigError, match=message):
        build(Canonical, states={name: {"g": 1.0}})


def test_six_regimes_need_six_rounds():
    with pytest.raises(ConfigError, match=r"rollout\.total_steps is 5; six regimes"):
        Canonical().plan(5)


def test_canonical_in_equal_parts_needs_to_know_the_run():
    with pytest.raises(ConfigError, match=r"regime\.steps is not given"):
        Canonical().at(0, {})


def test_the_environment_is_trusted_and_silence_ends_the_run():
    provider = Environment()
    label = {"regime": {"id": "again", "origin": "a", "boundary": True}}
    assert provider.at(7, label) == RegimeState("again", True, "a")
    assert provider.at(8, {"regime": "a"}) == RegimeState("a", False, "a")
    with pytest.raises(RunFailed, match="the info of step 9 has no regime id"):
        provider.at(9, {})


def test_a_misspelt_key_of_a_segment_is_named_with_its_place(build):
    with pytest.raises(ConfigError, match=r"^regime\.segments\[0\]\.orign is not a key here"):
        build(Schedule, segments=[{"id": "a", "steps": 5, "orign": "b"}])
