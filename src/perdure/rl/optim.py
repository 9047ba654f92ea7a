"""Optimisers as configuration: pure functions on trees, their moments shaped like the parameters."""

import math
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
    clip_scope: Literal["all", "member"] = "all"
    """Whose norm is compared: of everything the optimiser moves, or of each member of an ensemble."""
    kind: Literal["adam"] = "adam"
    """Tells the optimisers apart in a document."""

    def __post_init__(self):
        self._check()

    def step(self, params: Any, state: OptState, grads: Any) -> tuple[Any, OptState]:
        """Parameters and moments after one gradient."""
        grads = (clipped if self.clip_scope == "all" else clipped_members)(grads, self.clip_norm)
        count = state.count + 1
        steps = count.astype(jnp.float32)
        # Both bias corrections fold into one scale and one epsilon, the efficient form of the paper's section 2.
        root = jnp.sqrt(1 - self.beta2**steps)
        rate = self.learning_rate * root / (1 - self.beta1**steps)
        mean = jax.tree.map(lambda m, g: self.beta1 * m + (1 - self.beta1) * g, state.mean, grads)
        square = jax.tree.map(lambda v, g: self.beta2 * v + (1 - self.beta2) * g * g, state.square, grads)
        params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + self.epsilon * root), params, mean, square)
        return params, OptState(count, mean, square)


@component
class RAdam(_Optimiser):
    """Rectified Adam (Liu et al., 2020, arXiv:1908.03265, algorithm 2): steps adapt once their variance is known."""

    learning_rate: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    threshold: float = 4.0
    """Length of the approximated average, at least 4, beyond which steps adapt; 5 in optax and torch."""
    clip_norm: float | None = None
    kind: Literal["radam"] = "radam"

    def __post_init__(self):
        self._check()
        if self.threshold < 4:
            raise ConfigError(f"threshold is {self.threshold}; below 4 the rectification has no real value")

    def step(self, params: Any, state: OptState, grads: Any) -> tuple[Any, OptState]:
        """Parameters and moments after one gradient."""
        grads = clipped(grads, self.clip_norm)
        count = state.count + 1
        steps = count.astype(jnp.float32)
        longest = 2.0 / (1.0 - self.beta2) - 1.0
        length = self._length(steps, longest)
        known = jnp.maximum(length, 4.0)
        span = (longest - 4.0) * (longest - 2.0) / longest
        rectified = jnp.sqrt((known - 4.0) * (known - 2.0) / (known * span))
        adapts, root = length > self.threshold, jnp.sqrt(-jnp.expm1(steps * math.log(self.beta2)))
        rate = self.learning_rate / (1 - self.beta1**steps)
        mean = jax.tree.map(lambda m, g: self.beta1 * m + (1 - self.beta1) * g, state.mean, grads)
        square = jax.tree.map(lambda v, g: self.beta2 * v + (1 - self.beta2) * g * g, state.square, grads)
        scale = lambda v: jnp.where(adapts, rectified * root / (jnp.sqrt(v) + self.epsilon * root), 1.0)
        params = jax.tree.map(lambda p, m, v: p - rate * m * scale(v), params, mean, square)
        return params, OptState(count, mean, square)

    def _length(self, steps, longest):
        """rho_t = rho_inf - 2 t beta2^t / (1 - beta2^t), by its series where single precision would cancel."""
        rate = -math.log(self.beta2)
        x = rate * steps
        short = steps * (1.0 - x / 6.0 + x**3 / 360.0)
        long = 2.0 / rate * (1.0 - x / jnp.expm1(x))
        return longest - 2.0 / rate + jnp.where(x < 0.1, short, long)


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
            params,
            grads,
            mean,
            square,
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


def clipped_members(grads: Any, limit: float | None) -> Any:
    """`clipped` for each member of an ensemble by itself, the first axis of every leaf."""
    return grads if limit is None else jax.vmap(lambda member: clipped(member, limit))(grads)
