"""The concierge world as an environment class of TRL: each tool a method, the reward from the finished errand."""

import functools
from collections.abc import Mapping
from typing import Any

from perdure.core.errors import ConfigError, PerdureError, told
from perdure.integrations import _dataset, _episodes, _tools
from perdure.integrations._episodes import EnvFactory, EpisodeOutcome
from perdure.worlds.concierge.records import ABORT, Action
from perdure.worlds.concierge.world import Concierge

NATIVE = functools.partial(Concierge, protocol="native")
CLOSED = "The errand is over. Call no further tool."
LATE_CALL, MOST_LATE = 0.01, 5
"""What a call after the end costs, and how many of them do."""


class DriftCallToolEnv:
    """One concierge errand at a time, for GRPOTrainer's `environment_factory`.

    `reset(**row)` poses the errand of a row of EpisodeDatasetAdapter.to_dataset(). A call of a tool is a turn; what
    the method returns is what the model reads next. A model that stops calling tools before it submits has given
    up. After the end calls are refused and cost a little. `get_reward()` is None where the world failed.
    `env_factory` makes the world, with the native protocol.
    """

    def __init__(self, env_factory: EnvFactory = NATIVE):
        self._world = env_factory()
        self._reward = 0.0
        self._info: Mapping[str, Any] = {}
        self._turns = self._late = 0
        self._over, self._fault = True, None

    def reset(self, **row: Any) -> str:
        """Begin the errand of a row; returns what the prompt leaves out: the time, the turns, the language.

        ConfigError where the row lacks a column, was made for another catalogue, or its prompt asks for something
        else than the world does.
        """
        missing = [name for name in _dataset.COLUMNS if name not in row]
        if missing:
            raise ConfigError(
                f"a row lacks {', '.join(missing)}; make the data set with EpisodeDatasetAdapter.to_dataset(), and "
                "leave remove_unused_columns off"
            )
        catalogue = self._world.catalogue.hash
        if row.get("catalogue", catalogue) != catalogue:
            raise ConfigError(f"a row was made for the catalogue {row['catalogue']}, this is {catalogue}; make it anew")
        weights = _episodes.checked_weights(row["language_weights"])
        self._reward, self._info, self._turns, self._late = 0.0, {}, 0, 0
        self._over, self._fault = False, None
        _episodes.pose(self._world, row["stage"], weights)
        try:
            self._world.reset(options=_episodes.task(row["episode_seed"]))
        except PerdureError:
            raise
        except Exception as error:  # As in a step: this episode is missing, the others go on.
            self._fault, self._over = told(error), True
            return ""
        posed = self._world.task
        _dataset.refuse_other_prompt(row, posed.goal.utterance)
        return f"\n(Now: {posed.now}. Turns: {posed.max_turns}. The user speaks {posed.goal.language}.)"

    def get_reward(self) -> float | None:
        """The errand's reward; an errand left open counts as aborted."""
        if not self._over:
            self._step(Action(ABORT.lower()))
        if self._fault is not None:
            return None
        return self._reward - LATE_CALL * min(self._late, MOST_LATE)

    @property
    def world(self) -> Any:
        """The world that the errands are in."""
        return self._world

    @property
    def closed(self) -> bool:
        """Whether no errand is open."""
        return self._over

    @property
    def outcome(self) -> EpisodeOutcome:
        """What came of the last errand."""
        return _episodes.outcome(self.get_reward(), self._info, self._turns, self._fault)

    def _act(self, name: str, arguments: dict[str, Any]) -> str:
        """Carry out a call."""
        if self._over:
            self._late += 1
            return CLOSED
        seen = self._step({"name": name, "arguments": arguments})
        return f"{seen}\n{CLOSED}" if self._over else seen

    def _step(self, action: Any) -> str:
        try:
            seen, reward, self._over, _, info = self._world.step(action)
        except Exception as error:  # Any world may fail in any way, and TRL would tell the model of it and go on.
            self._fault, self._over = told(error), True
            return ""
        self._turns += 1
        if self._over:
            self._reward, self._info = reward, info
        return str(seen)


for _name, _method in _tools.published(DriftCallToolEnv._act).items():
    setattr(DriftCallToolEnv, _name, _method)
