"""The harness's view of a compiled trainer: host values in, host values out, programs cached by value."""

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from perdure.core import arrays
from perdure.core import seeds as streams
from perdure.core.errors import DataError, Refused
from perdure.core.records import Evaluation, RegimeSchedule, RolloutWindow, Segment, Shift
from perdure.rl import acting, devices, evaluate, loop, offline, windows
from perdure.rl import schedule as schedules
from perdure.rl import state as states
from perdure.rl.checked import trainer as trainer

CALL_SECONDS = 0.4
"""How long one call should last, so that progress shows; it never changes a result."""


STATE: Any = loop.TrainState(clock=False, seeds=True)  # pyright: ignore[reportArgumentType]
"""Which parts of the state carry the seed axis."""


class LearnerState(NamedTuple):
    """Device state, and the step count as a host number so that reading it never waits for the device."""

    train: loop.TrainState
    t: int


@partial(jax.jit, static_argnames=("trainer", "count"))
def _init(trainer, count, numbers, schedule, data):
    return devices.over_seeds(partial(loop.init, trainer), count, STATE)(numbers, schedule, data)


@partial(jax.jit, static_argnames=("trainer", "count"), donate_argnames="state")
def _advance(trainer, count, state, schedule, rounds, last_length, data):
    run = devices.over_seeds(partial(loop.advance, trainer), count, (STATE, True, True), STATE)
    return run(state, schedule, rounds, last_length, data)


@partial(jax.jit, static_argnames=("trainer", "seeds"), donate_argnames="state")
def _offline(trainer, seeds, state, columns, count, total, data):
    run = devices.over_seeds(partial(offline.train, trainer), seeds, (STATE, True), STATE)
    return run(state, columns, count, total, data)


_episodes = jax.jit(evaluate.episodes, static_argnames=("trainer", "count"))
_diagnostics = jax.jit(evaluate.diagnostics, static_argnames="trainer")


