"""A share of the weights for each regime, frozen when the next one begins."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.core.extension import Extension
from perdure.rl import ranges, triggers, units

NETWORKS = ("actor", "all")


class Packed(NamedTuple):
    """What is still free to learn."""

    free: Any
    """Network -> whether each of its parameters may move."""
    shifts: jax.Array
    """Shifts so far."""


@component
class PackNet(Extension):
    """Keep the largest of the free weights at every shift, and free the rest (Mallya and Lazebnik, 2018).

    arXiv:1711.05769, section 3: in each layer by itself, by magnitude; what is kept never moves
    again, what is pruned becomes zero and learns the next regime. Of the weights that are free at
    shift k, the share 1 / (tasks - k + 1) is kept, so that each of `tasks` regimes has as many, as
    Wolczyk et al., 2021 (arXiv:2105.10919) do in reinforcement learning; after shift tasks - 1
    nothing more is frozen. Biases and the cell of a memory are frozen at the first shift.

    Departures: no retraining after the pruning, as a shift is told when the old regime is over; and all weights act in
    every regime, where the paper masks those that came after it.
    """

    tasks: int = 5
    """Regimes that the weights are shared among, at least 2."""
    networks: str = "actor"
    """"actor" (the critic where there is no actor), or "all"."""

    needs = frozenset({"boundary", "critic"})

    def __post_init__(self):
        ranges.check(self, tasks=(2, ranges.ANY))
        if self.networks not in NETWORKS:
            raise ConfigError(f"networks is {self.networks!r}; give 'actor' or 'all'")

    def init_state(self, agent_state: Any, key: jax.Array, ctx: Any) -> Packed:
        """Everything is free."""
        free = {
            name: jax.tree.map(lambda x: jnp.ones(x.shape, bool), agent_state.params[name]) for name in self._held(ctx)
        }
        return Packed(free, jnp.zeros((), jnp.int32))

    def gradient(self, agent_state: Any, state: Packed, grads: Any, batch: Any, ctx: Any) -> Any:
        """Nothing from frozen parameters, so that they have no part in a norm that is clipped."""
        return _where_free(state, grads)

    def step(self, agent_state: Any, state: Packed, change: Any, batch: Any, ctx: Any) -> Any:
        """Frozen parameters stay where they are, whatever the optimiser's momentum."""
        return _where_free(state, change)

    def post_update(self, agent_state: Any, state: Packed, ctx: Any) -> tuple[Any, Packed]:
        """Prune and freeze at a shift."""
        due = jnp.asarray(ctx.shift) & (state.shifts < self.tasks - 1)
        return triggers.once(due, lambda both: self._packed(both[0], both[1], ctx), (agent_state, state))

    def eval_metrics(self, agent_state: Any, state: Packed, ctx: Any) -> dict[str, jax.Array]:
        """The share of the weights that may still move."""
        weights = [layer["w"] for layers in state.free.values() for layer in layers]
        return {"packnet/free_fraction": jnp.concatenate([free.ravel() for free in weights]).mean()}

    def _held(self, ctx):
        """The names of the networks it packs."""
        if self.networks == "all":
            return tuple(ctx.nets)
        return ("actor",) if "actor" in ctx.nets else ("critic",)

    def _packed(self, agent_state, state, ctx):
        """The agent with its free weights pruned, and what is free after that."""
        share, free = 1.0 / (self.tasks - state.shifts), {}
        for name, before in state.free.items():
            layers, apart = agent_state.params[name], ctx.nets[name].members is not None
            kept = [largest(layer["w"], mask["w"], share, apart) for layer, mask in zip(layers, before, strict=True)]
            free[name] = [
                jax.tree.map(jnp.zeros_like, mask) | {"w": mask["w"] & ~keep}
                for mask, keep in zip(before, kept, strict=True)
            ]
            pruned = [
                layer | {"w": jnp.where(mask["w"], 0.0, layer["w"])}
                for layer, mask in zip(layers, free[name], strict=True)
            ]
            everything = jax.tree.map(lambda x: jnp.ones(x.shape, bool), layers)
            agent_state = units.forgotten(agent_state, name, everything)
            agent_state = agent_state._replace(params=agent_state.params | {name: pruned})
        return agent_state, Packed(free, state.shifts + 1)


def largest(weights: jax.Array, free: jax.Array, share: jax.Array, apart: bool) -> jax.Array:
    """Which weights are the largest `share` of the free ones of a layer, rounded down: a mask like `weights`.

    `apart`: the first axis is that of an ensemble's members, each with a choice of its own.
    """
    if apart:
        return jax.vmap(lambda w, f: largest(w, f, share, False))(weights, free)
    size = jnp.where(free, jnp.abs(weights), -1.0).ravel()
    rank = jnp.argsort(jnp.argsort(-size)).reshape(weights.shape)
    # A product such as 3 * (1 / 3) may stop a rounding error short of the number it is.
    return free & (rank < jnp.floor(share * free.sum() + 1e-3))


def _where_free(state, tree):
    """The tree {network: ...}, zero where a parameter is frozen."""
    held = {
        name: jax.tree.map(lambda x, free: jnp.where(free, x, 0.0), tree[name], state.free[name])
        for name in tree
        if name in state.free
    }
    return tree | held
