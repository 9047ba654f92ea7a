"""Penalties on the parameters themselves, which keep a network able to learn.

Each applies to every network; value networks are charged in critic_loss, the others in actor_loss.
"""

from typing import Any

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.core.extension import Extension
from perdure.rl import ranges

FIRST_ITERATIONS = 20
"""Of power iteration from a random direction."""


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
        pairs = [(params[name], state[name]) for name in _charged(state, params, critics)]
        squares = [
            jnp.square(p - q).sum()
            for tree, start in pairs
            for p, q in zip(jax.tree.leaves(tree), jax.tree.leaves(start))
        ]
        return self.strength * sum(squares, jnp.zeros(()))


@component
class WassersteinInit(Extension):
    """Regularise towards the distribution of initial weights, whichever of them is which.

    strength * sum over matrices and bias vectors, each by itself, of sum_i (theta_(i) - theta_0(i))^2, where (i)
    numbers the sorted entries: the squared 2-Wasserstein distance of the two empirical
    distributions, times the number of entries. Lewandowski et al., 2023, arXiv:2312.00246.
    Sorting every parameter at each update takes time.
    """

    strength: float = 1e-3
    """Weight of the penalty, at least 0."""

    def __post_init__(self):
        ranges.check(self, strength=ranges.AT_LEAST_ZERO)

    def all_needs(self) -> frozenset[str]:
        """A critic; where there is no actor, there is one network less to hold."""
        return frozenset({"critic"})

    def init_state(self, agent_state: Any, key: jax.Array, ctx: Any) -> Any:
        """The initial entries of every network, sorted."""
        return {name: _in_order(ctx.nets[name], agent_state.params[name]) for name in ctx.nets}

    def critic_loss(self, agent_state: Any, state: Any, batch: Any, ctx: Any) -> jax.Array:
        """The distance of every value network that is being moved."""
        return self._distance(state, batch.params, ctx, critics=True)

    def actor_loss(self, agent_state: Any, state: Any, batch: Any, ctx: Any) -> jax.Array:
        """The distance of everything else that is being moved."""
        return self._distance(state, batch.params, ctx, critics=False)

    def _distance(self, state, params, ctx, critics):
        total = jnp.zeros(())
        for name in _charged(state, params, critics):
            found = jax.tree.leaves(_in_order(ctx.nets[name], params[name]))
            total += sum(jnp.square(p - q).sum() for p, q in zip(found, jax.tree.leaves(state[name]), strict=True))
        return self.strength * total


@component
class SpectralPenalty(Extension):
    """Hold the largest singular value of every layer at 1: strength * sum (sigma(W)^k - 1)^2 + (||b||^k)^2.

    Lewandowski et al., 2024, arXiv:2406.06811, with k = `power`. The largest singular value comes
    from power iteration that goes on from where the last update left it; kernels of convolutions count
    as matrices [K * K * C, F].
    """

    strength: float = 1e-4
    """Weight of the penalty, at least 0."""
    power: int = 2
    """k, at least 1."""
    iterations: int = 1
    """Of power iteration at each loss and after each update."""

    def __post_init__(self):
        ranges.check(self, strength=ranges.AT_LEAST_ZERO, power=ranges.COUNT, iterations=ranges.COUNT)

    def all_needs(self) -> frozenset[str]:
        """A critic; where there is no actor, there is one network less to hold."""
        return frozenset({"critic"})

    def init_state(self, agent_state: Any, key: jax.Array, ctx: Any) -> Any:
        """The leading right singular vector of every layer, in terms of its outputs."""
        state = {}
        for position, name in enumerate(ctx.nets):
            keys = jax.random.split(jax.random.fold_in(key, position), len(agent_state.params[name]))
            start = [jax.random.normal(k, layer["b"].shape) for k, layer in zip(keys, agent_state.params[name])]
            state[name] = _turned(ctx.nets[name], agent_state.params[name], start, FIRST_ITERATIONS)
        return state

    def critic_loss(self, agent_state: Any, state: Any, batch: Any, ctx: Any) -> jax.Array:
        """The penalty of every value network that is being moved."""
        return self._penalty(state, batch.params, ctx, critics=True)

    def actor_loss(self, agent_state: Any, state: Any, batch: Any, ctx: Any) -> jax.Array:
        """The penalty of everything else that is being moved."""
        return self._penalty(state, batch.params, ctx, critics=False)

    def post_update(self, agent_state: Any, state: Any, ctx: Any) -> tuple[Any, Any]:
        """Turn the vectors after the layers."""
        turn = lambda name: _turned(ctx.nets[name], agent_state.params[name], state[name], self.iterations)
        return agent_state, {name: turn(name) for name in state}

    def _penalty(self, state, params, ctx, critics):
        total = jnp.zeros(())
        for name in _charged(state, params, critics):
            still = jax.lax.stop_gradient(params[name])
            vectors = _turned(ctx.nets[name], still, state[name], self.iterations)
            for layer, vector in zip(params[name], vectors, strict=True):
                image = (_matrix(ctx.nets[name], layer["w"]) @ vector[..., None])[..., 0]
                # At the leading vector ||W v|| is the singular value, and so is its slope; the small number keeps
                # that finite for a matrix of zeros.
                largest = jnp.sqrt(jnp.square(image).sum(-1) + 1e-12)
                total += jnp.square(largest**self.power - 1.0).sum()
                total += (jnp.square(layer["b"]).sum(-1) ** self.power).sum()
        return self.strength * total


