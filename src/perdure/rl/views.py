"""How an extension reads an agent whose kind it need not know. Suffixes: N critics, B rows, A actions."""

from typing import Any

import jax
import jax.numpy as jnp

from perdure.rl import experts
from perdure.rl.nets import joined
from perdure.rl.ops import policies, values
from perdure.rl.phases import Batch, Context


def critic_values(ctx: Context, critic: Any, obs: jax.Array, action: jax.Array) -> jax.Array:
    """Every critic's value [N, B]: of (obs, action), of the action taken, or of the state alone."""
    network = ctx.nets["critic"]
    output = network.apply(critic, joined(network, obs, action))
    if network.reads == "obs_action":
        return output[..., 0]
    return (output[..., 0] if network.outputs == 1 else values.taken(output, action))[None]


def slow_critic(agent_state: Any) -> Any:
    """The critic that targets are made with: the slow copy, or the live one where there is none."""
    return agent_state.slow.get("critic", agent_state.params["critic"])


def features(ctx: Context, name: str, params: Any, batch: Batch) -> list[jax.Array]:
    """Activations of each hidden layer on a batch: [B, units], or [N, B, units] for an ensemble."""
    network = ctx.nets[name]
    return network.trace(params, joined(network, batch.obs, batch.action))[:-1]


def mode(ctx: Context, agent_state: Any, params: Any, obs: jax.Array) -> jax.Array:
    """The agent's greedy action [B, A] under the parameters `params`, which may be those being differentiated."""
    return ctx.agent.act_greedy(agent_state._replace(params=agent_state.params | params), obs, ctx)


def sample(ctx: Context, agent_state: Any, obs: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Actions of the policy and their log-probabilities [B]; of agents that offer policy_density."""
    return ctx.agent.sample(agent_state, obs, key, ctx)


def divergence(ctx: Context, params: Any, others: Any, obs: jax.Array) -> jax.Array:
    """Kullback-Leibler divergence KL(params || others) of the policies at each row: [B], in nats.

    Squashing both by the same tanh leaves it as it is. Deterministic actors: half the squared
    distance of the actions. Agents without an actor: of the softmax of their action values.
    """
    name = "actor" if "actor" in ctx.nets else "critic"
    one, other = (ctx.nets[name].apply(each[name], obs) for each in (params, others))
    if ctx.spec.discrete:
        log_p, log_q = jax.nn.log_softmax(one), jax.nn.log_softmax(other)
        return (jnp.exp(log_p) * (log_p - log_q)).sum(-1)
    if "log_std" in params:
        return _normal_divergence(one, params["log_std"], other, others["log_std"])
    if ctx.nets[name].outputs == ctx.spec.action_dim:
        return 0.5 * jnp.square(one - other).sum(-1)
    (mean, log_std), (mean_2, log_std_2) = (jnp.split(each, 2, axis=-1) for each in (one, other))
    clip = lambda x: jnp.clip(x, *policies.LOG_STD_RANGE)
    return _normal_divergence(mean, clip(log_std), mean_2, clip(log_std_2))


def expert_actions(ctx: Context, expert: Any, batch: Batch) -> jax.Array:
    """What `expert` does at the rows' observations, in agent units; None stands for the agent's own."""
    if expert is None or expert == ctx.expert:
        return batch.expert_action
    return experts.agent_units(ctx.spec, expert(batch.raw_obs))


def next_expert_actions(ctx: Context, expert: Any, batch: Batch) -> jax.Array:
    """What `expert` does at the rows' successors, in agent units."""
    if expert is None or expert == ctx.expert:
        return batch.next_expert_action
    return experts.agent_units(ctx.spec, expert(batch.raw_next_obs))


def bootstrap_rate(batch: Batch) -> jax.Array:
    """What the value of the successor is multiplied by in each row's target: [B], 0 where it is cut."""
    span = 1 if isinstance(batch.span, tuple) else batch.span
    return jnp.where(batch.terminated, 0.0, (1.0 if batch.discount is None else batch.discount) ** span)


def reward_scale(ctx: Context) -> float:
    """What the agent multiplies rewards by inside targets."""
    return getattr(ctx.agent, "reward_scale", 1.0)


def critic_optimiser(ctx: Context) -> Any:
    """The optimiser that moves the agent's critic."""
    return getattr(ctx.agent, "critic_optimiser", None) or ctx.agent.optimiser


def _normal_divergence(mean, log_std, mean_2, log_std_2):
    """KL of diagonal Normals, summed over dimensions."""
    ratio = jnp.exp(2.0 * (log_std - log_std_2))
    return (log_std_2 - log_std + 0.5 * (ratio + jnp.square((mean - mean_2) * jnp.exp(-log_std_2)) - 1.0)).sum(-1)
