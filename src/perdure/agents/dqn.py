"""Deep Q-network (Mnih et al., 2015), with the options that came after it.

Double (van Hasselt et al., 2016, arXiv:1509.06461), dueling (Wang et al., 2016, arXiv:1511.06581), returns of several
steps (Sutton, 1988) and prioritised replay (Schaul et al., 2016, arXiv:1511.05952). Departures: a dueling network
splits its head alone, and the gradient that enters its shared layers is not rescaled.
"""

from typing import ClassVar

import jax.numpy as jnp

from perdure.core.component import component
from perdure.rl import fit, greedy, ranges
from perdure.rl.feeds import Prioritised, Replay
from perdure.rl.memory import Memory
from perdure.rl.ops import values
from perdure.rl.optim import Adam, RMSProp
from perdure.rl.reservoir import Reservoir


@component
class DQN:
    """Deep Q-network: targets from a slow copy that is renewed every `target_period` updates.

    `double` lets the live network choose the action that the slow one values; `feed.steps` sums that many rewards
    before the target bootstraps.
    """

    feed: Replay | Prioritised | Reservoir = Replay(capacity=100_000, batch_size=64, learning_starts=1_000)
    hidden: tuple[int, ...] = (128, 128)
    activation: str = "relu"
    layer_norm: bool = False
    precision: str = "float32"
    memory: Memory | None = None
    """What is remembered of an episode; null: the networks read single observations."""
    convolutions: tuple[tuple[int, int, int], ...] = ()
    """(features, kernel, stride) of each layer over observations that are images; the `hidden` ones follow."""
    optimiser: RMSProp | Adam = RMSProp(learning_rate=2.5e-4, decay=0.95, epsilon=0.01 / 64**2)
    epsilon: greedy.Epsilon = greedy.Epsilon()
    discount: float = 0.99
    reward_scale: float = 1.0
    """What rewards are multiplied by inside targets."""
    target_period: int = 500
    double: bool = False
    dueling: bool = False
    """Whether the head gives the state's value and every action's advantage over their mean."""
    normalize_observations: bool = False
    normalize_rewards: bool = False

    offers: ClassVar[frozenset[str]] = greedy.OFFERS | {"replay", "n_step", "priorities"}
    actions: ClassVar[frozenset[str]] = frozenset({"discrete"})
    init, noise = greedy.begin, greedy.noise
    act, act_greedy = greedy.act, greedy.act_greedy

    def __post_init__(self):
        ranges.check(self, discount=ranges.SHARE, reward_scale=ranges.POSITIVE, target_period=ranges.COUNT)

    def networks(self, spec):
        return greedy.networks(self, spec, dueling=self.dueling)

    def update(self, state, batch, ctx, extensions):
        critic = ctx.nets["critic"]
        next_q_BA = critic.apply(state.slow["critic"], batch.next_obs)
        chooser_BA = critic.apply(state.params["critic"], batch.next_obs) if self.double else next_q_BA
        choice_B = chooser_BA.argmax(-1).astype(jnp.int32)
        next_value_B = values.taken(next_q_BA, choice_B) if self.double else next_q_BA.max(-1)
        discount = greedy.spanned(self.discount, batch)
        target_B = values.bootstrap(self.reward_scale * batch.reward, batch.terminated, next_value_B, discount)
        target_B, extra = extensions.target(state, batch._replace(scored_action=choice_B), target_B, ctx)

        state, metrics = greedy.regress(self, state, batch, target_B, ctx, extensions)
        renewed = (ctx.clock.updates + 1) % self.target_period == 0
        return fit.renew(state, "critic", renewed), greedy.merged(metrics, extra)
