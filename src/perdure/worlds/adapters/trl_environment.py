"""Environment classes of TRL's contract as text worlds: every public method is a tool that the model may call.

`reset(**row)` begins an episode with a row of the data set and may return text, which is appended to the prompt.
The model calls a tool with a JSON object, {"name": "guess", "arguments": {"letter": "a"}}, of which the first
in its answer counts; what the method returns is the next observation. An answer without a call, or the last
turn, ends the episode. `get_reward()` is asked then; None means that there is no reward, and the episode is missing.
"""

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gymnasium.envs.registration import EnvSpec

from perdure.core import registry
from perdure.core.errors import ConfigError, PerdureError
from perdure.worlds.adapters import reward_function
from perdure.worlds.text import rows, spaces
from perdure.worlds.text.rows import Row

OWN = ("reset", "get_reward")
"""Public methods that are no tools."""


class ToolWorld(reward_function.RowWorld):
    """One instance of a TRL environment class, reused from episode to episode as TRL does.

    `environment` is the class, a factory, or the "package.module:Class" of one. Tools are described to the model
    after the prompt unless `describe` is off. A call of a tool that there is not, or whose arguments do not fit,
    is answered with what is wrong and costs `invalid_cost`. An exception of a type in `refusals` is a tool's way
    to refuse: the model is told its text, at no cost. Any other exception is the environment's failure. `rewards`
    are reward functions beside `get_reward`, or in its place, asked at the last turn; they may take `environments`.
    """

    def __init__(
        self,
        environment: Callable[[], Any] | str,
        rows: Sequence[Row] | str | Path,
        turns: int = 8,
        invalid_cost: float = 0.0,
        describe: bool = True,
        rewards: Sequence[reward_function.RewardFunction | str] = (),
        refusals: tuple[type[Exception], ...] = (ValueError,),
    ):
        if turns < 1:
            raise ConfigError(f"turns is {turns}; an episode has at least one")
        factory = registry.load(environment, "environment") if isinstance(environment, str) else environment
        self.environment = factory()
        self._tools = {name: _Tool(name, method) for name, method in _public(self.environment)}
        super().__init__(rows)
        columns = {str(name) for row in self._rows.all for name in row}
        self._rewards = reward_function.Rewards(rewards, None, columns | {"prompts", "completions", "environments"})
        if not hasattr(self.environment, "get_reward") and not rewards:
            kind = type(self.environment).__name__
            raise ConfigError(f"environment: {kind} has no get_reward(), and rewards is empty; give one of them")
        self._turns, self._cost, self._describe, self._refusals = turns, float(invalid_cost), describe, refusals
        self.observation_space, self.action_space = spaces.AnyText(), spaces.AnyText()
        self.spec = EnvSpec(id="ToolWorld", entry_point=f"{__name__}:ToolWorld", max_episode_steps=turns)
        self._row: Row = {}
        self._turn, self._over = 0, True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The prompt of the next row, what the environment's own reset adds, and the tools."""
        self._row = self._rows.all[self.next_row(seed, options)]
        added = self.environment.reset(**self._row)
        self._turn, self._over = 0, False
        parts = [rows.rendered(self._row[rows.PROMPT], "rows"), _text(added)]
        return "\n".join(part for part in [*parts, self.described() if self._describe else ""] if part), {}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carry out a call, or end the episode."""
        if self._over:
            raise PerdureError("the tool world has no episode open; call reset() before step()")
        call = _call(action)
        self._turn += 1
        said, valid = ("", True) if call is None else self._called(call)
        self._over = call is None or self._turn >= self._turns
        components = {} if valid else {"invalid": -self._cost}
        if self._over:
            components |= self._final(reward_function.as_completion(action))
        info = {"action_valid": valid, "turn": self._turn - 1, "reward_components": components}
        return said, sum(components.values()), self._over, False, info

    def described(self) -> str:
        """The tools in words, and how they are called."""
        tools = "\n".join(tool.described() for tool in self._tools.values())
        return f'Tools:\n{tools}\nCall one as {{"name": ..., "arguments": {{...}}}}; any other answer is the last.'

    def close(self) -> None:
        """Close the environment where it can be closed."""
        close = getattr(self.environment, "close", None)
        if close is not None and "close" not in self._tools:
            close()

    def _called(self, call: Mapping[str, Any]) -> tuple[str, bool]:
        """What a call returns, and whether it was one that the environment knows."""
        tool = self._tools.get(call["name"])
        if tool is None:
            return f"There is no such tool; there are: {', '.join(self._tools)}.", False
        given, problem = tool.arguments(call.get("arguments", {}))
        if given is None:
            return problem, False
        try:
            return _text(tool.method(**given)), True
        except PerdureError:
            raise
        except self._refusals as error:
            return f"Error: {error}", True

    def _final(self, completion: str) -> dict[str, float]:
        """The last turn's reward by its sources; NaN where none of them applies."""
        found = self._rewards({**reward_function.arguments(self._row, completion), "environments": [self.environment]})
        own = self.environment.get_reward() if hasattr(self.environment, "get_reward") else None
        if own is not None:
            found["environment"] = float(own)
        return found or {"environment": math.nan}


