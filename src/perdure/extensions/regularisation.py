"""Penalties that keep a network near where it began."""

from typing import Any

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.core.extension import Extension


@component
class L2Init(Extension):
    """Regularise towards initial weights: strength * sum ||theta - theta_0||^2.

    Kumar et al., 2023, arXiv:2308.11958, equation 2.
    """

    strength: float = 1e-3
    """Weight of the penalty, at least 0."""

    def __post_init__(self):
        if not self.strength >= 0:
            raise ConfigError(f"strength is {self.strength}; it must not be negative")

    def all_needs(self) -> frozenset[str]:
        """A critic; where there is no actor, there is one network less to hold."""
        return frozenset({"critic"})

    def init_state(self, agent_state: Any, key: jax.Array, ctx: Any) -> Any:
        """The initial parameters of every network."""
        return {name: agent_state.params[name] for name in ctx.nets}

    def critic_loss(self, agent_state: Any, state: Any, batch: Any, ctx: Any) -> jax.Array:
        """The distance of every value network that is being moved."""
        return self._distance(state, batch.params, critics=True)

    def actor_loss(self, agent_state: Any, state: Any, batch: Any, ctx: Any) -> jax.Array:
        """The distance of everything else that is being moved."""
        return self._distance(state, batch.params, critics=False)

    def _distance(self, state, params, critics):
        pairs = [(params[name], state[name]) for name in params if name in state and (name == "critic") == critics]
        squares = [
            jnp.square(p - q).sum()
            for tree, start in pairs
            for p, q in zip(jax.tree.leaves(tree), jax.tree.leaves(start))
        ]
        return self.strength * sum(squares, jnp.zeros(()))
