"""What keeps an agent close to a dataset: conservative values, and targets that charge for leaving it.

They act on whatever rows an update sees, so they serve training on a dataset alone, and afterwards.
Suffixes: K critics, B batch, A action dimensions; n samples of each kind.
"""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.extension import Extension, Run
from perdure.rl import ranges, views
from perdure.rl.nets import joined
from perdure.rl.phases import Batch, Context, Metrics

SLICE = 128
"""Rows that a CPU takes through the critics at a time: their activations stay in its cache. Others take all at once."""


@component
class ConservativeQ(Extension):
    """Conservative Q-learning: values of actions outside the data are pushed down, those of the data up.

    alpha * mean_kB [ log sum_j exp(Q_k(s, a_j) - log p_j) - Q_k(s, a) ] over `n_actions` uniform actions and as many of
    the policy at s and at s', all valued at s, with their densities p_j (Kumar et al., 2020, arXiv:2006.04779, eq. 4
    by importance sampling, with fixed alpha). Samples and densities are constants; the log of the samples' number is
    left out, which moves no gradient.
    """

    alpha: float = 5.0
    """At least 0."""
    n_actions: int = 10
    """Samples of each of the three kinds, at least 1."""

    needs: ClassVar[frozenset[str]] = frozenset({"actor", "continuous_actions", "policy_density", "q_critic"})

    def __post_init__(self):
        ranges.check(self, alpha=ranges.AT_LEAST_ZERO, n_actions=ranges.COUNT)

    def objection(self, run: Run) -> str | None:
        """Actions that are not the policy's own, and a second term of this kind."""
        if any("transform_action" in part.implemented_phases() for part in run.extensions):
            return "samples the policy's own actions, which another extension transforms; drop one of both"
        if sum(isinstance(part, ConservativeQ) for part in run.extensions) > 1:
            return "is there beside another conservative term; keep one of ConservativeQ and CalQL"
        return None

    def critic_loss(self, agent_state: Any, state: tuple[()], batch: Batch, ctx: Context) -> tuple[jax.Array, Metrics]:
        """The term; it, and how far sampled values lie above those of the data."""
        gap, extra = self._gap(agent_state, batch, ctx)
        return self.alpha * gap, {"cql/term": self.alpha * gap, "cql/gap": gap, **extra}

    def floor(self, q_KnB1: jax.Array, batch: Batch, ctx: Context) -> tuple[jax.Array, Metrics]:
        """Values of the policy's actions as they enter the sum: here as they are."""
        return q_KnB1, {}

    def _gap(self, agent_state, batch, ctx):
        uniform_key, policy_key = jax.random.split(ctx.key)
        own, log_prob = _both_policies(ctx, agent_state, batch, policy_key, self.n_actions)
        shape = (self.n_actions, *batch.action.shape)
        uniform = jax.random.uniform(uniform_key, shape, minval=-1.0, maxval=1.0)
        actions = jax.lax.stop_gradient(jnp.concatenate([uniform, own]))
        log_prob = jax.lax.stop_gradient(log_prob)

        critic = batch.params["critic"]
        q_KmB1 = sampled_q(ctx, critic, batch.obs, actions)
        floored, extra = self.floor(q_KmB1[:, self.n_actions :], batch, ctx)
        uniform_log_prob = -shape[-1] * math.log(2.0)
        scores = jnp.concatenate([q_KmB1[:, : self.n_actions] - uniform_log_prob, floored - log_prob], axis=1)
        taken_KB = views.critic_values(ctx, critic, batch.obs, batch.action)
        return (jax.nn.logsumexp(scores, axis=1)[..., 0] - taken_KB).mean(), extra


@component
class CalQL(ConservativeQ):
    """Calibrated Q-learning: conservative, but not below what the dataset's behaviour is known to earn.

    Values of the policy's actions enter ConservativeQ's sum as max(Q_k(s, a_j), G) with the return-to-go G of the row,
    so that nothing pushes them below it (Nakamoto et al., 2023, arXiv:2303.05479, section 5). Collected rows, whose G
    is unknown, have no floor. G is put into units of values: multiplied by the reward scale.
    """

    needs: ClassVar[frozenset[str]] = ConservativeQ.needs | {"discounted", "replay"}
    reads: ClassVar[frozenset[str]] = frozenset({"return_to_go"})

    def objection(self, run: Run) -> str | None:
        """Values in units of the returns' spread have no common scale with a dataset's returns."""
        if getattr(run.agent, "normalize_rewards", False):
            return "compares values with returns in the world's units; set algorithm.normalize_rewards to false"
        return super().objection(run)

    def floor(self, q_KnB1: jax.Array, batch: Batch, ctx: Context) -> tuple[jax.Array, Metrics]:
        """Values not below the return-to-go, and the share that it lifts."""
        floor_B1 = views.reward_scale(ctx) * batch.return_to_go[:, None]
        return jnp.maximum(q_KnB1, floor_B1), {"calql/bound_frac": (q_KnB1 < floor_B1).mean()}


