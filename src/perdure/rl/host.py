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
from perdure.rl import collect, evaluate, loop
from perdure.rl import state as states
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
        self._clock = Clock(zero, zero, jnp.int32(total_steps))
        numbers = states.numbers((seed,), trainer.n_envs)
        self._seed = _begin(trainer, jax.tree.map(lambda x: x[0], numbers), self._clock)
        self._actions: list[np.ndarray] = []
        self._aux: list[Any] = []
        self._begins = np.ones(trainer.n_envs, bool)
        self._beginnings = np.zeros((trainer.n_envs, *trainer.world.spec.obs_shape), np.float32)
        self._rows: list[Transition] = []
        self._step: int | None = None
        """The last one recorded, so that an observation that cannot be read is named with it."""
        self._sums = None if trainer.on_policy else loop.no_metrics(trainer, self._seed, self._clock)
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
        action, executed, aux, extensions = _act(self._trainer, self._seed, self._clock, obs)
        self._seed = self._seed._replace(extensions=extensions)
        self._actions.append(np.asarray(action))
        self._aux.append(jax.tree.map(np.asarray, aux))
        if collect.keeps_reset_obs(self._trainer.agent):
            self._beginnings = np.where(self._begins[:, None], obs, self._beginnings)
        return [self._native(each) for each in np.asarray(executed)]

    def act_greedy(self, observation: Any) -> Any:
        """The action of an evaluation, in world units."""
        executed = evaluate.act_greedy(self._trainer, self._seed, self._clock, self._encode(observation)[None])
        return self._native(np.asarray(executed)[0])

    def record(self, transition: Transition) -> None:
        """Take one copy's step; with the last copy's, a replay agent stores and learns."""
        self._rows.append(transition)
        self._step = transition.step
        self._begins[transition.lane] = transition.terminated or transition.truncated
        if self._trainer.on_policy:
            if transition.lane == self._trainer.n_envs - 1:
                self._clock = self._clock._replace(t=self._clock.t + 1)
        elif len(self._rows) == self._trainer.n_envs:
            rows_TN = self._batch()
            rows_N = jax.tree.map(lambda x: x[0], rows_TN)
            self._seed, self._clock, self._sums = _store_and_update(
                self._trainer, self._seed, self._clock, rows_N, self._sums
            )

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
            metrics = loop.averaged(self._sums, jnp.int32(done))
            self._sums, self._first = jax.tree.map(jnp.zeros_like, self._sums), self._first + done
            self._seed = loop.refreshed(self._trainer, self._seed, self._clock)
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
        self._seed, self._clock, *begun = states.restored(self._whole(), found, path)
        self._begins, self._beginnings = (np.array(each) for each in begun)
        self._first = meta["first"]

    def _whole(self) -> tuple[Any, ...]:
        """Everything that changes and outlasts a window."""
        return self._seed, self._clock, jnp.asarray(self._begins), jnp.asarray(self._beginnings)

    def _native(self, action: np.ndarray) -> Any:
        return int(action) if self._trainer.world.spec.discrete else action

    def _batch(self) -> Batch:
        """The rows kept so far as [T, N], and none kept any more."""
        n_envs = self._trainer.n_envs
        column = lambda name, kind: np.array([getattr(row, name) for row in self._rows], kind).reshape(-1, n_envs)
        seen = lambda name: np.stack([self._encode(getattr(row, name), row.step) for row in self._rows])
        shaped = lambda x: x.reshape(-1, n_envs, *x.shape[1:])
        rows = Batch(
            shaped(seen("observation")),
            np.stack(self._actions),
            column("reward", np.float32),
            column("terminated", bool),
            column("truncated", bool),
            shaped(seen("next_observation")),
            jax.tree.map(lambda *steps: np.stack(steps), *self._aux),
        )
        if collect.keeps_reset_obs(self._trainer.agent):
            # The environment is reset after the step is told; where the episode began is drawn from the same resets.
            rows = rows._replace(reset_obs=self._beginnings[None])
        self._rows, self._actions, self._aux = [], [], []
        return rows


@partial(jax.jit, static_argnames="trainer")
def _begin(trainer, numbers, clock):
    seed = loop.begin(trainer, numbers, clock)
    spec, n_envs = trainer.world.spec, trainer.n_envs
    obs, no = jnp.zeros((n_envs, *spec.obs_shape)), jnp.zeros(n_envs, bool)
    draws = collect.draw(trainer, seed.keys.exploration)
    proposal, aux, _ = jax.eval_shape(lambda: collect.propose(trainer, seed, obs, draws, clock))
    blank = lambda x: jnp.zeros(x.shape, x.dtype)
    rows = Batch(obs, blank(proposal.action), jnp.zeros(n_envs), no, no, obs, jax.tree.map(blank, aux))
    if collect.keeps_reset_obs(trainer.agent):
        rows = rows._replace(reset_obs=obs)
    return loop.with_stores(trainer, seed, rows)


@partial(jax.jit, static_argnames="trainer")
def _act(trainer, seed, clock, obs):
    key = jax.random.fold_in(seed.keys.exploration, clock.t)
    proposal, aux, extensions = collect.propose(trainer, seed, obs, collect.draw(trainer, key), clock)
    return proposal.action, collect.executed(trainer.world.spec, proposal.action), aux, extensions


_store_and_update = jax.jit(loop.store_and_update, static_argnames="trainer")
_features = jax.jit(lambda trainer, seed, clock: evaluate.diagnose(trainer, seed, clock)[1], static_argnums=0)


@partial(jax.jit, static_argnames="trainer")
def _learn_window(trainer, seed, rows_TN, clock):
    return loop.learn_window(trainer, seed, rows_TN, clock)
