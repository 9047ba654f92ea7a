"""Minari datasets as columns of rows: episodes of Box or Discrete spaces, in the world's own units.

Needs the extra minari; nothing is downloaded.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from perdure.core.errors import DataError, MissingExtra, Refused, told
from perdure.core.records import Spec
from perdure.worlds.adapters import gymnasium as environments


def read(source: Any) -> tuple[Spec, dict[str, np.ndarray]]:
    """What an agent must know of the dataset's world, and its rows.

    The columns are obs, action, reward, terminated, truncated and next_obs: observations as float32 vectors,
    Discrete ones one-hot; actions as vectors in world units, or indices from 0. An episode whose last step neither
    terminated nor was truncated is one whose recording was cut: it is truncated there. `source` is the id of a dataset
    on this machine, such as "mujoco/hopper/expert-v0", or a dataset that Minari loaded.

    Raises MissingExtra without minari, DataError for an id that is not on this machine or an episode whose arrays do
    not fit each other, Refused for other spaces than Box and Discrete.
    """
    dataset = _loaded(source) if isinstance(source, str) else source
    place = f"Minari dataset {getattr(dataset, 'id', source)!r}"
    for kind in ("observation", "action"):
        space = getattr(dataset, f"{kind}_space")
        if not isinstance(space, spaces.Box | spaces.Discrete):
            raise Refused(f"{place}: {kind} space {space} is not one of Box and Discrete; choose another dataset")
    described = _Described(dataset)
    episodes = [_columns(each, described, f"{place}, episode {number}") for number, each in enumerate(dataset)]
    if not episodes:
        raise DataError(f"{place} holds no episode; choose another dataset")
    joined = {name: np.concatenate([each[name] for each in episodes]) for name in episodes[0]}
    return environments.spec_of(described), joined


class _Described(gymnasium.Env):
    """The spaces and the limit of the environment that a dataset was recorded in."""

    def __init__(self, dataset: Any):
        self.observation_space, self.action_space = dataset.observation_space, dataset.action_space
        self.spec = dataset.env_spec


def _loaded(name):
    try:
        import minari
    except ModuleNotFoundError as error:  # minari itself, or what it needs
        raise MissingExtra(error.name or "minari", "minari") from error
    try:
        return minari.load_dataset(name)
    except FileNotFoundError:
        raise DataError(f"Minari dataset {name!r} is not on this machine; run: minari download {name}") from None
    except ImportError as error:  # the library that reads the dataset's file format
        raise MissingExtra(error.name or "a library that minari reads files with", "minari") from error
    except (ValueError, OSError) as error:
        raise DataError(f"Minari dataset {name!r} cannot be read: {told(error)}; check its id and download") from error


def _columns(episode, described, place):
    """One episode's rows."""
    steps = len(episode.rewards)
    observed = _observations(described.observation_space, episode.observations)
    action = _actions(described.action_space, episode.actions)
    terminated, truncated = (np.array(flags, bool) for flags in (episode.terminations, episode.truncations))
    lengths = (len(observed) - 1, len(action), len(terminated), len(truncated))
    if not steps or lengths != (steps,) * 4:
        raise DataError(
            f"{place} has {steps} rewards, {lengths[0] + 1} observations, {lengths[1]} actions, {lengths[2]} "
            f"terminations and {lengths[3]} truncations; it must have as many of each, and one observation more"
        )
    truncated[-1] |= not terminated[-1]
    return {
        "obs": observed[:-1],
        "action": action,
        "reward": np.asarray(episode.rewards, np.float32),
        "terminated": terminated,
        "truncated": truncated,
        "next_obs": observed[1:],
    }


def _observations(space, values):
    if isinstance(space, spaces.Discrete):
        return np.eye(int(space.n), dtype=np.float32)[np.asarray(values, np.int64) - int(space.start)]
    array = np.asarray(values, np.float32)
    return array.reshape(len(array), -1)


def _actions(space, values):
    array = np.asarray(values)
    if isinstance(space, spaces.Discrete):
        return (array - int(space.start)).astype(np.int32)
    return array.astype(np.float32).reshape(len(array), -1)
