"""Five worlds of one or two steps, each solved only by an agent whose named part works.

Train on them in this order: the first that is not learned names what is broken. Every probe has
a discrete form (two actions) and a continuous one (one action in [-1, 1]); its rewards are
multiplied by the task's `scale`. What a learned agent must know stands in `answers`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.records import Spec
from perdure.worlds.pure import physics

HORIZON = 10
"""Longer than any probe's episode, so that these end by termination alone."""


class ProbeTask(NamedTuple):
    """What a regime may change."""

    scale: float = 1.0
    """Multiplies every reward; a negative number turns the best action into the worst."""


class Answers(NamedTuple):
    """What an agent that has learned a probe knows, for every observation that occurs (a row each)."""

    observations: tuple[float, ...]
    values: tuple[float, ...]
    """Discounted return of the best policy from there on."""
    actions: tuple[float, ...]
    """The best action; empty where all are equal."""
    action_values: tuple[tuple[float, ...], ...] = ()
    """Of each action of the discrete form; empty in the continuous form or where all are equal."""


class _Probe:
    """What the five share: one observed number, one task, two forms."""

    continuous: bool = False

    @property
    def spec(self) -> Spec:
        """One number seen; two actions, or one in [-1, 1]."""
        if self.continuous:
            return Spec((1,), 1, discrete=False, low=(-1.0,), high=(1.0,), horizon=HORIZON)
        return Spec((1,), 2, discrete=True, horizon=HORIZON)

    def task(self, **params: float) -> ProbeTask:
        """A task with another scale; raises ConfigError for an unknown parameter."""
        return physics.task(ProbeTask(), params, f"probe {type(self).__name__}")


@component
class ConstantValue(_Probe):
    """Reward 1 and the end, whatever is done. Fails if the value network or its optimiser does not learn."""

    continuous: bool = False

    def reset(self, key: jax.Array, task: ProbeTask) -> tuple[physics.State, jax.Array]:
        """Observation 0."""
        return _observe(jnp.zeros(1, jnp.float32))

    def step(self, key: jax.Array, state: physics.State, action: jax.Array, task: ProbeTask) -> tuple:
        """The only step."""
        return _end(state, task.scale)

    def answers(self, discount: float = 0.99, scale: float = 1.0) -> Answers:
        """The value is the reward."""
        return Answers((0.0,), (scale,), ())


@component
class ValueFromObservation(_Probe):
    """Observation +1 or -1, which is also the reward. Fails if the value does not depend on what is seen."""

    continuous: bool = False

    def reset(self, key: jax.Array, task: ProbeTask) -> tuple[physics.State, jax.Array]:
        """Observation +1 or -1, even odds."""
        return _observe(_sign(key))

    def step(self, key: jax.Array, state: physics.State, action: jax.Array, task: ProbeTask) -> tuple:
        """The only step."""
        return _end(state, task.scale * state.body[0])

    def answers(self, discount: float = 0.99, scale: float = 1.0) -> Answers:
        """The value is the observation."""
        return Answers((-1.0, 1.0), (-scale, scale), ())


@component
class DiscountedStep(_Probe):
    """Observation 0, then 1, then reward 1 and the end. Fails if bootstrapping or discounting is wrong."""

    continuous: bool = False

    def reset(self, key: jax.Array, task: ProbeTask) -> tuple[physics.State, jax.Array]:
        """Observation 0."""
        return _observe(jnp.zeros(1, jnp.float32))

    def step(self, key: jax.Array, state: physics.State, action: jax.Array, task: ProbeTask) -> tuple:
        """Nothing at the first step, the reward at the second."""
        last = state.t >= 1
        body, t = jnp.ones_like(state.body), state.t + 1
        return physics.State(body, t), body, task.scale * last.astype(jnp.float32), last, t >= HORIZON

    def answers(self, discount: float = 0.99, scale: float = 1.0) -> Answers:
        """The value of the first observation is one discount away from the second's."""
        return Answers((0.0, 1.0), (discount * scale, scale), ())


@component
class ActionValue(_Probe):
    """Reward by the action alone. Fails if the advantage or the policy's gradient is wrong.

    Discrete: +1 for action 1, -1 for action 0. Continuous: 1 - (action - 1/2)^2.
    """

    continuous: bool = False

    def reset(self, key: jax.Array, task: ProbeTask) -> tuple[physics.State, jax.Array]:
        """Observation 0."""
        return _observe(jnp.zeros(1, jnp.float32))

    def step(self, key: jax.Array, state: physics.State, action: jax.Array, task: ProbeTask) -> tuple:
        """The only step."""
        return _end(state, task.scale * _score(action, jnp.ones((), jnp.float32), self.continuous))

    def answers(self, discount: float = 0.99, scale: float = 1.0) -> Answers:
        """The value is that of the best action."""
        return _best((0.0,), (1.0,), scale, self.continuous)


@component
class ActionFromObservation(_Probe):
    """Observation +1 or -1, reward by the match of the action. Fails if the policy ignores what it sees, or rows mix.

    Discrete: +1 for action 1 at +1 or action 0 at -1, else -1. Continuous: 1 - (action - observation/2)^2.
    """

    continuous: bool = False

    def reset(self, key: jax.Array, task: ProbeTask) -> tuple[physics.State, jax.Array]:
        """Observation +1 or -1, even odds."""
        return _observe(_sign(key))

    def step(self, key: jax.Array, state: physics.State, action: jax.Array, task: ProbeTask) -> tuple:
        """The only step."""
        return _end(state, task.scale * _score(action, state.body[0], self.continuous))

    def answers(self, discount: float = 0.99, scale: float = 1.0) -> Answers:
        """The value is that of the matching action."""
        return _best((-1.0, 1.0), (-1.0, 1.0), scale, self.continuous)


def ladder(continuous: bool = False) -> Mapping[str, Any]:
    """The five probes in the order in which to train on them, by registry name."""
    return {
        "perdure/probe_constant": ConstantValue(continuous),
        "perdure/probe_observation": ValueFromObservation(continuous),
        "perdure/probe_discount": DiscountedStep(continuous),
        "perdure/probe_action": ActionValue(continuous),
        "perdure/probe_policy": ActionFromObservation(continuous),
    }


def _observe(body):
    return physics.begin(body), body


def _sign(key):
    return jnp.where(jax.random.bernoulli(key, shape=(1,)), 1.0, -1.0).astype(jnp.float32)


def _end(state, reward):
    t = state.t + 1
    return physics.State(state.body, t), state.body, reward, jnp.ones((), bool), t >= HORIZON


def _score(action, wanted, continuous):
    """How well `action` fits a wanted sign."""
    if continuous:
        return 1.0 - jnp.square(jnp.clip(action[0], -1.0, 1.0) - 0.5 * wanted)
    return jnp.where(action == 1, wanted, -wanted)


def _best(observations, wanted, scale, continuous):
    if continuous and scale < 0:
        actions = tuple(-sign for sign in wanted)
        values = tuple(scale * (1.0 - 1.5**2) for _ in wanted)
        return Answers(observations, values, actions)
    if continuous:
        return Answers(observations, tuple(scale for _ in wanted), tuple(0.5 * sign for sign in wanted))
    action_values = tuple((-scale * sign, scale * sign) for sign in wanted)
    actions = tuple(float(pair[1] > pair[0]) for pair in action_values)
    return Answers(observations, tuple(max(pair) for pair in action_values), actions, action_values)
