"""Targets that lean on an expert or on its value: a better bootstrap, a blend, a correction, a box of trust.

Each changes what the critics regress on and nothing else; only `ValueBox` also acts. Suffixes: N critics or environment
copies, B rows (of a batch, or [T, N] of a window).
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.extension import Extension, Run
from perdure.rl import phi, ranges, views
from perdure.rl.ops import gates, masks
from perdure.rl.phases import Batch, Context, Metrics, Proposal


@component
class IBRL(Extension):
    """Bootstrap from the better of the agent's and the expert's next action.

    y += discount (1 - terminated) max(min_k Qbar_k(s', a_E') - min_k Qbar_k(s', a'), 0), with a' the action that the
    target was made of (Hu et al., 2023, arXiv:2311.02198). Qbar are the critics that targets are made with: the
    live ones of an agent that keeps no slow copy. Actions are still the agent's own.
    """

    expert_policy: Any = None
    """Whose action competes; None: the agent's own expert."""

    needs: ClassVar[frozenset[str]] = frozenset({"actor", "discounted", "q_critic"})

    def on_target(
        self, agent_state: Any, state: tuple[()], batch: Batch, target: jax.Array, ctx: Context
    ) -> tuple[jax.Array, Metrics]:
        """The target with what the expert's action adds; the share of rows where it wins, and the mean addition."""
        expert_q_NB, policy_q_NB = _next_values(agent_state, batch, ctx, self.expert_policy)
        gain_B = expert_q_NB.min(0) - policy_q_NB.min(0)
        bonus_B = jax.lax.stop_gradient(discounted(batch, jnp.maximum(gain_B, 0.0)))
        return target + bonus_B, {"ibrl/expert_wins": (gain_B > 0).mean(), "ibrl/bonus": bonus_B.mean()}


@component
class LCBGatedBootstrap(Extension):
    """Bootstrap from the expert's next action as far as pessimistic critics agree that it is the better one.

    y += discount (1 - terminated) p (min_k Qbar_k(s', a_E') - min_k Qbar_k(s', a')), where p is the logistic function
    of the difference of both actions' scores over `lcb_temperature`. A score is the least value less beta times the
    spread of the critics (largest less least); beta = lcb_beta_init (1 - f)^lcb_beta_decay_k at the share f of the run.
    """

    expert_policy: Any = None
    """Whose action competes; None: the agent's own expert."""
    lcb_beta_init: float = 1.0
    """At least 0."""
    lcb_beta_decay_k: float = 2.0
    """At least 0; 0 keeps beta as it is."""
    lcb_temperature: float = 1.0
    """At least 0, in units of values; towards 0 the better score takes all."""

    needs: ClassVar[frozenset[str]] = frozenset({"actor", "discounted", "q_critic", "critic_ensemble"})

    def __post_init__(self):
        names = ("lcb_beta_init", "lcb_beta_decay_k", "lcb_temperature")
        ranges.check(self, **dict.fromkeys(names, ranges.AT_LEAST_ZERO))

    def on_target(
        self, agent_state: Any, state: tuple[()], batch: Batch, target: jax.Array, ctx: Context
    ) -> tuple[jax.Array, Metrics]:
        """The target with the gated difference, and the mean weight of the expert's action."""
        expert_q_NB, policy_q_NB = _next_values(agent_state, batch, ctx, self.expert_policy)
        beta = self._beta(ctx)
        lead_B = gates.lcb_score(expert_q_NB, beta) - gates.lcb_score(policy_q_NB, beta)
        weight_B = jax.nn.sigmoid(lead_B / max(self.lcb_temperature, 1e-6))
        change_B = discounted(batch, weight_B * (expert_q_NB.min(0) - policy_q_NB.min(0)))
        return target + jax.lax.stop_gradient(change_B), {"lcb_bootstrap/p_expert": weight_B.mean()}

    def eval_metrics(self, agent_state: Any, state: tuple[()], ctx: Context) -> Metrics:
        """How much the critics' disagreement counts now."""
        return {"lcb_bootstrap/beta": self._beta(ctx)}

    def _beta(self, ctx):
        return gates.lcb_beta(ctx.fraction, self.lcb_beta_init, self.lcb_beta_decay_k)


