"""What the columns of a dataset must satisfy; each refusal names the column, the row, the value and the remedy."""

import numpy as np
import pytest

from perdure.core.errors import DataError
from perdure.rl.dataset import TransitionDataset

COLUMNS = {
    "obs": np.arange(4.0)[:, None],
    "action": np.zeros((4, 2)),
    "reward": np.arange(4.0),
    "terminated": np.array([0, 1, 0, 0], bool),
    "truncated": np.array([0, 0, 0, 1], bool),
    "next_obs": np.array([1.0, 50.0, 3.0, 60.0])[:, None],
}


def changed(name, place, value):
    """The columns with one entry changed."""
    column = COLUMNS[name].copy()
    column[place] = value
    return {name: column}


def test_what_is_whole_is_taken():
    dataset = TransitionDataset(**COLUMNS)
    assert (dataset.rows, dataset.episodes) == (4, 2)


def test_rounding_at_the_edges_is_forgiven():
    action = COLUMNS["action"] + 1.0000004
    near = COLUMNS["next_obs"] + 1e-7
    dataset = TransitionDataset(**COLUMNS | {"action": action, "next_obs": near})
    assert dataset.action.max() == 1.0


def test_unknown_expert_actions_are_nan_or_minus_one():
    half = np.array([[0.5, 0.5], [np.nan, np.nan], [0.0, 0.0], [np.nan, np.nan]])
    found = TransitionDataset(**COLUMNS, expert_action=half).columns()["expert_action"]
    np.testing.assert_array_equal(found, half)
    indices = COLUMNS | {"action": np.arange(4)}
    found = TransitionDataset(**indices, expert_action=np.array([1, -1, 2, -1])).columns()["expert_action"]
    assert found.tolist() == [1, -1, 2, -1]
    assert found.dtype == np.int32
    assert TransitionDataset(**COLUMNS, expert_action=np.full((4, 2), np.nan)).expert_action is None
    assert TransitionDataset(**indices, expert_action=np.full(4, -1)).expert_action is None


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({name: column[:0] for name, column in COLUMNS.items()}, r"reward has shape \[0\]; give at least one episode"),
        ({"reward": np.ones((4, 1))}, r"reward has shape \[4, 1\]; give \[rows\]"),
        ({"reward": np.array(["1"] * 4)}, "reward is of type <U1; give numbers"),
        ({"obs": np.zeros(4)}, r"obs has shape \[4\], next_obs \[4, 1\]; give both"),
        ({"obs": np.zeros((4, 2))}, r"obs has shape \[4, 2\], next_obs \[4, 1\]; give both"),
        ({"obs": np.zeros((3, 1))}, r"obs has shape \[3, 1\], but reward has 4 rows"),
        ({"obs": np.zeros((4, 1), bool)}, "obs is of type bool; give numbers"),
        (changed("obs", 2, np.nan), r"obs\[0\] of row 2 is nan; it must be a finite number"),
        (changed("next_obs", 3, np.inf), r"next_obs\[0\] of row 3 is inf; it must be a finite number"),
        (changed("reward", 1, 1e39), r"reward of row 1 is 1e\+39; it must be a finite number in single precision"),
        (changed("action", (2, 1), -1.5), r"action\[1\] of row 2 is -1.5; it must lie in \[-1, 1\]; turn world units"),
        (changed("action", (1, 0), np.nan), r"action\[0\] of row 1 is nan"),
        ({"action": np.zeros(4)}, r"action is float64\[4\]; give vectors in agent units"),
        ({"action": np.zeros((4, 2), int)}, r"action is int64\[4, 2\]; give vectors"),
        ({"action": np.array([0, 1, -2, 3])}, "action of row 2 is -2; it must be the index of an action"),
        ({"action": np.zeros(3, int)}, r"action has shape \[3\], but reward has 4 rows"),
        ({"terminated": np.zeros(4, int)}, r"terminated is int64\[4\]; give true or false"),
        ({"is_expert": np.zeros(3, bool)}, r"is_expert has shape \[3\], but reward has 4 rows"),
        ({"truncated": np.zeros(4, bool)}, "of row 3, the last, are both false; a dataset holds whole episodes"),
        (changed("next_obs", 2, 3.1), r"next_obs\[0\] of row 2 is 3.0999999.*; it must be the next row's obs"),
        ({"terminated": np.zeros(4, bool)}, r"next_obs\[0\] of row 1 is 50.0; it must be the next row's obs"),
        ({"expert_action": np.zeros(4)}, r"expert_action has shape \[4\], action \[4, 2\]; give both alike"),
        ({"expert_action": np.zeros((3, 2))}, r"expert_action has shape \[3, 2\], but reward has 4 rows"),
        ({"expert_action": np.full((4, 2), 3.0)}, r"expert_action\[0\] of row 0 is 3.0; it must lie in"),
        ({"expert_action": np.array([[0, np.nan]] * 4)}, r"expert_action\[1\] of row 0 is nan"),
        ({"expert_action": np.zeros((4, 2), int)}, "expert_action is of type int64; give floats like action's"),
        ({"action": np.arange(4), "expert_action": np.zeros(4)}, "expert_action is of type float64; give integers"),
        ({"action": np.arange(4), "expert_action": np.array([0, -1, -3, 0])}, "expert_action of row 2 is -3"),
    ],
)
def test_what_is_broken_is_refused(columns, told):
    with pytest.raises(DataError, match=told):
        TransitionDataset(**COLUMNS | columns)
