"""Average-reward policy optimisation (Ma et al., 2021, arXiv:2106.03442), for discrete and continuous actions.

Against PPO: rewards are counted from their running rate, nothing is discounted, and value targets are held down by a
share of the running mean value, which centring alone leaves free to drift.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.rl import clipped, ranges
from perdure.rl.feeds import Epochs
from perdure.rl.memory import Memory
from perdure.rl.ops import rates, values
from perdure.rl.optim import Adam


class Averages(NamedTuple):
    """What the agent keeps besides its networks."""

    reward: jax.Array
    """Mean reward of a step."""
    value: jax.Array
    """Mean value of a visited state."""


@component
class APO:
    """Average-reward policy optimisation: PPO's surrogate on differential advantages, standardised once a window."""

    feed: Epochs = Epochs(epochs=10, minibatches=32)
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    layer_norm: bool = False
    precision: str = "float32"
    convolutions: tuple[tuple[int, int, int], ...] = ()
    """(features, kernel, stride) of each layer over observations that are images; the `hidden` ones follow."""
    memory: Memory | None = None
    """What is remembered of an episode; null: the networks read single observations."""
    optimiser: Adam = Adam(clip_norm=10.0)
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_weight: float = 0.01
    value_weight: float = 1.0
    average_rate: float = 0.1
    """How far one window moves the averages towards its own; the first sets them."""
    value_pull: float = 0.1
    """Share of the mean value that targets are lowered by."""
    normalize_observations: bool = False
    normalize_rewards: ClassVar[bool] = False

    offers: ClassVar[frozenset[str]] = clipped.OFFERS
    actions: ClassVar[frozenset[str]] = frozenset({"discrete", "continuous"})
    noise, act, act_greedy, sample = clipped.noise, clipped.act, clipped.act_greedy, clipped.sample

    def __post_init__(self):
        ranges.check(self, **dict.fromkeys(("gae_lambda", "average_rate", "value_pull"), ranges.SHARE))
        ranges.check(self, **dict.fromkeys(("clip", "entropy_weight", "value_weight"), ranges.AT_LEAST_ZERO))

    def networks(self, spec):
        actor = {"initialiser": "torch", "head_initialiser": "lecun", "bounded": not spec.discrete}
        return clipped.networks(self, spec, actor, {"initialiser": "torch"})

    def init(self, key, ctx):
        return clipped.begin(self, key, ctx)._replace(memory=Averages(jnp.zeros(()), jnp.zeros(())))

    def prepare(self, state, rows, ctx, extensions):
        value_TN, next_value_TN = clipped.state_values(state, rows, ctx)
        seen, first = Averages(rows.reward.mean(), value_TN.mean()), ctx.clock.updates == 0
        average = Averages(
            *(rates.track_from_first(*pair, self.average_rate, first) for pair in zip(state.memory, seen, strict=True))
        )
        advantage_TN = values.advantages(
            rows.reward - average.reward, rows.terminated, rows.truncated, value_TN, next_value_TN, 1.0, self.gae_lambda
        )
        target_TN = advantage_TN + value_TN - self.value_pull * average.value
        rows, metrics = clipped.attach(state, rows, advantage_TN, target_TN, ctx, extensions)
        told = {"average/reward": average.reward, "average/value": average.value}
        return state._replace(memory=average), clipped.standardised(rows), clipped.merged(told, metrics)

    update = clipped.step