@component
class TargetBC(Extension):
    """Charge targets for next actions unlike the dataset's: y -= discount (1 - terminated) beta sum_i (a' - a'_data)^2.

    The critic's part of ReBRAC (Tarasov et al., 2023, arXiv:2305.09836). a' is the action that the target
    was made of. Rows whose next action is unknown (collected ones, and the last of an episode) stay as they are.
    """

    beta: float = 1.0
    """At least 0."""

    # Only rows that come by way of a store can know their next action.
    needs: ClassVar[frozenset[str]] = frozenset({"actor", "continuous_actions", "discounted", "q_critic", "replay"})
    reads: ClassVar[frozenset[str]] = frozenset({"next_action"})

    def __post_init__(self):
        ranges.check(self, beta=ranges.AT_LEAST_ZERO)

    def on_target(
        self, agent_state: Any, state: tuple[()], batch: Batch, target: jax.Array, ctx: Context
    ) -> tuple[jax.Array, Metrics]:
        """The charged target; the mean charge over all rows, and the share of rows that know their next action."""
        known_B = jnp.isfinite(batch.next_action).all(-1)
        apart = jnp.where(known_B[..., None], batch.scored_action - batch.next_action, 0.0)
        penalty_B = views.bootstrap_rate(batch) * self.beta * jnp.square(apart).sum(-1)
        told = {"target_bc/penalty": penalty_B.mean(), "target_bc/known_frac": known_B.mean()}
        return target - jax.lax.stop_gradient(penalty_B), told


def policy_samples(
    ctx: Context, agent_state: Any, obs: jax.Array, key: jax.Array, n: int
) -> tuple[jax.Array, jax.Array]:
    """`n` actions of the policy at each row, [n, B, A], and their log-probabilities, [n, B, 1]."""
    # Mapped over keys alone, so the actor runs once for all samples of a row.
    draw = lambda own: views.sample(ctx, agent_state, obs, own)
    actions, log_prob = jax.vmap(draw)(jax.random.split(key, n))
    return actions, log_prob[..., None]


def sampled_q(ctx: Context, critic: Any, obs: jax.Array, actions: jax.Array) -> jax.Array:
    """Every critic's value of `actions` [n, B, A] at the rows' `obs`: [K, n, B, 1]."""
    network = ctx.nets["critic"]
    wide = jnp.broadcast_to(obs, (actions.shape[0], *obs.shape))
    rows = joined(network, wide.reshape(-1, *obs.shape[1:]), actions.reshape(-1, actions.shape[-1]))
    count = rows.shape[0]
    size = SLICE if count % SLICE == 0 else obs.shape[0]

    def sliced(critic, rows):
        # Activations of a slice are made again on the way back, which costs less than to fetch them from memory.
        value = jax.checkpoint(network.apply)
        values = jax.lax.map(lambda slice_: value(critic, slice_), rows.reshape(-1, size, *rows.shape[1:]))
        return jnp.moveaxis(values, 0, 1)

    if count <= SLICE:
        values = network.apply(critic, rows)
    else:
        values = jax.lax.platform_dependent(
            critic, rows, cpu=sliced, default=lambda *known: network.apply(*known).reshape(-1, count // size, size, 1)
        )
    return values.reshape(-1, *actions.shape[:2], 1)


def _both_policies(ctx, agent_state, batch, key, n):
    """`policy_samples` at s and, after them, at s' of every row: [2n, B, A] and [2n, B, 1]; one pass of the actor."""
    both = jnp.concatenate([batch.obs, batch.next_obs])
    pairs = policy_samples(ctx, agent_state, both, key, n)
    apart = lambda x: jnp.concatenate(jnp.split(x, 2, axis=1))
    return tuple(apart(each) for each in pairs)