class JaxLearner:
    """core.protocols.Learner over one compiled loop; every number that a document may change is traced.

    `start` holds the parameters in force at step 0, `weights(id, origin)` a regime's reward weights.
    """

    def __init__(
        self,
        trainer: loop.Trainer,
        seeds: tuple[int, ...],
        start: Mapping[str, float] | None = None,
        weights: Callable[[str, str], tuple[float, ...]] | None = None,
    ):
        self.trainer = trainer
        self.seeds = tuple(seeds)
        self._start, self._weights = start, weights
        # An argument of every program, shared by all seeds.
        self.data = trainer.given()
        self._last: tuple[RegimeSchedule, schedules.TracedSchedule] | None = None
        self._rounds_per_second = 0.0

    def init(self, seeds: tuple[int, ...]) -> LearnerState:
        """The state before the first step."""
        self.seeds = tuple(seeds)
        return LearnerState(
            _init(
                self.trainer,
                len(seeds),
                states.numbers(self.seeds, self.trainer.n_envs),
                self._opening(),
                self.data,
            ),
            0,
        )

    def step(self, state: LearnerState) -> int:
        """Environment steps of one seed done so far."""
        return state.t * self.trainer.n_envs

    def advance(
        self, state: LearnerState, schedule: RegimeSchedule, steps: int
    ) -> tuple[LearnerState, RolloutWindow, dict[str, np.ndarray]]:
        """See core.protocols.Learner.advance; one call lasts about `CALL_SECONDS`."""
        size, n_envs = self.trainer.window_steps, self.trainer.n_envs
        allowed = min(steps, schedule.total_steps - self.step(state)) // n_envs
        cut_allowed = not self.trainer.on_policy or self.step(state) + allowed * n_envs == self._end(schedule, state)
        rounds = -(-allowed // size) if cut_allowed else allowed // size
        if rounds == 0:
            return state, _window(self, state.t, schedule, None, 0), {}
        asked, rounds = rounds, min(rounds, self._affordable())
        last = allowed - (rounds - 1) * size if rounds == asked and cut_allowed else size
        length = (rounds - 1) * size + last

        began = time.perf_counter()
        train, record, metrics = _advance(
            self.trainer,
            len(self.seeds),
            state.train,
            self._arrays(schedule),
            np.int32(rounds),
            np.int32(last),
            self.data,
        )
        window = _window(self, state.t, schedule, record, length)
        self._rounds_per_second = rounds / max(time.perf_counter() - began, 1e-6)
        ends = [(state.t + min((i + 1) * size, length)) * n_envs for i in range(rounds)]
        host = {name: np.asarray(value)[:, :rounds].T for name, value in metrics.items()}
        if self.trainer.detector:
            alarms = np.asarray(record.alarm)[:, : rounds * size].reshape(len(self.seeds), rounds, size)
            host["detector/alarm"] = alarms.sum(-1).T
        return LearnerState(train, state.t + length), window, {"step": np.array(ends), **host}

    def train_offline(self, state: LearnerState, dataset: Any, updates: int) -> tuple[LearnerState, dict[str, Any]]:
        """`updates` of every seed on a rl.dataset.TransitionDataset alone; mean metrics, [seeds] each.

        Call it before `advance`, once or in several pieces, which train alike. Raises Refused for agents without
        a replay and where the run has begun, ConfigError where the dataset is not of this world.
        """
        if "replay" not in self.trainer.agent.offers:
            name = type(self.trainer.agent).__name__
            raise Refused(f"{name} has no replay; train offline with an agent that has one")
        if state.t:
            raise Refused(f"the run stands at step {self.step(state)}; train offline before it begins")
        dataset = windows.dataset(self.trainer.world, dataset)
        dataset.check_fits(self.trainer.world.spec, "dataset")
        discount = getattr(self.trainer.agent, "discount", 1.0)
        columns = dataset.columns("next_action", "reset_obs", "return_to_go", discount=discount)
        train, metrics = _offline(
            self.trainer, len(self.seeds), state.train, columns, np.int32(updates), np.int32(updates), self.data
        )
        return LearnerState(train, 0), {name: np.asarray(value) for name, value in metrics.items()}

    def evaluate(self, state: LearnerState, params: Mapping[str, float] | None, episodes: int) -> Evaluation:
        """Greedy episodes under one configuration; see core.protocols.Learner.evaluate."""
        numbers = np.array([streams.stream(seed, "evaluation") for seed in self.seeds], np.uint32)
        task = self.trainer.world.task(**(params or {}))
        returns, lengths = _episodes(self.trainer, state.train, task, episodes, numbers, self.data)
        metrics, features = _diagnostics(self.trainer, state.train, self.data)
        host = lambda tree: {name: np.asarray(value) for name, value in tree.items()}
        return Evaluation(np.asarray(returns), np.asarray(lengths), host(metrics), host(features))

    def on_regime_shift(self, state: LearnerState, shift: Shift) -> LearnerState:
        """Tell every seed of a shift: the next post_update sees it."""
        seeds = state.train.seeds
        return state._replace(train=state.train._replace(seeds=seeds._replace(shift=jnp.ones_like(seeds.shift))))

    def save(self, state: LearnerState, folder: Path) -> None:
        """Write everything that changes as arrays.npz and tree.json."""
        meta = {
            "jax": jax.__version__,
            "devices": jax.local_device_count(),
            "seeds": list(self.seeds),
            "t": state.t,
            "key": str(jax.random.key_impl(state.train.seeds.keys.policy)),
        }
        arrays.save(folder, states.leaves(state.train), meta)

    def load(self, folder: Path) -> LearnerState:
        """The state that `save` wrote; raises DataError for another program's checkpoint."""
        found, meta = arrays.load(folder)
        if tuple(meta["seeds"]) != self.seeds:
            raise DataError(f"{folder} holds seeds {meta['seeds']}, not {list(self.seeds)}; resume with the same seeds")
        for name, ours in (("jax", jax.__version__), ("devices", jax.local_device_count())):
            if meta[name] != ours:
                warnings.warn(
                    f"{folder} was written with {name} {meta[name]}, this is {ours}: the last bits may differ",
                    stacklevel=2,
                )
        wanted = jax.eval_shape(
            partial(_init, self.trainer, len(self.seeds)),
            states.numbers(self.seeds, self.trainer.n_envs),
            self._opening(),
            self.data,
        )
        return LearnerState(states.restored(wanted, found, folder), meta["t"])

    def export(self, state: LearnerState, folder: Path) -> dict[str, Any]:
        """Network parameters and the observation normaliser of every seed, as arrays.npz and tree.json."""
        seeds = state.train.seeds
        kept = {"params": seeds.agent.params, "normaliser": seeds.normaliser}
        networks = {
            name: dataclasses.asdict(network) for name, network in self.trainer.context(state.train.clock).nets.items()
        }
        description = {
            "kind": "jax",
            "agent": type(self.trainer.agent).__name__,
            "seeds": list(self.seeds),
            "networks": networks,
        }
        arrays.save(folder, states.leaves(kept), description)
        return description

    def policy(self, state: LearnerState, position: int) -> Callable[[Any], Any]:
        """The greedy policy of the seed at `position`: observation -> action in world units.

        That of an agent with a memory is a rl.windows.Following: it follows an episode, and `reset()` begins another.
        """
        seed = jax.tree.map(lambda x: x[position], state.train.seeds)
        world, clock = self.trainer.world, state.train.clock._replace(data=self.data)
        guide = acting.start_guide(self.trainer, 1)

        def act(observation: Any) -> Any:
            obs = np.asarray(observation, np.float32)[None]
            action = np.asarray(evaluate.act_greedy(self.trainer, seed, clock, obs, guide)[0])[0]
            return int(action) if world.spec.discrete else action

        return windows.Following(act, world) if isinstance(world, windows.Windowed) else act

    def close(self) -> None:
        """Nothing is held."""

    def _opening(self):
        opening = RegimeSchedule((Segment("start", "start", 0, 1, self._start),))
        return schedules.traced(opening, self.trainer.world, self._weights)

    def _end(self, schedule, state):
        """Where a window may be cut short: the run's end, and a shift that the algorithm is told of."""
        if schedule.boundary_source != "oracle":
            return schedule.total_steps
        return schedule.segments[schedule.index_at(self.step(state))].end

    def _affordable(self):
        """Windows that fit into a call; one before the speed is known."""
        return max(1, min(self.trainer.chunk_rounds, int(self._rounds_per_second * CALL_SECONDS)))

    def _arrays(self, schedule):
        if self._last is None or self._last[0] is not schedule:
            self._last = (schedule, schedules.traced(schedule, self.trainer.world, self._weights))
        return self._last[1]


def _window(learner, first, schedule, record, length):
    """The columns of `length` vector steps from `first` on: rows ordered by seed, then step."""
    n_envs, seeds = learner.trainer.n_envs, len(learner.seeds)
    step = np.arange(first * n_envs, (first + length) * n_envs)
    index = schedule.index_at(step)
    pairs = zip([None, *schedule.segments], schedule.segments, strict=False)
    starts = [segment.start for before, segment in pairs if before is None or before.id != segment.id]
    tile = lambda column: np.tile(column, seeds)
    columns = {
        "seed": np.repeat(np.array(learner.seeds, np.int64), len(step)),
        "step": tile(step),
        "lane": tile((step % n_envs).astype(np.int32)),
    }
    if record is not None:
        flat = lambda x: np.asarray(x)[:, :length].reshape(seeds * length * n_envs, *x.shape[3:])
        columns |= {name: flat(getattr(record, name)) for name in ("reward", "terminated", "truncated", "action")}
        columns |= {f"component/{name}": flat(value) for name, value in record.components.items()}
    # Labels go out as segment numbers: names for every row would cost more than the rest of the trace.
    labels = tile(index.astype(np.int32))
    return RolloutWindow(
        columns=columns | {"regime": labels, "origin": labels, "boundary": tile(np.isin(step, starts))}
    )