@component
class CriticBlend(Extension):
    """Begin on targets made of the expert's value and hand over to the agent's own.

    y <- (1 - w) y + w (c r + discount (1 - terminated) min_k phi*_k(s', a_E')), without an entropy term, where c is the
    agent's reward scale and w falls linearly from 1 to 0 over the first `critic_warmup_frac` of the run.
    """

    expert_policy: Any = None
    """Whose action phi* values; None: the agent's own expert."""
    critic_warmup_frac: float = 0.15
    """Share of the run, in [0, 1]; 0 changes nothing."""

    needs: ClassVar[frozenset[str]] = frozenset({"discounted", "phi_star", "q_critic"})

    def __post_init__(self):
        ranges.check(self, critic_warmup_frac=ranges.SHARE)

    def objection(self, run: Run) -> str | None:
        """Targets in units that phi* is not in."""
        return _other_units(run)

    def on_target(
        self, agent_state: Any, state: tuple[()], batch: Batch, target: jax.Array, ctx: Context
    ) -> tuple[jax.Array, Metrics]:
        """The blend, and the mean distance of both targets (0 once the expert's counts no more)."""

        def blended():
            action = views.next_expert_actions(ctx, self.expert_policy, batch)
            value_B = phi.value(ctx, ctx.provided["phi_star"], batch.raw_next_obs, action)
            expert_B = views.reward_scale(ctx) * batch.reward + discounted(batch, value_B)
            mixed_B = blend_modify_target(target, jax.lax.stop_gradient(expert_B), self.weight(ctx.fraction))
            return mixed_B, jnp.abs(expert_B - target).mean()

        idle = lambda: (target, jnp.zeros(()))
        target, gap = jax.lax.cond(self.weight(ctx.fraction) > 0, blended, idle)
        return target, {"critic_blend/target_gap": gap}

    def eval_metrics(self, agent_state: Any, state: tuple[()], ctx: Context) -> Metrics:
        """How much the expert's target counts now."""
        return {"critic_blend/expert_weight": self.weight(ctx.fraction)}

    def weight(self, fraction: jax.Array) -> jax.Array:
        """w at this share of the run."""
        if self.critic_warmup_frac == 0:
            return jnp.zeros_like(fraction)
        return jnp.maximum(1.0 - fraction / self.critic_warmup_frac, 0.0)


@component
class MCVarianceCorrection(Extension):
    """Trust the expert's value where the critics disagree: y <- min_k phi*_k(s, a) where Var_k Q_k(s, a) > threshold.

    The variance is that of the live critics as a population.
    """

    threshold: float
    """In squared units of values, at least 0."""

    needs: ClassVar[frozenset[str]] = frozenset({"critic_ensemble", "phi_star", "q_critic"})

    def __post_init__(self):
        ranges.check(self, threshold=ranges.AT_LEAST_ZERO)

    def objection(self, run: Run) -> str | None:
        """Targets in units that phi* is not in."""
        return _other_units(run)

    def on_target(
        self, agent_state: Any, state: tuple[()], batch: Batch, target: jax.Array, ctx: Context
    ) -> tuple[jax.Array, Metrics]:
        """The corrected target, and the share of rows that were replaced."""
        q_NB = views.critic_values(ctx, agent_state.params["critic"], batch.obs, batch.action)
        value_B = phi.value(ctx, ctx.provided["phi_star"], batch.raw_obs, batch.action)
        target, replaced_B = mc_correction_modify_target(target, q_NB, value_B, self.threshold)
        return target, {"mc_variance/replaced_frac": replaced_B.mean()}


class Box(NamedTuple):
    """Where each copy stands, and what has happened."""

    in_box: jax.Array
    """[N] whether the last step was taken inside."""
    recent: gates.Share
    """Of copies inside, over the last steps."""


