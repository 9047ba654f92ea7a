"""Soft actor-critic (Haarnoja et al., 2018, arXiv:1801.01290) with a learnt temperature (arXiv:1812.05905)."""

from typing import ClassVar

import jax

from perdure.core.component import component
from perdure.rl import fit, ranges, soft
from perdure.rl.feeds import Replay
from perdure.rl.memory import Memory
from perdure.rl.optim import Adam
from perdure.rl.reservoir import Reservoir


@component
class SAC:
    """Soft actor-critic: twin critics, a squashed Gaussian actor, entropy held at a goal by the temperature.

    The goal is `target_entropy_per_dim` times the number of action dimensions.
    """

    feed: Replay | Reservoir = Replay()
    hidden: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    layer_norm: bool = False
    precision: str = "float32"
    convolutions: tuple[tuple[int, int, int], ...] = ()
    """(features, kernel, stride) of each layer over observations that are images; the `hidden` ones follow."""
    memory: Memory | None = None
    """What is remembered of an episode; null: the networks read single observations."""
    actor_optimiser: Adam = Adam()
    critic_optimiser: Adam = Adam()
    temperature_optimiser: Adam = Adam()
    temperature: float = 1.0
    """Where the temperature starts."""
    discount: float = 0.99
    reward_scale: float = 1.0
    """What rewards are multiplied by inside targets."""
    slow_rate: float = 0.005
    target_entropy_per_dim: float = -1.0
    normalize_observations: bool = False
    normalize_rewards: bool = False

    offers: ClassVar[frozenset[str]] = soft.OFFERS
    actions: ClassVar[frozenset[str]] = frozenset({"continuous"})
    networks, init, noise = soft.networks, soft.begin, soft.noise
    act, act_greedy, sample = soft.act, soft.act_greedy, soft.sample

    def __post_init__(self):
        ranges.check(self, discount=ranges.SHARE, reward_scale=ranges.POSITIVE, slow_rate=ranges.SHARE)
        ranges.check(self, temperature=ranges.POSITIVE)

    def update(self, state, batch, ctx, extensions):
        next_key, actor_key, temperature_key = jax.random.split(ctx.key, 3)
        next_value_B, batch = soft.next_value(
            state, state.slow["critic"], batch, next_key, ctx, extensions, soft.minimum
        )
        target_B, extra = soft.discounted(self, state, batch, next_value_B, ctx, extensions)

        state, critic_metrics = soft.regress(self, state, batch, target_B, ctx, extensions)
        state, actor_metrics = soft.climb(self, state, batch, actor_key, ctx, extensions, soft.minimum)
        state, temperature_metrics = soft.adapt(self, state, batch, temperature_key, ctx, extensions)
        state = fit.follow(state, "critic", self.slow_rate)
        return state, soft.merged(critic_metrics, actor_metrics, temperature_metrics, extra)
