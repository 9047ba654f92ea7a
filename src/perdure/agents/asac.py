"""Average-reward soft actor-critic (Adamczyk et al., 2025, arXiv:2501.09080).

Against SAC: nothing is discounted, targets count from the running soft reward rate and are anchored at a reference
pair, and no target is ever cut: a termination costs a penalty and goes on from where the world begins anew.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.rl import fit, phases, ranges, soft
from perdure.rl.feeds import Replay
from perdure.rl.memory import Memory
from perdure.rl.ops import policies, rates, values
from perdure.rl.optim import Adam
from perdure.rl.reservoir import Reservoir


class Running(NamedTuple):
    """What the agent keeps besides its networks."""

    rate: jax.Array
    """theta, the entropy-regularised reward of a step."""
    penalty: jax.Array
    """What a termination costs."""


@component
class ASAC:
    """Average-reward soft actor-critic; the temperature is fixed unless it is given an optimiser."""

    feed: Replay | Reservoir = Replay()
    hidden: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    layer_norm: bool = False
    precision: str = "float32"
    convolutions: tuple[tuple[int, int, int], ...] = ()
    """(features, kernel, stride) of each layer over observations that are images; the `hidden` ones follow."""
    memory: Memory | None = None
    """What is remembered of an episode; null: the networks read single observations."""
    actor_optimiser: Adam = Adam(learning_rate=1e-4, clip_norm=10.0)
    critic_optimiser: Adam = Adam(learning_rate=5e-4, clip_norm=10.0, clip_scope="member")
    temperature_optimiser: Adam | None = None
    """For example Adam with learning rate 1e-4, to hold entropy at `target_entropy_per_dim`."""
    temperature: float = 0.2
    reward_scale: float = 1.0
    """What rewards are multiplied by inside targets."""
    slow_rate: float = 0.005
    average_rate: float = 0.005
    """tau_theta: how far one update moves the reward rate and the penalty."""
    penalty_scale: float = 20.0
    """A termination costs this many mean rewards."""
    target_entropy_per_dim: float = -1.0
    normalize_observations: bool = False
    normalize_rewards: ClassVar[bool] = False

    offers: ClassVar[frozenset[str]] = soft.OFFERS - {"discounted"} | {"reset_obs"}
    actions: ClassVar[frozenset[str]] = frozenset({"continuous"})
    noise, act, act_greedy, sample = soft.noise, soft.act, soft.act_greedy, soft.sample

    def __post_init__(self):
        ranges.check(self, temperature=ranges.POSITIVE, reward_scale=ranges.POSITIVE, slow_rate=ranges.SHARE)
        ranges.check(self, average_rate=ranges.SHARE, penalty_scale=ranges.AT_LEAST_ZERO)

    def networks(self, spec):
        return soft.networks(self, spec, initialiser="torch")

    def init(self, key, ctx):
        learnt = self.temperature_optimiser is not None
        state = soft.begin(self, key, ctx) if learnt else soft.begin_fixed(self, key, ctx)
        return state._replace(memory=Running(jnp.zeros(()), jnp.zeros(())))

    def update(self, state, batch, ctx, extensions):
        next_key, actor_key, temperature_key, rate_key = jax.random.split(ctx.key, 4)
        survived_B = jnp.where(batch.terminated, 0.0, batch.reward)
        penalty = rates.track(state.memory.penalty, self.penalty_scale * survived_B.mean(), self.average_rate)
        batch = batch._replace(
            reward=batch.reward - jnp.where(batch.terminated, penalty, 0.0),
            next_obs=jnp.where(batch.terminated[:, None], batch.reset_obs, batch.next_obs),
            terminated=jnp.zeros_like(batch.terminated),
        )

        next_value_B, batch = soft.next_value(
            state, state.slow["critic"], batch, next_key, ctx, extensions, soft.minimum
        )
        anchor = soft.q_values(state.slow["critic"], 0.0 * batch.obs[:1], 0.0 * batch.action[:1], ctx).mean()
        target_B = self.reward_scale * batch.reward - state.memory.rate + next_value_B - anchor
        target_B, extra = extensions.target(state, batch, jax.lax.stop_gradient(target_B), ctx)

        half = lambda error_NB: 0.5 * soft.summed_square(error_NB)
        state, metrics = soft.regress(self, state, batch, target_B, ctx, extensions, half)
        state, actor_metrics = soft.climb(self, state, batch, actor_key, ctx, extensions, soft.minimum)
        metrics = phases.merged(metrics, actor_metrics, extra)
        if self.temperature_optimiser is not None:
            state, told = soft.adapt(self, state, batch, temperature_key, ctx, extensions)
            metrics = phases.merged(metrics, told)

        rate = rates.track(state.memory.rate, self._soft_reward(state, batch, rate_key, ctx), self.average_rate)
        state = fit.follow(state._replace(memory=Running(rate, penalty)), "critic", self.slow_rate)
        return state, phases.merged(metrics, {"average/soft_reward": rate, "average/penalty": penalty})

    def _soft_reward(self, state, batch, key, ctx):
        """Mean reward and entropy bonus, under fresh actions of the updated policy."""
        _, log_prob_B = policies.squashed_gaussian(ctx.nets["actor"].apply(state.params["actor"], batch.obs), key)
        reward_B = self.reward_scale * batch.reward
        return values.soft_value(reward_B, log_prob_B, jnp.exp(state.params["log_temperature"])).mean()
