"""Collects experience from host environments, window by window: one policy, one or several copies.

    step = t * n_envs + lane

A window's end is nothing to the environment. A regime may change in the middle of a window or episode.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from perdure.core import capabilities
from perdure.core.errors import ConfigError, DataError, PerdureError, RunFailed
from perdure.core.records import RolloutWindow, Transition
from perdure.harness import observations, worldstate
from perdure.harness.labels import Labels
from perdure.regimes.schedules import RegimeState


class Writer(Protocol):
    """Takes the rows of a trace one by one, each flushed before the next."""

    def write(self, row: Mapping[str, Any]) -> None: ...


@dataclass
class _Lane:
    env: Any
    index: int
    seed: int | None
    observation: Any = None
    episode: int = 0
    over: bool = False
    """The last step terminated the episode, and nobody has reset since."""


class RolloutCollector:
    """Steps `env` (one, or a list of copies) with `policy` and hands out windows.

    `window_steps` counts per copy. `seed` goes to the first reset alone (a list gives one a copy,
    a number n gives copy i n + i); later resets are unseeded, or every episode would be the same.
    With `auto_reset` an episode's end of either kind resets; without it truncation never does, and
    stepping past a termination raises RunFailed unless the environment says `persistent = True`.

    `regime` is a RegimeSchedule or anything with `at(step, info)`; it is asked only where the
    environment reports no label of its own. Where it sets params, `controller.apply(env, params)`
    (by default the one that suits the environment) makes them so before the step, also in the middle
    of an episode; an environment with `use_regime` is told the id and origin. `writer` gets a row a step.

    The policy may offer `act_with_info(observation) -> (action, {"logprob", "value", "entropy"})`,
    `act_batch(observations) -> actions` for several copies, and, called after each step of a copy,
    `observe(observation, reward, info)` with what the step returned and `record(transition)`.
    """

    def __init__(
        self,
        env: Any,
        policy: Any,
        window_steps: int,
        writer: Writer | None = None,
        auto_reset: bool = False,
        seed: int | Sequence[int] | None = None,
        regime: Any = None,
        *,
        controller: Any = None,
        run_seed: int = 0,
    ):
        envs: list[Any] = list(env) if isinstance(env, (list, tuple)) else [env]  # pyright: ignore[reportUnknownArgumentType]
        if window_steps < 1:
            raise ConfigError(f"rollout.window_steps is {window_steps}; a window needs at least one step")
        given = range(seed, seed + len(envs)) if isinstance(seed, int) else seed or [None] * len(envs)
        self._lanes = [_Lane(one, lane, number) for lane, (one, number) in enumerate(zip(envs, given, strict=True))]
        self.policy, self.window_steps, self.writer, self.auto_reset = policy, window_steps, writer, auto_reset
        self.controller, self.run_seed = controller, run_seed
        self.follow(regime)
        self.step_index = 0
        """Steps done in the whole run, over all copies."""
        self.run: dict[str, Any] = capabilities.describe_run(envs[0])
        """Provenance, as the environment gives it."""
        self._window, self._begun, self._label, self._clock = 0, False, "", time.monotonic()
        self._applied: Mapping[str, float] | None = None
        self._told: tuple[str, str] | None = None
        self._info: Mapping[str, Any] = {}

    @property
    def n_envs(self) -> int:
        """Number of copies."""
        return len(self._lanes)

    @property
    def envs(self) -> list[Any]:
        """The environments, by lane."""
        return [lane.env for lane in self._lanes]

    def follow(self, regime: Any) -> None:
        """Take labels and parameters from another schedule or provider from the next step on."""
        self._labels = Labels(regime)

    def reset(self) -> None:
        """Begin a new episode in every copy; the first call seeds them."""
        self._control()
        for lane in self._lanes:
            self._reset(lane, seeded=not self._begun)
        self._begun = True

    def windows(self, total_steps: int) -> Iterator[RolloutWindow]:
        """Windows until `step_index` is `total_steps`; the last may be a partial one."""
        while self.step_index < total_steps:
            yield self.collect(min(self.window_steps * self.n_envs, total_steps - self.step_index))

    def collect(self, steps: int) -> RolloutWindow:
        """One window of exactly `steps` steps over all copies, a multiple of their number.

        Raises RunFailed, naming the step, where an environment raises, ends without leave to go on,
        or hands out an observation or reward that is not finite; the rows before it are written.
        """
        if steps % self.n_envs:
            raise ConfigError(f"{steps} steps do not divide among {self.n_envs} environments; use a multiple of n_envs")
        if not self._begun:
            self.reset()
        transitions: list[Transition] = []
        for _ in range(steps // self.n_envs):
            self._control()
            began = time.perf_counter()
            chosen = self._choose()
            latency = (time.perf_counter() - began) / self.n_envs * 1e3
            for lane, (action, thought) in zip(self._lanes, chosen, strict=True):
                transitions.append(self._step(lane, action, thought, latency))
        self._window += 1
        return RolloutWindow(transitions=transitions, run=self.run, seed=self.run_seed)

    def snapshot(self) -> dict[str, Any]:
        """Everything that changes, as plain values and arrays; "worlds" is None where a copy has no `get_state`."""
        worlds = [worldstate.read(lane.env) for lane in self._lanes]
        return {
            "step": self.step_index,
            "window": self._window,
            "label": self._label,
            "applied": self._applied,
            "begun": self._begun,
            "episodes": [lane.episode for lane in self._lanes],
            "over": [lane.over for lane in self._lanes],
            "observations": [lane.observation for lane in self._lanes],
            "worlds": None if None in worlds else worlds,
        }

    def restore(self, snapshot: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> None:
        """Bring fresh environments to where `snapshot` was taken.

        Through `set_state` where they offer it, else by stepping through the recorded actions of
        `rows` (this run's trace, by step) and comparing each observation with the recorded digest;
        DataError where the world goes another way.
        """
        if not snapshot["begun"]:
            return
        self.reset()
        if snapshot["worlds"] is None:
            self._replay(rows, snapshot["step"])
        else:
            self._set(snapshot)
        self._window, self._label = snapshot["window"], snapshot["label"]

    def close(self) -> None:
        """Close every environment."""
        for lane in self._lanes:
            lane.env.close()

    def _set(self, snapshot: Mapping[str, Any]) -> None:
        if snapshot["applied"] is not None:
            self._apply(snapshot["applied"])
        for position, lane in enumerate(self._lanes):
            worldstate.write(lane.env, snapshot["worlds"][position])
            kept = (snapshot[name][position] for name in ("observations", "over", "episodes"))
            lane.observation, lane.over, lane.episode = kept
        self.step_index = snapshot["step"]

    def _replay(self, rows: Iterable[Mapping[str, Any]], until: int) -> None:
        for row in rows:
            if self.step_index == until:
                return
            lane = self._lanes[self.step_index % self.n_envs]
            if lane.index == 0:
                self._control()
            if row["step"] != self.step_index or row["obs_digest"] != observations.digest(lane.observation):
                raise DataError(
                    f"step {self.step_index}: replaying the recorded actions leads elsewhere, so the world "
                    "is not determined by its seed; let it offer get_state and set_state, or start a new run"
                )
            self._advance(lane, observations.as_action(row["action"], lane.env.action_space))
        if self.step_index != until:
            raise DataError(f"the trace ends at step {self.step_index}, the checkpoint is at {until}; start a new run")

    def _choose(self) -> list[tuple[Any, Mapping[str, Any]]]:
        seen = [lane.observation for lane in self._lanes]
        batch, explained = getattr(self.policy, "act_batch", None), getattr(self.policy, "act_with_info", None)
        if len(seen) > 1 and batch is not None:
            return [(action, {}) for action in batch(seen)]
        if explained is not None:
            return [explained(observation) for observation in seen]
        return [(self.policy.act(observation), {}) for observation in seen]

    def _step(self, lane: _Lane, action: Any, thought: Mapping[str, Any], latency: float) -> Transition:
        step, before, episode = self.step_index, lane.observation, lane.episode
        after, reward, terminated, truncated, info = self._advance(lane, action)
        self._check(step, lane, reward, after)
        regime = self._label_of(step, lane, info)
        transition = Transition(
            step=step,
            observation=before,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            regime_id=regime.id if regime else None,
            boundary=regime.boundary if regime else False,
            reward_components=info.get("reward_components") or {},
            logprob=thought.get("logprob"),
            value=thought.get("value"),
            info=info,
            next_observation=after,
            lane=lane.index,
            regime_origin=regime.origin if regime else None,
        )
        if self.writer is not None:
            place = {"seed": self.run_seed, "episode": episode, "window": self._window}
            wall = round(time.monotonic() - self._clock, 6)
            self.writer.write(observations.row(transition, place, {**thought, "latency_ms": round(latency, 3)}, wall))
        if hasattr(self.policy, "observe"):
            self.policy.observe(after, reward, info)
        if hasattr(self.policy, "record"):
            self.policy.record(transition)
        return transition

    def _advance(self, lane: _Lane, action: Any) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
        """Step one copy, and reset it where that is due; the first value is the true successor."""
        if lane.over and not capabilities.capability(lane.env, "persistent"):
            raise RunFailed(
                f"step {self.step_index}, environment {lane.index}: its episode has terminated; "
                "set auto_reset, or let it say persistent = True if it goes on for ever"
            )
        with worldstate.failing(f"step {self.step_index}, environment {lane.index}", lane.env):
            after, reward, terminated, truncated, info = lane.env.step(action)
            reward, terminated, truncated = float(reward), bool(terminated), bool(truncated)
            if info is None:
                raise TypeError("its info is None, not a mapping")
        lane.observation, lane.over, self._info = after, terminated, info
        self.step_index += 1
        if self.auto_reset and (terminated or truncated):
            self._reset(lane, seeded=False)
        return after, reward, terminated, truncated, info

    def _check(self, step: int, lane: _Lane, reward: float, after: Any) -> None:
        """Before a row is written: a trace holds finite rewards only."""
        wrong = "observation is not finite" if observations.finite(reward) else f"reward is {reward}"
        if not observations.finite(reward) or not observations.finite(after):
            raise RunFailed(f"step {step}, environment {lane.index}: the {wrong}; mend the environment")

    def _reset(self, lane: _Lane, seeded: bool) -> None:
        place = f"step {self.step_index}, environment {lane.index}: reset"
        with worldstate.failing(place, lane.env):
            lane.observation, self._info = lane.env.reset(seed=lane.seed) if seeded else lane.env.reset()
        lane.over, lane.episode = False, lane.episode + (not seeded)
        if not observations.finite(lane.observation):
            raise RunFailed(f"{place} gave an observation that is not finite; mend the environment")

    def _control(self) -> None:
        """Have the environments follow what the regime says of the coming step."""
        coming = self._labels.before(self.step_index, self._info)
        if coming is None:
            return
        if coming.params is not None and coming.params != self._applied:
            self._apply(coming.params)
        if (coming.id, coming.origin) != self._told:
            self._told = (coming.id, coming.origin)
            for lane in self._lanes:
                tell = capabilities.capability(lane.env, "use_regime")
                if tell is not None:
                    tell(coming.id, coming.origin)

    def _apply(self, params: Mapping[str, float]) -> None:
        if self.controller is None:
            from perdure.regimes import controllers

            self.controller = controllers.controller_for(self._lanes[0].env)
        for lane in self._lanes:
            self.controller.apply(lane.env, params)
        self._applied = dict(params)

    def _label_of(self, step: int, lane: _Lane, info: Mapping[str, Any]) -> RegimeState | None:
        try:
            own, reported = capabilities.regime_from_info(info)
            origin = capabilities.regime_origin_from_info(info) or own
        except PerdureError as error:
            raise RunFailed(f"step {step}, environment {lane.index}: {error}") from None
        if own is None or origin is None:
            return self._labels.at(step, info)
        changed, self._label = own != self._label or (reported and lane.index == 0), own
        return RegimeState(own, changed, origin)
