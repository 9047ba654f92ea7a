import numpy as np
import pytest

from perdure.core.records import COLUMNS, RegimeSchedule, RolloutWindow, Segment, Shift, Transition

SCHEDULE = RegimeSchedule((Segment("a", "a", 0, 4), Segment("b", "b", 4, 6), Segment("a2", "a", 6, 10)))


def transitions(labels, **changes):
    return [
        Transition(
            step=10 + step,
            observation=step,
            action=0,
            reward=float(step),
            terminated=step == 1,
            truncated=step == 2,
            regime_id=label,
            reward_components={"cost": -1.0} if step else {},
            **changes,
        )
        for step, label in enumerate(labels)
    ]


@pytest.mark.parametrize(("step", "index"), [(0, 0), (3, 0), (4, 1), (5, 1), (6, 2), (9, 2), (10, 2), (1000, 2)])
def test_a_step_belongs_to_the_segment_that_starts_at_or_before_it(step, index):
    assert SCHEDULE.index_at(step) == index


def test_index_at_takes_arrays():
    assert SCHEDULE.index_at(np.array([[0, 4], [5, 9]])).tolist() == [[0, 1], [1, 2]]


def test_a_schedule_is_as_long_as_its_last_segment_says():
    assert SCHEDULE.total_steps == 10


def test_columns_of_a_host_window_follow_its_transitions():
    window = RolloutWindow(transitions(["a", "a", None]), seed=3)
    assert set(COLUMNS) <= set(window.columns)
    assert window.columns["seed"].tolist() == [3, 3, 3]
    assert window.columns["step"].tolist() == [10, 11, 12]
    assert window.columns["regime"].tolist() == ["a", "a", ""]
    assert window.rewards().tolist() == [0.0, 1.0, 2.0]
    assert window.terminals().tolist() == [False, True, True]
    assert window.last_step == 13


def test_an_origin_left_out_is_the_regime_itself():
    window = RolloutWindow([*transitions(["a"]), *transitions(["a2"], regime_origin="a")])
    assert window.columns["origin"].tolist() == ["a", "a"]


def test_a_reward_component_missing_from_a_row_is_not_a_number():
    column = RolloutWindow(transitions(["a", "a"])).columns["component/cost"]
    assert np.isnan(column[0])
    assert column[1] == -1.0


def test_by_regime_splits_where_the_label_changes_and_loses_no_row():
    window = RolloutWindow(transitions(["a", "a", "b", "a"]), run={"server": "x"}, seed=2)
    parts = window.by_regime()
    assert [part.columns["step"].tolist() for part in parts] == [[10, 11], [12], [13]]
    assert [len(part.transitions) for part in parts] == [2, 1, 1]
    assert {part.seed for part in parts} == {2}
    assert parts[0].run == {"server": "x"}


def test_by_regime_of_columns_alone_splits_them():
    whole = RolloutWindow(transitions(["a", "b"]))
    parts = RolloutWindow(columns=whole.columns).by_regime()
    assert [part.columns["regime"].tolist() for part in parts] == [["a"], ["b"]]


def test_an_empty_window_has_no_parts_and_ends_at_zero():
    window = RolloutWindow()
    assert len(window) == 0
    assert window.by_regime() == []
    assert window.last_step == 0


def test_a_shift_is_handed_over_as_a_plain_mapping():
    mapping = Shift("a", "a", "b", "b", 4, "oracle").mapping()
    assert mapping == {
        "ending": "a",
        "ending_origin": "a",
        "starting": "b",
        "starting_origin": "b",
        "step": 4,
        "source": "oracle",
    }
