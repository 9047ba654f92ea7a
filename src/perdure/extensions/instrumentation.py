"""Measurements of the critic at evaluations, and a penalty made of one of them.

They look at the recent rows that every agent keeps: of its store, or of its last window.
"""

import warnings
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.extension import Extension
from perdure.rl import learning, ranges, views
from perdure.rl.ops.diagnostics import dormant_fraction, srank

__all__ = ["BiasVoreDecomposition", "BiasVorePenalty", "ConditioningMetrics", "dormant_fraction", "srank"]


@component
class ConditioningMetrics(Extension):
    """Whether the critic's features are well conditioned: means over an ensemble's members.

    Of the last hidden layer on recent rows: srank (Kumar et al., 2021, arXiv:2010.14498), the share of
    dormant units (Sokar et al., 2023, arXiv:2302.12902) and the mean Euclidean length of a row;
    and the Euclidean norm of all the critic's parameters.
    """

    on_policy_batch: int = 256
    """Most rows to look at, of at most 256."""
    buffer: Any = None
    """Not used: every agent hands its rows over by itself."""

    needs: ClassVar[frozenset[str]] = frozenset({"critic"})

    def __post_init__(self):
        _check(self)

    def eval_metrics(self, agent_state: Any, state: tuple[()], ctx: Any) -> dict[str, jax.Array]:
        """Cond/critic_srank, critic_dormant_frac, critic_feat_norm and critic_weight_norm."""
        network, critic = ctx.nets["critic"], agent_state.params["critic"]
        feats = views.features(ctx, "critic", critic, _first(ctx.recent, self.on_policy_batch))[-1]
        if network.members is None:
            feats, critic = feats[None], jax.tree.map(lambda x: x[None], critic)
        squares = jax.vmap(lambda member: sum(jnp.square(x).sum() for x in jax.tree.leaves(member)))(critic)
        return {
            "Cond/critic_srank": jax.vmap(srank)(feats).astype(jnp.float32).mean(),
            "Cond/critic_dormant_frac": jax.vmap(dormant_fraction)(feats).mean(),
            "Cond/critic_feat_norm": jnp.sqrt(jnp.square(feats).sum(-1)).mean(),
            "Cond/critic_weight_norm": jnp.sqrt(squares).mean(),
        }


@component
class BiasVoreDecomposition(Extension):
    """Mean and variance of the critic's one-step residuals rho = prediction - target on recent rows.

    The target is made with the live networks, the agent's own discount and reward scale:
    reward + discount * next, where next is the least critic's value of an action of the policy
    minus the temperature times its log-probability (of the greedy action where the policy has no
    density), a state's value, or the largest action value. Under an average-reward criterion rewards, and
    such log-probabilities at the rows' own observations, count from their mean over the rows, and an
    agent that goes on from where the world begins anew is not cut. E[rho^2] = E[rho]^2 + Var(rho), after
    Flet-Berliac et al., 2021, arXiv:2010.04440; each is a mean over the critics.
    """

    on_policy_batch: int = 256
    """Most rows to look at, of at most 256."""
    value_target_fn: Any = None
    """A function (agent_state, rows, ctx) -> [B] that gives the target instead."""
    buffer: Any = None
    """Not used: every agent hands its rows over by itself."""

    needs: ClassVar[frozenset[str]] = frozenset({"critic"})

    def __post_init__(self):
        _check(self)

    def eval_metrics(self, agent_state: Any, state: tuple[()], ctx: Any) -> dict[str, jax.Array]:
        """EVarEst/bias_sq, var_resid, mse and abs_bias."""
        rows = learning.told(ctx.agent, _first(ctx.recent, self.on_policy_batch))
        target_B = (self.value_target_fn or one_step_target)(agent_state, rows, ctx)
        rho_NB = views.critic_values(ctx, agent_state.params["critic"], rows.obs, rows.action) - target_B
        bias_N = rho_NB.mean(-1)
        return {
            "EVarEst/bias_sq": jnp.square(bias_N).mean(),
            "EVarEst/var_resid": rho_NB.var(-1).mean(),
            "EVarEst/mse": jnp.square(rho_NB).mean(),
            "EVarEst/abs_bias": jnp.abs(bias_N).mean(),
        }


