"""An expert's actions as a goal, a base or an opening of the agent's own.

They are in agent units here: in [-1, 1], or an index. Suffixes: K critics, B rows, A numbers of an action.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.core.extension import Extension
from perdure.core.records import Spec
from perdure.rl import phi, ranges, views
from perdure.rl.ops import gates
from perdure.rl.phases import Proposal

FARTHEST = 4.0
"""The largest squared distance of two numbers in [-1, 1]."""
TARGETS = ("expert", "replay")
expert_next_actions = views.next_expert_actions


@component
class OnlineBC(Extension):
    """Clone the expert while the critic is young, most where the expert earns most.

    Adds bc_coef * w * mean_B(v * ||mu(s) - a_E||^2) to the actor's loss, w going from 1 to 0 over the first
    `critic_warmup_frac` of the run (kickstarting: Schmitt et al., 2018, arXiv:1803.03835). v is the square of
    min_k phi*(s, a_E) between the least (0) and the greatest (1) value that phi* was fitted to.
    """

    bc_coef: float = 1.0
    """At least 0."""
    critic_warmup_frac: float = 0.15
    """In [0, 1]; 0 leaves the term out."""

    needs = frozenset({"agent_expert", "phi_star", "q_critic", "continuous_actions"})

    def __post_init__(self):
        ranges.check(self, bc_coef=ranges.AT_LEAST_ZERO, critic_warmup_frac=ranges.SHARE)

    def actor_loss(self, agent_state: Any, state: Any, batch: Any, ctx: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The term, 0 before there is a phi*; logged with its weight in time."""
        weight, term = online_bc_weight(ctx.fraction, self.critic_warmup_frac), jnp.zeros(())
        if "phi_star" in ctx.provided:
            mean = views.mode(ctx, agent_state, batch.params, batch.obs)
            known = (ctx, ctx.provided["phi_star"], batch.raw_obs)
            term = compute_online_bc_loss(mean, batch.expert_action, *known, weight, self.bc_coef)
        return term, {"online_bc/term": term, "online_bc/weight": weight}


