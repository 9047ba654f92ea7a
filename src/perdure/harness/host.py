"""A Learner over host environments: any `Algorithm`, one for each seed, each with a collector of its own.

The algorithms mutate themselves; the state handed to the harness is their collection, and what is
saved is the folder that `save_checkpoint` writes, beside the worlds.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perdure.core import seeds
from perdure.core.errors import ConfigError, Refused
from perdure.core.protocols import Algorithm
from perdure.core.records import Evaluation, Params, RegimeSchedule, RolloutWindow, Shift, Spec
from perdure.harness import checkpoint, directory, rows, spaces, trials
from perdure.harness.collector import RolloutCollector
from perdure.harness.spaces import spec_of
from perdure.harness.trace import JsonlTrace

__all__ = ["HostLearner", "spec_of"]

NEEDED = ("policy", "update", "on_regime_shift", "save_checkpoint")
"""What every algorithm must have."""


@dataclass
class _Arm:
    """One seed: its algorithm and its worlds."""

    seed: int
    algorithm: Algorithm
    collector: RolloutCollector
    episodic: bool
    saved: dict[str, Any] | None = None
    """Where the worlds must be brought before the next step, after a load."""
    detection: Any = None
    """State of the shift detector."""
    scores: Any = ()
    """Returns of the episodes under way, one a copy, which the detector is shown as they end."""
    alarms: int = 0


class HostLearner:
    """Drives third-party algorithms on Gymnasium environments behind the seam `Learner`.

    `make_algorithm(seed, spec)` builds the algorithm of one seed, `make_env(lane)` one copy of the
    environment. `regime` overrides the schedule as the source of labels (a provider that trusts the
    environment, say). Windows have `window_steps * n_envs` steps; under "oracle" a window ends at a
    segment's end, under "detector" it is split after an alarm of `detector` (see regimes.detectors),
    which is shown the mean of the returns that end at a vector step, or the mean reward of every one
    where episodes never end. An algorithm sees every window, the last partial
    one too.

    An algorithm may offer `features() -> {network: activations [rows, units]}` and
    `load_checkpoint(path)`; without the latter a run cannot be resumed. A policy may offer `seed(int)`
    and `act_greedy(observation)`; without the latter evaluations use `act`, around which
    `state_dict`/`load_state_dict` keep its random state.
    """

    def __init__(
        self,
        make_algorithm: Callable[[int, Spec], Algorithm],
        make_env: Callable[[int], Any],
        *,
        window_steps: int,
        n_envs: int = 1,
        auto_reset: bool = True,
        regime: Any = None,
        controller: Any = None,
        detector: Any = None,
    ):
        self._make_algorithm, self._make_env = make_algorithm, make_env
        self._window, self._n_envs, self._auto_reset = window_steps, n_envs, auto_reset
        self._regime, self._controller, self._detector = regime, controller, detector
        self._trace: JsonlTrace | None = None
        self._arms: list[_Arm] = []
        self.seeds: tuple[int, ...] = ()

    def record_to(self, rows: JsonlTrace) -> None:
        """Have every step written there as it happens."""
        self._trace = rows
        for arm in self._arms:
            arm.collector.writer = rows

    def provenance(self) -> Mapping[str, Any]:
        """What the first environment says of its runs."""
        return self._arms[0].collector.run if self._arms else {}

    def init(self, seeds: tuple[int, ...]) -> list[_Arm]:
        """Build every algorithm and environment."""
        self.close()
        self.seeds = tuple(seeds)
        self._arms = [self._arm(seed) for seed in self.seeds]
        return self._arms

    def step(self, state: list[_Arm]) -> int:
        """Steps of one seed done so far."""
        arm = state[0]
        return arm.saved["step"] if arm.saved else arm.collector.step_index

    def advance(
        self, state: list[_Arm], schedule: RegimeSchedule, steps: int
    ) -> tuple[list[_Arm], RolloutWindow, dict[str, Any]]:
        """Collect one window with each seed and hand it to its algorithm, if it fits into `steps`."""
        begin = self.step(state)
        size = min(self._window * self._n_envs, schedule.total_steps - begin)
        if schedule.boundary_source == "oracle":
            size = min(size, schedule.segments[int(schedule.index_at(begin))].end - begin)
        if size > steps or size <= 0:
            return state, RolloutWindow(), {}
        windows: list[RolloutWindow] = []
        metrics: list[dict[str, float]] = []
        for arm in state:
            arm.collector.follow(schedule if self._regime is None else self._regime)
            self._settle(arm)
            window = arm.collector.collect(size)
            windows.append(window)
            metrics.append(self._update(arm, window, schedule.boundary_source))
        return state, joined(windows), {"step": np.array([begin + size]), **table(metrics)}

    def evaluate(self, state: list[_Arm], params: Params | None, episodes: int) -> Evaluation:
        """Greedy episodes of each seed in a fresh environment, seeded by (seed, step, episode)."""
        env = self._fresh_env()
        try:
            spec = spec_of(env)
            trials.control(env, params, self._controller)
            found = [trials.run(env, arm.algorithm.policy, spec, arm.seed, self.step(state), episodes) for arm in state]
        finally:
            env.close()
        offered: list[dict[str, Any]] = [getattr(arm.algorithm, "features", dict)() for arm in state]
        features = {name: np.stack([np.asarray(each[name]) for each in offered]) for name in offered[0]}
        return trials.evaluation(found, features)

    def on_regime_shift(self, state: list[_Arm], shift: Shift) -> list[_Arm]:
        """Tell every algorithm."""
        for arm in state:
            arm.algorithm.on_regime_shift(shift.mapping())
        return state

    def save(self, state: list[_Arm], folder: Path) -> None:
        """seed-N/algorithm (the algorithm's own files) and seed-N/worlds.json."""
        order = {"seeds": [arm.seed for arm in state]}
        directory.write_atomic(folder / "host.json", json.dumps(order).encode())
        for arm in state:
            place = folder / f"seed-{arm.seed}"
            (place / "algorithm").mkdir(parents=True)
            arm.algorithm.save_checkpoint(place / "algorithm")
            worlds = arm.saved or arm.collector.snapshot()
            detector = {"detection": tuple(arm.detection or ()), "scores": arm.scores, "alarms": arm.alarms}
            kept = {"worlds": worlds, **detector}
            directory.write_atomic(place / "worlds.json", json.dumps(checkpoint.encode(kept)).encode())

    def load(self, folder: Path) -> list[_Arm]:
        """Algorithms as they were saved; the worlds follow when the next step is asked for."""
        for arm in self.init(tuple(checkpoint.read_json(folder / "host.json")["seeds"])):
            place = folder / f"seed-{arm.seed}"
            load = getattr(arm.algorithm, "load_checkpoint", None)
            if load is None:
                name = type(arm.algorithm).__name__
                raise Refused(
                    f"{name} has no load_checkpoint(path), so its run cannot be resumed; add it or start anew"
                )
            load(place / "algorithm")
            kept = checkpoint.decode(checkpoint.read_json(place / "worlds.json"))
            arm.saved, arm.scores, arm.alarms = kept["worlds"], kept["scores"], kept["alarms"]
            if arm.detection is not None:
                arm.detection = type(arm.detection)(*kept["detection"])
        return self._arms

    def export(self, state: list[_Arm], folder: Path) -> dict[str, Any]:
        """The checkpoint of each seed's algorithm, under seed-N."""
        for arm in state:
            (folder / f"seed-{arm.seed}").mkdir(parents=True)
            arm.algorithm.save_checkpoint(folder / f"seed-{arm.seed}")
        env = state[0].collector.envs[0]
        return {
            "kind": "algorithm checkpoint",
            "seeds": [arm.seed for arm in state],
            "algorithm": f"{type(state[0].algorithm).__module__}:{type(state[0].algorithm).__qualname__}",
            "spaces": {name: spaces.as_json(getattr(env, f"{name}_space")) for name in ("observation", "action")},
        }

    def policy(self, state: list[_Arm], position: int) -> Callable[[Any], Any]:
        """The greedy policy of one seed, or the acting one where the algorithm has no other."""
        policy = state[position].algorithm.policy
        return getattr(policy, "act_greedy", policy.act)

    def close(self) -> None:
        """Close all environments; a second call does nothing."""
        for arm in self._arms:
            arm.collector.close()
        self._arms = []

    def _fresh_env(self) -> Any:
        env = self._make_env(0)
        if any(env.unwrapped is trained.unwrapped for arm in self._arms for trained in arm.collector.envs):
            raise Refused("evaluation would step the environment that is trained in; give a factory, or no evaluation")
        return env

    def _arm(self, seed: int) -> _Arm:
        envs = [self._make_env(lane) for lane in range(self._n_envs)]
        spec = spec_of(envs[0])
        algorithm = self._make_algorithm(seed, spec)
        lacking = [name for name in NEEDED if not hasattr(algorithm, name)]
        if lacking:
            kind = type(algorithm).__name__
            raise Refused(f"the algorithm, a {kind}, has no {', '.join(lacking)}; see perdure.core.protocols.Algorithm")
        reseed = getattr(algorithm.policy, "seed", None)
        if reseed is not None:
            reseed(seeds.stream(seed, "policy"))
        collector = RolloutCollector(
            envs,
            algorithm.policy,
            self._window,
            self._trace,
            self._auto_reset,
            [seeds.stream(seed, "world", lane) for lane in range(self._n_envs)],
            controller=self._controller,
            run_seed=seed,
        )
        detection = None if self._detector is None else self._detector.start(np)
        return _Arm(seed, algorithm, collector, spec.episodic, None, detection, np.zeros(self._n_envs))

    def _settle(self, arm: _Arm) -> None:
        """Bring the worlds of a loaded arm to where they were saved."""
        if arm.saved is None:
            return
        recorded = rows.of_seed(self._trace.path, arm.seed) if self._trace is not None else ()
        saved, arm.saved = arm.saved, None
        arm.collector.restore(saved, recorded)

    def _update(self, arm: _Arm, window: RolloutWindow, source: str) -> dict[str, float]:
        """Hand a window over, cut after each alarm of the detector, and tell of the shift in between."""
        metrics: dict[str, float] = {}
        if source != "detector":
            return dict(arm.algorithm.update(window))
        if self._detector is None:
            raise ConfigError(
                "regime.boundary_source is detector but no detector is given; name one in regime.detector"
            )
        begin, alarms = 0, self._alarms(arm, window)
        for cut in alarms:
            metrics = dict(arm.algorithm.update(_part(window, begin, cut)))
            ending, starting = f"detected-{arm.alarms}", f"detected-{arm.alarms + 1}"
            step = int(window.columns["step"][cut - 1]) + 1
            arm.algorithm.on_regime_shift(Shift(ending, ending, starting, starting, step, "detector").mapping())
            begin, arm.alarms = cut, arm.alarms + 1
        if begin < len(window):
            metrics = dict(arm.algorithm.update(_part(window, begin, len(window))))
        return {**metrics, "detector/alarm": float(len(alarms))}

    def _alarms(self, arm: _Arm, window: RolloutWindow) -> list[int]:
        """How many rows stand before each alarm, in order."""
        rewards, ends = (column.reshape(-1, self._n_envs) for column in (window.rewards(), window.terminals()))
        alarms: list[int] = []
        for position, (reward, ended) in enumerate(zip(rewards, ends, strict=True)):
            scores = arm.scores + reward
            signal, arm.scores = (scores[ended], np.where(ended, 0.0, scores)) if arm.episodic else (reward, arm.scores)
            if len(signal):
                arm.detection, alarm = self._detector.step(np, arm.detection, signal.mean())
                if bool(alarm):
                    alarms.append((position + 1) * self._n_envs)
        return alarms


def _part(window: RolloutWindow, begin: int, end: int) -> RolloutWindow:
    columns = {name: column[begin:end] for name, column in window.columns.items()}
    return RolloutWindow(window.transitions[begin:end], window.run, columns, window.seed)


def joined(windows: list[RolloutWindow]) -> RolloutWindow:
    """The windows of several seeds as one, seed after seed."""
    names = list(dict.fromkeys(name for window in windows for name in window.columns))
    columns = {
        name: np.concatenate([window.columns.get(name, np.full(len(window), np.nan)) for window in windows])
        for name in names
    }
    transitions = [transition for window in windows for transition in window.transitions]
    return RolloutWindow(transitions, windows[0].run, columns, windows[0].seed)


def table(metrics: list[dict[str, float]]) -> dict[str, np.ndarray]:
    """Metrics of one window, a mapping a seed, as arrays [1, seeds]; NaN where a seed has none of a name."""
    names = list(dict.fromkeys(name for each in metrics for name in each))
    return {name: np.array([[float(each.get(name, np.nan)) for each in metrics]]) for name in names}
