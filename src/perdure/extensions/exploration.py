"""Expert and policy take turns at acting, by what the critics think of both. Suffixes: K critics, N environment copies.

The gates are functions of one form: what they weigh, a key, and their numbers, to (whether the expert acts [N], the
next key). Each copy draws for itself.
"""

from typing import Any

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.errors import ConfigError, nearest
from perdure.core.extension import Extension
from perdure.rl import ranges, views
from perdure.rl.ops import gates
from perdure.rl.ops.gates import lcb_beta, lcb_score
from perdure.rl.phases import Proposal

BOUNDS = ("lcb", "argmax_lcb")
"""Gates that compare confidence bounds."""
FADING = ("fixed", "argmax", "boltzmann")
"""Gates that close for good after `decay_frac` of the run."""
GATES = (*FADING, *BOUNDS, "thompson")

__all__ = ["EDGEExploration", "lcb_beta", "lcb_score"]


@component
class EDGEExploration(Extension):
    """Expert-guided exploration: in every copy and step the expert acts instead of the agent where a gate opens.

    With gap = min_k Q(s, a_E) - min_k Q(s, a_pi), d = max(1 - f / decay_frac, 0) after the share f of the run, and u
    uniform in [0, 1), the expert acts where

    - fixed: u < d * fixed_prob (the mixture of Ross et al., 2011, arXiv:1011.0686, algorithm 3.1);
    - argmax: gap > 0 and d > 0 (the actor's choice of IBRL: Hu et al., 2023, arXiv:2311.02198);
    - boltzmann: u < d * sigmoid(gap / (tau * (mean_N |min_k Q(s, a_pi)| + 1e-6)));
    - lcb: u < sigmoid((score_E - score_pi) / lcb_temperature), where score = min_k Q - b (max_k Q - min_k Q) and
      b = lcb_beta_init * (1 - f)^lcb_beta_decay_k; argmax_lcb: score_E > score_pi;
    - thompson: x_E > x_pi, each drawn from N(mean_k Q, (lcb_temperature * deviation_k Q)^2); with probability
      epsilon_floor the policy acts all the same.

    The critic is phi* where there is one, else the live one. The temperature of lcb counts as at least 1e-6.
    """

    gate: str = "fixed"
    """One of `GATES`."""
    decay_frac: float = 0.3
    """In [0, 1]; 0: d stays 1."""
    tau: float = 1.0
    """Above 0."""
    fixed_prob: float = 0.5
    """In [0, 1]."""
    lcb_beta_init: float = 1.0
    """At least 0."""
    lcb_beta_decay_k: float = 2.0
    """At least 0."""
    lcb_temperature: float = 1.0
    """At least 0."""
    lcb_asymmetric: bool = False
    """Whether, with lcb and argmax_lcb, the policy's score is the upper bound max_k Q + b (max_k Q - min_k Q)."""
    epsilon_floor: float = 0.0
    """In [0, 1]."""

    def __post_init__(self):
        if self.gate not in GATES:
            raise ConfigError(f"gate is {self.gate!r}; {nearest(self.gate, GATES)}")
        ranges.check(self, decay_frac=ranges.SHARE, tau=ranges.POSITIVE, fixed_prob=ranges.SHARE)
        bounds = ("lcb_beta_init", "lcb_beta_decay_k", "lcb_temperature")
        ranges.check(self, **dict.fromkeys(bounds, ranges.AT_LEAST_ZERO), epsilon_floor=ranges.SHARE)

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """An expert; action values unless the gate is fixed, and several of them for bounds and deviations."""
        valued = set[str]() if self.gate == "fixed" else {"q_critic"}
        several = {"critic_ensemble"} if self.gate in (*BOUNDS, "thompson") else set[str]()
        return frozenset({"agent_expert"} | valued | several)

    def init_state(self, agent_state: Any, key: jax.Array, ctx: Any) -> gates.Share:
        """How often the expert acted: never yet."""
        return gates.Share.begin()

    def action(self, agent_state: Any, state: gates.Share, obs: jax.Array, ctx: Any) -> tuple[Proposal, gates.Share]:
        """The expert's action in every copy whose gate is open."""
        open_N = self._open(agent_state, obs, ctx)
        return Proposal(ctx.scene.expert_action, open_N), state.seen(open_N)

    def eval_metrics(self, agent_state: Any, state: gates.Share, ctx: Any) -> dict[str, jax.Array]:
        """The share of copies in which the expert acted of late, and the gate's own weight."""
        metrics = {"edge/live_expert_frac": state.value}
        if self.gate in BOUNDS:
            metrics["edge/beta"] = self._beta(ctx)
        elif self.gate in FADING:
            metrics["edge/decay"] = self._decay(ctx)
        return metrics

    def _open(self, agent_state, obs, ctx):
        decay = self._decay(ctx)
        if self.gate == "fixed":
            return edge_fixed_gate(jnp.zeros(obs.shape[0]), decay, ctx.key, self.fixed_prob)[0]
        critic = agent_state.params["critic"]
        if "phi_star" in ctx.provided:  # It was fitted to observations as the world gives them.
            critic, obs = ctx.provided["phi_star"].params, ctx.scene.raw_obs
        both = (obs, ctx.scene.policy_action, ctx.scene.expert_action, ctx, critic)
        if self.gate == "thompson":
            moments = edge_compute_thompson_stats(*both)
            return edge_thompson_gate(*moments, ctx.key, self.lcb_temperature, self.epsilon_floor)[0]
        if self.gate in BOUNDS:
            scores = edge_lcb_scores(*both, self._beta(ctx), self.lcb_asymmetric)
            if self.gate == "argmax_lcb":
                return edge_lcb_argmax_gate(*scores, ctx.key)[0]
            return edge_lcb_gate(*scores, ctx.key, self.lcb_temperature)[0]
        gap, q_policy = edge_compute_value_gap(*both)
        if self.gate == "argmax":
            return edge_argmax_gate(gap, decay, ctx.key)[0]
        return edge_boltzmann_gate(gap, decay, ctx.key, q_policy, self.tau)[0]

    def _decay(self, ctx):
        return edge_compute_decay(ctx.step, ctx.clock.total, self.decay_frac)

    def _beta(self, ctx):
        return lcb_beta(ctx.fraction, self.lcb_beta_init, self.lcb_beta_decay_k)


