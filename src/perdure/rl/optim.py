"""Optimisers as configuration: pure functions on trees, their moments shaped like the parameters."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.errors import ConfigError


class OptState(NamedTuple):
    """Moments of the gradients; `mean` and `square` are trees shaped like the parameters."""

    count: jax.Array
    mean: Any
    square: Any


class _Optimiser:
    def _check(self):
        if not self.learning_rate > 0:  # type: ignore[attr-defined]
            raise ConfigError(f"learning_rate is {self.learning_rate}; it must be positive")  # type: ignore[attr-defined]
        if self.clip_norm is not None and not self.clip_norm > 0:  # type: ignore[attr-defined]
            raise ConfigError(f"clip_norm is {self.clip_norm}; give a positive norm, or null for none")  # type: ignore[attr-defined]

    def init(self, params: Any) -> OptState:
        """Zero moments for a tree of parameters."""
        zeros = jax.tree.map(jnp.zeros_like, params)
        return OptState(jnp.zeros((), jnp.int32), zeros, jax.tree.map(jnp.zeros_like, params))


@component
class Adam(_Optimiser):
    """Adam (Kingma and Ba, 2015, arXiv:1412.6980, algorithm 1), with optional global-norm clipping."""

    learning_rate: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    clip_norm: float | None = None
    """Gradients are scaled down to this global norm when they exceed it; None: never."""
    kind: Literal["adam"] = "adam"
    """Tells the optimisers apart in a document."""

    def __post_init__(self):
        self._check()

    def step(self, params: Any, state: OptState, grads: Any) -> tuple[Any, OptState]:
        """Parameters and moments after one gradient."""
        grads = clipped(grads, self.clip_norm)
        count = state.count + 1
        steps = count.astype(jnp.float32)
        # Both bias corrections fold into one scale and one epsilon, the efficient form of the paper's section 2.
        root = jnp.sqrt(1 - self.beta2**steps)
        rate = self.learning_rate * root / (1 - self.beta1**steps)
        mean = jax.tree.map(lambda m, g: self.beta1 * m + (1 - self.beta1) * g, state.mean, grads)
        square = jax.tree.map(lambda v, g: self.beta2 * v + (1 - self.beta2) * g * g, state.square, grads)
        params = jax.tree.map(
            lambda p, m, v: p - rate * m / (jnp.sqrt(v) + self.epsilon * root), params, mean, square
        )
        return params, OptState(count, mean, square)


@component
class RMSProp(_Optimiser):
    """Centred RMSProp as in Mnih et al., 2015: the step is divided by the root of the gradient's variance."""

    learning_rate: float = 2.5e-4
    decay: float = 0.95
    epsilon: float = 0.01
    """Added to the variance, inside the root."""
    clip_norm: float | None = None
    kind: Literal["rmsprop"] = "rmsprop"

    def __post_init__(self):
        self._check()

    def step(self, params: Any, state: OptState, grads: Any) -> tuple[Any, OptState]:
        """Parameters and moments after one gradient."""
        grads = clipped(grads, self.clip_norm)
        # Rounding takes the variance of a constant gradient below zero, by more than a small epsilon.
        variance = lambda v, m: jnp.maximum(v - m * m, 0.0)
        mean = jax.tree.map(lambda m, g: self.decay * m + (1 - self.decay) * g, state.mean, grads)
        square = jax.tree.map(lambda v, g: self.decay * v + (1 - self.decay) * g * g, state.square, grads)
        params = jax.tree.map(
            lambda p, g, m, v: p - self.learning_rate * g * jax.lax.rsqrt(variance(v, m) + self.epsilon),
            params, grads, mean, square,
        )
        return params, OptState(state.count + 1, mean, square)


def clipped(grads: Any, limit: float | None) -> Any:
    """`grads` scaled to global norm `limit` where they exceed it (Pascanu et al., 2013)."""
    if limit is None:
        return grads
    # One vector, one sum: a sum for every small leaf would cost more than the products of a small network.
    whole = jnp.concatenate([g.ravel() for g in jax.tree.leaves(grads)])
    norm = jnp.sqrt(jnp.square(whole).sum())
    scale = jnp.minimum(1.0, limit / jnp.maximum(norm, 1e-16))
    return jax.tree.map(lambda g: g * scale, grads)
