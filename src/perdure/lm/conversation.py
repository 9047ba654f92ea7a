"""What one copy of an environment and the model have said to each other, as tokens that are only appended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from perdure.core.errors import ConfigError
from perdure.lm.prompts import PromptBuilder
from perdure.lm.trajectory import Sampled, Stop, Trajectory, Turn

EVALUATION = -1
"""The lane of greedy evaluations, which share nothing with the lanes that train; several have -1, -2 and so on."""
REPLAYED = -2
"""The lane of rows that a replay added to a batch: nobody takes them for what was just collected."""


@dataclass
class Recorded(Trajectory):
    """A trajectory of one environment copy, as far as it is new.

    What an earlier hand-over held is context here: its mask is False, and its turns are gone.
    """

    lane: int = 0


class Reader(NamedTuple):
    """What turns observations into tokens, and how much of them the model can take."""

    chat: Any
    prompts: PromptBuilder
    context: int
    """Tokens that the model can see."""
    room: int
    """Tokens that an answer may need."""
    append: bool
    """Whether an episode's turns share one trajectory; else each turn is a prompt of its own."""

    def opening(self, observation: Any, earlier: Sequence[tuple[str, str]], lane: int) -> list[int]:
        """The ids of a whole prompt, with as many of the `earlier` exchanges as leave room for an answer.

        Raises ConfigError, with both lengths, where even the bare prompt fills the context.
        """
        kept = list(earlier[-self.prompts.context_turns :]) if self.prompts.context_turns else []
        while True:
            ids = self.chat.prompt(self.prompts.messages(observation, kept, lane))
            if len(ids) + self.room <= self.context or not kept:
                break
            kept = kept[1:]
        if len(ids) >= self.context:
            raise ConfigError(
                f"a prompt has {len(ids)} tokens, the model's context {self.context}; shorten the observation or "
                "the system's text, or use a model with a longer context"
            )
        return ids

    def following(self, trajectory: Trajectory, observation: Any, lane: int) -> list[int] | None:
        """The ids to append after the last answer; None where the context has no room for them and an answer."""
        ended = trajectory.turns[-1].stop is Stop.END
        ids = self.chat.following(self.prompts.text(observation, lane), ended=ended)
        return ids if len(trajectory) + len(ids) + self.room <= self.context else None


class Conversation:
    """The open trajectory of one lane, and those that are closed and not yet handed over."""

    def __init__(self, lane: int):
        self.lane = lane
        self.trajectory: Recorded | None = None
        self.earlier: list[tuple[str, str]] = []
        """What was said in this episode (user, assistant), for prompts that are rendered anew."""
        self._taken = 0
        self._asked = ""
        self._closed: list[Recorded] = []

    def hear(self, observation: Any, reader: Reader, version: int) -> int:
        """Append what the environment says; returns where its tokens begin, 0 for a new trajectory."""
        self._asked = reader.prompts.text(observation, self.lane)
        if self.trajectory is not None and self.trajectory.turns and reader.append:
            ids = reader.following(self.trajectory, observation, self.lane)
            if ids is not None:
                begin = len(self.trajectory)
                self.trajectory.observe(ids)
                return begin
        self.close()
        opening = reader.opening(observation, self.earlier, self.lane)
        self.trajectory = Recorded(lane=self.lane, version=version)
        self.trajectory.observe(opening)
        return 0

    def say(self, sampled: Sampled, text: str, context_turns: int) -> None:
        """Append the model's answer, a turn."""
        assert self.trajectory is not None, "an answer follows a prompt"
        self.trajectory.answer(sampled)
        self.earlier = [*self.earlier, (self._asked, text)][-context_turns:] if context_turns else []

    def settle(self, step: int, reward: float, terminated: bool, truncated: bool) -> None:
        """Note what the environment made of the last answer; an episode's end closes the trajectory."""
        if self.trajectory is None or not self.trajectory.turns:
            return
        turn = self.trajectory.turns[-1]
        turn.step, turn.reward = step, reward
        if terminated or truncated:
            self.trajectory.terminated, self.trajectory.truncated = terminated, truncated and not terminated
            self.begin()

    def begin(self) -> None:
        """A new episode: nothing said before counts."""
        self.close()
        self.earlier = []

    def close(self) -> None:
        """End the open trajectory; the next observation opens another."""
        self._closed += self._new()
        self.trajectory, self._taken = None, 0

    def take(self) -> list[Recorded]:
        """What is new since the last call, oldest first; the open trajectory goes on."""
        handed, self._closed = [*self._closed, *self._new()], []
        self._taken = 0 if self.trajectory is None else len(self.trajectory)
        return handed

    def state(self) -> dict[str, Any]:
        """Everything of it, as JSON values."""
        return {
            "open": None if self.trajectory is None else plain(self.trajectory),
            "closed": [plain(each) for each in self._closed],
            "earlier": [list(pair) for pair in self.earlier],
            "taken": self._taken,
            "asked": self._asked,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave."""
        self.trajectory = None if state["open"] is None else restored(state["open"])
        self._closed = [restored(each) for each in state["closed"]]
        self.earlier = [(user, assistant) for user, assistant in state["earlier"]]
        self._taken, self._asked = state["taken"], state["asked"]

    def _new(self) -> list[Recorded]:
        """The open trajectory with what was handed over as mere context; nothing without a new turn."""
        found, cut = self.trajectory, self._taken
        if found is None or not found.turns or found.turns[-1].start < cut:
            return []
        return [part(found, cut)]


def part(recorded: Recorded, begin: int) -> Recorded:
    """A copy in which only turns from token `begin` on count."""
    return Recorded(
        ids=list(recorded.ids),
        mask=[False] * begin + recorded.mask[begin:],
        logprobs=[0.0] * begin + recorded.logprobs[begin:],
        turns=[turn for turn in recorded.turns if turn.start >= begin],
        terminated=recorded.terminated,
        truncated=recorded.truncated,
        version=recorded.version,
        group=recorded.group,
        lane=recorded.lane,
    )


def plain(recorded: Recorded) -> dict[str, Any]:
    """A trajectory as JSON values; `restored` is the inverse, exactly."""
    values = dict(vars(recorded))
    turns = [[turn.start, turn.end, str(turn.stop), turn.reward, turn.step] for turn in recorded.turns]
    return {**values, "turns": turns, "mask": [int(chosen) for chosen in recorded.mask]}


def restored(values: Mapping[str, Any]) -> Recorded:
    """The trajectory that `plain` described."""
    turns = [Turn(start, end, Stop(stop), reward, step) for start, end, stop, reward, step in values["turns"]]
    return Recorded(**{**values, "turns": turns, "mask": [bool(chosen) for chosen in values["mask"]]})
