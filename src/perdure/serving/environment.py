"""The concierge world as an OpenEnv environment: one episode at a time, public as far as the agent sees."""

import secrets
import uuid
from collections.abc import Mapping
from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import EnvironmentMetadata, State

from perdure.serving import rubric, tasks
from perdure.serving.messages import ConciergeAction, ConciergeObservation, ConciergeOpening, ResetOptions
from perdure.serving.refusals import NoEpisode
from perdure.worlds.concierge.records import MAX_TURNS
from perdure.worlds.concierge.world import Concierge

NAME = "concierge"
CLOSED = "this session was closed, or idle for too long; open another one"


class ConciergeEnvironment(Environment[ConciergeAction, ConciergeObservation, State]):
    """`params`, `protocol` and `terse` are the world's; a reset may change stage and languages for its episode.

    `reset(seed=n)` poses the task that `Concierge(params).reset(seed=n)` poses, `reset(split=..., index=...)` a task of
    `tasks`. Rewards are 0 until the end.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, params: Mapping[str, float] | None = None, protocol: str = "json", terse: bool = False):
        super().__init__(rubric=rubric.Reward())
        self._world = Concierge(params, protocol=protocol, terse=terse)
        self._state = State()
        self._most_turns, self._open, self._closed = 0, False, False

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> ConciergeOpening:
        """Begin an episode; see ResetOptions for what else may be asked for."""
        return self.begin(ResetOptions.model_validate({"seed": seed, "episode_id": episode_id, **options}))

    def begin(self, asked: ResetOptions) -> ConciergeOpening:
        """Begin the episode that is asked for; the seed of a lane that is drawn here stands in the metadata."""
        if self._closed:
            raise NoEpisode(CLOSED)
        if asked.split is not None and asked.index is not None:
            served = tasks.task(asked.split, asked.index)
            regime = {**asked.regime(), "stage": served.stage}
            wanted: dict[str, Any] = {"options": {"task": {"seed": served.seed}}}
            posed: dict[str, Any] = {"task": served.id}
        else:
            seed = secrets.randbelow(2**32) if asked.seed is None else asked.seed
            regime, wanted, posed = asked.regime(), {"seed": seed}, {"seed": seed}
        self._world.set_regime(regime)
        self._open = False  # Whatever could be refused was; the episode before is over.
        text, _ = self._world.reset(**wanted)
        self._reset_rubric()
        self._state = State(episode_id=asked.episode_id or uuid.uuid4().hex)
        self._most_turns = MAX_TURNS[self._world.task.stage]
        self._open = True
        return ConciergeOpening(
            text=text,
            turn=0,
            budget_remaining=self._most_turns,
            tools=self._world.tools(),
            metadata={**posed, "max_turns": self._most_turns},
        )

    def step(self, action: ConciergeAction, timeout_s: float | None = None, **options: Any) -> ConciergeObservation:
        """One turn; it takes no time to speak of, and `timeout_s` changes nothing."""
        if not self._open:
            raise NoEpisode(CLOSED if self._closed else "no episode is under way; reset first")
        text, _, over, _, info = self._world.step(action.said())
        self._open = not over
        turn = self._state.step_count + 1
        self._state = State(episode_id=self._state.episode_id, step_count=turn)
        metadata = {"action_valid": info["action_valid"], **(_outcome(info) if over else {})}
        seen = ConciergeObservation(
            text=text, turn=turn, budget_remaining=self._most_turns - turn, done=over, metadata=metadata
        )
        seen.reward = self._apply_rubric(action, seen)
        return seen

    # Without these two OpenEnv runs each session in a thread of its own. Turns take a tenth of a millisecond and resets
    # one to three, less than threads that wait for Python's global lock lose.
    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **options: Any
    ) -> ConciergeOpening:
        """The same as `reset`."""
        return self.reset(seed, episode_id, **options)

    async def step_async(
        self, action: ConciergeAction, timeout_s: float | None = None, **options: Any
    ) -> ConciergeObservation:
        """The same as `step`."""
        return self.step(action)

    @property
    def state(self) -> State:
        """The episode's name and its number of turns, and nothing that the agent does not see."""
        return self._state

    def full_state(self) -> dict[str, Any]:
        """The task with all that is hidden, and what was done: for those who run the server."""
        if self._state.episode_id is None:
            raise NoEpisode("no episode was begun; reset first")
        return {**self._state.model_dump(), "task": _plain(self._world.task), "world": self._world.get_state()}

    def get_metadata(self) -> EnvironmentMetadata:
        """What the environment is called and does."""
        from importlib import metadata

        return EnvironmentMetadata(
            name=NAME,
            description="Errands for users in India with vendors whose contracts drift while the agent works.",
            version=metadata.version("perdure"),
            author="The perdure developers",
            documentation_url="https://perdure.readthedocs.io",
        )

    def close(self) -> None:
        """End the episode for good."""
        self._open, self._closed = False, True

    def list_splits(self) -> list[dict[str, str]]:
        """The splits of OpenEnv's task API."""
        return tasks.splits()

    def num_tasks(self, split: str) -> int:
        """How many tasks a split has."""
        return tasks.count(split)

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """The first tasks of a split."""
        return tasks.between(split)

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """One task; NoTask, an IndexError, where there is none."""
        return tasks.task(split, index)._asdict()

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        """Tasks from `start` to before `stop`."""
        return tasks.between(split, start, stop)


def _outcome(info: Mapping[str, Any]) -> dict[str, Any]:
    """How an errand ended and by which measures, without naming what drifted."""
    return {
        "success": info["success"],
        "ended": info["trace"]["ended"],
        "reward_components": {name: info["breakdown"][name] for name in rubric.MEASURES},
    }


def _plain(value: Any) -> Any:
    """Records within records as JSON values."""
    if isinstance(value, tuple) and (fields := getattr(value, "_fields", ())):
        value = dict(zip(fields, value, strict=True))
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value