@component
class ParsevalPenalty(Extension):
    """Hold the hidden layers near orthogonal: strength * sum ||W W' - scale * I||_F^2, rows of W being units.

    Chung et al., 2024, arXiv:2412.07224. The last layer of a network is free. The paper's further
    parameters, which rescale units to give back capacity, are no part of it.
    """

    strength: float = 1e-3
    """Weight of the penalty, at least 0."""
    scale: float = 2.0
    """s, the squared length that the incoming weights of each unit are held at; positive."""

    def __post_init__(self):
        ranges.check(self, strength=ranges.AT_LEAST_ZERO, scale=ranges.POSITIVE)

    def all_needs(self) -> frozenset[str]:
        """A critic; where there is no actor, there is one network less to hold."""
        return frozenset({"critic"})

    def critic_loss(self, agent_state: Any, state: Any, batch: Any, ctx: Any) -> jax.Array:
        """The penalty of every value network that is being moved."""
        return self._penalty(batch.params, ctx, critics=True)

    def actor_loss(self, agent_state: Any, state: Any, batch: Any, ctx: Any) -> jax.Array:
        """The penalty of everything else that is being moved."""
        return self._penalty(batch.params, ctx, critics=False)

    def _penalty(self, params, ctx, critics):
        total = jnp.zeros(())
        for name in _charged(ctx.nets, params, critics):
            for layer in params[name][:-1]:
                matrix = _matrix(ctx.nets[name], layer["w"])
                gram = jnp.swapaxes(matrix, -1, -2) @ matrix
                total += jnp.square(gram - self.scale * jnp.eye(gram.shape[-1])).sum()
        return self.strength * total


def _charged(known, params, critics):
    """Those of the networks being moved that this loss phase pays for."""
    return [name for name in params if name in known and (name == "critic") == critics]


def _matrix(network, w):
    """[inputs, units] of a layer, with a leading axis for an ensemble; kernels of convolutions flattened."""
    lead = () if network.members is None else (network.members,)
    return w.reshape(*lead, -1, w.shape[-1])


def _in_order(network, params):
    """Every matrix and every vector as sorted numbers, each member's by themselves."""
    lead = () if network.members is None else (network.members,)
    return jax.tree.map(lambda x: jnp.sort(x.reshape(*lead, -1), axis=-1), params)


def _turned(network, params, vectors, iterations):
    """Unit vectors nearer to each layer's leading right singular vector: v <- W'W v / ||W'W v||."""
    turned = []
    for layer, vector in zip(params, vectors, strict=True):
        matrix, column = _matrix(network, layer["w"]), vector[..., None]
        for _ in range(iterations):
            column = jnp.swapaxes(matrix, -1, -2) @ (matrix @ column)
            column = column * jax.lax.rsqrt(jnp.square(column).sum(-2, keepdims=True) + 1e-30)
        turned.append(column[..., 0])
    return turned
