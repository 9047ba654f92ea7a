"""Diversity of an ensemble of critics. Suffixes: K critics, B batch."""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.extension import Extension
from perdure.rl import ranges, views
from perdure.rl.phases import Batch, Context, Metrics


@component
class KernelRepulsion(Extension):
    """Push critics apart in function space: coef * mean_ij exp(-D_ij / h).

    D_ij is the squared distance of the values that critics i and j give to the whole batch. The bandwidth
    h = median(D) / log K, held constant, is that of Stein variational gradient descent (Liu and Wang, 2016,
    arXiv:1608.04471, section 5); repulsion between functions instead of weights is after D'Angelo and Fortuin, 2021
    (arXiv:2106.11642).
    """

    coef: float = 0.1
    """At least 0."""

    needs: ClassVar[frozenset[str]] = frozenset({"critic_ensemble", "q_critic"})

    def __post_init__(self):
        ranges.check(self, coef=ranges.AT_LEAST_ZERO)

    def critic_loss(self, agent_state: Any, state: tuple[()], batch: Batch, ctx: Context) -> tuple[jax.Array, Metrics]:
        """The term; it, the mean kernel (1: all critics alike) and the bandwidth."""
        q_KB = views.critic_values(ctx, batch.params["critic"], batch.obs, batch.action)
        kernel, bandwidth = q_kernel_repulsion(q_KB)
        term = self.coef * kernel
        told = {"term": term, "kernel": kernel, "bandwidth": bandwidth}
        return term, {f"kernel_repulsion/{name}": value for name, value in told.items()}


def q_kernel_repulsion(q_KB: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean of the K x K kernel, in (0, 1], and the bandwidth, whose median is over all K x K distances."""
    apart_KK = jnp.square(q_KB[:, None] - q_KB[None]).sum(-1)
    # The small numbers keep one critic, and critics that are all alike, finite.
    bandwidth = jnp.median(apart_KK) / (math.log(q_KB.shape[0]) + 1e-8) + 1e-8
    bandwidth = jax.lax.stop_gradient(bandwidth)
    return jnp.exp(-apart_KK / bandwidth).mean(), bandwidth
