"""One conversation as the model saw it: token ids that are only appended, and which of them it chose.

Token in, token out: what was sampled is never decoded and encoded again, so the trainer scores exactly
the tokens of the sampler, in the context in which they were sampled.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from perdure.core.errors import RunFailed


class Stop(enum.StrEnum):
    """Why the model ceased to speak."""

    END = "end"
    """It said its end-of-turn token."""
    STRING = "string"
    """A stop string appeared."""
    JSON = "json"
    """A JSON object was complete."""
    LENGTH = "length"
    """The limit of new tokens was reached."""
    CONTEXT = "context"
    """The model's context is full."""


class Sampled(NamedTuple):
    """One answer of the model."""

    ids: list[int]
    """The chosen tokens, the end-of-turn token included where the model said it."""
    logprobs: list[float]
    """The log-probability of each under the distribution it was drawn from."""
    stop: Stop


@dataclass
class Turn:
    """One answer and what came of it: tokens [start, end) of a trajectory, one environment step."""

    start: int
    end: int
    stop: Stop
    reward: float = 0.0
    """The environment's reward for the answer, credited to its last token."""
    step: int = -1
    """The environment step it was, in the counting of the run."""


@dataclass
class Trajectory:
    """The tokens of one conversation, turn by turn."""

    ids: list[int] = field(default_factory=list[int])
    mask: list[bool] = field(default_factory=list[bool])
    """True exactly where the model chose the token; everything else came from the environment."""
    logprobs: list[float] = field(default_factory=list[float])
    """The sampler's log-probability of each chosen token; 0 elsewhere."""
    turns: list[Turn] = field(default_factory=list[Turn])
    terminated: bool = False
    """The episode ended of itself; no value follows."""
    truncated: bool = False
    """It was cut short, by a limit or a full context; the value of what would follow counts."""
    version: int = 0
    """How many updates the sampling policy had seen."""
    group: int = -1
    """The group of episodes with one start, by which its advantage is measured."""

    def __len__(self) -> int:
        return len(self.ids)

    def observe(self, ids: Sequence[int]) -> None:
        """Append tokens of the environment."""
        self.ids += ids
        self.mask += [False] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def answer(self, sampled: Sampled, step: int = -1) -> Turn:
        """Append an answer as a new turn; RunFailed for an empty one, which no gradient could reach."""
        if not sampled.ids or len(sampled.ids) != len(sampled.logprobs):
            raise RunFailed(
                f"an answer of {len(sampled.ids)} tokens and {len(sampled.logprobs)} log-probabilities; "
                "a sampler gives at least one token, and a log-probability for each"
            )
        start = len(self.ids)
        self.ids += sampled.ids
        self.mask += [True] * len(sampled.ids)
        self.logprobs += sampled.logprobs
        turn = Turn(start, len(self.ids), sampled.stop, step=step)
        self.turns.append(turn)
        return turn

    def opening(self) -> "Trajectory":
        """What of it ends with the first answer."""
        end = self.turns[0].end
        first = {"ids": self.ids[:end], "mask": self.mask[:end], "logprobs": self.logprobs[:end]}
        return replace(self, **first, turns=self.turns[:1], terminated=False, truncated=True)

    @property
    def total(self) -> float:
        """The sum of the turns' rewards."""
        return sum(turn.reward for turn in self.turns)

    def token_rewards(self) -> list[float]:
        """A reward a token: each turn's on its last one, 0 elsewhere."""
        rewards = [0.0] * len(self.ids)
        for turn in self.turns:
            rewards[turn.end - 1] += turn.reward
        return rewards
