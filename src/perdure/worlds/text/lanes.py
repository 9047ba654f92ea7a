"""What worlds that are determined by their reset seed share: lanes of episodes, named tasks, forks, states."""

from collections.abc import Mapping
from typing import Any, Self

import gymnasium

from perdure.core.errors import ConfigError, DataError


class LaneWorld(gymnasium.Env):
    """`reset(seed=n)` begins lane n, whose k-th episode depends on (n, k) and the regime alone; `reset()` goes on.

    `reset(options={"task": {task_key: i}})` asks for a task by its number without leaving one's own lane. A world
    gives `name`, `task_key`, `_kwargs` (what it was built with), `get_state` and `set_state`.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium declares it so)
    name: str
    """Its id in documents."""
    task_key: str
    """The one key of a named task."""
    _kwargs: dict[str, Any]

    def __init__(self):
        self._seed: int | None = None
        self._episode = -1

    def begin(self, seed: int | None, options: Mapping[str, Any] | None) -> int | None:
        """Begin or go on with a lane, after Gymnasium's own reset; the number of a task that `options` name, if any."""
        gymnasium.Env.reset(self, seed=seed)
        if seed is not None:
            self._seed, self._episode = int(seed), -1
        elif self._seed is None:
            self._seed = int(self.np_random.integers(2**32))
        task = (options or {}).get("task")
        if task is None:
            self._episode += 1
            return None
        number = task.get(self.task_key) if isinstance(task, Mapping) and len(task) == 1 else None
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ConfigError(f'{self.name}: the task is {task!r}; give {{"{self.task_key}": n}} with n from 0 up')
        return number

    def fork(self) -> Self:
        """A world of its own that stands where this one does."""
        other = type(self)(**self._kwargs)
        other.set_state(self.get_state())
        return other

    def get_state(self) -> dict[str, Any]:
        """Everything that `reset` and `step` depend on, as JSON values; a world adds its own."""
        return {"world": repr(self), "seed": self._seed, "episode": self._episode}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `get_state` was asked; DataError for the state of another world."""
        if state.get("world") != repr(self):
            raise DataError(f"this state is of {state.get('world')}, not of {self!r}; use the run's own checkpoint")
        self._seed, self._episode = state["seed"], state["episode"]

    def __str__(self) -> str:
        return f"<{self.name}>"
