"""What an evaluation can say of an agent's health beside its score."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.extension import Extension
from perdure.rl import learning, ranges, units, views
from perdure.rl.feeds import Epochs
from perdure.rl.ops import values
from perdure.rl.ops.diagnostics import srank
from perdure.rl.ops.ranks import effective_rank
from perdure.rl.phases import Batch

COLUMNS: tuple[str, ...] = ("obs", "action", "reward", "terminated", "next_obs")


class Watched(NamedTuple):
    """What evaluations are compared with."""

    previous: Any
    """Parameters before the last update or window."""
    present: dict[str, jax.Array]
    """Rows of the present regime, as the networks saw them."""
    former: dict[str, jax.Array]
    """The last rows before the shift."""
    seen: jax.Array
    """Whether there are rows yet: [present, former]."""
    return_bias: jax.Array
    """NaN until a window has been seen."""


@component
class Diagnostics(Extension):
    """Measure networks, critic and policy at every evaluation, and change nothing.

    Of each network: the share of dormant units of all hidden layers (Sokar et al., 2023, arXiv:2302.12902,
    eq. 1; `dormant_fraction`), of the last hidden layer's features srank (Kumar et al., 2021,
    arXiv:2010.14498) and the exponential of the singular values' entropy (Roy and Vetterli, 2007; `effective_rank`),
    both of an ensemble's first member, the norm of all its parameters (`weight_norm`) and how far the last update
    moved them, all updates of a window together for on-policy agents (`update_norm`).

    Of a discounted critic: `td_bias`, its values less one-step targets of the slow critics (the
    greedy action at the successor, the least critic) on recent rows; for on-policy agents `return_bias`, its values
    less the discounted returns of the last window, bootstrapped where it is cut; both in the units of its targets.
    `gradient_cosine`: the angle between the gradients of the squared one-step error on rows of the present regime and
    on the last rows before the shift; NaN before one was told, so a run without a boundary source has none.

    Of the policy: `policy_churn`, the mean divergence KL(before || after) of the last update or window
    on recent rows (of the softmax of action values where there is no actor), and `policy_entropy`
    where it has a density, from one action a row.

    Replay agents show rows of their batches: a mixture of regimes, in which a shift is not sharp.
    """

    rows: int = 64
    """Rows of each regime that gradients are compared on."""
    threshold: float = 0.025
    """Of dormancy, at least 0."""
    delta: float = 0.01
    """Share of the sum of singular values that srank leaves out, in [0, 1]."""

    needs = frozenset({"critic"})

    def __post_init__(self):
        ranges.check(self, rows=ranges.COUNT, threshold=ranges.AT_LEAST_ZERO, delta=ranges.SHARE)

    def init_state(self, agent_state: Any, key: jax.Array, ctx: Any) -> Watched:
        """Nothing seen."""
        spec, count = ctx.spec, self.rows
        obs = jnp.zeros((count, *spec.obs_shape))
        action = jnp.zeros(count, jnp.int32) if spec.discrete else jnp.zeros((count, spec.action_dim))
        blank = dict(zip(COLUMNS, (obs, action, jnp.zeros(count), jnp.zeros(count, bool), obs), strict=True))
        return Watched(agent_state.params, blank, blank, jnp.zeros(2, bool), jnp.full((), jnp.nan))

    def reward(
        self, agent_state: Any, state: Watched, batch: Any, reward: jax.Array, ctx: Any
    ) -> tuple[jax.Array, Watched]:
        """The reward as it is; of a window, how far the critic is from what came of it."""
        if reward.ndim == 1 or batch.discount is None:
            return reward, state
        value_TN, next_value_TN = _values(agent_state, batch, ctx)
        returns_TN = values.lambda_returns(
            views.reward_scale(ctx) * reward, batch.terminated, batch.truncated, next_value_TN, batch.discount, 1.0
        )
        return reward, state._replace(return_bias=(value_TN - returns_TN).mean())

    def post_update(self, agent_state: Any, state: Watched, ctx: Any) -> tuple[Any, Watched]:
        """Remember what was before, and at a shift the rows before it."""
        index = jnp.arange(self.rows) % ctx.recent.reward.shape[0]
        present = {name: getattr(ctx.recent, name)[index] for name in COLUMNS}
        shift = jnp.asarray(ctx.shift)
        former = {name: jnp.where(shift, state.present[name], state.former[name]) for name in COLUMNS}
        seen = jnp.stack([jnp.ones((), bool), jnp.where(shift, state.seen[0], state.seen[1])])
        return agent_state, Watched(ctx.before.params, present, former, seen, state.return_bias)

    def eval_metrics(self, agent_state: Any, state: Watched, ctx: Any) -> dict[str, jax.Array]:
        """Everything, under names that begin with diagnostics/."""
        rows = learning.told(ctx.agent, ctx.recent)
        found = {"policy_churn": views.divergence(ctx, state.previous, agent_state.params, rows.obs).mean()}
        for name in ctx.nets:
            measured = self._network(agent_state.params[name], state.previous[name], name, rows, ctx)
            found |= {f"{name}_{what}": value for what, value in measured.items()}
        if "policy_density" in ctx.agent.offers:
            found["policy_entropy"] = -views.sample(ctx, agent_state, rows.obs, ctx.key)[1].mean()
        if rows.discount is not None:
            found |= self._critic(agent_state, state, rows, ctx)
        return {f"diagnostics/{name}": value for name, value in found.items()}

    def _network(self, layers, before, name, rows, ctx):
        network = ctx.nets[name]
        masks = units.dormant_units(network, layers, rows, self.threshold)
        last = views.features(ctx, name, layers, rows)[-1]
        last = last if network.members is None else last[0]
        return {
            "dormant_fraction": sum(mask.sum() for mask in masks) / sum(mask.size for mask in masks),
            "srank": srank(last, self.delta).astype(jnp.float32),
            "effective_rank": effective_rank(last),
            "weight_norm": _norm(layers),
            "update_norm": _norm(jax.tree.map(jnp.subtract, layers, before)),
        }

    def _critic(self, agent_state, state, rows, ctx):
        """Biases, and the cosine of two regimes' gradients."""
        one, other = (
            _slope(agent_state, learning.told(ctx.agent, _batch(each)), ctx) for each in (state.present, state.former)
        )
        product = sum((a * b).sum() for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
        lengths = _norm(one) * _norm(other)
        known = state.seen.all() & (lengths > 0)
        found = {
            "td_bias": _errors(agent_state, agent_state.params["critic"], rows, ctx).mean(),
            "gradient_cosine": jnp.where(known, product / jnp.where(known, lengths, 1.0), jnp.nan),
        }
        return found | ({"return_bias": state.return_bias} if isinstance(ctx.agent.feed, Epochs) else {})


def _values(agent_state, rows, ctx):
    """Of the rows' actions and of greedy ones at the successors, by the mean and by the least critic."""
    action = views.mode(ctx, agent_state, {}, rows.next_obs)
    following = views.critic_values(ctx, views.slow_critic(agent_state), rows.next_obs, action)
    return views.critic_values(ctx, agent_state.params["critic"], rows.obs, rows.action).mean(0), following.min(0)


def _errors(agent_state, critic, rows, ctx):
    """What every critic says of each row, less the one-step target: [N, B]."""
    _, following = _values(agent_state, rows, ctx)
    target = views.reward_scale(ctx) * rows.reward + views.bootstrap_rate(rows) * following
    return views.critic_values(ctx, critic, rows.obs, rows.action) - jax.lax.stop_gradient(target)


def _slope(agent_state, rows, ctx):
    """The gradient of half the mean squared one-step error in the critics' parameters."""
    loss = lambda critic: 0.5 * jnp.square(_errors(agent_state, critic, rows, ctx)).mean()
    return jax.grad(loss)(agent_state.params["critic"])


def _batch(columns):
    return Batch(**columns, truncated=jnp.zeros_like(columns["terminated"]))


def _norm(tree):
    return jnp.sqrt(sum(jnp.square(x).sum() for x in jax.tree.leaves(tree)))
