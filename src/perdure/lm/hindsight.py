"""Hindsight: what an episode would have been worth had its outcome been the aim.

Two kinds. `relabel_episode` and `HERBuffer` clamp the reward at the end of an episode from below, which is
what the published language backends call hindsight; no goal takes part in it. `GoalRelabeler` is hindsight
experience replay proper (Andrychowicz et al., 2017, arXiv:1707.01495) for worlds that can say which goal an
outcome reaches and what it is worth under another goal.
"""

# pyright: strict

import enum
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.core.errors import ConfigError, DataError


class RelabelStrategy(enum.StrEnum):
    """Which rewards of an episode are clamped."""

    FINAL = "final"
    """The last one."""
    FUTURE = "future"
    """The last one, and each earlier one, t of m, with probability 1 / (m - t)."""


class GoalStrategy(enum.StrEnum):
    """Which outcome of an episode stands in for its goal; the paper's names (section 4.5)."""

    FINAL = "final"
    """The last outcome, for every step."""
    FUTURE = "future"
    """For each step an outcome of that step or a later one, uniformly."""
    EPISODE = "episode"
    """For each step any outcome of the episode, uniformly."""


class Remembered(NamedTuple):
    """A sample that was admitted: whatever the batch held for it, and the relabelled reward."""

    tokens: Any
    reward: float


class Relabelled(NamedTuple):
    """An episode under substitute goals: one goal and one reward a step."""

    goals: list[Any]
    rewards: list[float]


def relabel_episode(
    rewards: Sequence[float],
    *,
    success_reward: float,
    strategy: RelabelStrategy = RelabelStrategy.FINAL,
    rng: random.Random | None = None,
) -> list[float]:
    """A copy of one episode's rewards, its last reward at least `success_reward`.

    Under FUTURE each earlier reward, number t of m counted from 0, is clamped the same way with probability
    1 / (m - t), so that an episode of 4 has 1/4 + 1/3 + 1/2 + 1 = 25/12 clamps on average. Without `rng` the
    draws come from a generator seeded with 0: the same for every call. An empty episode stays empty.
    """
    relabelled = [float(reward) for reward in rewards]
    count = len(relabelled)
    if strategy == RelabelStrategy.FUTURE:
        rng = rng or random.Random(0)
        for position in range(count - 1):
            if rng.random() < 1 / (count - position):
                relabelled[position] = max(relabelled[position], success_reward)
    if relabelled:
        relabelled[-1] = max(relabelled[-1], success_reward)
    return relabelled


