"""How an extension reads an agent whose kind it need not know. Suffixes: N critics, B rows, A actions."""

from typing import Any

import jax
import jax.numpy as jnp

from perdure.rl import experts, heads
from perdure.rl.nets import joined
from perdure.rl.ops import values
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
    if "actor" in ctx.nets:
        return heads.divergence(ctx, heads.said(ctx, params, obs), heads.said(ctx, others, obs))
    one, other = (jax.nn.log_softmax(ctx.nets["critic"].apply(each["critic"], obs)) for each in (params, others))
    return heads.divergence(ctx, one, other)


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


def optimiser(ctx: Context, name: str) -> Any:
    """The agent's optimiser of that name ("critic", "actor" ...): its own, or the one that moves everything."""
    return getattr(ctx.agent, f"{name}_optimiser", None) or ctx.agent.optimiser
