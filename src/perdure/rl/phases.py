"""Extensions in JAX: the records they see and the fold that visits them in list order."""

import dataclasses
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.errors import PerdureError
from perdure.core.extension import PHASES, Extension
from perdure.core.records import Spec
from perdure.rl.nets import Network

Metrics = dict[str, Any]
"""Name -> scalar, or `Occasional`."""


class Batch(NamedTuple):
    """Rows of experience, with leading axes [T, N] or [B], and what an update adds to them."""

    obs: Any
    action: Any
    reward: Any
    """Unscaled."""
    terminated: Any
    """Where the bootstrap is cut."""
    truncated: Any
    next_obs: Any
    """The true successor, also where an episode ended."""
    aux: Any = ()
    """What the agent attached to the rows (PPO: log-probability, advantage)."""
    target: Any = None
    """Regression targets, from the phase on_target on."""
    params: Any = None
    """The parameters being differentiated, in the loss phases: network name -> tree."""
    discount: float | None = None
    """None under an average-reward criterion."""
    reset_obs: Any = ()
    """What the copy would begin anew with, for agents that offer the column `reset_obs`; () for others."""


class Occasional(NamedTuple):
    """A metric that some updates leave unmeasured: the sum of what was measured, and how often it was."""

    total: jax.Array
    count: jax.Array


class Clock(NamedTuple):
    """Counters shared by all seeds, so that conditions on them stay conditions."""

    t: jax.Array
    """Steps of each environment copy so far."""
    updates: jax.Array
    """Gradient updates so far."""
    total: jax.Array
    """Environment steps of one seed in the whole run (traced: a longer horizon recompiles nothing)."""


class Context(NamedTuple):
    """What surrounds a phase or an agent's call."""

    spec: Spec
    nets: Mapping[str, Network]
    n_envs: int
    clock: Clock
    key: Any = None
    noise: Any = None
    """In act: what the agent's `noise` drew for this step."""
    shift: Any = False
    """In post_update: whether the boundary source reported a shift since the last one."""
    recent: Any = None
    """A batch of recent rows, observations as the networks see them."""
    previous: Any = None
    """In post_update: the clock before the updates just done."""

    @property
    def step(self) -> jax.Array:
        """Environment steps of one seed so far."""
        return self.clock.t * self.n_envs

    @property
    def fraction(self) -> jax.Array:
        """Share of the run that is done, in [0, 1]."""
        return self.step / self.clock.total

    def crossed(self, interval: int) -> jax.Array:
        """Whether the update counter passed a multiple of `interval` since `previous`."""
        return self.clock.updates // interval > self.previous.updates // interval


