"""Rewards counted from their mean."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.core.extension import Extension
from perdure.rl import ranges, views

ESTIMATES = ("simple", "td")


class Mean(NamedTuple):
    """The estimate of the mean reward, and how much of its start at zero it has forgotten, in [0, 1]."""

    reward: jax.Array
    trust: jax.Array


@component
class RewardCentering(Extension):
    """Subtract the mean reward from every reward (Naik et al., 2024, arXiv:2405.09999).

    Discounted values then lose the constant mean / (1 - discount), which is all that grows without
    bound as the discount nears 1. `simple` moves the mean towards the rewards; `td`, the paper's
    value-based form, moves it by the temporal-difference error of the centred reward, which is right
    off policy too: with replay, rewards are those of past policies. Every batch or window moves it
    once, by `rate` times the mean over its rows; a rate that starts at 1 and falls to `rate` (Sutton
    and Barto, 2018, exercise 2.7) keeps the start at zero out of it. The rewards of a batch are
    counted from the mean before it.

    Meant for worlds that go on: where episodes end at a time of the policy's choosing, it changes what is best.
    """

    rate: float = 0.01
    """In (0, 1]."""
    estimate: str = "td"
    """"simple" or "td"."""

    needs = frozenset({"discounted", "critic"})

    def __post_init__(self):
        ranges.check(self, rate=(1e-12, 1.0))
        if self.estimate not in ESTIMATES:
            raise ConfigError(f"estimate is {self.estimate!r}; give 'simple' or 'td'")

    def init_state(self, agent_state: Any, key: jax.Array, ctx: Any) -> Mean:
        """No mean, and no trust in it."""
        return Mean(jnp.zeros(()), jnp.zeros(()))

    def reward(
        self, agent_state: Any, state: Mean, batch: Any, reward: jax.Array, ctx: Any
    ) -> tuple[jax.Array, Mean, dict[str, jax.Array]]:
        """The centred rewards, and the mean after them."""
        centred = reward - state.reward
        error = centred if self.estimate == "simple" else self._error(agent_state, centred, batch, ctx)
        trust = state.trust + self.rate * (1.0 - state.trust)
        mean = state.reward + self.rate / trust * error.mean()
        return centred, Mean(mean, trust), {"reward_centering/mean": mean}

    def _error(self, agent_state, centred, batch, ctx):
        """The temporal-difference error of each row, in units of the reward; the least critic counts."""
        action = views.mode(ctx, agent_state, {}, batch.next_obs)
        critic, slow = agent_state.params["critic"], views.slow_critic(agent_state)
        value = views.critic_values(ctx, critic, batch.obs, batch.action).min(0)
        following = views.critic_values(ctx, slow, batch.next_obs, action).min(0)
        return centred + (views.bootstrap_rate(batch) * following - value) / views.reward_scale(ctx)
