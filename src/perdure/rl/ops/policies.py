"""Policy objectives and the action distributions they need. Suffixes: B batch, A action dimensions or choices."""

import math

import jax
import jax.numpy as jnp

LOG_STD_RANGE = (-20.0, 2.0)
HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def squashed_gaussian(packed_BD: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sample tanh(Normal) in (-1, 1) and its log-probability summed over dimensions; see `squashed`."""
    return squashed(packed_BD, jax.random.normal(key, (*packed_BD.shape[:-1], packed_BD.shape[-1] // 2)))


def squashed(packed_BD: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The action in (-1, 1) that standard Normal `noise` makes, and its log-probability summed over dimensions.

    `packed_BD` holds mean and log standard deviation side by side; the latter is clipped to
    `LOG_STD_RANGE`. Haarnoja et al., 2018 (arXiv:1812.05905), appendix C.
    """
    mean, log_std = jnp.split(packed_BD, 2, axis=-1)
    log_std = jnp.clip(log_std, *LOG_STD_RANGE)
    raw = mean + jnp.exp(log_std) * noise
    log_prob = -0.5 * jnp.square(noise) - log_std - HALF_LOG_TWO_PI
    # log(1 - tanh(x)^2) in the form that does not underflow for large |x|.
    log_prob = log_prob - 2.0 * (math.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
    return jnp.tanh(raw), log_prob.sum(-1)


def squashed_mode(packed_BD: jax.Array) -> jax.Array:
    """tanh of the mean."""
    return jnp.tanh(jnp.split(packed_BD, 2, axis=-1)[0])


def gaussian_log_prob(mean_BA: jax.Array, log_std_A: jax.Array, action_BA: jax.Array) -> jax.Array:
    """Log-density of a diagonal Normal, summed over dimensions: [B]."""
    z = (action_BA - mean_BA) * jnp.exp(-log_std_A)
    return (-0.5 * jnp.square(z) - log_std_A - HALF_LOG_TWO_PI).sum(-1)


def gaussian_entropy(log_std_A: jax.Array) -> jax.Array:
    """Differential entropy of a diagonal Normal: a scalar, in nats."""
    return (log_std_A + 0.5 + HALF_LOG_TWO_PI).sum(-1)


def categorical_log_prob(logits_BA: jax.Array, action_B: jax.Array) -> jax.Array:
    """Log-probability of the chosen action: [B]."""
    chosen = jnp.arange(logits_BA.shape[-1]) == action_B[..., None]
    return jnp.where(chosen, logits_BA, 0.0).sum(-1) - jax.nn.logsumexp(logits_BA, axis=-1)


def categorical_entropy(logits_BA: jax.Array) -> jax.Array:
    """Entropy of a categorical distribution: [B], in nats."""
    log_prob = jax.nn.log_softmax(logits_BA)
    return -(jnp.exp(log_prob) * log_prob).sum(-1)


def clipped_surrogate(ratio_B: jax.Array, advantage_B: jax.Array, clip: float) -> jax.Array:
    """PPO's objective (Schulman et al., 2017, arXiv:1707.06347, eq. 7), negated so that it is minimised."""
    bounded = jnp.clip(ratio_B, 1.0 - clip, 1.0 + clip)
    return -jnp.minimum(ratio_B * advantage_B, bounded * advantage_B).mean()


def epsilon_greedy(q_BA: jax.Array, uniform_2B: jax.Array, epsilon: jax.Array) -> jax.Array:
    """The best action, or with probability `epsilon` a uniform one: [B]; `uniform_2B` lies in [0, 1)."""
    random_B = jnp.floor(uniform_2B[0] * q_BA.shape[-1]).astype(jnp.int32)
    return jnp.where(uniform_2B[1] < epsilon, random_B, q_BA.argmax(-1).astype(jnp.int32))
