"""What a policy says at each row as one vector, so that it can be kept, compared and asked again later.

Suffixes: B rows, P numbers of the vector, A actions.
"""

from typing import Any

import jax
import jax.numpy as jnp

from perdure.rl.ops import policies
from perdure.rl.phases import Context


def size(ctx: Context, params: Any) -> int:
    """P, the length of the vector; 0 for an agent without an actor."""
    if "actor" not in ctx.nets:
        return 0
    return ctx.nets["actor"].outputs + (ctx.spec.action_dim if "log_std" in params else 0)


def said(ctx: Context, params: Any, obs: jax.Array) -> jax.Array:
    """The policy at each row: [B, P].

    Log-probabilities of discrete actions; mean and log standard deviation of a Normal (before its squashing); the
    action of a deterministic actor. [B, 0] without an actor.
    """
    if "actor" not in ctx.nets:
        return jnp.zeros((obs.shape[0], 0))
    output = ctx.nets["actor"].apply(params["actor"], obs)
    if ctx.spec.discrete:
        return jax.nn.log_softmax(output)
    if "log_std" in params:
        return jnp.concatenate([output, jnp.broadcast_to(params["log_std"], output.shape)], axis=-1)
    if output.shape[-1] == ctx.spec.action_dim:
        return output
    mean, log_std = jnp.split(output, 2, axis=-1)
    return jnp.concatenate([mean, jnp.clip(log_std, *policies.LOG_STD_RANGE)], axis=-1)


def divergence(ctx: Context, one_BP: jax.Array, other_BP: jax.Array) -> jax.Array:
    """Kullback-Leibler divergence KL(one || other) at each row, in nats: [B].

    Squashing both by the same tanh leaves it as it is. Of deterministic actors half the squared distance of the
    actions.
    """
    if ctx.spec.discrete:
        return (jnp.exp(one_BP) * (one_BP - other_BP)).sum(-1)
    if one_BP.shape[-1] == ctx.spec.action_dim:
        return 0.5 * jnp.square(one_BP - other_BP).sum(-1)
    (mean, log_std), (mean_2, log_std_2) = (jnp.split(each, 2, axis=-1) for each in (one_BP, other_BP))
    ratio = jnp.exp(2.0 * (log_std - log_std_2))
    return (log_std_2 - log_std + 0.5 * (ratio + jnp.square((mean - mean_2) * jnp.exp(-log_std_2)) - 1.0)).sum(-1)


def log_prob(ctx: Context, said_BP: jax.Array, action: jax.Array) -> jax.Array:
    """Log-probability of actions [B] or [B, A] under policies without squashing: [B]."""
    if ctx.spec.discrete:
        return policies.categorical_log_prob(said_BP, action)
    mean, log_std = jnp.split(said_BP, 2, axis=-1)
    return policies.gaussian_log_prob(mean, log_std, action)
