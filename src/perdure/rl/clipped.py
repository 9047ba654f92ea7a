"""The steps that clipped-surrogate actor-critics (PPO and its kin) are assembled from.

Suffixes: T time, N environment copies, B batch.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.records import Spec
from perdure.rl import fit
from perdure.rl.nets import Network, perceptron
from perdure.rl.ops import policies, values
from perdure.rl.phases import Batch, Context, Metrics, merged

OFFERS = frozenset({"actor", "v_critic", "critic", "policy_density", "obs_networks"})


class Labels(NamedTuple):
    """What a window teaches, filled once per window and read in every epoch."""

    log_prob: jax.Array
    advantage: jax.Array


SMALL_ACTOR = {"head_scale": 0.01}
EVEN_CRITIC = {"head_scale": 1.0}


def networks(
    agent: Any, spec: Spec, actor: Mapping[str, Any] = SMALL_ACTOR, critic: Mapping[str, Any] = EVEN_CRITIC
) -> dict[str, Network]:
    """A policy and a value network; `actor` and `critic` are what else their `Network` is given."""
    policy = perceptron(agent, spec, outputs=spec.action_dim, **actor)
    return {"actor": policy, "critic": perceptron(agent, spec, outputs=1, **critic)}


def begin(agent: Any, key: jax.Array, ctx: Context) -> fit.AgentState:
    """Fresh networks; one optimiser moves them all, so their gradients are clipped together."""
    actor_key, critic_key = jax.random.split(key)
    params: dict[str, Any] = {"actor": ctx.nets["actor"].init(actor_key), "critic": ctx.nets["critic"].init(critic_key)}
    if not ctx.spec.discrete:
        params["log_std"] = jnp.zeros(ctx.spec.action_dim)
    return fit.AgentState(params, {"policy": agent.optimiser.init(params)})


def noise(agent: Any, key: jax.Array, rows: int, spec: Spec) -> jax.Array:
    """[rows, actions]: Gumbel numbers (the largest sum with the logits is a sample), or Normal ones."""
    draw = jax.random.gumbel if spec.discrete else jax.random.normal
    return draw(key, (rows, spec.action_dim))


def act(agent: Any, state: fit.AgentState, obs: jax.Array, ctx: Context) -> tuple[jax.Array, tuple[()]]:
    """A sampled action. Its log-probability is found for the whole window at once in `label`."""
    output = ctx.nets["actor"].apply(state.params["actor"], obs)
    if ctx.spec.discrete:
        return (output + ctx.noise).argmax(-1).astype(jnp.int32), ()
    return output + jnp.exp(state.params["log_std"]) * ctx.noise, ()


def act_greedy(agent: Any, state: fit.AgentState, obs: jax.Array, ctx: Context) -> jax.Array:
    """The mode of the policy."""
    output = ctx.nets["actor"].apply(state.params["actor"], obs)
    return output.argmax(-1).astype(jnp.int32) if ctx.spec.discrete else output


def sample(
    agent: Any, state: fit.AgentState, obs: jax.Array, key: jax.Array, ctx: Context
) -> tuple[jax.Array, jax.Array]:
    """A fresh action for each row, and its log-probability."""
    action, _ = act(agent, state, obs, ctx._replace(noise=noise(agent, key, obs.shape[0], ctx.spec)))
    return action, log_prob_and_entropy(state.params, obs, action, ctx)[0]


def log_prob_and_entropy(params: dict[str, Any], obs: jax.Array, action: jax.Array, ctx: Context):
    """Of the given actions [B], and of the policy at `obs` [B]."""
    output = ctx.nets["actor"].apply(params["actor"], obs)
    if ctx.spec.discrete:
        return policies.categorical_log_prob(output, action), policies.categorical_entropy(output)
    entropy = policies.gaussian_entropy(params["log_std"])
    return policies.gaussian_log_prob(output, params["log_std"], action), jnp.broadcast_to(entropy, output.shape[:-1])


def label(
    agent: Any, state: fit.AgentState, rows_TN: Batch, ctx: Context, discount: float, extensions: Any
) -> tuple[Batch, Metrics]:
    """Attach log-probabilities, generalised advantages and the value targets that follow from them."""
    value_TN, next_value_TN = state_values(state, rows_TN, ctx)
    advantage_TN = values.advantages(
        rows_TN.reward, rows_TN.terminated, rows_TN.truncated, value_TN, next_value_TN, discount, agent.gae_lambda
    )
    return attach(state, rows_TN, advantage_TN, advantage_TN + value_TN, ctx, extensions)


def state_values(state: fit.AgentState, rows_TN: Batch, ctx: Context) -> tuple[jax.Array, jax.Array]:
    """The critic's values of the observations and of their successors."""
    value = lambda obs: ctx.nets["critic"].apply(state.params["critic"], obs)[..., 0]
    return value(rows_TN.obs), value(rows_TN.next_obs)


def attach(
    state: fit.AgentState, rows_TN: Batch, advantage_TN: jax.Array, target_TN: jax.Array, ctx: Context, extensions: Any
) -> tuple[Batch, Metrics]:
    """Attach log-probabilities, advantages and value targets; on_target changes the value targets alone."""
    log_prob_TN, _ = log_prob_and_entropy(state.params, rows_TN.obs, rows_TN.action, ctx)
    target_TN, metrics = extensions.target(state, rows_TN, target_TN, ctx)
    return rows_TN._replace(aux=Labels(log_prob_TN, advantage_TN), target=target_TN), metrics


def standardised(rows: Batch) -> Batch:
    """The rows, their advantages shifted and scaled to mean 0 and deviation 1."""
    advantage = rows.aux.advantage
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    return rows._replace(aux=rows.aux._replace(advantage=advantage))


def step(
    agent: Any, state: fit.AgentState, batch: Batch, ctx: Context, extensions: Any
) -> tuple[fit.AgentState, Metrics]:
    """One minibatch of the clipped objective, the value regression and the entropy bonus (PPO eq. 9)."""
    then, advantage = batch.aux

    def loss(params):
        seen = batch._replace(params=params)
        log_prob, entropy = log_prob_and_entropy(params, batch.obs, batch.action, ctx)
        log_ratio = log_prob - then
        ratio = jnp.exp(log_ratio)
        surrogate = policies.clipped_surrogate(ratio, advantage, agent.clip)
        value = ctx.nets["critic"].apply(params["critic"], batch.obs)[..., 0]
        assert value.shape == batch.target.shape
        value_loss = jnp.square(value - batch.target).mean()
        policy_loss = surrogate - agent.entropy_weight * entropy.mean()
        actor_term, actor_metrics = extensions.loss("actor_loss", state, seen._replace(agent_loss=policy_loss), ctx)
        critic_term, critic_metrics = extensions.loss("critic_loss", state, seen, ctx)
        total = policy_loss + agent.value_weight * 0.5 * value_loss
        metrics = {
            "loss/actor": surrogate,
            "loss/critic": value_loss,
            "policy/entropy": entropy.mean(),
            "policy/approximate_kl": (ratio - 1.0 - log_ratio).mean(),
            "policy/clip_fraction": (jnp.abs(ratio - 1.0) > agent.clip).mean(),
        }
        return total + actor_term + critic_term, merged(metrics, actor_metrics, critic_metrics)

    return fit.descend(state, "policy", agent.optimiser, loss, batch, ctx, extensions)
