"""The steps that maximum-entropy actor-critics are assembled from.

Each is a line of some paper's pseudo-code. An agent borrows the ones it shares and writes out
only what makes it that agent: its target. Suffixes: N critics, B batch.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from perdure.core.records import Spec
from perdure.rl import fit
from perdure.rl.nets import Network, joined, perceptron
from perdure.rl.ops import policies, values
from perdure.rl.phases import Batch, Context, Metrics, merged

Reduce = Callable[[jax.Array], jax.Array]  # q_NB -> q_B
Size = Callable[[jax.Array], jax.Array]  # error_NB -> scalar

OFFERS = frozenset(
    {
        "actor",
        "q_critic",
        "critic",
        "critic_ensemble",
        "discounted",
        "replay",
        "off_policy",
        "policy_density",
        "obs_networks",
    }
)


def networks(agent: Any, spec: Spec, *, critics: int = 2, heads: int = 2, **shape: Any) -> dict[str, Network]:
    """An actor of `heads` numbers an action dimension, and an ensemble of critics of (obs, action).

    Two heads are mean and log standard deviation, one is the action itself; `shape` is of both networks.
    """
    built = partial(perceptron, agent, spec, **{"initialiser": "glorot", **shape})
    return {
        "actor": built(outputs=heads * spec.action_dim, bounded=heads == 1),
        "critic": built(outputs=1, members=critics, reads="obs_action"),
    }


def begin(agent: Any, key: jax.Array, ctx: Context) -> fit.AgentState:
    """Fresh networks, a slow copy of the critics and a temperature that is learnt."""
    state = begin_fixed(agent, key, ctx)
    moments = agent.temperature_optimiser.init({"log_temperature": state.params["log_temperature"]})
    return state._replace(opt=state.opt | {"temperature": moments})


def begin_fixed(agent: Any, key: jax.Array, ctx: Context) -> fit.AgentState:
    """Fresh networks, a slow copy of the critics and a temperature that nothing moves."""
    state = with_temperature(pair(agent, key, ctx), agent.temperature)
    return state._replace(slow={"critic": state.params["critic"]})


def pair(agent: Any, key: jax.Array, ctx: Context) -> fit.AgentState:
    """A fresh actor and fresh critics, each with an optimiser of its own."""
    actor_key, critic_key = jax.random.split(key)
    params = {"actor": ctx.nets["actor"].init(actor_key), "critic": ctx.nets["critic"].init(critic_key)}
    opt = {
        "actor": agent.actor_optimiser.init({"actor": params["actor"]}),
        "critic": agent.critic_optimiser.init({"critic": params["critic"]}),
    }
    return fit.AgentState(params, opt)


def with_temperature(state: fit.AgentState, temperature: float) -> fit.AgentState:
    """The state with a temperature that nothing moves."""
    log_temperature = jnp.array(math.log(temperature), jnp.float32)
    return state._replace(params=state.params | {"log_temperature": log_temperature})


def noise(agent: Any, key: jax.Array, rows: int, spec: Spec) -> jax.Array:
    """[rows, dimensions] standard Normal numbers."""
    return jax.random.normal(key, (rows, spec.action_dim))


def act(agent: Any, state: fit.AgentState, obs: jax.Array, ctx: Context) -> tuple[jax.Array, tuple[()]]:
    """A sampled action in (-1, 1)."""
    return policies.squashed(ctx.nets["actor"].apply(state.params["actor"], obs), ctx.noise)[0], ()


def act_greedy(agent: Any, state: fit.AgentState, obs: jax.Array, ctx: Context) -> jax.Array:
    """The squashed mean."""
    return policies.squashed_mode(ctx.nets["actor"].apply(state.params["actor"], obs))


def sample(
    agent: Any, state: fit.AgentState, obs: jax.Array, key: jax.Array, ctx: Context
) -> tuple[jax.Array, jax.Array]:
    """A fresh action in (-1, 1) for each row, and its log-probability."""
    return policies.squashed_gaussian(ctx.nets["actor"].apply(state.params["actor"], obs), key)


def minimum(q_NB: jax.Array) -> jax.Array:
    """The most pessimistic critic."""
    return q_NB.min(axis=0)


def mean(q_NB: jax.Array) -> jax.Array:
    """The average critic."""
    return q_NB.mean(axis=0)


def q_values(params: Any, obs: jax.Array, action: jax.Array, ctx: Context) -> jax.Array:
    """Every critic's value of (obs, action): [N, B]."""
    return ctx.nets["critic"].apply(params, joined(ctx.nets["critic"], obs, action))[..., 0]


