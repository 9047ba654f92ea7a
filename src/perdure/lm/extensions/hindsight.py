"""Hindsight replay beside any backend with a critic: answers relabelled by success, or by goals that were reached."""

import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.lm import off_policy
from perdure.lm.batch import TokenBatch
from perdure.lm.conversation import EVALUATION, REPLAYED, Recorded, plain, restored
from perdure.lm.extensions.base import at_least, fresh, named, refuse_without_critic, with_rows
from perdure.lm.hindsight import GoalRelabeler, GoalStrategy, HERBuffer, RelabelStrategy, Remembered
from perdure.lm.hooks import Hooks
from perdure.lm.trajectory import Turn

CORRECTIONS = ("vtrace", "none")


@component
class Hindsight:
    """Old answers as if they had succeeded: clamped at an episode's end, or judged by what they did reach.

    Without `goal_reward` rewards are clamped (`lm.hindsight.relabel_episode`); with it every step of an episode is seen
    under a goal that the episode reached (Andrychowicz et al., 2017, arXiv:1707.01495). `correction` vtrace learns from
    relabelled answers by a loss of their own, weighted for the policy's change; none mixes as many as were collected
    into the batch, as published backends do.
    """

    capacity: int = 512
    """Answers remembered; 0 is one, -1 none."""
    admission_threshold: float = 0.0
    """The relabelled reward that an answer must exceed."""
    success_reward: float = 0.5
    strategy: RelabelStrategy = RelabelStrategy.FINAL
    correction: str = "vtrace"
    """vtrace or none."""
    weight: float = 1.0
    """vtrace: weight of the loss."""
    rows: int = 8
    """vtrace: remembered answers that an optimiser step sees."""
    goal_reward: str = ""
    """"module:function" of (achieved, goal) -> reward; what was achieved is info["achieved_goal"]."""
    goal_prompt: str = ""
    """"module:function" of (observation, goal) -> the observation that asks for that goal."""
    goals: GoalStrategy = GoalStrategy.FUTURE
    copies: int = 1
    """Goals that each episode is seen under."""
    seed: int = 0

    def __post_init__(self):
        at_least(self, capacity=-1, weight=0, rows=1, copies=1)
        if self.correction not in CORRECTIONS:
            raise ConfigError(f"correction is {self.correction!r}; it is one of {', '.join(CORRECTIONS)}")
        if bool(self.goal_reward) != bool(self.goal_prompt):
            raise ConfigError("goal_reward and goal_prompt go together: a goal must be both judged and asked for")

    def build(self, policy: Any = None) -> "HindsightReplay":
        """The part itself."""
        reward, prompt = named(self.goal_reward, "goal_reward"), named(self.goal_prompt, "goal_prompt")
        relabeler = None
        if reward is not None:
            relabeler = GoalRelabeler(reward, strategy=self.goals, copies=self.copies, seed=self.seed)
        return HindsightReplay(self, relabeler, prompt)


class Step(NamedTuple):
    """What one answer was given to, what came of it, and whether its episode ended with it."""

    observation: Any
    achieved: Any
    ended: bool


