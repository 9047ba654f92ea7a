"""A compiled agent as a third-party `Algorithm`: driven step by step on any host environment."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perdure.core import arrays
from perdure.core.component import component
from perdure.core.records import RolloutWindow, Spec, Transition
from perdure.rl import acting, evaluate, learning, loop
from perdure.rl import state as states
from perdure.rl.ops import masks
from perdure.rl.phases import Batch, Clock


@component
class HostWorld:
    """What the loop must know of a world that it does not step itself."""

    spec: Spec
    name: str = "the environment"


class HostAgent:
    """core.protocols.Algorithm over the functions of the compiled loop, for one seed.

    `encode(observation, step=None)` turns an observation of the environment into a flat float32
    vector. Replay agents learn after every step of all copies; on-policy agents learn when a whole
    window is handed over.
    """

    def __init__(self, trainer: loop.Trainer, seed: int, total_steps: int, encode: Callable[..., np.ndarray]):
        self._trainer, self._encode = trainer, encode
        zero = jnp.zeros((), jnp.int32)
        self._data = trainer.given()
        self._clock = Clock(zero, zero, jnp.int32(total_steps), self._data)
        numbers = states.numbers((seed,), trainer.n_envs)
        self._seed = _begin(trainer, jax.tree.map(lambda x: x[0], numbers), self._clock)
        self._choice: Any = None
        """The one that the next vector step carries out."""
        self._obs: Any = None
        """What it was made at, encoded."""
        self._guide = acting.start_guide(trainer, trainer.n_envs)
        self._trial = acting.start_guide(trainer, 1)
        self._columns: list[dict[str, Any]] = []
        """What every vector step adds to its rows."""
        self._begins = np.ones(trainer.n_envs, bool)
        self._beginnings = np.zeros((trainer.n_envs, *trainer.world.spec.obs_shape), np.float32)
        self._rows: list[Transition] = []
        self._step: int | None = None
        """The last one recorded, so that an observation that cannot be read is named with it."""
        self._sums = None if trainer.on_policy else learning.no_metrics(trainer, self._seed, self._clock)
        self._first = 0

    @property
    def policy(self) -> "HostAgent":
        """The agent acts for itself."""
        return self

    def act(self, observation: Any) -> Any:
        """An exploring action for one copy, in world units."""
        return self.act_batch([observation])[0]

    def act_batch(self, observations: list[Any]) -> list[Any]:
        """An exploring action for each copy, in world units."""
        obs = np.stack([self._encode(observation, self._step) for observation in observations])
        choice, executed, self._seed = _act(self._trainer, self._seed, self._clock, obs, self._guide)
        self._choice, self._obs = choice, obs
        if acting.keeps_reset_obs(self._trainer.agent):
            self._beginnings = np.where(self._begins[:, None], obs, self._beginnings)
        return [self._native(each) for each in np.asarray(executed)]

    def begin_episode(self) -> None:
        """An evaluation starts an episode: experts that are followed along it start too."""
        self._trial = acting.start_guide(self._trainer, 1)

    def act_greedy(self, observation: Any) -> Any:
        """The action of an evaluation, in world units."""
        obs = self._encode(observation)[None]
        executed, self._trial = evaluate.act_greedy(self._trainer, self._seed, self._clock, obs, self._trial)
        return self._native(np.asarray(executed)[0])

    def record(self, transition: Transition) -> None:
        """Take one copy's step; with the last copy's, a replay agent stores and learns."""
        self._rows.append(transition)
        self._step = transition.step
        self._begins[transition.lane] = transition.terminated or transition.truncated
        if transition.lane < self._trainer.n_envs - 1:
            return
        self._follow()
        if self._trainer.on_policy:
            self._clock = self._clock._replace(t=self._clock.t + 1)
            return
        rows_N = jax.tree.map(lambda x: x[0], self._batch())
        self._seed, self._clock, self._sums = _store_and_update(
            self._trainer, self._seed, self._clock, rows_N, self._sums
        )

    def _follow(self) -> None:
        """What the vector step just done adds to its rows, and where the guide stands after it."""
        latest = self._rows[-self._trainer.n_envs :]
        next_obs = np.stack([self._encode(row.next_observation, row.step) for row in latest])
        columns, self._guide = _followed(self._trainer, self._choice, next_obs, self._begins)
        columns |= {"obs": self._obs, "next_obs": next_obs}
        if self._seed.extensions.uses("action"):
            columns |= {"bonus": self._choice.bonus, "end": self._choice.end}
        self._columns.append(jax.tree.map(np.asarray, columns))

    def update(self, window: RolloutWindow) -> Mapping[str, float]:
        """Learn from a whole window, or report what was learnt on the way.

        A window that was cut at an alarm comes in parts, and is learnt from with the last one.
        """
        if self._step is not None and window.last_step <= self._step:
            return {}
        if self._trainer.on_policy:
            whole = len(self._rows) == self._trainer.window_steps * self._trainer.n_envs
            rows_TN = self._batch()
            if not whole:
                return {}
            self._seed, metrics = _learn_window(self._trainer, self._seed, rows_TN, self._clock)
            feed = self._trainer.agent.feed
            self._clock = self._clock._replace(updates=self._clock.updates + feed.epochs * feed.minibatches)
        else:
            done = int(self._clock.updates) - self._first
            assert self._sums is not None
            metrics = learning.averaged(self._sums, jnp.int32(done))
            self._sums, self._first = jax.tree.map(jnp.zeros_like, self._sums), self._first + done
            self._seed = learning.refreshed(self._trainer, self._seed, self._clock)
        return {name: float(value) for name, value in metrics.items()}

    def on_regime_shift(self, shift: Mapping[str, Any]) -> None:
        """The next post_update sees the shift."""
        self._seed = self._seed._replace(shift=jnp.ones((), bool))

    def features(self) -> dict[str, np.ndarray]:
        """Last hidden activations on recent rows, network -> [rows, units]."""
        return {name: np.asarray(value) for name, value in _features(self._trainer, self._seed, self._clock).items()}

    def save_checkpoint(self, path: Path) -> None:
        """Write everything that changes, between windows."""
        arrays.save(path, states.leaves(self._whole()), {"first": self._first})

    def load_checkpoint(self, path: Path) -> None:
        """Take up what `save_checkpoint` wrote; raises DataError for another program's."""
        found, meta = arrays.load(path)
        self._seed, clock, self._guide, *begun = states.restored(self._whole(), found, path)
        self._clock = clock._replace(data=self._data)
        self._begins, self._beginnings = (np.array(each) for each in begun)
        self._first = meta["first"]

    def _whole(self) -> tuple[Any, ...]:
        """Everything that changes and outlasts a window."""
        begun = jnp.asarray(self._begins), jnp.asarray(self._beginnings)
        return self._seed, self._clock._replace(data=()), self._guide, *begun

    def _native(self, action: np.ndarray) -> Any:
        return int(action) if self._trainer.world.spec.discrete else action

    def _batch(self) -> Batch:
        """The rows kept so far as [T, N], and none kept any more."""
        n_envs = self._trainer.n_envs
        column = lambda name, kind: np.array([getattr(row, name) for row in self._rows], kind).reshape(-1, n_envs)
        added = jax.tree.map(lambda *steps: np.stack(steps), *self._columns)
        bonus, end = added.pop("bonus", np.float32(0.0)), added.pop("end", np.False_)
        rows = Batch(
            reward=column("reward", np.float32) + bonus,
            terminated=column("terminated", bool) | end,
            truncated=column("truncated", bool),
            **added,
        )
        if acting.keeps_reset_obs(self._trainer.agent):
            # The environment is reset after the step is told; where the episode began is drawn from the same resets.
            rows = rows._replace(reset_obs=self._beginnings[None])
        self._rows, self._columns = [], []
        return rows