def next_value(
    state: fit.AgentState,
    critic_params: Any,
    batch: Batch,
    key: jax.Array,
    ctx: Context,
    extensions: Any,
    reduce: Reduce,
) -> tuple[jax.Array, Batch]:
    """Soft value of a fresh action at the successor, and the batch with that action."""
    action, log_prob = policies.squashed_gaussian(ctx.nets["actor"].apply(state.params["actor"], batch.next_obs), key)
    action = extensions.transform_next(state, action, batch, ctx)
    q_B = reduce(q_values(critic_params, batch.next_obs, action, ctx))
    value_B = values.soft_value(q_B, log_prob, jnp.exp(state.params["log_temperature"]))
    return value_B, batch._replace(scored_action=action)


def discounted(
    agent: Any, state: fit.AgentState, batch: Batch, next_value: jax.Array, ctx: Context, extensions: Any
) -> tuple[jax.Array, Metrics]:
    """The one-step target for each row, after the extensions: cut by termination alone."""
    target = values.bootstrap(agent.reward_scale * batch.reward, batch.terminated, next_value, agent.discount)
    return extensions.target(state, batch, target, ctx)


def mean_square(error_NB: jax.Array) -> jax.Array:
    """Mean over critics and rows."""
    return jnp.square(error_NB).mean()


def summed_square(error_NB: jax.Array) -> jax.Array:
    """The sum over critics of the mean over rows."""
    return jnp.square(error_NB).mean(axis=1).sum()


def regress(
    agent: Any,
    state: fit.AgentState,
    batch: Batch,
    target: jax.Array,
    ctx: Context,
    extensions: Any,
    size: Size = mean_square,
) -> tuple[fit.AgentState, Metrics]:
    """Every critic towards one target, by the `size` of its errors [N, B]."""

    def loss(params):
        q_NB = q_values(params["critic"], batch.obs, batch.action, ctx)
        assert q_NB.shape[1:] == target.shape
        term, extra = extensions.loss("critic_loss", state, batch._replace(params=params, target=target), ctx)
        value = size(q_NB - target)
        return value + term, merged({"loss/critic": value, "value/q": q_NB.mean()}, extra)

    return fit.descend(state, "critic", agent.critic_optimiser, loss, batch, ctx, extensions)


def climb(
    agent: Any, state: fit.AgentState, batch: Batch, key: jax.Array, ctx: Context, extensions: Any, reduce: Reduce
) -> tuple[fit.AgentState, Metrics]:
    """The actor up the soft value of fresh actions of its own."""
    return climb_along(agent, state, batch, jax.random.normal(key, batch.action.shape), ctx, extensions, reduce)


def climb_along(
    agent: Any, state: fit.AgentState, batch: Batch, noise: jax.Array, ctx: Context, extensions: Any, reduce: Reduce
) -> tuple[fit.AgentState, Metrics]:
    """The actor up the soft value of the actions that it makes of the given Normal `noise` [B, dimensions]."""
    temperature = jnp.exp(state.params["log_temperature"])

    def loss(params):
        action, log_prob = policies.squashed(ctx.nets["actor"].apply(params["actor"], batch.obs), noise)
        action = extensions.transform_at(state, action, batch, ctx)
        q_B = reduce(q_values(state.params["critic"], batch.obs, action, ctx))
        value = -values.soft_value(q_B, log_prob, temperature).mean()
        seen = batch._replace(params=params, agent_loss=value)
        term, extra = extensions.loss("actor_loss", state, seen, ctx)
        return value + term, merged({"loss/actor": value, "policy/entropy": -log_prob.mean()}, extra)

    return fit.descend(state, "actor", agent.actor_optimiser, loss, batch, ctx, extensions)


def adapt(
    agent: Any,
    state: fit.AgentState,
    batch: Batch,
    key: jax.Array,
    ctx: Context,
    extensions: Any,
    goal: float | None = None,
) -> tuple[fit.AgentState, Metrics]:
    """The temperature up while the updated actor's entropy is below its goal, down while above (1812.05905, eq. 18).

    Without a `goal` it is the agent's `target_entropy_per_dim` for each dimension.
    """
    wanted: float = agent.target_entropy_per_dim * ctx.spec.action_dim if goal is None else goal
    _, log_prob = policies.squashed_gaussian(ctx.nets["actor"].apply(state.params["actor"], batch.obs), key)
    gap = -(log_prob.mean() + wanted)
    loss = lambda params: (params["log_temperature"] * gap, ())
    state, _ = fit.descend(state, "temperature", agent.temperature_optimiser, loss, batch, ctx, extensions)
    return state, {"temperature/value": jnp.exp(state.params["log_temperature"])}
