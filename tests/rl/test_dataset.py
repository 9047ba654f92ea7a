"""Transition datasets: what is derived from their rows, their identity, and the file they are kept in."""

import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core.component import component, make
from perdure.core.errors import ConfigError, DataError
from perdure.core.records import Spec
from perdure.rl import dataset as datasets
from perdure.rl.dataset import TransitionDataset

LENGTHS = (3, 1, 2)
"""Of the small dataset's episodes; the second ends at a time limit."""


def small(**changed):
    """Six rows of three episodes; observations count rows, the last successors are 100, 200 and 300 more."""
    columns = {
        "obs": np.arange(6.0)[:, None],
        "action": np.array([[0.1], [0.2], [0.3], [0.4], [0.5], [0.6]]),
        "reward": np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]),
        "terminated": np.array([0, 0, 1, 0, 0, 1], bool),
        "truncated": np.array([0, 0, 0, 1, 0, 0], bool),
        "next_obs": np.array([1.0, 2.0, 102.0, 203.0, 5.0, 305.0])[:, None],
    }
    return TransitionDataset(**columns | changed)


@st.composite
def anything(draw):
    """Whole episodes of random lengths, kinds and ends."""
    lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=6))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    discrete, known = draw(st.booleans()), draw(st.booleans())
    rows = sum(lengths)
    ends = np.zeros(rows, bool)
    ends[np.cumsum(lengths) - 1] = True
    obs, last = random.normal(size=(2, rows, 2)).astype(np.float32)
    limit = random.random(rows) < 0.5
    actions = lambda: random.integers(0, 3, rows) if discrete else random.uniform(-1, 1, (rows, 2))
    expert_action = None
    if known:
        expert_action = actions()
        expert_action[random.random(rows) < 0.5] = -1 if discrete else np.nan
    return TransitionDataset(
        obs=obs,
        action=actions(),
        reward=random.normal(size=rows),
        terminated=ends & ~limit,
        truncated=ends & limit,
        next_obs=np.where(ends[:, None], last, np.roll(obs, -1, axis=0)),
        is_expert=random.random(rows) < 0.5,
        expert_action=expert_action,
    )


def row_by_row(dataset, discount):
    """Returns-to-go and next actions, one row after another from the end."""
    returns, following = np.zeros(len(dataset)), []
    ahead = 0.0
    for row in reversed(range(len(dataset))):
        over = dataset.terminated[row] or dataset.truncated[row]
        ahead = float(dataset.reward[row]) + (0.0 if over else discount * ahead)
        returns[row] = ahead
        blank = -1 if dataset.action.ndim == 1 else np.full(dataset.action.shape[1], np.nan)
        following.insert(0, blank if over else dataset.action[row + 1])
    return returns, np.array(following)


def test_what_is_derived_has_the_worked_values():
    dataset = small()
    assert (dataset.rows, len(dataset), dataset.episodes, dataset.discrete) == (6, 6, 3, False)
    assert dataset.episode.tolist() == [0, 0, 0, 1, 2, 2]
    assert dataset.starts.tolist() == [0, 3, 4]
    assert dataset.returns.tolist() == [7.0, 8.0, 48.0]
    # 1 + .5 (2 + .5 * 4), 2 + .5 * 4, 4; 8, with nothing after the time limit; 16 + .5 * 32, 32.
    assert dataset.return_to_go(0.5).tolist() == [3.0, 4.0, 4.0, 8.0, 32.0, 32.0]
    np.testing.assert_allclose(dataset.next_action[:, 0], [0.2, 0.3, np.nan, np.nan, 0.6, np.nan], rtol=1e-6)
    assert dataset.reset_obs[:, 0].tolist() == [3.0, 3.0, 3.0, 4.0, 0.0, 0.0]


def test_the_next_index_is_unknown_at_an_end():
    assert small(action=np.arange(6)).next_action.tolist() == [1, 2, -1, -1, 5, -1]


