"""Minari datasets as columns of rows; what needs Minari itself is skipped where the extra is not installed."""

import importlib.util
from typing import NamedTuple

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from perdure.core.errors import DataError, MissingExtra, Refused
from perdure.worlds.adapters import minari as adapter

NEEDED = ("minari", "h5py", "PIL")
installed = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NEEDED), reason="the extra minari is not installed"
)


class Episode(NamedTuple):
    """What Minari gives of an episode."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray


class Dataset:
    """The face of a Minari dataset."""

    id = "made/up-v0"
    env_spec = EnvSpec("Made-v0", entry_point="made:up", max_episode_steps=77)

    def __init__(self, episodes, seen=None, acts=None):
        self.observation_space = seen or spaces.Box(-9.0, 9.0, (2, 1))
        self.action_space = acts or spaces.Box(np.array([-1, 0], np.float32), np.array([1, 4], np.float32))
        self._episodes = episodes

    def __iter__(self):
        return iter(self._episodes)


def episode(steps, terminated=False, truncated=False, **changed):
    """Observations that count up, and flags in the last step only."""
    last = np.arange(steps) == steps - 1
    made = Episode(
        np.arange(2.0 * (steps + 1)).reshape(-1, 2, 1),
        np.arange(2.0 * steps).reshape(-1, 2) / 10,
        np.arange(1.0, steps + 1),
        last & terminated,
        last & truncated,
    )
    return made._replace(**changed)


def test_episodes_become_rows():
    spec, columns = adapter.read(Dataset([episode(2, terminated=True), episode(1, truncated=True)]))
    assert (spec.obs_shape, spec.action_dim, spec.discrete, spec.low, spec.high) == ((2,), 2, False, (-1, 0), (1, 4))
    assert spec.horizon == 77
    assert columns["obs"].tolist() == [[0, 1], [2, 3], [0, 1]]
    assert columns["next_obs"].tolist() == [[2, 3], [4, 5], [2, 3]]
    np.testing.assert_allclose(columns["action"], [[0, 0.1], [0.2, 0.3], [0, 0.1]])
    assert columns["reward"].tolist() == [1, 2, 1]
    assert columns["terminated"].tolist() == [False, True, False]
    assert columns["truncated"].tolist() == [False, False, True]
    assert columns["obs"].dtype == columns["action"].dtype == columns["reward"].dtype == np.float32


def test_a_recording_that_was_cut_is_truncated():
    _, columns = adapter.read(Dataset([episode(2), episode(1, terminated=True)]))
    assert columns["truncated"].tolist() == [False, True, False]


def test_discrete_spaces_are_counted_from_zero_and_one_hot():
    counted = episode(2, terminated=True, observations=np.array([5, 7, 6]), actions=np.array([-1, 1]))
    spec, columns = adapter.read(Dataset([counted], spaces.Discrete(3, start=5), spaces.Discrete(3, start=-1)))
    assert (spec.obs_shape, spec.action_dim, spec.discrete) == ((3,), 3, True)
    assert columns["obs"].tolist() == [[1, 0, 0], [0, 0, 1]]
    assert columns["next_obs"].tolist() == [[0, 0, 1], [0, 1, 0]]
    assert columns["action"].tolist() == [0, 2]
    assert columns["action"].dtype == np.int32


@pytest.mark.parametrize("kind", ["observation", "action"])
def test_other_spaces_are_refused(kind):
    space = spaces.Dict({"goal": spaces.Discrete(2)})
    made = Dataset([episode(1)], *((space, None) if kind == "observation" else (None, space)))
    with pytest.raises(Refused, match=rf"'made/up-v0': {kind} space Dict.* is not one of Box and Discrete; choose"):
        adapter.read(made)


def test_torn_episodes_and_empty_datasets_are_refused():
    torn = episode(2, observations=np.zeros((2, 2, 1)))
    with pytest.raises(DataError, match="'made/up-v0', episode 1 has 2 rewards, 2 observations, 2 actions"):
        adapter.read(Dataset([episode(1), torn]))
    with pytest.raises(DataError, match="holds no episode"):
        adapter.read(Dataset([]))


@pytest.mark.skipif(importlib.util.find_spec("minari") is not None, reason="minari is installed")
def test_without_minari_the_extra_is_named():
    with pytest.raises(MissingExtra, match=r"minari is not installed; .*perdure\[minari\]"):
        adapter.read("mujoco/hopper/expert-v0")


@installed
@pytest.mark.filterwarnings("ignore")
def test_a_dataset_of_minari_itself_is_read_by_its_id(tmp_path, monkeypatch):
    import minari
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    wanted = [episode(3, terminated=True), episode(2, truncated=True)]
    buffers = [
        EpisodeBuffer(i, None, None, each.observations, each.actions, each.rewards, each.terminations, each.truncations)
        for i, each in enumerate(wanted)
    ]
    described = Dataset([])
    minari.create_dataset_from_buffers(
        "made/up-v0",
        buffers,
        observation_space=described.observation_space,
        action_space=described.action_space,
    )
    _, columns = adapter.read("made/up-v0")
    _, ours = adapter.read(Dataset(wanted))
    for name, column in ours.items():
        np.testing.assert_array_equal(columns[name], column)


@installed
def test_an_id_that_is_not_here_says_how_to_bring_it(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(DataError, match="'made/gone-v0' is not on this machine; run: minari download made/gone-v0"):
        adapter.read("made/gone-v0")


@installed
@pytest.mark.filterwarnings("ignore")
def test_a_folder_that_holds_no_dataset_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    (tmp_path / "made" / "empty-v0" / "data").mkdir(parents=True)
    with pytest.raises(DataError, match="'made/empty-v0' cannot be read: ValueError: No data found"):
        adapter.read("made/empty-v0")