@partial(jax.jit, static_argnames="trainer")
def _begin(trainer, numbers, clock):
    seed = loop.begin(trainer, numbers, clock)
    spec, n_envs = trainer.world.spec, trainer.n_envs
    obs, no = jnp.zeros((n_envs, *spec.obs_shape)), jnp.zeros(n_envs, bool)
    draws, guide = acting.draw(trainer, seed.keys.exploration), acting.start_guide(trainer, n_envs)
    choose = lambda: acting.choose(trainer, seed, obs, guide, draws, clock)[0]
    columns = jax.eval_shape(lambda: acting.followed(trainer, choose(), obs)[0])
    blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), columns)
    rows = Batch(obs, reward=jnp.zeros(n_envs), terminated=no, truncated=no, next_obs=obs, **blank)
    if acting.keeps_reset_obs(trainer.agent):
        rows = rows._replace(reset_obs=obs)
    return loop.with_stores(trainer, seed, rows)


@partial(jax.jit, static_argnames="trainer")
def _act(trainer, seed, clock, obs, guide):
    draws = acting.draw(trainer, jax.random.fold_in(seed.keys.exploration, clock.t))
    choice, extensions = acting.choose(trainer, seed, obs, guide, draws, clock)
    executed = acting.executed(trainer.world.spec, choice.action)
    return choice, executed, seed._replace(extensions=extensions)


@partial(jax.jit, static_argnames="trainer")
def _followed(trainer, choice, next_obs, done):
    columns, guide = acting.followed(trainer, choice, next_obs)
    pick = lambda new, old: masks.where(done, new, old)
    return columns, jax.tree.map(pick, acting.start_guide(trainer, trainer.n_envs), guide)


_store_and_update = jax.jit(learning.store_and_update, static_argnames="trainer")
_features = jax.jit(lambda trainer, seed, clock: evaluate.diagnose(trainer, seed, clock)[1], static_argnums=0)


@partial(jax.jit, static_argnames="trainer")
def _learn_window(trainer, seed, rows_TN, clock):
    return loop.learn_window(trainer, seed, rows_TN, clock)
