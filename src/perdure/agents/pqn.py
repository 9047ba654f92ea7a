"""Parallelised Q-network (Gallici et al., 2024, arXiv:2407.04811): Q(lambda) on fresh windows of many copies.

Normalised layers stand in for replay and target network; the normalisation has no gain and offset of its own.
"""

from typing import ClassVar

import jax.numpy as jnp

from perdure.core.component import component
from perdure.rl import greedy, ranges
from perdure.rl.feeds import Epochs
from perdure.rl.memory import Memory
from perdure.rl.ops import values
from perdure.rl.optim import Adam, RAdam


@component
class PQN:
    """Parallelised Q-network: Q(lambda) returns of a window by the present network, then a few epochs on them."""

    feed: Epochs = Epochs(epochs=4, minibatches=4)
    hidden: tuple[int, ...] = (128, 128)
    activation: str = "relu"
    layer_norm: bool = True
    precision: str = "float32"
    convolutions: tuple[tuple[int, int, int], ...] = ()
    """(features, kernel, stride) of each layer over observations that are images; the `hidden` ones follow."""
    memory: Memory | None = None
    """What is remembered of an episode; null: the networks read single observations."""
    optimiser: RAdam | Adam = RAdam(learning_rate=2.5e-4, clip_norm=10.0)
    epsilon: greedy.Epsilon = greedy.Epsilon()
    discount: float = 0.99
    reward_scale: float = 1.0
    """What rewards are multiplied by inside targets."""
    trace_decay: float = 0.65
    """Lambda: 0 for one-step targets, 1 for the returns of the window."""
    normalize_observations: bool = False
    normalize_rewards: bool = False

    offers: ClassVar[frozenset[str]] = greedy.OFFERS
    actions: ClassVar[frozenset[str]] = frozenset({"discrete"})
    init, noise, act, act_greedy = greedy.begin_alone, greedy.noise, greedy.act, greedy.act_greedy

    def __post_init__(self):
        ranges.check(self, discount=ranges.SHARE, reward_scale=ranges.POSITIVE, trace_decay=ranges.SHARE)

    def networks(self, spec):
        return greedy.networks(self, spec, initialiser="lecun")

    def prepare(self, state, rows, ctx, extensions):
        next_q_TNA = ctx.nets["critic"].apply(state.params["critic"], rows.next_obs)
        next_value_TN = next_q_TNA.max(-1)
        rows = rows._replace(scored_action=next_q_TNA.argmax(-1).astype(jnp.int32))
        reward_TN = self.reward_scale * rows.reward
        returns_TN = values.lambda_returns(
            reward_TN, rows.terminated, rows.truncated, next_value_TN, self.discount, self.trace_decay
        )
        target_TN, metrics = extensions.target(state, rows, returns_TN, ctx)
        return state, rows._replace(target=target_TN), metrics

    def update(self, state, batch, ctx, extensions):
        return greedy.regress(self, state, batch, batch.target, ctx, extensions, greedy.half_square)
