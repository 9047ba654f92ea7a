"""Value targets: everything that turns next-state estimates into regression targets.

Suffixes: T time, N environment copies or critics, B batch, A actions.
"""

import jax
import jax.numpy as jnp


def bootstrap(reward_B: jax.Array, terminated_B: jax.Array, next_value_B: jax.Array, discount: float) -> jax.Array:
    """r + discount (1 - terminated) v'; truncation does not cut the bootstrap."""
    return jax.lax.stop_gradient(reward_B + discount * jnp.where(terminated_B, 0.0, next_value_B))


def soft_value(q_B: jax.Array, log_prob_B: jax.Array, temperature: jax.Array) -> jax.Array:
    """Entropy-regularised state value of a sampled action (Haarnoja et al., 2018, eq. 3)."""
    return q_B - temperature * log_prob_B


def taken(q_BA: jax.Array, action_B: jax.Array) -> jax.Array:
    """The value of the action that was taken: [B].

    A masked sum: its gradient is a product, where that of an indexed read is a slow scatter.
    """
    chosen = jnp.arange(q_BA.shape[-1]) == action_B[..., None]
    return jnp.where(chosen, q_BA, 0.0).sum(-1)


def advantages(
    reward_TN: jax.Array,
    terminated_TN: jax.Array,
    truncated_TN: jax.Array,
    value_TN: jax.Array,
    next_value_TN: jax.Array,
    discount: float,
    decay: float,
) -> jax.Array:
    """Generalised advantage estimates (Schulman et al., 2016, arXiv:1506.02438, eq. 16).

    `next_value_TN` belongs to the true successors, so truncation ends the sum but keeps the
    bootstrap, and termination drops both.
    """
    delta_TN = bootstrap(reward_TN, terminated_TN, next_value_TN, discount) - value_TN
    carry_TN = jnp.where(terminated_TN | truncated_TN, 0.0, discount * decay)
    return linear_recurrence(carry_TN, delta_TN)


def lambda_returns(
    reward_TN: jax.Array,
    terminated_TN: jax.Array,
    truncated_TN: jax.Array,
    next_value_TN: jax.Array,
    discount: float,
    decay: float,
) -> jax.Array:
    """G_t = r_t + discount ((1 - decay) v' + decay G_{t+1}), v' the value of the true successor (Gallici et al., 2024).

    Where an episode or the window ends, v' takes the place of G_{t+1}; termination drops both.
    """
    ends_TN = jnp.logical_or(terminated_TN, truncated_TN).at[-1].set(True)
    carry_TN = jnp.where(ends_TN, 0.0, discount * decay)
    one_step_TN = bootstrap(reward_TN, terminated_TN, next_value_TN, discount)
    return linear_recurrence(carry_TN, one_step_TN - carry_TN * next_value_TN)


def linear_recurrence(carry_TN: jax.Array, value_TN: jax.Array) -> jax.Array:
    """x_t = value_t + carry_t x_{t+1}, with x beyond the last row zero.

    By doubling: log2(T) vector operations instead of T small steps.
    """
    length, shift = value_TN.shape[0], 1
    while shift < length:
        pad = [(0, shift)] + [(0, 0)] * (value_TN.ndim - 1)
        value_TN = value_TN + carry_TN * jnp.pad(value_TN[shift:], pad)
        carry_TN = carry_TN * jnp.pad(carry_TN[shift:], pad)
        shift *= 2
    return value_TN
