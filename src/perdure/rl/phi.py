"""The frozen value of an expert, phi*: how it is read, learnt, refreshed, and lent to the agent's critic.

Suffixes: T steps, N critics (of values) or copies of the world (of rows), B batch, R rows.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.extension import Extension, Run
from perdure.rl import rehearse, views, windows
from perdure.rl.fit import AgentState
from perdure.rl.ops import moments
from perdure.rl.phases import Batch, Context

NUDGE_ROWS = 256
"""Rows of a batch of `pretrain_critic_online_light`."""


class PhiStar(NamedTuple):
    """Critics of the agent's shape that value an expert: what extensions find as `ctx.provided["phi_star"]`.

    They read raw observations, and are in the units of the agent's targets: `reward_scale` times the run's rewards.
    """

    params: Any
    v_min: jax.Array
    """The least of `value` over the expert's own rows."""
    v_max: jax.Array
    """The greatest."""


class MCPretrainAux(NamedTuple):
    """How the regression of phi* went."""

    first_loss: jax.Array
    last_loss: jax.Array
    q_expert_mean: jax.Array
    """Mean of phi* over the expert's rows."""
    expert_steps: jax.Array
    """Steps of the world that the expert took, float32; the run's budget does not count them."""


class MCPretrainResults(NamedTuple):
    """What `pretrain_critic_mc` gives."""

    phi_star: PhiStar
    rows: Batch
    """The expert's rows [R], observations raw."""
    aux: MCPretrainAux


def values(ctx: Context, phi_star: PhiStar, raw_obs: jax.Array, action: jax.Array) -> jax.Array:
    """Every critic's value [N, B] of actions in agent units; of the state alone where the agent's critic reads that."""
    return views.critic_values(ctx, phi_star.params, raw_obs, action)


def value(ctx: Context, phi_star: PhiStar, raw_obs: jax.Array, action: jax.Array) -> jax.Array:
    """The least of `values`: [B]."""
    return values(ctx, phi_star, raw_obs, action).min(0)


def pretrain_critic_mc(
    ctx: Context,
    expert: Any,
    key: jax.Array,
    n_mc_steps: int = 10_000,
    n_mc_episodes: int = 500,
    n_steps: int = 5_000,
    batch_size: int = 256,
    max_timesteps: int | None = None,
) -> MCPretrainResults:
    """Regress fresh critics on the returns of an expert, which is played first; None stands for the agent's own.

    It is played in `n_mc_episodes` copies of the world for `n_mc_steps` each, but for no more rows than all
    batches can hold, nor than `max_timesteps`: copies are saved before steps. Each of `n_steps` batches is drawn
    from all rows. A return is the discounted sum of the rewards up to the end of the episode; where that is a time
    limit or the end of what was played, the critic's own value of the expert's action there is added, so that
    what a limit cuts off biases nothing. The loss is the mean over critics and rows of (Q_k - G_k)^2.
    """
    useful = n_steps * batch_size
    copies, steps = rehearsal(n_mc_steps, n_mc_episodes, min(useful, max_timesteps or useful))
    play_key, init_key, draw_key = jax.random.split(key, 3)
    rows_TN = rehearse.rollout(ctx, expert, play_key, copies, steps)
    found_R = rehearse.flat(rehearse.returns(rows_TN, ctx.agent.discount, views.reward_scale(ctx)))
    rows_R, optimiser = rehearse.flat(rows_TN), views.optimiser(ctx, "critic")

    def loss(params, index_B):
        rows_B, found_B = _at((rows_R, found_R), index_B)
        ends_B = _at(rows_R, found_B.last * copies + index_B % copies)
        beyond_NB = views.critic_values(ctx, params["critic"], ends_B.next_obs, ends_B.next_expert_action)
        target_NB = jax.lax.stop_gradient(found_B.seen + found_B.rate * beyond_NB)
        return jnp.square(views.critic_values(ctx, params["critic"], rows_B.obs, rows_B.action) - target_NB).mean()

    def step(carry, step_key):
        params, opt = carry
        index_B = jax.random.randint(step_key, (batch_size,), 0, copies * steps)
        size, grads = jax.value_and_grad(loss)(params, index_B)
        return optimiser.step(params, opt, grads), size

    params = {"critic": ctx.nets["critic"].init(init_key)}
    (params, _), losses = jax.lax.scan(step, (params, optimiser.init(params)), jax.random.split(draw_key, n_steps))
    phi_star = PhiStar(params["critic"], jnp.zeros(()), jnp.zeros(()))
    # Step by step: the activations of all rows at once could be larger than the memory.
    value_TN = jax.lax.map(lambda rows: value(ctx, phi_star, rows.obs, rows.action), rows_TN)
    phi_star = phi_star._replace(v_min=value_TN.min(), v_max=value_TN.max())
    aux = MCPretrainAux(losses[0], losses[-1], value_TN.mean(), jnp.float32(copies * steps))
    return MCPretrainResults(phi_star, rows_R, aux)


