"""Transition datasets: whole episodes as flat rows on the host, checked once, known by their content, kept in one file.

Suffixes in shapes: R rows, E episodes, D numbers of an observation (any shape), A numbers of an action.
"""

import functools
import hashlib
import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from perdure.core.errors import ConfigError, DataError, nearest
from perdure.core.records import Spec
from perdure.rl import dataset_checks

SCHEMA = "perdure.transitions/1"
REQUIRED = ("obs", "action", "reward", "terminated", "truncated", "next_obs")
COLUMNS = (*REQUIRED, "is_expert", "expert_action")
DERIVED = ("episode", "next_action", "reset_obs", "return_to_go")


class TransitionDataset:
    """Episodes one after another as rows, a value: read-only, equal to another and hashed by content.

    >>> dataset = TransitionDataset(
    ...     obs=np.zeros((2, 1)), action=np.array([0, 1]), reward=np.array([1.0, 2.0]),
    ...     terminated=np.array([False, True]), truncated=np.zeros(2, bool), next_obs=np.zeros((2, 1)),
    ... )
    >>> dataset.rows, dataset.episodes, dataset.return_to_go(0.5).tolist()
    (2, 1, [2.0, 2.0])

    Raises DataError naming the column, the first bad row, its value and the remedy. In a document a dataset is the path
    of a saved one.
    """

    obs: np.ndarray
    """[R, D] float32, as the world gave them."""
    action: np.ndarray
    """In agent units: [R, A] float32 in [-1, 1], or indices [R] int32."""
    reward: np.ndarray
    """[R] float32, in the world's units."""
    terminated: np.ndarray
    """[R] bool; a row that is terminated and truncated has terminated."""
    truncated: np.ndarray
    """[R] bool."""
    next_obs: np.ndarray
    """[R, D] the true successor, also where an episode ended; elsewhere the next row's `obs`."""
    is_expert: np.ndarray
    """[R] bool: whether an expert chose the action."""
    path: Path | None = None
    """The file it was read from or last saved to."""
    expert_action: np.ndarray | None
    """What the expert would do, like `action`: a row of NaN (or -1) where unknown, None if no row is known."""

    def __init__(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        next_obs: Any,
        is_expert: Any = None,
        expert_action: Any = None,
    ):
        given = (obs, action, reward, terminated, truncated, next_obs, is_expert, expert_action)
        vars(self).update(dataset_checks.checked(dict(zip(COLUMNS, given, strict=True))))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} cannot be set: a TransitionDataset does not change; make another")

    def __deepcopy__(self, memo: Any) -> "TransitionDataset":
        """Itself, since it does not change: components that hold it are written out through copies."""
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(_from_document)

    def __len__(self) -> int:
        return len(self.reward)

    def __repr__(self) -> str:
        return f"TransitionDataset(rows={self.rows}, episodes={self.episodes}, digest={self.digest[:12]!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TransitionDataset) and self.digest == other.digest

    def __hash__(self) -> int:
        return int(self.digest[:15], 16)

    @functools.cached_property
    def digest(self) -> str:
        """The sha256 of the columns, in hex: of their names, types, shapes and bytes."""
        state = hashlib.sha256()
        for name, column in self.columns().items():
            state.update(f"{name} {column.dtype.str} {column.shape}\n".encode())
            state.update(column.data)
        return state.hexdigest()

    @property
    def rows(self) -> int:
        """R."""
        return len(self.reward)

    @property
    def episodes(self) -> int:
        """E."""
        return len(self.starts)

    @property
    def discrete(self) -> bool:
        """Whether actions are indices."""
        return self.action.ndim == 1

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """[E] the first row of each episode."""
        return np.flatnonzero(np.concatenate([[True], self.ends[:-1]]))

    @property
    def ends(self) -> np.ndarray:
        """[R] whether an episode ends with the row, for either reason."""
        return self.terminated | self.truncated

    @functools.cached_property
    def episode(self) -> np.ndarray:
        """[R] int32, the number of each row's episode, from 0."""
        return (np.cumsum(self.ends) - self.ends).astype(np.int32)

    @functools.cached_property
    def returns(self) -> np.ndarray:
        """[E] float64, the undiscounted sum of each episode's rewards."""
        return np.add.reduceat(self.reward.astype(np.float64), self.starts)

    @functools.cached_property
    def next_action(self) -> np.ndarray:
        """The action of the next row of the episode, like `action`; NaN (or -1) in its last row."""
        following = np.roll(self.action, -1, axis=0)
        following[self.ends] = unknown(self.action)
        return following

    @functools.cached_property
    def reset_obs(self) -> np.ndarray:
        """[R, D] what the following episode begins with; after the last one, what the first begins with."""
        return self.obs[np.roll(self.starts, -1)][self.episode]

    def columns(self, *derived: str, discount: float | None = None) -> dict[str, np.ndarray]:
        """The stored columns by name, `expert_action` only if any is known: what a program is given as arguments.

        `derived` adds any of "episode", "next_action", "reset_obs" and "return_to_go", which needs the `discount`.
        """
        found = {name: vars(self)[name] for name in COLUMNS if vars(self)[name] is not None}
        for name in derived:
            if name not in DERIVED:
                raise ConfigError(f"dataset column {name!r} does not exist; {nearest(name, DERIVED)}")
            if name != "return_to_go":
                found[name] = getattr(self, name)
            elif discount is None:
                raise ConfigError("discount is not given; return_to_go needs one in [0, 1]")
            else:
                found[name] = self.return_to_go(discount)
        return found

    def return_to_go(self, discount: float) -> np.ndarray:
        """[R] float32: the discounted sum of the rewards from each row to the end of its episode.

        In the world's units, unscaled. What would have come after a time limit is not known and counts as nothing, so
        near the end of a truncated episode the sum is short of the value there.
        """
        if not 0 <= discount <= 1:
            raise ConfigError(f"discount is {discount}; it lies in [0, 1]")
        total, weight = self.reward.astype(np.float64), np.where(self.ends, 0.0, discount)
        longest = int(np.diff(self.starts, append=self.rows).max())
        # Sums over `reach` rows from each, and the weight of what follows them; every pass doubles the reach.
        reach = 1
        while reach < longest:
            total[:-reach] += weight[:-reach] * total[reach:]
            weight[:-reach] *= weight[reach:]
            reach *= 2
        return total.astype(np.float32)

    def check_fits(self, spec: Spec, place: str) -> None:
        """Raise ConfigError, naming `place`, unless observations and actions are those of a world of `spec`."""
        dataset_checks.check_fits(self.obs, self.action, self.expert_action, spec, place)

    def save(self, path: str | Path) -> None:
        """Write one .npz file without pickle, whole or not at all; raises OSError where the disk takes no more."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        meta = {"schema": SCHEMA, "rows": self.rows, "episodes": self.episodes, "digest": self.digest}
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            with partial.open("wb") as handle:
                stored: dict[str, Any] = {"meta": np.array(json.dumps(meta)), **self.columns()}
                np.savez(handle, **stored)
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(partial, path)
            vars(self)["path"] = path
        finally:
            partial.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path) -> "TransitionDataset":
        """What `save` wrote; raises DataError for a file that is missing, torn, altered or of something else."""
        path = Path(path)
        meta, columns = _read(path)
        for name in columns:
            if name not in COLUMNS:
                raise DataError(f"{path} has a column {name!r}; {nearest(name, COLUMNS)}")
        for name in (*REQUIRED, "is_expert"):
            if name not in columns:
                raise DataError(f"{path} has no column {name!r}, so it is not whole; record or export it again")
        try:
            dataset = cls(**columns)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        if dataset.digest != meta.get("digest"):
            raise DataError(f"{path} was altered (its digest is not the recorded one); record or export it again")
        vars(dataset)["path"] = path
        return dataset


def concatenate(*datasets: TransitionDataset) -> TransitionDataset:
    """The episodes of several datasets one after another; raises DataError where they differ in kind or shape."""
    if not datasets:
        raise DataError("there is no dataset to concatenate; give at least one")
    first = datasets[0]
    for position, dataset in enumerate(datasets):
        for name in ("obs", "action"):
            ours, theirs = vars(first)[name], vars(dataset)[name]
            if ours.shape[1:] != theirs.shape[1:] or ours.dtype != theirs.dtype:
                raise DataError(
                    f"dataset {position} has {name} {theirs.dtype}{list(theirs.shape)}, dataset 0 "
                    f"{ours.dtype}{list(ours.shape)}; concatenate datasets of one world"
                )
    columns = {name: np.concatenate([vars(each)[name] for each in datasets]) for name in (*REQUIRED, "is_expert")}
    known = [
        np.full_like(each.action, unknown(each.action)) if each.expert_action is None else each.expert_action
        for each in datasets
    ]
    return TransitionDataset(**columns, expert_action=np.concatenate(known))


def unknown(action: np.ndarray) -> Any:
    """What stands for an unknown action in a column like `action`: NaN, or the index -1."""
    return np.nan if action.ndim > 1 else -1


def _from_document(value):
    """A dataset, or the one saved at a path."""
    if isinstance(value, TransitionDataset):
        return value
    if isinstance(value, str | Path):
        return TransitionDataset.load(value)
    raise DataError(f"a dataset is given as the path of a saved one, not as {type(value).__name__}")


def _read(path):
    """The meta and the columns of a file that `save` wrote."""
    foreign = f"{path} is not of schema {SCHEMA!r}"
    try:
        with zipfile.ZipFile(path) as archive:
            torn = archive.testzip()
        if torn is not None:
            raise DataError(f"{path} is torn or altered ({torn}); record or export it again")
        with np.load(path, allow_pickle=False) as arrays:
            columns = {name: arrays[name] for name in arrays.files}
    except FileNotFoundError:
        raise DataError(f"{path} is missing; check the path") from None
    except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{foreign} ({error}); give a file that TransitionDataset.save wrote") from None
    try:
        meta = json.loads(str(columns.pop("meta")))
    except (KeyError, ValueError):
        meta = None
    if not isinstance(meta, dict) or meta.get("schema") != SCHEMA:
        raise DataError(f"{foreign}; give a file that this version's TransitionDataset.save wrote")
    return meta, columns