class _Tool:
    """A public method, and the arguments that it takes."""

    def __init__(self, name: str, method: Callable[..., Any]):
        self.name, self.method = name, method
        try:
            self._parameters = inspect.signature(method, eval_str=True).parameters
        except NameError as error:
            raise ConfigError(
                f"environment: the annotations of {name} cannot be read ({error}); import them"
            ) from error

    def described(self) -> str:
        """Name, arguments with their types, and the first line of its docstring."""
        told = (inspect.getdoc(self.method) or "").splitlines()[:1]
        taken = ", ".join(map(str, self._parameters.values()))
        return f"- {self.name}({taken})" + "".join(f": {line}" for line in told)

    def arguments(self, given: Any) -> tuple[dict[str, Any] | None, str]:
        """The arguments of a call as their annotations have them, or None and what is wrong."""
        if isinstance(given, str):
            given = spaces.as_object(given)
        if not isinstance(given, Mapping):
            return None, 'The "arguments" must be a JSON object.'
        try:
            inspect.Signature(list(self._parameters.values())).bind(**given)
        except TypeError:
            return None, f"The arguments do not fit; call {self.described()}."
        checked = {name: self._checked(name, value) for name, value in given.items()}
        wrong = [name for name, (_, fits) in checked.items() if not fits]
        if wrong:
            return None, f"The argument {wrong[0]} has a wrong type; call {self.described()}."
        return {name: value for name, (value, _) in checked.items()}, ""

    def _checked(self, name: str, value: Any) -> tuple[Any, bool]:
        """A value as the annotation has it, and whether it fits; an argument without one takes anything."""
        from pydantic import TypeAdapter, ValidationError

        annotation = self._parameters[name].annotation if name in self._parameters else inspect.Parameter.empty
        if annotation is inspect.Parameter.empty:
            return value, True
        try:
            return TypeAdapter(annotation).validate_python(value), True
        except ValidationError:
            return value, False


def _call(action: Any) -> dict[str, Any] | None:
    """The first object of an answer where it names a tool."""
    found = spaces.as_object(action)
    return found if found is not None and isinstance(found.get("name"), str) else None


def _public(environment: Any) -> list[tuple[str, Callable[..., Any]]]:
    methods = inspect.getmembers(environment, inspect.ismethod)
    return [(name, method) for name, method in methods if not name.startswith("_") and name not in OWN]


def _text(returned: Any) -> str:
    """What reset or a tool returned, as text: None is nothing, content blocks give their texts."""
    if returned is None or isinstance(returned, str):
        return returned or ""
    if isinstance(returned, list) and all(isinstance(block, Mapping) and "text" in block for block in returned):
        return "\n".join(str(block["text"]) for block in returned)
    return json.dumps(returned, default=str)
