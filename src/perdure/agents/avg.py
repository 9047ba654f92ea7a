"""Action value gradient (Vasan et al., 2024, arXiv:2411.15370): learning from each step once, as it happens.

No replay, no slow critic, no batch but the copies. What keeps that stable: standardised observations, features of
length 1, and errors in units of their own scale (Schaul et al., 2021, arXiv:2105.05347).
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.rl import phases, ranges, soft
from perdure.rl.feeds import Latest
from perdure.rl.memory import Memory
from perdure.rl.ops import moments, policies, values
from perdure.rl.optim import Adam


class Scale(NamedTuple):
    """What the scale of errors is made of."""

    reward: moments.Moments
    """Of the entropy-regularised reward."""
    discount: moments.Moments
    """Of the discount, 0 where an episode terminates."""
    running: jax.Array
    """[N] entropy-regularised return of each copy's unfinished episode."""
    episodes: jax.Array
    squared_return: jax.Array
    """Mean over finished episodes."""

    def extended(self, reward_N, discount_N, ended_N) -> "Scale":
        """With one step of every copy."""
        running_N = self.running + reward_N
        episodes = self.episodes + ended_N.sum()
        gap = jnp.where(ended_N, jnp.square(running_N) - self.squared_return, 0.0).sum()
        return Scale(
            moments.extend(self.reward, reward_N),
            moments.extend(self.discount, discount_N),
            jnp.where(ended_N, 0.0, running_N),
            episodes,
            self.squared_return + gap / jnp.maximum(episodes, 1.0),
        )

    @property
    def sigma(self) -> jax.Array:
        """Square root of Var(r) + E[G^2] Var(discount); 1 while that is tiny and no episode has ended."""
        variance = self.reward.variance + self.squared_return * self.discount.variance
        unknown = (variance <= 0.01) & (self.episodes == 0)
        return jnp.where(unknown, 1.0, jnp.sqrt(jnp.maximum(variance, 1e-4)))


@component
class AVG:
    """Streaming actor-critic: the actor climbs the critic through the very action that was executed."""

    feed: Latest = Latest()
    hidden: tuple[int, ...] = (256, 256)
    activation: str = "leaky_relu"
    layer_norm: bool = False
    precision: str = "float32"
    convolutions: tuple[tuple[int, int, int], ...] = ()
    """(features, kernel, stride) of each layer over observations that are images; the `hidden` ones follow."""
    memory: Memory | None = None
    """What is remembered of an episode; null: the networks read single observations."""
    actor_optimiser: Adam = Adam(learning_rate=6.3e-3, beta1=0.0)
    critic_optimiser: Adam = Adam(learning_rate=8.7e-3, beta1=0.0)
    critics: int = 1
    """The paper's is 1; with more, the least of them counts."""
    temperature: float = 0.07
    """Fixed."""
    discount: float = 0.99
    reward_scale: float = 1.0
    """What rewards are multiplied by inside targets."""

    normalize_observations: ClassVar[bool] = True
    normalize_rewards: ClassVar[bool] = False
    actions: ClassVar[frozenset[str]] = frozenset({"continuous"})
    noise, act_greedy, sample = soft.noise, soft.act_greedy, soft.sample

    def __post_init__(self):
        ranges.check(self, temperature=ranges.POSITIVE, discount=ranges.SHARE, reward_scale=ranges.POSITIVE)
        ranges.check(self, critics=ranges.COUNT)

    @property
    def offers(self) -> frozenset[str]:
        """An ensemble only of more than one."""
        return soft.OFFERS - {"replay"} - ({"critic_ensemble"} if self.critics == 1 else set())

    def networks(self, spec):
        return soft.networks(self, spec, critics=self.critics, initialiser="orthogonal", gain=1.0, unit_features=True)

    def init(self, key, ctx):
        zero = jnp.zeros(())
        scale = Scale(moments.empty(), moments.empty(), jnp.zeros(ctx.n_envs), zero, zero)
        return soft.with_temperature(soft.pair(self, key, ctx), self.temperature)._replace(memory=scale)

    def act(self, state, obs, ctx):
        return soft.act(self, state, obs, ctx)[0], ctx.noise

    def update(self, state, batch, ctx, extensions):
        packed_BD = ctx.nets["actor"].apply(state.params["actor"], batch.obs)
        _, log_prob_B = policies.squashed(packed_BD, batch.aux)
        soft_reward_B = values.soft_value(
            self.reward_scale * batch.reward, log_prob_B, jnp.exp(state.params["log_temperature"])
        )
        discount_B = jnp.where(batch.terminated, 0.0, self.discount)
        scale = state.memory.extended(soft_reward_B, discount_B, batch.terminated | batch.truncated)
        in_units = lambda error_NB: soft.mean_square(error_NB / scale.sigma)

        next_value_B, batch = soft.next_value(
            state, state.params["critic"], batch, ctx.key, ctx, extensions, soft.minimum
        )
        target_B, extra = soft.discounted(self, state, batch, next_value_B, ctx, extensions)
        # The actor moves first, so that both steps start from the parameters that acted.
        state, actor_metrics = soft.climb_along(self, state, batch, batch.aux, ctx, extensions, soft.minimum)
        state, metrics = soft.regress(self, state, batch, target_B, ctx, extensions, in_units)
        told = {"value/error_scale": scale.sigma}
        return state._replace(memory=scale), phases.merged(metrics, actor_metrics, extra, told)
