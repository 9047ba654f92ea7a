"""Twin delayed deep deterministic policy gradient (Fujimoto et al., 2018, arXiv:1802.09477).

Departure: critics read actions in [-1, 1], not in the world's units.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.rl import fit, phases, ranges, soft
from perdure.rl.feeds import Replay
from perdure.rl.memory import Memory
from perdure.rl.optim import Adam
from perdure.rl.reservoir import Reservoir


@component
class TD3:
    """Twin delayed DDPG: a deterministic actor, targets of smoothed actions, and the actor every second update."""

    feed: Replay | Reservoir = Replay(learning_starts=25_000)
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
    discount: float = 0.99
    reward_scale: float = 1.0
    """What rewards are multiplied by inside targets."""
    slow_rate: float = 0.005
    policy_delay: int = 2
    """Critic updates for each step of the actor and of all slow copies."""
    exploration_noise: float = 0.1
    """Deviation of the noise on actions, in units of [-1, 1]."""
    target_noise: float = 0.2
    target_noise_clip: float = 0.5
    normalize_observations: bool = False
    normalize_rewards: bool = False

    offers: ClassVar[frozenset[str]] = soft.OFFERS - {"policy_density"}
    actions: ClassVar[frozenset[str]] = frozenset({"continuous"})
    noise = soft.noise

    def __post_init__(self):
        ranges.check(self, discount=ranges.SHARE, reward_scale=ranges.POSITIVE, slow_rate=ranges.SHARE)
        ranges.check(self, policy_delay=ranges.COUNT)
        noises = ("exploration_noise", "target_noise", "target_noise_clip")
        ranges.check(self, **dict.fromkeys(noises, ranges.AT_LEAST_ZERO))

    def networks(self, spec):
        return soft.networks(self, spec, heads=1, initialiser="torch")

    def init(self, key, ctx):
        state = soft.pair(self, key, ctx)
        return state._replace(slow=state.params)

    def act(self, state, obs, ctx):
        return jnp.clip(self.act_greedy(state, obs, ctx) + self.exploration_noise * ctx.noise, -1.0, 1.0), ()

    def act_greedy(self, state, obs, ctx):
        return ctx.nets["actor"].apply(state.params["actor"], obs)

    def update(self, state, batch, ctx, extensions):
        noise_BA = self.target_noise * jax.random.normal(ctx.key, batch.action.shape)
        noise_BA = jnp.clip(noise_BA, -self.target_noise_clip, self.target_noise_clip)
        next_action_BA = ctx.nets["actor"].apply(state.slow["actor"], batch.next_obs)
        next_action_BA = jnp.clip(next_action_BA + noise_BA, -1.0, 1.0)
        next_action_BA = extensions.transform_next(state, next_action_BA, batch, ctx)
        batch = batch._replace(scored_action=next_action_BA)
        next_q_NB = soft.q_values(state.slow["critic"], batch.next_obs, next_action_BA, ctx)
        target_B, extra = soft.discounted(self, state, batch, soft.minimum(next_q_NB), ctx, extensions)
        state, metrics = soft.regress(self, state, batch, target_B, ctx, extensions, soft.summed_square)

        due = (ctx.clock.updates + 1) % self.policy_delay == 0
        climb = lambda state: self._climb(state, batch, ctx, extensions)
        state, actor_metrics = phases.occasionally(due, climb, state)
        return state, phases.merged(metrics, actor_metrics, extra)

    def _climb(self, state, batch, ctx, extensions):
        def loss(params):
            action_BA = ctx.nets["actor"].apply(params["actor"], batch.obs)
            action_BA = extensions.transform_at(state, action_BA, batch, ctx)
            value = -soft.q_values(state.params["critic"], batch.obs, action_BA, ctx)[0].mean()
            term, extra = extensions.loss("actor_loss", state, batch._replace(params=params, agent_loss=value), ctx)
            return value + term, phases.merged({"loss/actor": value}, extra)

        state, metrics = fit.descend(state, "actor", self.actor_optimiser, loss, batch, ctx, extensions)
        for name in ("actor", "critic"):
            state = fit.follow(state, name, self.slow_rate)
        return state, metrics