class HindsightReplay(Hooks):
    """A store of relabelled answers, and the steps of each lane that wait for their answers' rows."""

    name = "hindsight"

    def __init__(self, config: Hindsight, relabeler: GoalRelabeler | None = None, goal_prompt: Any = None):
        self.config, self.relabeler, self._goal_prompt = config, relabeler, goal_prompt
        self.buffer = HERBuffer(
            config.capacity, config.admission_threshold, config.success_reward, config.strategy, seed=config.seed
        )
        self._asked: dict[int, Any] = {}
        self._steps: dict[int, deque[Step]] = {}
        self._known = 0
        self._admitted = 0

    def begin(self, backend: Any) -> None:
        """Refused where relabelled answers would have nothing to be compared with."""
        refuse_without_critic(backend, self.name, "train with lm/ppo or lm/her")

    def see(self, observation: Any, lane: int = 0) -> None:
        """What the coming answer is given to."""
        self._asked[lane] = observation

    def observe(self, observation: Any, reward: float, info: Mapping[str, Any], lane: int = 0, *, ended: bool) -> None:
        """What the answer achieved."""
        if self.relabeler is not None and lane > EVALUATION and lane in self._asked:
            step = Step(self._asked[lane], self.relabeler.achieved_goal(info), ended)
            self._steps.setdefault(lane, deque()).append(step)

    def batch(self, backend: Any, batch: TokenBatch) -> TokenBatch:
        """Relabel and store what was collected; without correction, mix in as many of earlier updates."""
        self._known = len(self.buffer)
        samples = [row for row in batch.tokens if row.lane != REPLAYED]
        if self.relabeler is None:
            self._admitted = self.buffer.add(_Samples(samples, _lengths(batch, len(samples))))
        else:
            self._admitted = sum(self._admit(backend, lane, samples) for lane in sorted(self._steps))
        if self.config.correction == "vtrace" or not self._known:
            return batch
        return with_rows(batch, [relabelled(*each) for each in self.buffer.sample(len(fresh(batch)))])

    def penalty(self, backend: Any) -> Tensor | None:
        """The corrected loss on relabelled answers; nothing until an earlier update has left some."""
        if self.config.correction != "vtrace" or not self._known:
            return None
        rows = [relabelled(*each) for each in self.buffer.sample(self.config.rows)]
        coefficient = backend.settings.value_coef
        found = off_policy.losses(backend.score(TokenBatch(tuple(rows))), rows, gamma=1.0, lam=1.0)
        return self.config.weight * (found.policy + coefficient * found.critic)

    def metrics(self) -> Mapping[str, float]:
        """How many answers were admitted at the last update, and how many are remembered."""
        return {"admitted": float(self._admitted), "remembered": float(len(self.buffer))}

    def state(self) -> dict[str, Any]:
        """The store, the waiting steps and random numbers."""
        kept = self.buffer.state()
        return {
            "buffer": {**kept, "samples": [[plain(row), reward] for row, reward in kept["samples"]]},
            "relabeler": self.relabeler.state() if self.relabeler is not None else {},
            "asked": {str(lane): each for lane, each in self._asked.items() if lane > EVALUATION},
            "steps": {str(lane): [list(step) for step in steps] for lane, steps in self._steps.items()},
            "known": self._known,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave."""
        samples = [[restored(row), reward] for row, reward in state["buffer"]["samples"]]
        self.buffer.load({**state["buffer"], "samples": samples})
        if self.relabeler is not None:
            self.relabeler.load(state["relabeler"])
        self._asked = {int(lane): each for lane, each in state["asked"].items()}
        self._steps = {int(lane): deque(Step(*step) for step in steps) for lane, steps in state["steps"].items()}
        self._known = int(state["known"])

    def _admit(self, backend: Any, lane: int, samples: Sequence[Recorded]) -> int:
        """Store one lane's answers under goals that their episodes reached; how many passed the threshold."""
        rows = [row for row in samples if row.lane == lane]
        steps = [self._steps[lane].popleft() for _ in range(min(len(rows), len(self._steps[lane])))]
        found: list[Recorded] = []
        begin = 0
        for position, step in enumerate(steps):
            if step.ended or position == len(steps) - 1:
                found += self._seen_again(backend.policy, rows[begin : position + 1], steps[begin : position + 1])
                begin = position + 1
        passing = [row for row in found if row.turns[0].reward > self.config.admission_threshold]
        self.buffer.extend([Remembered(row, row.turns[0].reward) for row in _scored(backend, passing)])
        return len(passing) if self.buffer.enabled else 0

    def _seen_again(self, policy: Any, rows: Sequence[Recorded], steps: Sequence[Step]) -> list[Recorded]:
        assert self.relabeler is not None, "goals are there"
        found: list[Recorded] = []
        for version in self.relabeler.relabel([step.achieved for step in steps]):
            for row, step, goal, reward in zip(rows, steps, version.goals, version.rewards, strict=True):
                if not math.isnan(reward):
                    asked = policy.reader.opening(self._goal_prompt(step.observation, goal), (), row.lane)
                    found.append(_asked_anew(row, asked, reward))
        return found


class _Samples(NamedTuple):
    """What HERBuffer reads of a batch."""

    tokens: Sequence[Recorded]
    episode_lengths: Sequence[int] | None

    @property
    def rewards(self) -> list[float]:
        return [row.turns[0].reward for row in self.tokens]


def _lengths(batch: TokenBatch, count: int) -> list[int] | None:
    """The episodes of the first `count` samples; replayed ones stand behind them."""
    if batch.episode_lengths is None:
        return None
    ends = list(itertools.accumulate(batch.episode_lengths))
    return [length for length, end in zip(batch.episode_lengths, ends, strict=True) if end <= count]


def relabelled(row: Recorded, reward: float) -> Recorded:
    """A copy of a row of one turn, with another reward, as a whole episode that a replay brought."""
    copy = restored(plain(row))
    copy.turns[0].reward, copy.lane, copy.terminated, copy.truncated = reward, REPLAYED, True, False
    return copy


def _asked_anew(row: Recorded, prompt: Sequence[int], reward: float) -> Recorded:
    """The same answer to another prompt; its log-probabilities are to be found out."""
    turn = row.turns[0]
    found = Recorded(lane=row.lane, version=row.version, group=row.group)
    found.observe(prompt)
    ids = row.ids[turn.start : turn.end]
    found.ids, found.mask = [*found.ids, *ids], [*found.mask, *row.mask[turn.start : turn.end]]
    found.logprobs = [*found.logprobs, *([0.0] * len(ids))]
    found.turns = [Turn(len(prompt), len(found.ids), turn.stop, reward, turn.step)]
    return found


def _scored(backend: Any, rows: Sequence[Recorded]) -> Sequence[Recorded]:
    """The rows with the present policy's log-probabilities as those of the policy that answered."""
    if rows:
        with torch.no_grad():
            logprobs_BT = backend.score(TokenBatch(tuple(rows))).logprobs_BT
        for row, logprobs_T in zip(rows, logprobs_BT, strict=True):
            row.logprobs = [each if chosen else 0.0 for each, chosen in zip(logprobs_T.tolist(), row.mask)]
    return rows
