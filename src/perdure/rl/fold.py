"""The fold of extensions: phase by phase, in list order, over one record of experience."""

import dataclasses
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from perdure.core.extension import PHASES, Extension
from perdure.rl.ops import masks
from perdure.rl.phases import Batch, Context, Metrics, Proposal, Scene, merged


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
        for position, part, state, part_ctx in self._visit("pretrain", ctx, states):
            present = dataclasses.replace(self, states=tuple(states))
            learn = None if ctx.learn is None else partial(ctx.learn, present)
            agent_state, states[position] = part.pretrain(agent_state, state, part_ctx._replace(learn=learn))
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
            target, extra = split(part.on_target(agent_state, state, batch, target, part_ctx))
            metrics = merged(metrics, *extra)
        return target, metrics

    def loss(self, phase: str, agent_state: Any, batch: Batch, ctx: Context) -> tuple[Any, Metrics]:
        """The sum of the terms of critic_loss or actor_loss; the number 0 if there are none."""
        total, metrics = 0.0, {}
        for _, part, state, part_ctx in self._visit(phase, ctx):
            term, extra = split(getattr(part, phase)(agent_state, state, batch, part_ctx))
            total, metrics = total + term, merged(metrics, *extra)
        return total, metrics

    def act(self, agent_state: Any, obs: Any, action: jax.Array, ctx: Context) -> tuple[Proposal, "Extensions"]:
        """The action to take: the agent's, unless a proposal takes its place; the last one wins."""
        states, rows = list(self.states), action.shape[:1]
        final = Proposal(action, jnp.zeros(rows, bool), jnp.zeros(rows), jnp.zeros(rows, bool))
        for position, part, state, part_ctx in self._visit("action", ctx):
            proposal, states[position] = part.action(agent_state, state, obs, part_ctx)
            final = _overlaid(final, proposal)
        return final, dataclasses.replace(self, states=tuple(states))

    def eval_act(self, agent_state: Any, obs: Any, action: jax.Array, ctx: Context) -> jax.Array:
        """The action to execute in an evaluation."""
        final = Proposal(self.transform(agent_state, action, ctx), jnp.zeros(action.shape[:1], bool))
        for _, part, state, part_ctx in self._visit("eval_action", ctx):
            final = _overlaid(final, part.eval_action(agent_state, state, obs, part_ctx))
        return final.action

    def transform(self, agent_state: Any, action: jax.Array, ctx: Context) -> jax.Array:
        """Chain the transform_action phase: what is executed when `action` is chosen."""
        for _, part, state, part_ctx in self._visit("transform_action", ctx):
            action = part.transform_action(agent_state, state, action, part_ctx)
        return action

    def transform_at(self, agent_state: Any, action: jax.Array, batch: Batch, ctx: Context) -> jax.Array:
        """What is executed when `action` is chosen at the observations of a batch."""
        scene = Scene(batch.raw_obs, batch.expert_action, action)
        return self.transform(agent_state, action, ctx._replace(scene=scene))

    def transform_next(self, agent_state: Any, action: jax.Array, batch: Batch, ctx: Context) -> jax.Array:
        """What is executed when `action` is chosen at the successors of a batch."""
        scene = Scene(batch.raw_next_obs, batch.next_expert_action, action)
        return self.transform(agent_state, action, ctx._replace(scene=scene))

    def gradient(self, agent_state: Any, grads: Any, batch: Batch | None, ctx: Context) -> Any:
        """Chain the gradient phase."""
        for _, part, state, part_ctx in self._visit("gradient", ctx):
            grads = part.gradient(agent_state, state, grads, batch, part_ctx)
        return grads

    def step(self, agent_state: Any, old: Any, new: Any, batch: Batch | None, ctx: Context) -> Any:
        """Chain the step phase: the parameters to move to, where the optimiser would go from `old` to `new`."""
        if not self.uses("step"):
            return new
        change = jax.tree.map(jnp.subtract, new, old)
        for _, part, state, part_ctx in self._visit("step", ctx):
            change = part.step(agent_state, state, change, batch, part_ctx)
        return jax.tree.map(jnp.add, old, change)

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

    def provided(self) -> Mapping[str, Any]:
        """What the extensions provide, by name."""
        return self._provided(self.states)

    def _visit(
        self, phase: str, ctx: Context, states: list[Any] | None = None
    ) -> Iterator[tuple[int, Any, Any, Context]]:
        """Each extension that overrides `phase`, with its state and a context that holds a key of its own.

        The key depends on (seed, phase, the extension's type, clock) and not on its place in the list, so adding
        an extension anywhere changes no other's draws; a phase that is folded several times in an update (gradient,
        step, transform_action) has the same key each time. `states` are read as the visit goes on.
        """
        states = list(self.states) if states is None else states
        for position, part in enumerate(self.parts):
            if phase in part.implemented_phases():
                place = jax.random.fold_in(jax.random.fold_in(self.key, PHASES.index(phase)), _number(part))
                moment = jax.random.fold_in(jax.random.fold_in(place, ctx.clock.t), ctx.clock.updates)
                data = ctx.clock.data[position] if ctx.clock.data else ()
                known = ctx._replace(key=moment, data=data, provided=self._provided(states))
                yield position, part, states[position], known

    def _provided(self, states) -> Mapping[str, Any]:
        known: dict[str, Any] = {}
        for part, state in zip(self.parts, states, strict=True):
            unborn = isinstance(state, tuple) and not state
            known |= {} if unborn else part.provided(state)
        return known


def _number(part: Extension) -> jax.Array:
    """What tells an extension from every other; a type is there once."""
    kind = type(part)
    return jnp.uint32(zlib.crc32(f"{kind.__module__}:{kind.__qualname__}".encode()))


def split(result: Any) -> tuple[Any, list[Metrics]]:
    """(value, [metrics]) of a phase that may return either value or (value, metrics)."""
    return (result[0], [result[1]]) if isinstance(result, tuple) else (result, [])


def _overlaid(final: Proposal, proposal: Proposal | None) -> Proposal:
    if proposal is None:
        return final
    mask = proposal.mask
    pick = lambda new, old: jnp.where(mask, new, old)
    return Proposal(
        masks.where(mask, proposal.action, final.action),
        final.mask | mask,
        pick(proposal.bonus, final.bonus),
        pick(proposal.end, final.end),
    )