@component
class ValueBox(Extension):
    """Where the expert's value is above a rising threshold the expert acts, and its value stands for what follows.

    Inside means V = min_k phi*_k(s, a_E) > v_min + (v_max - v_min) f at the share f of the run, with the least and
    largest value that phi* has on the expert's own rows. The row on which a copy enters (inside now, outside a step
    before; an episode begins outside) is stored as terminated with V added to its reward, so that V takes the place
    of the bootstrap. The episode itself goes on. V is put into the reward's own units: divided by the reward scale.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"agent_expert", "phi_star", "q_critic"})
    reads: ClassVar[frozenset[str]] = frozenset({"step_in_episode"})

    def init_state(self, agent_state: Any, key: jax.Array, ctx: Context) -> Box:
        """Everybody outside."""
        return Box(jnp.zeros(ctx.n_envs, bool), gates.Share.begin())

    def action(self, agent_state: Any, state: Box, obs: jax.Array, ctx: Context) -> tuple[Proposal, Box]:
        """The expert's action inside the box; on entry, its value and the end of the row."""
        scene, phi_star = ctx.scene, ctx.provided["phi_star"]
        value_N = phi.value(ctx, phi_star, scene.raw_obs, scene.expert_action)
        was_in_box_N = state.in_box & (scene.age > 0)
        in_box_N, bonus_N, _ = box_compute_state(value_N, self.threshold(phi_star, ctx.fraction), was_in_box_N)
        action = box_action_override(scene.policy_action, scene.expert_action, in_box_N)
        entered_N = box_entered(in_box_N, was_in_box_N)
        proposal = Proposal(action, in_box_N, bonus_N / views.reward_scale(ctx), entered_N)
        return proposal, Box(in_box_N, state.recent.seen(in_box_N))

    def eval_metrics(self, agent_state: Any, state: Box, ctx: Context) -> Metrics:
        """The threshold now, the share of copies inside at the last step, and of those that the expert led lately."""
        return {
            "value_box/threshold": self.threshold(ctx.provided["phi_star"], ctx.fraction),
            "value_box/in_box_frac": state.in_box.mean(),
            "value_box/expert_frac": state.recent.value,
        }

    def threshold(self, phi_star: Any, fraction: jax.Array) -> jax.Array:
        """The value above which the expert is trusted, at this share of the run."""
        return box_compute_threshold(phi_star.v_min, phi_star.v_max, fraction)


def discounted(batch: Batch, value_B: jax.Array) -> jax.Array:
    """What a value of the successor adds to each row's target: discount (1 - terminated) value."""
    return views.bootstrap_rate(batch) * value_B


def blend_modify_target(target_B: jax.Array, expert_target_B: jax.Array, expert_weight: jax.Array) -> jax.Array:
    """(1 - w) target + w expert target."""
    return (1.0 - expert_weight) * target_B + expert_weight * expert_target_B


def mc_correction_modify_target(
    target_B: jax.Array, q_NB: jax.Array, phi_value_B: jax.Array, threshold: float
) -> tuple[jax.Array, jax.Array]:
    """The target, phi*'s value where the critics' variance exceeds the threshold; and where that is, [B] bool."""
    uncertain_B = q_NB.var(0) > threshold
    return jax.lax.stop_gradient(jnp.where(uncertain_B, phi_value_B, target_B)), uncertain_B


def box_compute_threshold(v_min: jax.Array, v_max: jax.Array, train_frac: jax.Array) -> jax.Array:
    """From the least value at the run's start to the largest at its end, linearly."""
    return v_min + (v_max - v_min) * train_frac


def box_entered(in_box_N: jax.Array, was_in_box_N: jax.Array) -> jax.Array:
    """Inside now and not a step before."""
    return in_box_N & ~was_in_box_N


def box_compute_state(
    value_N: jax.Array, threshold: jax.Array, was_in_box_N: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(whether inside, the value on entry and 0 elsewhere, the value) of each copy, in units of phi*."""
    in_box_N = value_N > threshold
    return in_box_N, jnp.where(box_entered(in_box_N, was_in_box_N), value_N, 0.0), value_N


def box_action_override(action_N: jax.Array, expert_action_N: jax.Array, in_box_N: jax.Array) -> jax.Array:
    """The expert's action inside, the other one outside: [N, A], or [N] for indices."""
    return masks.where(in_box_N, expert_action_N, action_N)


def _next_values(agent_state, batch, ctx, expert):
    """[N, B] values of the expert's and of the agent's next action, by the critics that targets are made with."""
    critic = views.slow_critic(agent_state)
    action = views.next_expert_actions(ctx, expert, batch)
    value = lambda taken: views.critic_values(ctx, critic, batch.next_obs, taken)
    return value(action), value(batch.scored_action)


def _other_units(run):
    if getattr(run.agent, "normalize_rewards", False):
        return (
            "puts phi*, in units of the world's rewards, into targets in units of the returns' spread; "
            "set algorithm.normalize_rewards to false"
        )
    return None
