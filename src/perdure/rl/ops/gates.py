"""Confidence bounds of an ensemble by which an expert is weighed against the policy, and how often it acted.

Suffixes: K critics, N environment copies or rows.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from perdure.rl.ops import rates

FORGETTING = 0.01
"""What one step weighs in a `Share`, which so looks back about a hundred."""


class Share(NamedTuple):
    """A running share of copies: an exponential average, unbiased from the first step on."""

    average: jax.Array
    weight: jax.Array
    """What the steps so far weigh together, below 1."""

    @classmethod
    def begin(cls) -> "Share":
        """Nothing seen yet; the share is 0."""
        return cls(jnp.zeros(()), jnp.zeros(()))

    def seen(self, mask_N: jax.Array) -> "Share":
        """The share after a step in which the copies of the mask were counted."""
        present = mask_N.astype(jnp.float32).mean()
        return Share(rates.track(self.average, present, FORGETTING), rates.track(self.weight, jnp.ones(()), FORGETTING))

    @property
    def value(self) -> jax.Array:
        """In [0, 1]."""
        return self.average / jnp.maximum(self.weight, FORGETTING / 2)


def lcb_beta(fraction: jax.Array, initial: float = 1.0, decay_k: float = 2.0) -> jax.Array:
    """The weight of doubt after this share of the run: initial * (1 - fraction)^decay_k, the share cut to [0, 1]."""
    return initial * (1.0 - jnp.clip(fraction, 0.0, 1.0)) ** decay_k


def lcb_score(q_KN: jax.Array, beta: jax.Array | float) -> jax.Array:
    """The lower confidence bound min - beta * (max - min) over critics, the first axis: [N]."""
    low = q_KN.min(axis=0)
    return low - beta * (q_KN.max(axis=0) - low)


def ucb_score(q_KN: jax.Array, beta: jax.Array | float) -> jax.Array:
    """The upper confidence bound max + beta * (max - min) over critics, the first axis: [N]."""
    high = q_KN.max(axis=0)
    return high + beta * (high - q_KN.min(axis=0))