@component
class BiasVorePenalty(Extension):
    """Weigh the variance of the critic's residuals against their bias: adds coefficient * Var(Q - y).

    The variance is that of the update's rows, a mean over the critics. As
    E[rho^2] = E[rho]^2 + Var(rho), the coefficient (1 - 2 alpha) / alpha makes a squared loss
    proportional to alpha E[rho]^2 + (1 - alpha) Var(rho): nothing changes at 1/2, and towards 0 it is
    the loss of Flet-Berliac et al., 2021 (AVEC, arXiv:2010.04440).
    """

    alpha: float = 0.5
    """Share of the bias, in (0, 1]."""
    coeff_override: float | None = None
    """The coefficient itself, at least -1; None: from `alpha`."""
    loss_scale: float = 1.0
    """What the agent multiplies its squared error by (PPO: half its value weight); at least 0."""

    def __post_init__(self):
        ranges.check(self, alpha=(1e-6, 1.0), loss_scale=ranges.AT_LEAST_ZERO)
        if self.coeff_override is not None:
            ranges.check(self, coeff_override=(-1.0, ranges.ANY))

    @property
    def coefficient(self) -> float:
        """What the variance is multiplied by, before the scale."""
        return (1.0 - 2.0 * self.alpha) / self.alpha if self.coeff_override is None else self.coeff_override

    def critic_loss(
        self, agent_state: Any, state: tuple[()], batch: Any, ctx: Any
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The penalty; bias_vore/penalty and bias_vore/residual_var."""
        q_NB = views.critic_values(ctx, batch.params["critic"], batch.obs, batch.action)
        variance = (q_NB - batch.target).var(-1).mean()
        penalty = self.loss_scale * self.coefficient * variance
        return penalty, {"bias_vore/penalty": penalty, "bias_vore/residual_var": variance}


def one_step_target(agent_state: Any, rows: Any, ctx: Any) -> jax.Array:
    """What each row's value should be by its reward and its successor, with the live networks: [B]."""
    next_obs, terminated = rows.next_obs, rows.terminated
    if not isinstance(rows.reset_obs, tuple):
        wide = terminated.reshape(-1, *[1] * (next_obs.ndim - 1))
        next_obs, terminated = jnp.where(wide, rows.reset_obs, next_obs), jnp.zeros_like(terminated)
    here_key, next_key = jax.random.split(ctx.key)
    reward_B = views.reward_scale(ctx) * rows.reward
    if rows.discount is None:
        soft_B = reward_B - _soft_action(agent_state, rows.obs, here_key, ctx)[1] if _is_soft(agent_state) else reward_B
        reward_B = reward_B - soft_B.mean()
    rate_B = views.bootstrap_rate(rows._replace(terminated=terminated))
    return reward_B + rate_B * _next_value(agent_state, next_obs, next_key, ctx)


def _next_value(agent_state, next_obs, key, ctx):
    network, critic = ctx.nets["critic"], agent_state.params["critic"]
    if network.reads == "obs":
        output = network.apply(critic, next_obs)
        return output[..., 0] if network.outputs == 1 else output.max(-1)
    if not _is_soft(agent_state):
        action = views.mode(ctx, agent_state, agent_state.params, next_obs)
        return views.critic_values(ctx, critic, next_obs, action).min(0)
    action, cost_B = _soft_action(agent_state, next_obs, key, ctx)
    return views.critic_values(ctx, critic, next_obs, action).min(0) - cost_B


def _is_soft(agent_state):
    return "log_temperature" in agent_state.params


def _soft_action(agent_state, obs, key, ctx):
    """An action of the policy, and its log-probability times the temperature."""
    action, log_prob_B = views.sample(ctx, agent_state, obs, key)
    return action, jnp.exp(agent_state.params["log_temperature"]) * log_prob_B


def _first(rows, count):
    """At most `count` rows."""
    return jax.tree.map(lambda x: x[:count], rows._replace(discount=None, params=None))


def _check(extension):
    ranges.check(extension, on_policy_batch=ranges.COUNT)
    if extension.buffer is not None:
        kind = type(extension).__name__
        warnings.warn(f"{kind}.buffer is not used: the agent hands its rows over; leave it out", stacklevel=4)
        # A buffer need not be hashable, which what a compiled program is made of must be.
        object.__setattr__(extension, "buffer", None)