def pretrain_critic_online_light(
    ctx: Context,
    agent_state: AgentState,
    phi_star: PhiStar,
    rows_R: Batch,
    key: jax.Array,
    n_steps: int = 500,
    lr_scale: float = 0.1,
) -> AgentState:
    """Nudge the agent's critic towards phi*: the mean over critics and rows of (Q_k - min_k phi*_k)^2.

    Its optimiser takes steps of `lr_scale` times its rate with moments of their own: gradients scaled in their stead
    would move an adaptive optimiser just as far. The agent's moments stay as they are; the slow copy begins where
    the critic ends.
    """
    own = views.optimiser(ctx, "critic")
    optimiser = dataclasses.replace(own, learning_rate=lr_scale * own.learning_rate)

    def loss(params, rows_B):
        goal_B = jax.lax.stop_gradient(value(ctx, phi_star, rows_B.obs, rows_B.action))
        own_NB = views.critic_values(ctx, params["critic"], seen(ctx, rows_B.obs), rows_B.action)
        return jnp.square(own_NB - goal_B).mean()

    def step(carry, step_key):
        params, opt = carry
        grads = jax.grad(loss)(params, rehearse.drawn(rows_R, step_key, NUDGE_ROWS))
        return optimiser.step(params, opt, grads), ()

    params = {"critic": agent_state.params["critic"]}
    (params, _), _ = jax.lax.scan(step, (params, optimiser.init(params)), jax.random.split(key, n_steps))
    slow = agent_state.slow | (params if "critic" in agent_state.slow else {})
    return agent_state._replace(params=agent_state.params | params, slow=slow)


def refresh_phi_star(
    ctx: Context, phi_star: PhiStar, params: Any, opt: Any, batch: Batch, expert: Any
) -> tuple[Any, Any]:
    """One step of {"critic": ...} and its moments on the expert's rows of a batch, towards targets of the frozen phi*.

    y = c r + discount (1 - terminated) min_k phi*_k(s', a_E(s')), and the loss is the mean over critics, and over the
    rows that the expert executed, of (phi_k - y)^2.
    """
    beyond_B = value(ctx, phi_star, batch.raw_next_obs, views.next_expert_actions(ctx, expert, batch))
    target_B = views.reward_scale(ctx) * batch.reward + views.bootstrap_rate(batch) * beyond_B
    mask_B = batch.is_expert.astype(jnp.float32)

    def loss(params):
        error_NB = views.critic_values(ctx, params["critic"], batch.raw_obs, batch.action) - target_B
        return (mask_B * jnp.square(error_NB).mean(0)).sum() / (mask_B.sum() + 1e-6)

    return views.optimiser(ctx, "critic").step(params, opt, jax.grad(loss)(params))


def seen(ctx: Context, raw_obs: jax.Array) -> jax.Array:
    """Observations as the agent's networks see them before the run begins."""
    if not ctx.agent.normalize_observations:
        return raw_obs
    return windows.framewise(ctx.world, partial(moments.standardise, ctx.provided["obs_moments"]), raw_obs)


def late(extension: Extension, run: Run) -> str | None:
    """Why an extension whose pretrain phase updates the agent stands too early; None: phi* is there for all."""
    givers = [each for each in run.extensions if "phi_star" in each.provides]
    if not givers or givers[0] in run.before(extension):
        return None
    return f"updates the agent before {type(givers[0]).__name__}, whose phi* others may read in them; list it after"


def rehearsal(steps: int, copies: int, most: int) -> tuple[int, int]:
    """(copies, steps of each) to play where only `most` rows have a use."""
    steps = min(steps, most)
    return max(1, min(copies, -(-most // steps))), steps


def _at(rows, index_B):
    return jax.tree.map(lambda x: x.at[index_B].get(mode="promise_in_bounds"), rows)
