"""Data sets of prompts as worlds see them: rows from a file, a factory or a list, one for each episode of a lane."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from perdure.core import registry, seeds
from perdure.core.errors import ConfigError, DataError

Row = Mapping[str, Any]
PROMPT = "prompt"
"""The column that is asked: text, or a list of messages with "role" and "content"."""


class Rows:
    """Rows to ask, and which of them comes when: row (n, k) is drawn from them by lane n and episode k alone.

    `source` is a list of mappings, a file of JSON lines, or "package.module:factory" (a function without
    arguments that returns such a list). Every row needs the column "prompt". `choose(params)` keeps to the
    rows whose columns equal the parameters of a regime.
    """

    def __init__(self, source: Sequence[Row] | str | Path, place: str):
        self.all = _read(source, place)
        self.place, self.chosen = place, list(range(len(self.all)))
        for number, row in enumerate(self.all):
            if not isinstance(row, Mapping) or not isinstance(row.get(PROMPT), str | list):
                raise DataError(f"{place}: row {number} has no {PROMPT!r}; give each text or a list of messages there")
            rendered(row[PROMPT], f"{place}: row {number}")
        self._seed: int | None = None
        self._episode = -1

    def fitting(self, params: Mapping[str, float]) -> list[int]:
        """The numbers of the rows whose column of each name has that value; ConfigError where there are none."""
        found = [
            number
            for number, row in enumerate(self.all)
            if all(name in row and row[name] == value for name, value in params.items())
        ]
        if not found:
            raise ConfigError(f"{self.place}: no row has {dict(params)}; a regime's parameters are columns of the rows")
        return found

    def choose(self, params: Mapping[str, float]) -> None:
        """Ask only rows that fit `params` from the next episode on."""
        self.chosen = self.fitting(params)

    def begin(self, seed: int) -> None:
        """Start lane `seed`."""
        self._seed, self._episode = seed, -1

    @property
    def begun(self) -> bool:
        """Whether a lane has been started."""
        return self._seed is not None

    def following(self) -> int:
        """The number of the next episode's row."""
        assert self._seed is not None, "begin before following"
        self._episode += 1
        return self.chosen[seeds.stream(self._seed, "world", self._episode) % len(self.chosen)]

    def at(self, task: Any) -> int:
        """The number of the row that a task {"index": n} names."""
        index = cast("Row", task).get("index") if isinstance(task, Mapping) else None
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(self.all):
            raise ConfigError(f'{self.place}: the task is {task!r}; give {{"index": n}}, n below {len(self.all)}')
        return index

    def state(self) -> dict[str, Any]:
        """What `following` depends on, as JSON values."""
        return {"rows": len(self.all), "chosen": list(self.chosen), "seed": self._seed, "episode": self._episode}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was asked; DataError where there were other rows."""
        if state.get("rows") != len(self.all):
            raise DataError(
                f"{self.place}: this state is of {state.get('rows')} rows, not of {len(self.all)}; use the run's own"
            )
        self.chosen, self._seed, self._episode = list(state["chosen"]), state["seed"], state["episode"]


def rendered(prompt: str | Sequence[Mapping[str, Any]], place: str) -> str:
    """A prompt as one text: itself, the one message's content, or every message after its role; else DataError."""
    if isinstance(prompt, str):
        return prompt
    for message in prompt:
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
            raise DataError(f'{place}: {message!r} is no message; give "role" and "content", both text')
    if len(prompt) == 1:
        return prompt[0]["content"]
    return "\n".join(f"{message.get('role', 'user')}: {message['content']}" for message in prompt)


def _read(source: Sequence[Row] | str | Path, place: str) -> list[Row]:
    if isinstance(source, str) and ":" in source and not Path(source).exists():
        source = registry.load(source, place)()
    if isinstance(source, str | Path):
        try:
            lines = Path(source).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{place}: {source} cannot be read ({error}); give a file of JSON lines") from error
        source = [_parsed(line, f"{place}: {source}, line {number}") for number, line in enumerate(lines, 1) if line]
    rows = list(source)
    if not rows:
        raise DataError(f"{place} is empty; a world needs at least one row to ask")
    return rows


def _parsed(line: str, place: str) -> Row:
    try:
        return json.loads(line)
    except ValueError as error:
        raise DataError(f"{place} is no JSON ({error}); write one object a line") from error
