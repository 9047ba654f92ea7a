"""Multi-layer perceptrons as values: a `Network` says the shape, its parameters are plain lists.

Suffixes: B batch, D features, N ensemble members.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.errors import ConfigError, nearest
from perdure.rl.ops import products

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "leaky_relu": jax.nn.leaky_relu,
    "silu": jax.nn.silu,
}
INITIALISERS = ("orthogonal", "glorot", "torch", "lecun")
PRECISIONS = ("float32", "bfloat16")


@component
class Network:
    """A perceptron, or an ensemble of `members` alike ones whose parameters carry a leading axis N."""

    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    activation: str = "relu"
    layer_norm: bool = False
    initialiser: str = "orthogonal"
    """Of the hidden layers: orthogonal (times `gain`), glorot (uniform), torch (uniform in +-1/sqrt(fan in), biases
    too) or lecun (Normal of variance 1/fan in, cut at two deviations)."""
    gain: float = math.sqrt(2.0)
    """Of orthogonal hidden layers."""
    head_scale: float | None = None
    """Gain of an orthogonal head; None: the head starts as `head_initialiser` says."""
    head_initialiser: str | None = None
    """Of the last layer; None: as the hidden layers."""
    unit_features: bool = False
    """Whether the last hidden layer's activations are scaled to length 1."""
    bounded: bool = False
    """Whether outputs pass through tanh."""
    members: int | None = None
    reads: str = "obs"
    """What its input is made of: "obs" or "obs_action" (the two concatenated)."""
    precision: str = "float32"
    """Of the products; parameters, sums and results stay in single precision."""

    def __post_init__(self):
        if self.activation not in ACTIVATIONS:
            raise ConfigError(f"activation is {self.activation!r}; {nearest(self.activation, ACTIVATIONS)}")
        for initialiser in (self.initialiser, self.head_initialiser or self.initialiser):
            if initialiser not in INITIALISERS:
                raise ConfigError(f"initialiser is {initialiser!r}; {nearest(initialiser, INITIALISERS)}")
        if self.precision not in PRECISIONS:
            raise ConfigError(f"precision is {self.precision!r}; {nearest(self.precision, PRECISIONS)}")
        if not self.hidden or min(self.hidden) < 1:
            raise ConfigError(f"hidden is {list(self.hidden)}; give at least one layer of at least one unit")

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.inputs, *self.hidden, self.outputs)

    def init(self, key: jax.Array) -> list[dict[str, jax.Array]]:
        """Fresh parameters: a list of {"w": [in, out], "b": [out]}, with a leading [N] for an ensemble."""
        if self.members is None:
            return self._init_one(key)
        return jax.vmap(self._init_one)(jax.random.split(key, self.members))

    def apply(self, params: Any, x: jax.Array) -> jax.Array:
        """Outputs [B, outputs], or [N, B, outputs] for an ensemble."""
        return self.trace(params, x)[-1]

    def trace(self, params: Any, x: jax.Array) -> list[jax.Array]:
        """Activations of every hidden layer and, last, the outputs."""
        if self.members is None:
            return self._trace_one(params, x)
        return jax.vmap(self._trace_one, (0, None))(params, x)

    def _init_one(self, key):
        keys = jax.random.split(key, len(self.sizes) - 1)
        pairs = list(zip(self.sizes[:-1], self.sizes[1:], strict=True))
        return [
            self._layer(k, i, o, last=n == len(pairs) - 1)
            for n, (k, (i, o)) in enumerate(zip(keys, pairs, strict=True))
        ]

    def _layer(self, key, fan_in, fan_out, *, last):
        if last and self.head_scale is not None:
            return {"w": orthogonal(key, fan_in, fan_out, self.head_scale), "b": jnp.zeros(fan_out)}
        initialiser = (last and self.head_initialiser) or self.initialiser
        if initialiser == "orthogonal":
            return {"w": orthogonal(key, fan_in, fan_out, self.gain), "b": jnp.zeros(fan_out)}
        if initialiser == "lecun":
            # Cutting at two deviations leaves a Normal with .8796 of its spread.
            spread = 1.0 / (math.sqrt(fan_in) * 0.87962566103423978)
            cut = jax.random.truncated_normal(key, -2.0, 2.0, (fan_in, fan_out))
            return {"w": spread * cut, "b": jnp.zeros(fan_out)}
        if initialiser == "glorot":
            limit = math.sqrt(6.0 / (fan_in + fan_out))
            return {
                "w": jax.random.uniform(key, (fan_in, fan_out), minval=-limit, maxval=limit),
                "b": jnp.zeros(fan_out),
            }
        limit = 1.0 / math.sqrt(fan_in)
        values = jax.random.uniform(key, (fan_in + 1, fan_out), minval=-limit, maxval=limit)
        return {"w": values[:-1], "b": values[-1]}

    def _trace_one(self, params, x):
        activation = ACTIVATIONS[self.activation]
        outputs = []
        for layer in params[:-1]:
            x = products.dense(x, layer["w"], self.precision) + layer["b"]
            x = activation(_standardise(x) if self.layer_norm else x)
            outputs.append(x)
        if self.unit_features:
            # The small number keeps the slope finite where every unit is silent.
            outputs[-1] = x = x * jax.lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-12)
        x = products.dense(x, params[-1]["w"], self.precision) + params[-1]["b"]
        return [*outputs, jnp.tanh(x) if self.bounded else x]


def orthogonal(key: jax.Array, fan_in: int, fan_out: int, gain: float) -> jax.Array:
    """A random matrix [fan_in, fan_out] with orthonormal rows or columns, times `gain` (Saxe et al., 2014).

    It is the polar factor of a Gaussian matrix, which is distributed uniformly, found by the
    Newton-Schulz iteration X <- X (3 - X'X) / 2: products alone. LAPACK's decompositions wait for
    threads of the pool that runs the program, and several of them in one program can wait for ever.
    """
    tall = jax.random.normal(key, (max(fan_in, fan_out), min(fan_in, fan_out)))
    identity = jnp.eye(tall.shape[1])

    def step(carry):
        count, x, gram = carry
        x = x @ (1.5 * identity - 0.5 * gram)
        return count + 1, x, x.T @ x

    def unfinished(carry):
        count, _, gram = carry
        return (count < 64) & (jnp.abs(gram - identity).max() > 1e-5)

    x = tall * jax.lax.rsqrt(jnp.square(tall).sum())
    _, q, _ = jax.lax.while_loop(unfinished, step, (0, x, x.T @ x))
    return gain * (q if fan_in >= fan_out else q.T)


def joined(network: Network, obs: jax.Array, action: jax.Array) -> jax.Array:
    """The input of a network that reads `obs` [B, D] or both `obs` and `action` [B, A]."""
    return obs if network.reads == "obs" else jnp.concatenate([obs, action], axis=-1)


def _standardise(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-6)
