"""Actors fitted to given actions: behavioural cloning. Suffixes: R rows of a dataset, B rows of a batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.rl import views
from perdure.rl.ops import moments, policies, shuffle
from perdure.rl.optim import Adam
from perdure.rl.phases import Batch, Context

SMALLEST_LOG_STD = -1.0
"""Normal policies are scored as if their spread were at least exp of this."""
LARGEST_ACTION = 1.0 - 1e-3
"""Where targets of squashed policies are cut; 1 itself is infinitely far away."""


class PretrainLosses(NamedTuple):
    """The loss at the beginning and at the end."""

    first_loss: jax.Array
    last_loss: jax.Array


def loss(ctx: Context, params: Any, obs: jax.Array, action: jax.Array) -> jax.Array:
    """How far the policy of "actor" (and "log_std") in `params` is from each row's action: [B].

    The negative log-likelihood of an action or choice; of deterministic actors the mean squared error.
    """
    network = ctx.nets["actor"]
    output = network.apply(params["actor"], obs)
    if ctx.spec.discrete:
        return -policies.categorical_log_prob(output, action)
    if "log_std" in params:
        return -policies.gaussian_log_prob(output, jnp.maximum(params["log_std"], SMALLEST_LOG_STD), action)
    if network.outputs == ctx.spec.action_dim:
        return jnp.square(output - action).mean(-1)
    mean, log_std = jnp.split(output, 2, axis=-1)
    log_std = jnp.clip(log_std, SMALLEST_LOG_STD, policies.LOG_STD_RANGE[1])
    action = jnp.clip(action, -LARGEST_ACTION, LARGEST_ACTION)
    stretch = jnp.log1p(-jnp.square(action)).sum(-1)
    return stretch - policies.gaussian_log_prob(mean, log_std, jnp.arctanh(action))


def fitted(
    ctx: Context,
    params: Any,
    rows_R: Batch,
    look: Callable[[jax.Array], jax.Array],
    key: jax.Array,
    epochs: int,
    batch_size: int,
) -> tuple[Any, PretrainLosses]:
    """`params` after `epochs` over the rows by a fresh Adam at the actor's rate, and the mean losses of the first and
    the last of them; `look` makes what the actor sees of raw observations.

    Each epoch takes the rows in an order of its own and leaves out those that fill no batch.
    """
    count = rows_R.action.shape[0]
    size = min(batch_size, count)
    own = views.optimiser(ctx, "actor")
    optimiser = Adam(learning_rate=own.learning_rate)

    def batch(carry, index_B):
        params, opt = carry
        take = lambda x: x.at[index_B].get(mode="promise_in_bounds")
        size_of = lambda params: loss(ctx, params, look(take(rows_R.obs)), take(rows_R.action)).mean()
        value, grads = jax.value_and_grad(size_of)(params)
        return optimiser.step(params, opt, grads), value

    def epoch(carry, epoch_key):
        order = shuffle.permutation(epoch_key, count)[: count // size * size].reshape(-1, size)
        carry, losses = jax.lax.scan(batch, carry, order)
        return carry, losses.mean()

    (params, _), losses = jax.lax.scan(epoch, (params, optimiser.init(params)), jax.random.split(key, epochs))
    return params, PretrainLosses(losses[0], losses[-1])


def scale(ctx: Context, observed: moments.Moments) -> tuple[jax.Array, jax.Array]:
    """(mean, deviation) by which an actor without a normaliser standardises; a number that never varies has 1.

    (0, 1) where convolutions or a memory read the observation: no first layer could stand for other ones.
    """
    if not ctx.nets["actor"].plain:
        return jnp.zeros(()), jnp.ones(())
    spread = jnp.sqrt(observed.variance)
    return observed.mean, jnp.where(spread > 1e-5 * (1.0 + jnp.abs(observed.mean)), spread, 1.0)


def folded(layers: list[dict[str, jax.Array]], mean: jax.Array, spread: jax.Array) -> list[dict[str, jax.Array]]:
    """The network that makes of x [inputs] what these dense layers make of (x - mean) / spread."""
    first, *others = layers
    weights = first["w"] / spread.reshape(-1, 1)
    return [{"w": weights, "b": first["b"] - mean.reshape(-1) @ weights}, *others]
