"""Proximal policy optimisation (Schulman et al., 2017, arXiv:1707.06347), for discrete and continuous actions."""

from typing import ClassVar

from perdure.core.component import component
from perdure.rl import clipped, ranges
from perdure.rl.feeds import Epochs
from perdure.rl.memory import Memory
from perdure.rl.optim import Adam


@component
class PPO:
    """Proximal policy optimisation: clipped surrogate on generalised advantages over a window of fresh experience.

    Truncation ends the advantage sum but bootstraps from the true successor. Advantages are
    normalised in each minibatch; the value loss is `value_weight * 0.5 * MSE`, unclipped; the
    gradients of actor and critic are clipped together. Continuous actions come from a Normal with
    state-independent spread, unsquashed, and are clipped at the world's bounds when executed.
    """

    feed: Epochs = Epochs(epochs=10, minibatches=32)
    hidden: tuple[int, ...] = (128, 128)
    activation: str = "tanh"
    layer_norm: bool = False
    precision: str = "float32"
    convolutions: tuple[tuple[int, int, int], ...] = ()
    """(features, kernel, stride) of each layer over observations that are images; the `hidden` ones follow."""
    memory: Memory | None = None
    """What is remembered of an episode; null: the networks read single observations."""
    optimiser: Adam = Adam(learning_rate=3e-4, epsilon=1e-5, clip_norm=0.5)
    discount: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_weight: float = 0.0
    value_weight: float = 0.5
    normalize_observations: bool = False
    normalize_rewards: bool = False

    offers: ClassVar[frozenset[str]] = clipped.OFFERS | {"discounted"}
    actions: ClassVar[frozenset[str]] = frozenset({"discrete", "continuous"})
    networks, init, noise = clipped.networks, clipped.begin, clipped.noise
    act, act_greedy, sample = clipped.act, clipped.act_greedy, clipped.sample

    def __post_init__(self):
        ranges.check(self, discount=ranges.SHARE, gae_lambda=ranges.SHARE)
        ranges.check(self, **dict.fromkeys(("clip", "entropy_weight", "value_weight"), ranges.AT_LEAST_ZERO))

    def prepare(self, state, rows, ctx, extensions):
        rows, metrics = clipped.label(self, state, rows, ctx, self.discount, extensions)
        return state, rows, metrics

    def update(self, state, batch, ctx, extensions):
        return clipped.step(self, state, clipped.standardised(batch), ctx, extensions)
