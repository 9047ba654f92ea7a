"""Reward functions of TRL's contract over a data set of prompts, as a text world of one turn an episode.

A function is called with lists of one: `prompts`, `completions`, and every other column of the row, as far as
it takes them; it returns one float or None. None means that the function does not apply. A prompt of
messages makes a completion of messages, a text one of text. Token ids and a trainer's state are not known to
a world: a function that insists on `completion_ids`, `trainer_state` and the like is refused.
"""

import asyncio
import copy
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from perdure.core import registry
from perdure.core.errors import ConfigError, PerdureError, RunFailed
from perdure.worlds.text import rows, spaces
from perdure.worlds.text.rows import Row

RewardFunction = Callable[..., Sequence[float | None]]


class Rewards:
    """Several reward functions and their weights; each a function or "package.module:function"."""

    def __init__(self, functions: Sequence[RewardFunction | str], weights: Sequence[float] | None, known: set[str]):
        self.functions = [_loaded(each) for each in functions]
        self.names = _names(self.functions)
        self.weights = [1.0] * len(self.functions) if weights is None else [float(weight) for weight in weights]
        if len(self.weights) != len(self.functions) or not all(map(math.isfinite, self.weights)):
            raise ConfigError(f"weights are {self.weights} for {len(self.functions)} rewards; give each a finite one")
        self._accepted = [_accepted(function, known) for function in self.functions]

    def __call__(self, arguments: Mapping[str, Any]) -> dict[str, float]:
        """The weighted rewards that apply, by name; RunFailed for anything but one number or None."""
        found: dict[str, float] = {}
        for name, function, weight, accepted in zip(
            self.names, self.functions, self.weights, self._accepted, strict=True
        ):
            given = {key: value for key, value in arguments.items() if accepted is None or key in accepted}
            returned = function(**given)
            if inspect.isawaitable(returned):
                returned = asyncio.run(_awaited(returned))
            value = _only(returned, name)
            if value is not None:
                found[name] = weight * value
        return found


class RowWorld(gymnasium.Env):
    """A world whose episodes begin from rows; a regime's parameters choose rows by their columns."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium declares it so)

    def __init__(self, source: Sequence[Row] | str | Path):
        self._rows = rows.Rows(source, "rows")

    def set_regime(self, params: Mapping[str, float]) -> None:
        """Have the next episode begin from the rows whose columns equal `params`."""
        self._rows.choose(params)

    def check_regime(self, params: Mapping[str, float]) -> None:
        """ConfigError where no row fits `params`; changes nothing."""
        self._rows.fitting(params)

    def next_row(self, seed: int | None, options: Mapping[str, Any] | None) -> int:
        """The row of the episode that begins, after Gymnasium's own reset."""
        gymnasium.Env.reset(self, seed=seed)
        if seed is not None or not self._rows.begun:
            self._rows.begin(int(self.np_random.integers(2**32)) if seed is None else seed)
        task = (options or {}).get("task")
        return self._rows.following() if task is None else self._rows.at(task)