@component
class ImitationLoss(Extension):
    """Pull the actor's mean action mu(s) towards an expert's, or towards the stored one: coef * mean_B(e) / 4.

    e = mean_A((mu - a*)^2), and 4 is its largest value for actions in [-1, 1]. `q_filter` counts only rows where
    the critics prefer a*, min_k Q(s, a*) > min_k Q(s, mu) (Nair et al., 2018, arXiv:1709.10089, eq. 4).
    `anneal_frac` lets the term fade to 0 over that share of the run (kickstarting: Schmitt et al., 2018,
    arXiv:1803.03835). With `alpha` the actor's loss becomes lambda * its own + coef * mean_B(e), e in world units and
    lambda = alpha / mean_B|Q_1(s, mu)| held constant: TD3+BC (Fujimoto and Gu, 2021, arXiv:2106.06860, eq. 5) for
    `target: replay` and alpha 2.5. Filter and fading touch the imitation alone.
    """

    expert_policy: Any = None
    """Whom to imitate; None: the agent's own expert."""
    coef: float = 1.0
    """At least 0."""
    q_filter: bool = False
    anneal_frac: float | None = None
    """In (0, 1]; None: never fades."""
    target: str = "expert"
    """"expert", or "replay": the action in the row."""
    alpha: float | None = None
    """Above 0; None: the agent's own loss is left as it is."""

    def __post_init__(self):
        ranges.check(self, coef=ranges.AT_LEAST_ZERO)
        if self.target not in TARGETS:
            raise ConfigError(f"target is {self.target!r}; give 'expert' or 'replay'")
        if self.target == "replay" and self.expert_policy is not None:
            raise ConfigError("expert_policy is given, but target is 'replay'; leave one of them out")
        if self.anneal_frac is not None and not 0 < self.anneal_frac <= 1:
            raise ConfigError(f"anneal_frac is {self.anneal_frac}; it lies in (0, 1], or is left out")
        if self.alpha is not None and not 0 < self.alpha < float("inf"):
            raise ConfigError(f"alpha is {self.alpha}; it must be above 0, or is left out")

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """Action values where they are compared or scaled by; a replay where its actions are the goal."""
        valued = {"q_critic"} if self.q_filter or self.alpha is not None else set[str]()
        return frozenset({"continuous_actions"} | valued | ({"replay"} if self.target == "replay" else set[str]()))

    @property
    def follows_expert(self) -> bool:
        """Unless the stored actions are the goal."""
        return self.target == "expert"

    def objection(self, run: Any) -> str | None:
        """Action values are of executed actions, which an action transform makes others than mu."""
        others = [type(each).__name__ for each in run.extensions if "transform_action" in each.implemented_phases()]
        if others and (self.q_filter or self.alpha is not None):
            return f"values the actor's action, but {others[0]} executes another; drop it, or q_filter and alpha"
        return None

    def actor_loss(self, agent_state: Any, state: Any, batch: Any, ctx: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The term, and the error before filter and fading."""
        mean, goal = views.mode(ctx, agent_state, batch.params, batch.obs), self._goal(batch, ctx)
        units = 1.0 if self.alpha is None else half_ranges(ctx.spec)
        error = jnp.square(units * (mean - goal)).mean(-1)
        weight = anneal_weight(ctx.fraction, self.anneal_frac)
        critic, counted = agent_state.params["critic"], error
        if self.q_filter:
            counted = error * q_filter_weight(batch.obs, mean, goal, ctx, critic)[:, 0]
        term = self.coef * weight * counted.mean()
        if self.alpha is None:
            term = term / FARTHEST
        else:
            q_KB = views.critic_values(ctx, critic, batch.obs, mean)
            term = term + (td3bc_lambda(q_KB[0], self.alpha) - 1.0) * batch.agent_loss
        return term, {"imitation/term": term, "imitation/mse": error.mean()}

    def eval_metrics(self, agent_state: Any, state: Any, ctx: Any) -> dict[str, jax.Array]:
        """With `q_filter`, the share of recent rows where the critics prefer the goal."""
        if not self.q_filter:
            return {}
        rows = ctx.recent
        mean = views.mode(ctx, agent_state, agent_state.params, rows.obs)
        passed = q_filter_weight(rows.obs, mean, self._goal(rows, ctx), ctx, agent_state.params["critic"])
        return {"imitation/q_filter_frac": passed.mean()}

    def _goal(self, batch, ctx):
        return batch.action if self.target == "replay" else views.expert_actions(ctx, self.expert_policy, batch)


@component
class ResidualPolicy(Extension):
    """Execute the expert's action corrected by the agent's: clip(a_E + scale * a, -1, 1).

    Residual policy learning (Silver et al., 2018, arXiv:1812.06298; Johannink et al., 2019, arXiv:1812.03201).
    What is executed is what critics score, targets and the actor's loss use, and rows keep, evaluations included.
    While the agent warms up, its uniform action is the correction.
    """

    scale: float = 1.0
    """At least 0; 0 leaves the expert alone."""

    needs = frozenset({"agent_expert"})

    def __post_init__(self):
        ranges.check(self, scale=ranges.AT_LEAST_ZERO)

    def build_policy_transform(self) -> Callable[[jax.Array, jax.Array], jax.Array]:
        """The function from the agent's and the expert's action [..., A] to the executed one."""
        return partial(residual_action_transform, scale=self.scale)

    build_eval_transform = build_policy_transform

    def transform_action(self, agent_state: Any, state: Any, action: jax.Array, ctx: Any) -> jax.Array:
        """The corrected action."""
        return self.build_policy_transform()(action, ctx.scene.expert_action)


@component
class JSRLCurriculum(Extension):
    """Let the expert open every episode, for ever fewer steps: jump-start RL (Uchendu et al., 2022, arXiv:2204.02372).

    It acts while fewer than H = episode_length * (1 - f / decay_frac) steps of the episode are done, where f is the
    done share of the run. H falls with time here, and not when evaluations get better as in the paper's algorithm 1.
    """

    episode_length: int = 1_000
    """Steps of the first opening, at least 1."""
    decay_frac: float = 0.5
    """Share of the run after which the expert is gone, in (0, 1]."""

    needs = frozenset({"agent_expert"})
    reads = frozenset({"step_in_episode"})

    def __post_init__(self):
        ranges.check(self, episode_length=ranges.COUNT)
        if not 0 < self.decay_frac <= 1:
            raise ConfigError(f"decay_frac is {self.decay_frac}; it lies in (0, 1]")

    def horizon(self, fraction: jax.Array) -> jax.Array:
        """How many steps of an episode the expert acts for after this share of the run."""
        return self.episode_length * anneal_weight(fraction, self.decay_frac)

    def init_state(self, agent_state: Any, key: jax.Array, ctx: Any) -> gates.Share:
        """How often the expert acted: never yet."""
        return gates.Share.begin()

    def action(self, agent_state: Any, state: gates.Share, obs: jax.Array, ctx: Any) -> tuple[Proposal, gates.Share]:
        """The expert's action in every copy whose episode is young."""
        young_N = ctx.scene.age < self.horizon(ctx.fraction)
        return Proposal(ctx.scene.expert_action, young_N), state.seen(young_N)

    def eval_metrics(self, agent_state: Any, state: gates.Share, ctx: Any) -> dict[str, jax.Array]:
        """The horizon, and the share of copies in which the expert acted of late."""
        return {"jsrl/horizon": self.horizon(ctx.fraction), "jsrl/expert_frac": state.value}


@component
class ExpertValueMetrics(Extension):
    """What the critics think of the expert, on recent rows; changes nothing.

    value/q_expert_mean is the mean of min_k Q(s, a_E); value/q_gap that minus the same of the action taken (above 0:
    the expert is thought better); value/phi_star_q_gap_ood, where there is a phi*, the mean of
    |min_k phi*(s, a_E) - min_k Q(s, a_E)|. All in units of scaled rewards.
    """

    needs = frozenset({"agent_expert", "q_critic"})

    def eval_metrics(self, agent_state: Any, state: Any, ctx: Any) -> dict[str, jax.Array]:
        """The two or three means."""
        rows, critic = ctx.recent, agent_state.params["critic"]
        value = lambda action: views.critic_values(ctx, critic, rows.obs, action).min(0)
        expert_B = value(rows.expert_action)
        metrics = {"value/q_expert_mean": expert_B.mean(), "value/q_gap": (expert_B - value(rows.action)).mean()}
        if "phi_star" in ctx.provided:
            fitted_B = phi.value(ctx, ctx.provided["phi_star"], rows.raw_obs, rows.expert_action)
            metrics["value/phi_star_q_gap_ood"] = jnp.abs(fitted_B - expert_B).mean()
        return metrics


def reads_stored_expert_actions(extension: Any, agent_expert: Any) -> bool:
    """Whether the expert that `extension` follows is the agent's own, whose actions stand in the rows."""
    own = getattr(extension, "expert_policy", None)
    return extension.follows_expert and (own is None or own == agent_expert)


def anneal_weight(fraction: jax.Array, anneal_frac: float | None) -> jax.Array:
    """1 at the start of the run, 0 from its share `anneal_frac` on, linear between; None: always 1."""
    return jnp.ones(()) if anneal_frac is None else jnp.clip(1.0 - fraction / anneal_frac, 0.0, 1.0)


def online_bc_weight(fraction: jax.Array, critic_warmup_frac: float) -> jax.Array:
    """1 at the start of the run, 0 from its share `critic_warmup_frac` on; always 0 for a share of 0."""
    return anneal_weight(fraction, critic_warmup_frac) if critic_warmup_frac > 0 else jnp.zeros(())


def compute_online_bc_loss(
    mean_BA: jax.Array,
    expert_BA: jax.Array,
    ctx: Any,
    phi_star: phi.PhiStar,
    raw_obs: jax.Array,
    weight: jax.Array,
    bc_coef: float,
) -> jax.Array:
    """bc_coef * weight * mean_B(v ||mean - expert||^2); see `OnlineBC`. The value v is held constant."""
    fitted_B = phi.value(ctx, phi_star, raw_obs, expert_BA)
    place_B = (fitted_B - phi_star.v_min) / (phi_star.v_max - phi_star.v_min + 1e-6)
    value_B = jax.lax.stop_gradient(jnp.square(jnp.clip(place_B, 0.0, 1.0)))
    return bc_coef * weight * (value_B * jnp.square(mean_BA - expert_BA).sum(-1)).mean()


def q_filter_weight(obs: jax.Array, mean_BA: jax.Array, goal_BA: jax.Array, ctx: Any, critic: Any) -> jax.Array:
    """1 where the least critic puts the goal above the actor's action, else 0: [B, 1], a constant."""
    value = lambda action: views.critic_values(ctx, critic, obs, action).min(0)
    return jax.lax.stop_gradient((value(goal_BA) > value(mean_BA)).astype(jnp.float32)[..., None])


def td3bc_lambda(q_B: jax.Array, alpha: float) -> jax.Array:
    """alpha / mean_B|q|, a constant; the mean counts as at least 1e-6."""
    return jax.lax.stop_gradient(alpha / jnp.maximum(jnp.abs(q_B).mean(), 1e-6))


def residual_action_transform(actions: jax.Array, a_expert: jax.Array, scale: float = 1.0) -> jax.Array:
    """clip(a_expert + scale * actions, -1, 1)."""
    return jnp.clip(a_expert + scale * actions, -1.0, 1.0)


def half_ranges(spec: Spec) -> np.ndarray:
    """How many world units one agent unit is, for each action number: [A]; 1 where a bound is infinite."""
    low, high = np.asarray(spec.low, np.float32), np.asarray(spec.high, np.float32)
    bounded = np.isfinite(low) & np.isfinite(high)
    return np.where(bounded, (np.where(bounded, high, 0.0) - np.where(bounded, low, 0.0)) / 2, 1.0).astype(np.float32)
