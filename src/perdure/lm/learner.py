"""The harness's view of group learners: many episodes of a text world played at once, then one update.

A window is all turns of one update, and a row is one answer. An update is never cut: it begins before a
mark and may end beyond it, its episodes keep the regime in force when they began, and rows beyond the
run's last step are trained on but enter no trace (`rollout/overshoot` counts them).
"""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perdure.core import capabilities, seeds
from perdure.core.errors import DataError, Refused, RunFailed
from perdure.core.records import Evaluation, Params, RegimeSchedule, RolloutWindow, Segment, Shift
from perdure.harness import checkpoint, directory, observations, spaces, trials, worldstate
from perdure.harness.host import joined, table
from perdure.harness.trace import JsonlTrace
from perdure.lm import starts
from perdure.lm.groups import GroupBackend, GroupTraining, refuse_improper
from perdure.lm.hooks import Hooks
from perdure.lm.rollout import Episode, comparable, faults, play
from perdure.regimes import schedules


@dataclass
class _Arm:
    """One seed: what trains, its copies of the world, and how far it has come."""

    seed: int
    backend: GroupBackend
    envs: list[Any]
    step: int = 0
    segment: int = -1
    """The segment of the last rows, so that the first of a new one says so."""
    begun: bool = False
    """Whether the worlds that never end have been reset."""
    observations: list[Any] = dataclasses.field(default_factory=list[Any])
    """What each world that never ends shows now."""


