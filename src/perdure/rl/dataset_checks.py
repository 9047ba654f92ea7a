"""What the columns of a transition dataset must satisfy, checked over all rows at once."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from perdure.core.errors import ConfigError, DataError
from perdure.core.records import Spec

SLACK = 1e-6
"""How far an action may leave [-1, 1] by rounding; it is cut to it."""
RELATIVE, ABSOLUTE = 1e-5, 1e-6
"""How closely a successor must be the next row's observation, both in single precision."""


def checked(given: Mapping[str, Any]) -> dict[str, np.ndarray | None]:
    """The columns of dataset.COLUMNS as read-only copies in their types; raises DataError for the first fault."""
    reward = _numbers(given["reward"], "reward", None)
    rows = len(reward)
    if reward.ndim != 1 or not rows:
        wrong = f"reward has shape {list(reward.shape)}; " + ("give [rows]" if rows else "give at least one episode")
        raise DataError(wrong)
    obs = _numbers(given["obs"], "obs", rows)
    next_obs = _numbers(given["next_obs"], "next_obs", rows)
    if obs.shape != next_obs.shape or obs.ndim < 2:
        raise DataError(
            f"obs has shape {list(obs.shape)}, next_obs {list(next_obs.shape)}; give both as [rows, ...] alike"
        )
    columns: dict[str, np.ndarray | None] = {
        "obs": obs,
        "action": _actions(given["action"], "action", rows),
        "reward": reward,
        "terminated": _flags(given["terminated"], "terminated", rows),
        "truncated": _flags(given["truncated"], "truncated", rows),
        "next_obs": next_obs,
        "is_expert": _flags(
            np.zeros(rows, bool) if given["is_expert"] is None else given["is_expert"], "is_expert", rows
        ),
    }
    columns["expert_action"] = _expert_actions(given["expert_action"], columns["action"], rows)
    _check_episodes(columns)
    for column in columns.values():
        if column is not None:
            column.setflags(write=False)
    return columns


def check_fits(obs: np.ndarray, action: np.ndarray, expert_action: np.ndarray | None, spec: Spec, place: str) -> None:
    """Raise ConfigError, naming `place`, unless checked columns are those of a world of `spec`."""
    remedy = "use a dataset of this world"
    if obs.shape[1:] != tuple(spec.obs_shape):
        shapes = f"observations of shape {list(obs.shape[1:])}, the world {list(spec.obs_shape)}"
        raise ConfigError(f"{place} has {shapes}; {remedy}")
    ours, theirs = ("discrete" if each else "continuous" for each in (action.ndim == 1, spec.discrete))
    if ours != theirs:
        raise ConfigError(f"{place} has {ours} actions, the world {theirs} ones; {remedy}")
    if not spec.discrete and action.shape[1] != spec.action_dim:
        raise ConfigError(f"{place} has actions of {action.shape[1]} numbers, the world {spec.action_dim}; {remedy}")
    for name, column in (("action", action), ("expert_action", expert_action)) if spec.discrete else ():
        if column is not None and column.max() >= spec.action_dim:
            row = int(np.argmax(column >= spec.action_dim))
            wrong = f"{name} of row {row} is {column[row]}, the world has actions 0 to {spec.action_dim - 1}"
            raise ConfigError(f"{place}: {wrong}; {remedy}")


def _numbers(value, name, rows):
    """A finite float32 copy with one entry a row."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise DataError(f"{name} is of type {array.dtype}; give numbers")
    with np.errstate(over="ignore"):  # What does not fit is told below, by its row.
        copy = np.array(array, np.float32, order="C")
    _check_rows(copy, name, rows)
    _refuse_first(~np.isfinite(copy), array, name, "must be a finite number in single precision; drop that episode")
    return copy


def _flags(value, name, rows):
    copy = np.array(value, order="C")
    if copy.dtype != bool or copy.ndim != 1:
        raise DataError(f"{name} is {copy.dtype}{list(copy.shape)}; give true or false for each row: bool[rows]")
    _check_rows(copy, name, rows)
    return copy


def _actions(value, name, rows):
    """[rows, A] float32 in [-1, 1], or indices [rows] int32."""
    array = np.asarray(value)
    if array.dtype.kind in "iu" and array.ndim == 1:
        _check_rows(array, name, rows)
        _refuse_first((array < 0) | (array > np.iinfo(np.int32).max), array, name, "must be the index of an action")
        return np.array(array, np.int32)
    if array.dtype.kind != "f" or array.ndim != 2 or array.shape[1] == 0:
        raise DataError(
            f"{name} is {array.dtype}{list(array.shape)}; give vectors in agent units as floats [rows, numbers], "
            "or indices as integers [rows]"
        )
    copy = _numbers(array, name, rows)
    remedy = "must lie in [-1, 1]; turn world units into agent units with experts.agent_units"
    _refuse_first(np.abs(copy) > 1 + SLACK, array, name, remedy)
    return np.clip(copy, -1.0, 1.0)


def _expert_actions(value, action, rows):
    """Like `action`, with NaN or -1 in unknown rows; None where all are unknown."""
    if value is None:
        return None
    array = np.asarray(value)
    if array.ndim != action.ndim or array.shape[1:] != action.shape[1:]:
        raise DataError(f"expert_action has shape {list(array.shape)}, action {list(action.shape)}; give both alike")
    _check_rows(array, "expert_action", rows)
    if action.ndim == 1:
        if array.dtype.kind not in "iu":
            raise DataError(f"expert_action is of type {array.dtype}; give integers like action's, -1 where unknown")
        missing = array == -1
    else:
        if array.dtype.kind != "f":
            raise DataError(f"expert_action is of type {array.dtype}; give floats like action's, NaN where unknown")
        missing = np.isnan(array).all(1)
    filled = array.copy()
    filled[missing] = 0
    result = _actions(filled, "expert_action", rows)
    result[missing] = np.nan if action.ndim > 1 else -1
    return None if missing.all() else result


def _check_episodes(columns):
    """Refuse episodes without an end, and rows that do not lead to the next one."""
    ends = columns["terminated"] | columns["truncated"]
    last = len(ends) - 1
    if not ends[last]:
        raise DataError(
            f"terminated and truncated of row {last}, the last, are both false; "
            "a dataset holds whole episodes: drop the unfinished one, or mark where its recording was cut as truncated"
        )
    following, obs = columns["next_obs"][:-1], columns["obs"][1:]
    apart = ~np.isclose(following, obs, rtol=RELATIVE, atol=ABSOLUTE) & ~ends[:-1].reshape(-1, *[1] * (obs.ndim - 1))
    remedy = "must be the next row's obs within an episode; order the rows by time, or mark where the episode ends"
    _refuse_first(apart, following, "next_obs", remedy)


def _check_rows(array, name, rows):
    if rows is not None and (not array.ndim or len(array) != rows):
        raise DataError(f"{name} has shape {list(array.shape)}, but reward has {rows} rows; give each row one entry")


def _refuse_first(bad, values, name, remedy):
    """Raise DataError naming the first row of `bad` and the value there."""
    if bad.any():
        row, *inner = map(int, np.unravel_index(int(np.argmax(bad)), bad.shape))
        where = f"{name}[{', '.join(map(str, inner))}]" if inner else name
        raise DataError(f"{where} of row {row} is {values[(row, *inner)]}; it {remedy}")