class Proposal(NamedTuple):
    """An action an extension would rather take."""

    action: jax.Array
    mask: Any
    """[N] where it takes the place of the agent's action."""
    bonus: Any = 0.0
    """[N] added to the reward of the step."""
    end: Any = False
    """[N] where the row is to be stored as terminated."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Extensions:
    """Extensions with their states and one key, threaded through training as one value."""

    states: tuple[Any, ...] = ()
    key: Any = None
    parts: tuple[Extension, ...] = dataclasses.field(default=(), metadata={"static": True})

    @classmethod
    def begin(cls, parts: tuple[Extension, ...], agent_state: Any, key: jax.Array, ctx: Context) -> "Extensions":
        """Initial states, each drawn from a key of its own."""
        stack = cls(tuple(() for _ in parts), key, parts)
        states = list(stack.states)
        for position, part, _, part_ctx in stack._visit("init_state", ctx._replace(key=None)):
            states[position] = part.init_state(agent_state, part_ctx.key, part_ctx)
        return dataclasses.replace(stack, states=tuple(states))

    def uses(self, phase: str) -> bool:
        """Whether any extension overrides `phase`."""
        return any(phase in part.implemented_phases() for part in self.parts)

    def pretrain(self, agent_state: Any, ctx: Context) -> tuple[Any, "Extensions"]:
        """Chain the pretrain phase over a fresh agent."""
        states = list(self.states)
        for position, part, state, part_ctx in self._visit("pretrain", ctx):
            agent_state, states[position] = part.pretrain(agent_state, state, part_ctx)
        return agent_state, dataclasses.replace(self, states=tuple(states))

    def reward(self, agent_state: Any, batch: Batch, ctx: Context) -> tuple[Batch, "Extensions", Metrics]:
        """Chain the reward phase over a batch."""
        states, metrics, reward = list(self.states), {}, batch.reward
        for position, part, state, part_ctx in self._visit("reward", ctx):
            reward, states[position], *extra = part.reward(agent_state, state, batch, reward, part_ctx)
            metrics = merged(metrics, *extra)
        return batch._replace(reward=reward), dataclasses.replace(self, states=tuple(states)), metrics

    def target(self, agent_state: Any, batch: Batch, target: jax.Array, ctx: Context) -> tuple[jax.Array, Metrics]:
        """Chain the on_target phase."""
        metrics: Metrics = {}
        for _, part, state, part_ctx in self._visit("on_target", ctx):
            target, extra = _split(part.on_target(agent_state, state, batch, target, part_ctx))
            metrics = merged(metrics, *extra)
        return target, metrics

    def loss(self, phase: str, agent_state: Any, batch: Batch, ctx: Context) -> tuple[Any, Metrics]:
        """The sum of the terms of critic_loss or actor_loss; the number 0 if there are none."""
        total, metrics = 0.0, {}
        for _, part, state, part_ctx in self._visit(phase, ctx):
            term, extra = _split(getattr(part, phase)(agent_state, state, batch, part_ctx))
            total, metrics = total + term, merged(metrics, *extra)
        return total, metrics

    def act(self, agent_state: Any, obs: Any, action: jax.Array, ctx: Context) -> tuple[Proposal, "Extensions"]:
        """The action to execute: the agent's, unless a proposal takes its place; the last one wins."""
        states = list(self.states)
        final = Proposal(
            action, jnp.zeros(action.shape[:1], bool), jnp.zeros(action.shape[:1]), jnp.zeros(action.shape[:1], bool)
        )
        for position, part, state, part_ctx in self._visit("action", ctx):
            proposal, states[position] = part.action(agent_state, state, obs, part_ctx)
            final = _overlaid(final, proposal)
        return final._replace(action=self._transformed(agent_state, final.action, ctx)), dataclasses.replace(
            self, states=tuple(states)
        )

    def eval_act(self, agent_state: Any, obs: Any, action: jax.Array, ctx: Context) -> jax.Array:
        """The action to execute in an evaluation."""
        final = Proposal(action, jnp.zeros(action.shape[:1], bool))
        for _, part, state, part_ctx in self._visit("eval_action", ctx):
            final = _overlaid(final, part.eval_action(agent_state, state, obs, part_ctx))
        return self._transformed(agent_state, final.action, ctx)

    def post_update(self, agent_state: Any, ctx: Context) -> tuple[Any, "Extensions", Metrics]:
        """Chain the post_update phase."""
        states, metrics = list(self.states), {}
        for position, part, state, part_ctx in self._visit("post_update", ctx):
            agent_state, states[position], *extra = part.post_update(agent_state, state, part_ctx)
            metrics = merged(metrics, *extra)
        return agent_state, dataclasses.replace(self, states=tuple(states)), metrics

    def eval_metrics(self, agent_state: Any, ctx: Context) -> Metrics:
        """Everything the extensions report at an evaluation."""
        metrics: Metrics = {}
        for _, part, state, part_ctx in self._visit("eval_metrics", ctx):
            metrics = merged(metrics, part.eval_metrics(agent_state, state, part_ctx))
        return metrics

    def _transformed(self, agent_state, action, ctx):
        for _, part, state, part_ctx in self._visit("transform_action", ctx):
            action = part.transform_action(agent_state, state, action, part_ctx)
        return action

    def _visit(self, phase: str, ctx: Context) -> Iterator[tuple[int, Any, Any, Context]]:
        """Each extension that overrides `phase`, with its state and a context that holds a key of its own.

        The key depends on (seed, phase, the extension's type, clock) and not on its place in the list, so adding
        an extension anywhere changes no other's draws.
        """
        for position, (part, state) in enumerate(zip(self.parts, self.states, strict=True)):
            if phase in part.implemented_phases():
                place = jax.random.fold_in(jax.random.fold_in(self.key, PHASES.index(phase)), _number(part))
                moment = jax.random.fold_in(jax.random.fold_in(place, ctx.clock.t), ctx.clock.updates)
                yield position, part, state, ctx._replace(key=moment)


def _number(part: Extension) -> jax.Array:
    """What tells an extension from every other; a type is there once."""
    kind = type(part)
    return jnp.uint32(zlib.crc32(f"{kind.__module__}:{kind.__qualname__}".encode()))


def merged(metrics: Metrics, *others: Metrics) -> Metrics:
    """The union of metrics; a name given twice raises."""
    for other in others:
        repeated = sorted(metrics.keys() & other.keys())
        if repeated:
            raise PerdureError(f"metric {repeated[0]!r} is logged twice; rename one of them")
        metrics = metrics | other
    return metrics


def occasionally(when: jax.Array, step: Callable[[Any], tuple[Any, Metrics]], state: Any) -> tuple[Any, Metrics]:
    """`step(state) -> (state, metrics)` where `when`, which all seeds share; elsewhere nothing is done or measured."""
    blank = {name: Occasional(jnp.zeros(()), jnp.zeros(())) for name in jax.eval_shape(step, state)[1]}

    def taken(state):
        state, metrics = step(state)
        return state, {name: Occasional(jnp.float32(value), jnp.ones(())) for name, value in metrics.items()}

    return jax.lax.cond(when, taken, lambda state: (state, blank), state)


def _split(result):
    """(value, [metrics]) of a phase that may return either value or (value, metrics)."""
    return (result[0], [result[1]]) if isinstance(result, tuple) else (result, [])


def _overlaid(final: Proposal, proposal: Proposal | None) -> Proposal:
    if proposal is None:
        return final
    mask = proposal.mask
    wide = mask.reshape(mask.shape + (1,) * (final.action.ndim - mask.ndim))
    pick = lambda new, old: jnp.where(mask, new, old)
    return Proposal(
        jnp.where(wide, proposal.action, final.action),
        final.mask | mask,
        pick(proposal.bonus, final.bonus),
        pick(proposal.end, final.end),
    )