class GroupLearner:
    """core.protocols.Learner over groups of episodes; `groups` starts of `group_size` episodes an update.

    A world must be determined by its reset seed, or, where it never ends, offer `fork()`: then each group is the
    present state of a live world acted on by copies for `turns` turns, of which copy 0 is the live one and alone
    enters the trace. Groups of one need neither. Refused where a world offers neither.
    """

    def __init__(
        self,
        training: GroupTraining,
        make_policy: Callable[[int], Any],
        *,
        make_env: Callable[[int], Any],
        hooks: Callable[[int], Sequence[Hooks]] = lambda seed: (),
        groups: int,
        group_size: int,
        controller: Any = None,
    ):
        if training.objective.needs_groups and group_size < 2:
            raise Refused(
                f"rollout.group_size is {group_size}, but {training.objective.advantage} compares the episodes of a "
                "group with one another; use at least 2, or train with lm/reinforce"
            )
        self.training, self._make_policy, self._make_env, self._hooks = training, make_policy, make_env, hooks
        self._groups, self._size, self._controller = groups, group_size, controller
        self._trace: JsonlTrace | None = None
        self._arms: list[_Arm] = []
        self._clock = time.monotonic()
        self.seeds: tuple[int, ...] = ()

    def record_to(self, rows: JsonlTrace) -> None:
        """Have every row written there as its update begins."""
        self._trace = rows

    def provenance(self) -> Mapping[str, Any]:
        """What the first world says of its runs."""
        return capabilities.describe_run(self._arms[0].envs[0]) if self._arms else {}

    def init(self, seeds: tuple[int, ...]) -> list[_Arm]:
        """A fresh policy and fresh worlds for every seed."""
        self.close()
        self.seeds = tuple(seeds)
        self._arms = [self._arm(seed) for seed in self.seeds]
        return self._arms

    def step(self, state: list[_Arm]) -> int:
        """Environment steps that every seed has done."""
        return min(arm.step for arm in state)

    def advance(
        self, state: list[_Arm], schedule: RegimeSchedule, steps: int
    ) -> tuple[list[_Arm], RolloutWindow, dict[str, Any]]:
        """One update of each seed that has not reached the mark; see core.protocols.Learner.advance."""
        mark = self.step(state) + steps
        windows: list[RolloutWindow] = []
        metrics: list[dict[str, float]] = []
        for arm in state:
            due = arm.step < mark
            window, found = self._update(arm, schedule) if due else (RolloutWindow(seed=arm.seed), {})
            windows.append(window)
            metrics.append(found)
        return state, joined(windows), {"step": np.array([self.step(state)]), **table(metrics)}

    def evaluate(self, state: list[_Arm], params: Params | None, episodes: int) -> Evaluation:
        """Greedy episodes, all at once, in fresh worlds seeded by (seed, step, episode)."""
        envs = [self._make_env(lane) for lane in range(episodes)]
        try:
            for env in envs:
                trials.control(env, params, self._controller)
            found = [self._judged(arm, envs) for arm in state]
        finally:
            for env in envs:
                env.close()
        return trials.evaluation(found)._replace(trained=[arm.step for arm in state])

    def on_regime_shift(self, state: list[_Arm], shift: Shift) -> list[_Arm]:
        """Tell every seed's hooks."""
        for arm in state:
            arm.backend.shift(shift.mapping())
        return state

    def save(self, state: list[_Arm], folder: Path) -> None:
        """seed-N/{weights, moments, state}, and groups.json."""
        kept: dict[str, Any] = {"seeds": [arm.seed for arm in state], "arms": []}
        for arm in state:
            place = folder / f"seed-{arm.seed}"
            place.mkdir(parents=True)
            arm.backend.save(place)
            kept["arms"].append(
                {"step": arm.step, "segment": arm.segment, "begun": arm.begun, "worlds": self._worlds(arm)}
                | {"observations": arm.observations}
            )
        directory.write_atomic(folder / "groups.json", json.dumps(checkpoint.encode(kept)).encode())

    def load(self, folder: Path) -> list[_Arm]:
        """The state that `save` wrote; DataError for another program's checkpoint."""
        kept = checkpoint.decode(checkpoint.read_json(folder / "groups.json"))
        for arm, saved in zip(self.init(tuple(kept["seeds"])), kept["arms"], strict=True):
            arm.backend.load(folder / f"seed-{arm.seed}")
            arm.step, arm.segment, arm.begun = saved["step"], saved["segment"], saved["begun"]
            arm.observations = saved["observations"]
            for env, world in zip(arm.envs, saved["worlds"], strict=False):
                env.reset(seed=0)
                worldstate.write(env, world)
        return self._arms

    def export(self, state: list[_Arm], folder: Path) -> dict[str, Any]:
        """Model, tokenizer and value head of each seed, under seed-N."""
        for arm in state:
            arm.backend.policy.save(folder / f"seed-{arm.seed}")
        env = state[0].envs[0]
        return {
            "kind": "language policy",
            "seeds": [arm.seed for arm in state],
            "spaces": {name: spaces.as_json(getattr(env, f"{name}_space")) for name in ("observation", "action")},
        }

    def policy(self, state: list[_Arm], position: int) -> Callable[[Any], Any]:
        """The greedy policy of one seed."""
        return state[position].backend.policy.act_greedy

    def close(self) -> None:
        """Close all worlds; a second call does nothing."""
        for arm in self._arms:
            for env in arm.envs:
                env.close()
        self._arms = []

    def _arm(self, seed: int) -> _Arm:
        policy = self._make_policy(seed)
        policy.seed(seeds.stream(seed, "policy"))
        backend = GroupBackend(self.training, policy, self._hooks(seed), seed)
        first = self._make_env(0)
        refuse_improper(self.training, first)
        endless = starts.is_endless(first)
        if endless and self._size > 1 and capabilities.capability(first, "fork") is None:
            raise Refused(
                f"{first} never ends and offers no fork(), so its episodes have no common start; "
                "train with lm/ppo or lm/reinforce, or let it fork"
            )
        count = self._groups if endless else self._groups * self._size
        return _Arm(seed, backend, [first, *(self._make_env(lane) for lane in range(1, count))])

    def _update(self, arm: _Arm, schedule: RegimeSchedule) -> tuple[RolloutWindow, dict[str, float]]:
        number = int(schedule.index_at(min(arm.step, schedule.total_steps - 1)))
        segment = schedule.segments[number]
        params = schedules.params_at(segment, min(arm.step, segment.end - 1))
        episodes = self._episodes(arm, segment, params)
        policy = arm.backend.policy
        play(policy, episodes, copies=self._size, turns=self.training.turns, sampling=policy.sampling)
        wrong = faults(episodes, "an update")
        window, over = self._rows(arm, schedule, number, episodes)
        sound = [episode for episode in episodes if episode.fault is None]
        taught = comparable(sound) if self.training.objective.needs_groups else sound
        metrics = arm.backend.update([episode.trajectory for episode in taught])
        if starts.is_endless(arm.envs[0]):
            arm.observations = [episode.observation for episode in episodes if episode.recorded]
            for episode in episodes:
                if not episode.recorded:
                    episode.env.close()
        turns = [turn for episode in sound for turn in episode.trajectory.turns]
        return window, metrics | {
            "rollout/score": float(np.mean([episode.score for episode in sound])),
            "rollout/turns": len(turns) / len(sound),
            "rollout/answer_tokens": float(np.mean([turn.end - turn.start for turn in turns])),
            "rollout/truncated": float(np.mean([episode.trajectory.truncated for episode in sound])),
            "rollout/faults": float(len(wrong)),
            "rollout/overshoot": float(over),
        }

    def _episodes(self, arm: _Arm, segment: Segment, params: Params | None) -> list[Episode]:
        """Groups of equal starts under the regime in force, each episode with random numbers of its own."""
        for env in arm.envs:
            trials.control(env, params, self._controller)
            tell = capabilities.capability(env, "use_regime")
            if tell is not None:
                tell(segment.id, segment.origin)
        if starts.is_endless(arm.envs[0]):
            if not arm.begun:
                arm.observations, arm.begun = starts.begun(arm.envs, arm.seed), True
            opened = starts.forked(arm.envs, arm.observations, self._size)
        else:
            opened = starts.reset(arm.envs, arm.seed, arm.backend.updates * self._groups, self._size)
        key = seeds.stream(arm.seed, "exploration", arm.backend.updates)
        return [
            Episode(
                env,
                observation,
                np.random.Generator(np.random.Philox(key=[key, lane])),
                lane=lane,
                group=lane // self._size,
                recorded=recorded,
            )
            for lane, (env, observation, recorded) in enumerate(opened)
        ]

    def _rows(
        self, arm: _Arm, schedule: RegimeSchedule, number: int, episodes: Sequence[Episode]
    ) -> tuple[RolloutWindow, int]:
        """Number the answers turn by turn, write those before the run's end, and count those beyond it."""
        segment, kept, first = schedule.segments[number], [], arm.step
        fresh = arm.segment < 0 or schedule.segments[arm.segment].id != segment.id
        for turn in range(self.training.turns):
            for episode in episodes:
                if episode.fault is not None or turn >= len(episode.rows):
                    continue
                row = episode.rows[turn]
                row.step, episode.trajectory.turns[turn].step = arm.step, arm.step
                row.regime_id, row.regime_origin = segment.id, segment.origin
                row.boundary = fresh and arm.step == first
                arm.step += 1
                if row.step < schedule.total_steps and episode.recorded:
                    kept.append(row)
        arm.segment = number
        if self._trace is not None:
            for row in kept:
                place = {"seed": arm.seed, "episode": arm.backend.updates * len(episodes) + row.lane}
                place["window"] = arm.backend.updates
                self._trace.write(observations.row(row, place, {"logprob": row.logprob}, self._wall()))
        return RolloutWindow(transitions=kept, seed=arm.seed), max(arm.step - schedule.total_steps, 0)

    def _wall(self) -> float:
        return round(time.monotonic() - self._clock, 6)

    def _judged(self, arm: _Arm, envs: Sequence[Any]) -> list[trials.Trial]:
        base = seeds.stream(arm.seed, "evaluation", arm.step)
        episodes = []
        for number, env in enumerate(envs):
            with worldstate.failing(f"step {arm.step}: an evaluation", env):
                observation, _ = env.reset(seed=seeds.stream(base, "evaluation", number))
            episodes.append(Episode(env, observation, np.random.default_rng(number), lane=-1 - number))
        policy = arm.backend.policy
        greedy = dataclasses.replace(policy.sampling, greedy=True)
        play(policy, episodes, copies=1, turns=self.training.turns, sampling=greedy)
        wrong = [episode.fault for episode in episodes if episode.fault is not None]
        if wrong:
            raise RunFailed(
                f"step {arm.step}: {len(wrong)} of {len(episodes)} episodes of an evaluation failed, the first with: "
                f"{wrong[0]}; mend the world"
            )
        return [episode.trial() for episode in episodes]

    def _worlds(self, arm: _Arm) -> list[Any]:
        """States of worlds that never end; those that are reset by seed have none."""
        if not starts.is_endless(arm.envs[0]):
            return []
        found = [worldstate.read(env) for env in arm.envs]
        if None in found:
            raise DataError(f"{arm.envs[0]} never ends and offers no get_state and set_state, so it cannot be resumed")
        return found
