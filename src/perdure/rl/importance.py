"""How much each parameter of a network matters to what it says on given rows.

Suffixes: B rows, D outputs of the policy's network.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from perdure.rl import views
from perdure.rl.nets import joined
from perdure.rl.ops import policies
from perdure.rl.phases import Batch, Context


def held(ctx: Context, params: Mapping[str, Any], critic: bool) -> dict[str, Any]:
    """The parameters of the policy and, if `critic`, of the value networks; of these alone where there is no actor."""
    policy = {name: params[name] for name in ("actor", "log_std") if name in params}
    return policy | ({"critic": params["critic"]} if critic or "actor" not in ctx.nets else {})


def few(rows: Batch, count: int) -> Batch:
    """At most `count` of the rows, spread evenly over them."""
    total = rows.reward.shape[0]
    index = jnp.arange(min(count, total)) * total // min(count, total)
    return jax.tree.map(lambda x: x[index], rows._replace(discount=None, params=None))


def fisher(ctx: Context, params: Mapping[str, Any], rows: Batch, key: jax.Array) -> dict[str, Any]:
    """The diagonal of the Fisher information: each parameter's mean squared score, shaped as `params`.

    The scores of a policy are those of actions sampled from it at the rows' observations (as the
    information is defined; the actions that the rows hold come from other policies). A
    deterministic actor counts as the mean of a Normal of deviation 1, and so does each critic's
    value of the row, whose squared score is then the squared gradient of the value.
    """
    draw = jax.random.gumbel if ctx.spec.discrete else jax.random.normal
    noise = draw(key, (rows.reward.shape[0], ctx.spec.action_dim))

    def log_likelihood(params, obs, action, noise):
        total = jnp.zeros(())
        if "actor" in params:
            total = total + _log_prob_of_sample(ctx, params, obs[None], noise[None])
        if "critic" in params:
            # Members share no parameters, so that the gradient of the sum is each one's own.
            total = total + views.critic_values(ctx, params["critic"], obs[None], action[None]).sum()
        return total

    return _per_row(log_likelihood, jnp.square, dict(params), rows.obs, rows.action, noise)


def sensitivity(ctx: Context, params: Mapping[str, Any], rows: Batch) -> dict[str, Any]:
    """Mean over rows of |d ||F(x)||^2 / d theta|, F being the outputs of each network in `params`."""

    def squared_length(params, obs, action):
        total = jnp.zeros(())
        for name in params.keys() & ctx.nets.keys():
            network = ctx.nets[name]
            total = total + jnp.square(network.apply(params[name], joined(network, obs[None], action[None]))).sum()
        return total

    return _per_row(squared_length, jnp.abs, dict(params), rows.obs, rows.action)


def _per_row(function, size, params, *rows):
    """Mean over rows of the `size` of the gradient of function(params, *row)."""
    grads = jax.vmap(jax.grad(function), (None, *[0] * len(rows)))(params, *rows)
    return jax.tree.map(lambda g: size(g).mean(0), grads)


def _log_prob_of_sample(ctx, params, obs, noise):
    """Of the action that `noise` makes, which is held constant; a squashing would add a constant."""
    output_BD = ctx.nets["actor"].apply(params["actor"], obs)
    if ctx.spec.discrete:
        action_B = (output_BD + noise).argmax(-1)
        return policies.categorical_log_prob(output_BD, action_B).sum()
    if "log_std" in params:
        mean, log_std = output_BD, params["log_std"]
    elif output_BD.shape[-1] == ctx.spec.action_dim:
        mean, log_std = output_BD, jnp.zeros(ctx.spec.action_dim)
    else:
        mean, log_std = jnp.split(output_BD, 2, axis=-1)
        log_std = jnp.clip(log_std, *policies.LOG_STD_RANGE)
    action = jax.lax.stop_gradient(mean + jnp.exp(log_std) * noise)
    return policies.gaussian_log_prob(mean, log_std, action).sum()