@given(anything(), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_returns_and_next_actions_equal_the_recursion_row_by_row(dataset, discount):
    returns, following = row_by_row(dataset, discount)
    np.testing.assert_allclose(dataset.return_to_go(discount), returns, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(dataset.next_action, following)


def test_the_return_of_a_long_episode_is_the_geometric_sum():
    rows = 1000
    ends = np.arange(rows) == rows - 1
    obs = np.zeros((rows, 1))
    dataset = TransitionDataset(obs, np.zeros(rows, int), np.ones(rows), ends, ~ends & False, obs)
    wanted = (1 - 0.99 ** (rows - np.arange(rows))) / (1 - 0.99)
    np.testing.assert_allclose(dataset.return_to_go(0.99), wanted, rtol=1e-6)


def test_a_discount_out_of_range_is_refused():
    with pytest.raises(ConfigError, match=r"discount is 1.5; it lies in \[0, 1\]"):
        small().return_to_go(1.5)


def test_columns_are_given_in_the_types_of_a_program():
    dataset = small()
    columns = dataset.columns()
    assert set(columns) == {"obs", "action", "reward", "terminated", "truncated", "next_obs", "is_expert"}
    assert {str(column.dtype) for column in columns.values()} == {"float32", "bool"}
    assert not columns["is_expert"].any()
    assert small(action=np.arange(6)).columns()["action"].dtype == np.int32
    assert small(expert_action=dataset.action).columns()["expert_action"].dtype == np.float32


def test_derived_columns_are_given_by_name():
    columns = small().columns("return_to_go", "next_action", "reset_obs", "episode", discount=0.5)
    assert columns["return_to_go"].tolist() == [3.0, 4.0, 4.0, 8.0, 32.0, 32.0]
    assert {len(column) for column in columns.values()} == {6}
    with pytest.raises(ConfigError, match=r"'next_acton' does not exist; did you mean 'next_action'\?"):
        small().columns("next_acton")
    with pytest.raises(ConfigError, match="discount is not given"):
        small().columns("return_to_go")


def test_a_dataset_is_known_by_its_content():
    one, same, other = small(), small(), small(reward=np.array([1.0, 2.0, 4.0, 8.0, 16.0, 33.0]))
    assert one == same
    assert hash(one) == hash(same)
    assert repr(one) == repr(same) == f"TransitionDataset(rows=6, episodes=3, digest='{one.digest[:12]}')"
    assert len({one, same, other}) == 2
    assert one != other
    assert repr(one) != repr(other)
    assert one != small(is_expert=np.ones(6, bool))
    assert one != small(expert_action=one.action)


def test_a_dataset_never_changes():
    rewards = np.ones(6)
    dataset = small(reward=rewards)
    before = dataset.digest
    rewards[0] = 5.0
    assert (dataset.reward[0], small(reward=np.ones(6)).digest) == (1.0, before)
    with pytest.raises(ValueError, match="read-only"):
        dataset.reward[0] = 5.0
    with pytest.raises(AttributeError, match="reward cannot be set: a TransitionDataset does not change"):
        dataset.reward = rewards
    assert copy.deepcopy(dataset) is dataset


@settings(max_examples=20)
@given(dataset=anything())
def test_a_dataset_comes_back_from_its_file(dataset, tmp_path_factory):
    path = tmp_path_factory.mktemp("sets") / "made" / "here.npz"
    dataset.save(path)
    loaded = TransitionDataset.load(path)
    assert loaded == dataset
    for name, column in dataset.columns().items():
        np.testing.assert_array_equal(loaded.columns()[name], column)
    assert [each.name for each in path.parent.iterdir()] == ["here.npz"]


def test_a_failed_save_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "rows.npz"
    small().save(path)

    def full(handle, **arrays):
        handle.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="no space left"):
        small(reward=np.ones(6)).save(path)
    assert TransitionDataset.load(path) == small()
    assert [each.name for each in tmp_path.iterdir()] == ["rows.npz"]


def test_a_missing_or_torn_or_foreign_file_is_refused(tmp_path):
    path = tmp_path / "rows.npz"
    with pytest.raises(DataError, match=r"rows.npz is missing; check the path"):
        TransitionDataset.load(path)
    small().save(path)
    whole = path.read_bytes()
    # One bit of a reward turned; cut, empty and no archive; a folder.
    flipped = bytearray(whole)
    flipped[whole.index(np.array([1, 2, 4, 8], np.float32).tobytes())] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(DataError, match=r"rows.npz is torn or altered \(reward.npy\); record or export it again"):
        TransitionDataset.load(path)
    for content in (whole[: len(whole) // 2], b"", b"rows"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"rows.npz is not of schema"):
            TransitionDataset.load(path)
    with pytest.raises(DataError, match="is not of schema"):
        TransitionDataset.load(tmp_path)


def written(path, meta=True, **changed):
    """A file like one of ours, with columns changed, or left out where None."""
    stored: dict[str, Any] = small().columns() | changed
    if meta:
        known = {"schema": datasets.SCHEMA, "digest": small().digest}
        stored["meta"] = np.array(json.dumps(known | (meta if isinstance(meta, dict) else {})))
    np.savez(path, **{name: column for name, column in stored.items() if column is not None})


@pytest.mark.parametrize(
    ("meta", "changed", "told"),
    [
        (False, {}, "is not of schema 'perdure.transitions/1'; give a file that this version's"),
        ({"schema": "perdure.transitions/9"}, {}, "is not of schema 'perdure.transitions/1'"),
        (True, {"next_obs": None}, "has no column 'next_obs', so it is not whole"),
        (True, {"rewards": np.ones(6)}, r"has a column 'rewards'; did you mean 'reward'\?"),
        (True, {"reward": np.ones(5, np.float32)}, r"rows.npz: obs has shape \[6, 1\], but reward has 5 rows"),
        (True, {"reward": np.ones(6, np.float32)}, "was altered"),
        (True, {"reward": np.array([{}] * 6)}, "is not of schema .*[Oo]bject arrays cannot be loaded"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, meta, changed, told):
    written(tmp_path / "rows.npz", meta, **changed)
    with pytest.raises(DataError, match=told):
        TransitionDataset.load(tmp_path / "rows.npz")


def test_datasets_are_joined_one_after_another():
    one, other = small(), small(reward=np.ones(6), expert_action=small().action, is_expert=np.ones(6, bool))
    both = datasets.concatenate(one, other)
    assert (both.rows, both.episodes) == (12, 6)
    assert both.reward.tolist() == [1, 2, 4, 8, 16, 32, 1, 1, 1, 1, 1, 1]
    assert both.is_expert.tolist() == [False] * 6 + [True] * 6
    np.testing.assert_array_equal(both.columns()["expert_action"][:6], np.full((6, 1), np.nan))
    np.testing.assert_array_equal(both.columns()["expert_action"][6:], other.action)
    assert datasets.concatenate(one) == one
    assert datasets.concatenate(one, one).expert_action is None


def test_datasets_of_two_worlds_are_not_joined():
    with pytest.raises(DataError, match=r"dataset 1 has action int32\[6\], dataset 0 float32\[6, 1\]"):
        datasets.concatenate(small(), small(action=np.arange(6)))
    with pytest.raises(DataError, match="no dataset"):
        datasets.concatenate()


@component
class Holder:
    """A component that holds a dataset, as an extension does."""

    dataset: TransitionDataset


def test_a_document_names_a_dataset_by_its_path(tmp_path):
    small().save(tmp_path / "rows.npz")
    assert make(Holder, {"dataset": str(tmp_path / "rows.npz")}, "kwargs").dataset == small()
    assert make(Holder, {"dataset": small()}, "kwargs").dataset == small()
    with pytest.raises(ConfigError, match=r"kwargs.dataset: .*gone.npz is missing; check the path"):
        make(Holder, {"dataset": str(tmp_path / "gone.npz")}, "kwargs")
    with pytest.raises(ConfigError, match=r"kwargs.dataset: a dataset is given as the path .*, not as int"):
        make(Holder, {"dataset": 3}, "kwargs")


SPEC = Spec((1,), 1, discrete=False, low=(-2.0,), high=(2.0,))


def test_a_dataset_of_the_world_fits():
    small().check_fits(SPEC, "dataset")
    small(action=np.arange(6)).check_fits(Spec((1,), 6, discrete=True), "dataset")


@pytest.mark.parametrize(
    ("dataset", "spec", "told"),
    [
        (small(), SPEC._replace(obs_shape=(2,)), r"prior has observations of shape \[1\], the world \[2\]; use a"),
        (small(), SPEC._replace(action_dim=2), "prior has actions of 1 numbers, the world 2"),
        (small(), Spec((1,), 3, discrete=True), "prior has continuous actions, the world discrete ones"),
        (small(action=np.arange(6)), SPEC, "prior has discrete actions, the world continuous ones"),
        (small(action=np.arange(6)), Spec((1,), 4, True), "prior: action of row 4 is 4, the world has actions 0 to 3"),
        (
            small(action=np.zeros(6, int), expert_action=np.array([0, 1, -1, 2, 3, 0])),
            Spec((1,), 3, True),
            "prior: expert_action of row 4 is 3",
        ),
    ],
)
def test_a_dataset_of_another_world_is_refused(dataset, spec, told):
    with pytest.raises(ConfigError, match=told):
        dataset.check_fits(spec, "prior")
