"""Randomised ensembled double Q-learning (Chen et al., 2021, arXiv:2101.05982).

Against SAC: many critics, targets from the least of a random few, an actor that climbs their mean, and many
critic updates for each environment step. Departure: critics read actions in [-1, 1], not in the world's units.
"""

from typing import ClassVar, Literal

import jax

from perdure.core.component import component
from perdure.rl import fit, phases, ranges, soft
from perdure.rl.feeds import Replay
from perdure.rl.memory import Memory
from perdure.rl.optim import Adam
from perdure.rl.reservoir import Reservoir

MBPO_ENTROPY = {"hopper": -1.0, "halfcheetah": -3.0, "walker2d": -3.0, "ant": -4.0, "humanoid": -2.0}
"""Entropy goals of Janner et al., 2019 (arXiv:1906.08253), by MuJoCo body, for `target_entropy`."""


@component
class REDQ:
    """Randomised ensembled double Q-learning: soft actor-critic with many critics and many updates a step.

    Each update is a critic step on a fresh batch; every `critic_updates`-th also moves the actor and
    the temperature, on its batch. With `feed.ratio` equal to `critic_updates` that is once a step.
    """

    feed: Replay | Reservoir = Replay(ratio=20.0)
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
    critics: int = 10
    subset: int = 2
    """Critics that a target takes the least of."""
    critic_updates: int = 20
    """Critic updates for each step of the actor."""
    actor_reads: Literal["updated", "previous"] = "updated"
    """The critics after the last critic step (the paper's algorithm 1), or before it (its published code)."""
    target_entropy_per_dim: float = -1.0
    target_entropy: float | Literal["hopper", "halfcheetah", "walker2d", "ant", "humanoid"] | None = None
    """The whole goal, as a number or by the body that MBPO tuned it for; None: `target_entropy_per_dim` for each."""
    normalize_observations: bool = False
    normalize_rewards: bool = False

    offers: ClassVar[frozenset[str]] = soft.OFFERS
    actions: ClassVar[frozenset[str]] = frozenset({"continuous"})
    init, noise = soft.begin, soft.noise
    act, act_greedy, sample = soft.act, soft.act_greedy, soft.sample

    def __post_init__(self):
        ranges.check(self, discount=ranges.SHARE, reward_scale=ranges.POSITIVE, slow_rate=ranges.SHARE)
        ranges.check(self, temperature=ranges.POSITIVE)
        ranges.check(self, critics=ranges.COUNT, critic_updates=ranges.COUNT, subset=(1, self.critics))

    def networks(self, spec):
        return soft.networks(self, spec, critics=self.critics)

    def update(self, state, batch, ctx, extensions):
        next_key, subset_key, actor_key, temperature_key = jax.random.split(ctx.key, 4)
        goal = self.target_entropy
        goal = MBPO_ENTROPY[goal] if isinstance(goal, str) else goal
        _, chosen = jax.lax.top_k(jax.random.uniform(subset_key, (self.critics,)), self.subset)
        random_few = jax.tree.map(lambda leaf: leaf[chosen], state.slow["critic"])
        next_value_B, batch = soft.next_value(state, random_few, batch, next_key, ctx, extensions, soft.minimum)
        target_B, extra = soft.discounted(self, state, batch, next_value_B, ctx, extensions)

        def fit_critics(state):
            return soft.regress(self, state, batch, target_B, ctx, extensions, soft.summed_square)

        def move_actor(state):
            state, metrics = soft.climb(self, state, batch, actor_key, ctx, extensions, soft.mean)
            state, temperature_metrics = soft.adapt(self, state, batch, temperature_key, ctx, extensions, goal)
            return state, phases.merged(metrics, temperature_metrics)

        due = (ctx.clock.updates + 1) % self.critic_updates == 0
        sometimes = lambda state: phases.occasionally(due, move_actor, state)
        steps = (fit_critics, sometimes) if self.actor_reads == "updated" else (sometimes, fit_critics)
        metrics = extra
        for step in steps:
            state, told = step(state)
            metrics = phases.merged(metrics, told)
        return fit.follow(state, "critic", self.slow_rate), metrics