class HERBuffer:
    """A first-in-first-out store of samples whose relabelled reward passes a threshold.

    `capacity` -1 stores nothing, 0 means one slot. A sample is admitted if its relabelled reward is strictly
    above `admission_threshold`; one whose reward is missing (NaN, a faulted episode) never is, nor does its
    episode get a success it may not have had.
    """

    def __init__(
        self,
        capacity: int,
        admission_threshold: float = 0.0,
        success_reward: float = 0.5,
        strategy: RelabelStrategy = RelabelStrategy.FINAL,
        *,
        seed: int = 0,
    ):
        if capacity < -1:
            raise ConfigError(f"capacity is {capacity}; give a number of samples, or -1 to store none")
        for name, value in (("admission_threshold", admission_threshold), ("success_reward", success_reward)):
            if math.isnan(value):
                raise ConfigError(f"{name} is {value}; it must be a number")
        self.capacity, self.admission_threshold = capacity, admission_threshold
        self.success_reward, self.strategy = success_reward, RelabelStrategy(strategy)
        self._rng = random.Random(seed)
        self._samples: deque[Remembered] = deque(maxlen=max(capacity, 1))

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[Remembered]:
        return iter(self._samples)

    @property
    def enabled(self) -> bool:
        """Whether anything is stored at all."""
        return self.capacity >= 0

    def add(self, batch: Any) -> int:
        """Relabel a batch and store what passes; returns how many samples did.

        `batch` has `tokens` and `rewards`, one entry a sample, and `episode_lengths`. Lengths that are missing
        or do not add up to the batch make it one episode.
        """
        if not self.enabled:
            return 0
        tokens, rewards = list(batch.tokens), [float(reward) for reward in batch.rewards]
        if len(tokens) != len(rewards):
            raise DataError(f"a batch of {len(tokens)} samples and {len(rewards)} rewards; give one reward a sample")
        admitted = 0
        for begin, end in episodes(getattr(batch, "episode_lengths", None), len(rewards)):
            for sample, reward in zip(tokens[begin:end], self._relabelled(rewards[begin:end]), strict=True):
                if reward > self.admission_threshold:
                    self._samples.append(Remembered(sample, reward))
                    admitted += 1
        return admitted

    def extend(self, samples: Iterable[Remembered]) -> None:
        """Store samples that are relabelled already, whatever their rewards."""
        if self.enabled:
            self._samples.extend(samples)

    def sample(self, count: int) -> list[Remembered]:
        """At most `count` distinct samples, uniformly; fewer if fewer are stored."""
        return self._rng.sample(list(self._samples), min(max(count, 0), len(self._samples)))

    def state(self) -> dict[str, Any]:
        """The stored samples and the generator, as plain values."""
        version, words, gauss = self._rng.getstate()
        samples = [[sample.tokens, sample.reward] for sample in self._samples]
        return {"samples": samples, "rng": [version, list(words), gauss]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave; the capacity is this buffer's own."""
        self._samples.clear()
        self._samples.extend(Remembered(tokens, float(reward)) for tokens, reward in state["samples"])
        version, words, gauss = state["rng"]
        self._rng.setstate((version, tuple(words), gauss))

    def _relabelled(self, rewards: list[float]) -> list[float]:
        if any(math.isnan(reward) for reward in rewards):
            return rewards
        return relabel_episode(rewards, success_reward=self.success_reward, strategy=self.strategy, rng=self._rng)


class GoalRelabeler:
    """Episodes seen again as if what they reached had been asked for (arXiv:1707.01495, algorithm 1).

    `goal_reward(achieved, goal) -> float` is the world's reward for reaching `achieved` when `goal` was asked
    for; `achieved_goal(info)` reads what a step reached from its info, None where it reached nothing that
    could be asked for. Both may be a world's own methods (`of_world`).
    """

    def __init__(
        self,
        goal_reward: Callable[[Any, Any], float],
        achieved_goal: Callable[[Mapping[str, Any]], Any] | None = None,
        *,
        strategy: GoalStrategy = GoalStrategy.FUTURE,
        copies: int = 1,
        seed: int = 0,
    ):
        if copies < 1:
            raise ConfigError(f"copies is {copies}; an episode is relabelled at least once")
        self.goal_reward = goal_reward
        self.achieved_goal: Callable[[Mapping[str, Any]], Any] = achieved_goal or _achieved
        self.strategy, self.copies = GoalStrategy(strategy), copies
        self._rng = random.Random(seed)

    @classmethod
    def of_world(cls, env: Any, **options: Any) -> "GoalRelabeler":
        """A relabeler by a world's `goal_reward` and `achieved_goal`, found through its wrappers.

        Raises ConfigError where the world offers no `goal_reward`.
        """
        from perdure.core.capabilities import capability

        goal_reward = capability(env, "goal_reward")
        if goal_reward is None:
            raise ConfigError(
                f"{type(env).__name__} offers no goal_reward(achieved, goal), so no outcome can stand in for its "
                "goal; add it, or use the clamping of lm/her"
            )
        return cls(goal_reward, capability(env, "achieved_goal"), **options)

    def relabel(self, achieved: Sequence[Any]) -> list[Relabelled]:
        """`copies` versions of one episode, given what each step achieved (None: nothing).

        A step with no outcome to choose among keeps the goal None, and a reward of NaN: it is to be left out.
        """
        return [self._version(achieved) for _ in range(self.copies)]

    def _version(self, achieved: Sequence[Any]) -> Relabelled:
        goals = [self._goal(achieved, position) for position in range(len(achieved))]
        rewards = [
            math.nan if goal is None or outcome is None else float(self.goal_reward(outcome, goal))
            for outcome, goal in zip(achieved, goals, strict=True)
        ]
        return Relabelled(goals, rewards)

    def _goal(self, achieved: Sequence[Any], position: int) -> Any:
        begin = position if self.strategy == GoalStrategy.FUTURE else 0
        reached = [goal for goal in achieved[begin:] if goal is not None]
        if not reached:
            return None
        return reached[-1] if self.strategy == GoalStrategy.FINAL else self._rng.choice(reached)

    def state(self) -> dict[str, Any]:
        """The generator, as plain values."""
        version, words, gauss = self._rng.getstate()
        return {"rng": [version, list(words), gauss]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave."""
        version, words, gauss = state["rng"]
        self._rng.setstate((version, tuple(words), gauss))


def episodes(lengths: Sequence[int] | None, rows: int) -> list[tuple[int, int]]:
    """The rows [begin, end) of every episode; lengths that do not add up to `rows` make all rows one episode."""
    known = [int(length) for length in lengths] if lengths is not None else []
    if sum(known) != rows or any(length < 1 for length in known):
        known = [rows] if rows else []
    return [(end - length, end) for end, length in zip(itertools.accumulate(known), known, strict=True)]


def _achieved(info: Mapping[str, Any]) -> Any:
    return info.get("achieved_goal")