class RewardWorld(RowWorld):
    """A row's prompt, one answer, and the weighted sum of what reward functions say of it.

    `rewards` is one function or a list, each callable or "package.module:function"; `rows` as in
    worlds.text.rows. The row of an episode is drawn by (seed of the lane, number of the episode), or named by
    options["task"] = {"index": n}. A regime's parameters choose rows by their columns, {"level": 2} say. Where
    no function applies the reward is NaN: the episode is missing, not worth 0.

    An answer reaches the functions as the model wrote it only where the policy has parse_actions off; else an
    answer with a JSON object arrives as that object, written out.
    """

    def __init__(
        self,
        rewards: RewardFunction | str | Sequence[RewardFunction | str],
        rows: Sequence[Row] | str | Path,
        weights: Sequence[float] | None = None,
    ):
        super().__init__(rows)
        functions = [rewards] if isinstance(rewards, str) or callable(rewards) else list(rewards)
        if not functions:
            raise ConfigError("rewards is empty; give at least one reward function")
        self._rewards = Rewards(functions, weights, _columns(self._rows) | {"prompts", "completions"})
        self.observation_space, self.action_space = spaces.AnyText(), spaces.AnyText()
        self.spec = EnvSpec(id="RewardWorld", entry_point=f"{__name__}:RewardWorld", max_episode_steps=1)
        self._row: int | None = None
        self._open = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The prompt of the next row."""
        self._row, self._open = self.next_row(seed, options), True
        return rows.rendered(self._rows.all[self._row][rows.PROMPT], "rows"), {}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Have the answer judged; the episode ends."""
        if not self._open or self._row is None:
            raise PerdureError("the reward world has no question open; call reset() before step()")
        self._open = False
        found = self._rewards(arguments(self._rows.all[self._row], as_completion(action)))
        reward = sum(found.values()) if found else math.nan
        return "", reward, True, False, {"reward_components": found}

    def fork(self) -> "RewardWorld":
        """A world of its own that stands where this one does; the reward functions are shared."""
        other = copy.copy(self)
        other._rows = copy.copy(self._rows)
        return other

    def get_state(self) -> dict[str, Any]:
        """Everything that `reset` and `step` depend on but the functions' own memory, as JSON values."""
        return {"rows": self._rows.state(), "row": self._row, "open": self._open}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `get_state` was asked; DataError for the state of a world with other rows."""
        self._rows.load(state["rows"])
        self._row, self._open = state["row"], state["open"]


def as_completion(action: Any) -> str:
    """An answer as text; a JSON value written out."""
    return action if isinstance(action, str) else json.dumps(action, default=str)


def arguments(row: Row, completion: str) -> dict[str, Any]:
    """What a reward function is called with: lists of one."""
    messages = not isinstance(row[rows.PROMPT], str)
    said: Any = [{"role": "assistant", "content": completion}] if messages else completion
    columns = {name: [value] for name, value in row.items() if name != rows.PROMPT}
    return {**columns, "prompts": [row[rows.PROMPT]], "completions": [said]}


def _columns(known: rows.Rows) -> set[str]:
    """The columns that every row has."""
    return set.intersection(*({str(name) for name in row} for row in known.all)) - {rows.PROMPT}


def _loaded(function: RewardFunction | str) -> Any:
    loaded: Any = registry.load(function, "rewards") if isinstance(function, str) else function
    if not callable(loaded):
        raise ConfigError(f'rewards: {function!r} is no function; give one, or its "package.module:function"')
    return loaded


def _names(functions: Sequence[RewardFunction]) -> list[str]:
    plain = [getattr(each, "__name__", type(each).__name__) for each in functions]
    return [name if plain.count(name) == 1 else f"{name}_{place}" for place, name in enumerate(plain)]


def _accepted(function: RewardFunction, known: set[str]) -> set[str] | None:
    """The keywords that a function takes, None for all of them; ConfigError for one that it needs and nobody has."""
    parameters = inspect.signature(function).parameters.values()
    for each in parameters:
        required = each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        if required and (each.kind is each.POSITIONAL_ONLY or each.name not in known):
            raise ConfigError(
                f"rewards: {getattr(function, '__name__', function)} needs {each.name!r}, which is none of "
                f"{', '.join(sorted(known))}; give every row such a column, or the argument a default"
            )
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    return {each.name for each in parameters}


async def _awaited(returned: Any) -> Any:
    return await returned


def _only(returned: Any, name: str) -> float | None:
    """The one value of a list of one."""
    try:
        (value,) = returned
        return None if value is None else float(value)
    except (TypeError, ValueError):
        raise RunFailed(
            f"the reward function {name} returned {returned!r:.200}; it must return a list with one number or None "
            "for each completion, here one"
        ) from None