def edge_compute_decay(timestep: jax.Array, total_timesteps: jax.Array | int, decay_frac: float) -> jax.Array:
    """1 at the start of a run, 0 from its share `decay_frac` on, linear between; always 1 for a share of 0."""
    if decay_frac == 0:
        return jnp.ones(())
    return jnp.maximum(1.0 - timestep / total_timesteps / decay_frac, 0.0)


def edge_compute_value_gap(
    obs: jax.Array, policy_action: jax.Array, expert_action: jax.Array, ctx: Any, critic: Any
) -> tuple[jax.Array, jax.Array]:
    """(the expert's value above the policy's, the policy's value), the least over critics: [N] each."""
    expert_KN, policy_KN = _valued(obs, policy_action, expert_action, ctx, critic)
    q_policy = policy_KN.min(0)
    return expert_KN.min(0) - q_policy, q_policy


def edge_lcb_scores(
    obs: jax.Array,
    policy_action: jax.Array,
    expert_action: jax.Array,
    ctx: Any,
    critic: Any,
    beta: jax.Array | float,
    asymmetric: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """(the expert's score, the policy's): lower confidence bounds, the policy's an upper one where `asymmetric`."""
    expert_KN, policy_KN = _valued(obs, policy_action, expert_action, ctx, critic)
    return lcb_score(expert_KN, beta), (gates.ucb_score if asymmetric else lcb_score)(policy_KN, beta)


def edge_compute_thompson_stats(
    obs: jax.Array, policy_action: jax.Array, expert_action: jax.Array, ctx: Any, critic: Any
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """(the expert's mean value and deviation over critics, the policy's mean and deviation): [N] each."""
    expert_KN, policy_KN = _valued(obs, policy_action, expert_action, ctx, critic)
    return expert_KN.mean(0), expert_KN.std(0), policy_KN.mean(0), policy_KN.std(0)


def edge_fixed_gate(gap: jax.Array, decay: jax.Array, rng: Any, fixed_prob: float) -> tuple[jax.Array, Any]:
    """Open with probability decay * fixed_prob; of `gap` [N] only the shape is read."""
    return _open_with(decay * fixed_prob, gap.shape, rng)


def edge_argmax_gate(gap: jax.Array, decay: jax.Array, rng: Any) -> tuple[jax.Array, Any]:
    """Open where the expert is valued more, until `decay` is 0; draws nothing."""
    return (gap > 0) & (decay > 0), rng


def edge_boltzmann_gate(
    gap: jax.Array, decay: jax.Array, rng: Any, q_policy: jax.Array, tau: float
) -> tuple[jax.Array, Any]:
    """Open with probability decay * sigmoid(gap / (tau * (mean_N |q_policy| + 1e-6)))."""
    size = jnp.abs(q_policy).mean() + 1e-6
    return _open_with(decay * jax.nn.sigmoid(gap / (tau * size)), gap.shape, rng)


def edge_lcb_gate(
    score_expert: jax.Array, score_policy: jax.Array, rng: Any, temperature: float
) -> tuple[jax.Array, Any]:
    """Open with probability sigmoid((score_expert - score_policy) / temperature)."""
    advantage = (score_expert - score_policy) / max(temperature, 1e-6)
    return _open_with(jax.nn.sigmoid(advantage), advantage.shape, rng)


def edge_lcb_argmax_gate(score_expert: jax.Array, score_policy: jax.Array, rng: Any) -> tuple[jax.Array, Any]:
    """Open where the expert's score is higher; draws nothing."""
    return score_expert > score_policy, rng


def edge_thompson_gate(
    mu_e: jax.Array,
    sigma_e: jax.Array,
    mu_p: jax.Array,
    sigma_p: jax.Array,
    rng: Any,
    temperature: float = 1.0,
    epsilon_floor: float = 0.0,
) -> tuple[jax.Array, Any]:
    """Open where a value drawn for the expert exceeds one drawn for the policy, and never with `epsilon_floor`."""
    rng, expert_key, policy_key, floor_key = jax.random.split(rng, 4)
    expert = mu_e + temperature * sigma_e * jax.random.normal(expert_key, mu_e.shape)
    policy = mu_p + temperature * sigma_p * jax.random.normal(policy_key, mu_p.shape)
    return (expert > policy) & (jax.random.uniform(floor_key, mu_e.shape) >= epsilon_floor), rng


def _valued(obs, policy_action, expert_action, ctx, critic):
    """Every critic's values of the expert's and of the policy's action, in one pass: [K, N] each."""
    twice = jnp.concatenate([obs, obs])
    q_KM = views.critic_values(ctx, critic, twice, jnp.concatenate([expert_action, policy_action]))
    return tuple(jnp.split(q_KM, 2, axis=1))


def _open_with(probability, shape, rng):
    rng, key = jax.random.split(rng)
    return jax.random.uniform(key, shape) < probability, rng
