"""Resets that give a network back the ability to learn: of dormant units, or of every weight a little."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.core.extension import Extension
from perdure.rl import triggers, units


class Recycled(NamedTuple):
    """What ReDo last saw, and all it has done."""

    dormant_fraction: jax.Array
    units: jax.Array


@component
class ReDo(Extension):
    """Recycle dormant units (Sokar et al., 2023, arXiv:2302.12902, algorithm 1).

    A hidden unit is dormant if its mean absolute activation over recent rows is at most `threshold`
    times its layer's mean (eq. 1). Every `interval` updates the incoming weights of such units are
    drawn anew, their outgoing weights become zero, and the optimiser forgets both.
    """

    threshold: float = 0.025
    """At least 0."""
    interval: int = 1_000
    """Updates between two recyclings."""

    def __post_init__(self):
        if not self.threshold >= 0:
            raise ConfigError(f"threshold is {self.threshold}; it must not be negative")
        triggers.check_interval(self.interval)

    def init_state(self, agent_state: Any, key: jax.Array, ctx: Any) -> Recycled:
        """Nothing seen, nothing done."""
        return Recycled(jnp.zeros(()), jnp.zeros((), jnp.int32))

    def post_update(self, agent_state: Any, state: Recycled, ctx: Any) -> tuple[Any, Recycled]:
        """Recycle if it is time."""
        return jax.lax.cond(
            ctx.crossed(self.interval), lambda: self._recycle(agent_state, state, ctx), lambda: (agent_state, state)
        )

    def eval_metrics(self, agent_state: Any, state: Recycled, ctx: Any) -> dict[str, jax.Array]:
        """The share of dormant units at the last recycling, and how many were recycled so far."""
        return {"redo/dormant_fraction": state.dormant_fraction, "redo/recycled_units": state.units.astype(jnp.float32)}

    def _recycle(self, agent_state, state, ctx):
        dormant, total = jnp.zeros((), jnp.int32), 0
        for position, (name, network) in enumerate(ctx.nets.items()):
            key = jax.random.fold_in(ctx.key, position)
            masks = units.dormant_units(network, agent_state.params[name], ctx.recent, self.threshold)
            agent_state = units.recycle(network, agent_state, name, masks, network.init(key))
            dormant, total = dormant + sum(mask.sum() for mask in masks), total + sum(mask.size for mask in masks)
        return agent_state, Recycled(dormant / total, state.units + dormant)


@component
class ShrinkPerturb(Extension):
    """Shrink all weights and add a little of a fresh network: shrink * theta + perturb * theta_fresh.

    After Ash and Adams, 2020 (arXiv:1910.08475), with the noise drawn from the initial distribution.
    A `shrink` near 1 with `interval: 1` is the soft form of Juliani and Ash, 2024 (arXiv:2405.19153).
    """

    shrink: float = 0.8
    """In [0, 1]."""
    perturb: float = 0.2
    """At least 0."""
    trigger: str = "interval"
    """"interval", or "shift": when the boundary source reports one."""
    interval: int = 10_000
    """Updates between two applications."""

    def __post_init__(self):
        if not (0 <= self.shrink <= 1 and self.perturb >= 0):
            raise ConfigError(f"shrink is {self.shrink}, perturb {self.perturb}; give shrink in [0, 1], perturb >= 0")
        triggers.check(self.trigger, self.interval)

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """A boundary source, if it waits for shifts."""
        return triggers.needs(self.trigger)

    def post_update(self, agent_state: Any, state: tuple[()], ctx: Any) -> tuple[Any, tuple[()]]:
        """Apply it if it is time."""
        due = triggers.due(ctx, self.trigger, self.interval)
        return triggers.once(due, lambda agent_state: self._mix(agent_state, ctx), agent_state), state

    def _mix(self, agent_state, ctx):
        mixed = {}
        for position, (name, network) in enumerate(ctx.nets.items()):
            fresh = network.init(jax.random.fold_in(ctx.key, position))
            blend = lambda p, q: self.shrink * p + self.perturb * q
            mixed[name] = jax.tree.map(blend, agent_state.params[name], fresh)
        return agent_state._replace(params=agent_state.params | mixed)
