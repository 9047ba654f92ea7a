"""Imitation by a discriminator: the reward of a row is how much it looks like a demonstration.

Suffixes: R rows (all of a batch or window), D numbers of an observation, A numbers of an action.
"""

import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.core.extension import Extension, Run
from perdure.rl import ranges
from perdure.rl.dataset import TransitionDataset
from perdure.rl.nets import Network
from perdure.rl.optim import Adam, OptState
from perdure.rl.phases import Batch, Context, Metrics


@component
class Discriminator:
    """Tells demonstrations from other rows: a logit for each, positive where it takes a row for a demonstration."""

    inputs: int
    hidden: tuple[int, ...] = (32, 32)
    activation: str = "relu"

    @property
    def network(self) -> Network:
        """The perceptron that it is."""
        return Network(self.inputs, self.hidden, 1, activation=self.activation, initialiser="lecun")

    def init(self, key: jax.Array) -> Any:
        """Fresh parameters."""
        return self.network.init(key)

    def logits(self, params: Any, rows: jax.Array) -> jax.Array:
        """[R] for rows [R, D + A]."""
        return self.network.apply(params, rows)[..., 0]

    def loss(self, params: Any, demonstrated: jax.Array, collected: jax.Array) -> tuple[jax.Array, Metrics]:
        """Binary cross-entropy of both kinds of rows, each counting half; and what is reported of it."""
        expert, policy = self.logits(params, demonstrated), self.logits(params, collected)
        value = 0.5 * (jax.nn.softplus(-expert).mean() + jax.nn.softplus(policy).mean())
        told = {"disc_loss": value, "expert_acc": (expert > 0).mean(), "policy_acc": (policy < 0).mean()}
        return value, told


class Judge(NamedTuple):
    """A discriminator in training."""

    params: Any
    opt: OptState


@component
class AdversarialReward(Extension):
    """Generative adversarial imitation: rewards are -log(1 - D(s, a)), whatever the world pays.

    D is the probability that a row is a demonstration, by a discriminator that `n_updates` steps of Adam improve after
    each judgement, on the rows judged against as many demonstrated ones drawn uniformly (Ho and Ermon, 2016,
    arXiv:1606.03476, algorithm 1, in the form whose reward is positive). It sees raw observations, and actions
    cut to [-1, 1], or one-hot where they are indices. Agents with a replay have every sampled batch judged anew.
    """

    demonstrations: TransitionDataset
    """In a document, the path of a saved dataset."""
    n_updates: int = 2
    """Steps of the discriminator for each batch or window, at least 1."""
    learning_rate: float = 1e-3
    """Above 0."""
    hidden: tuple[int, ...] = (32, 32)
    activation: str = "relu"

    log_name: ClassVar[str] = "gail"

    def __post_init__(self):
        ranges.check(self, n_updates=ranges.COUNT, learning_rate=ranges.POSITIVE)
        _ = self._discriminator(1).network  # It refuses shapes that are none.

    def objection(self, run: Run) -> str | None:
        """Demonstrations of another world."""
        try:
            self.demonstrations.check_fits(run.spec, "the dataset")
        except ConfigError as error:
            return f"cannot learn from its demonstrations: {error}"
        return None

    def data(self, run: Run) -> dict[str, Any]:
        """The demonstrated observations and actions."""
        return {"obs": self.demonstrations.obs, "action": self.demonstrations.action}

    def init_state(self, agent_state: Any, key: jax.Array, ctx: Context) -> Judge:
        """A fresh discriminator."""
        params = self._discriminator(math.prod(ctx.spec.obs_shape) + ctx.spec.action_dim).init(key)
        return Judge(params, self._optimiser.init(params))

    def reward(
        self, agent_state: Any, state: Judge, batch: Batch, reward: jax.Array, ctx: Context
    ) -> tuple[jax.Array, Judge, Metrics]:
        """Rewards by the discriminator as it was; and the improved one."""
        rows = discriminator_rows(ctx, batch.raw_obs, batch.action, reward.shape)
        discriminator = self._discriminator(rows.shape[-1])
        judged = jax.nn.softplus(discriminator.logits(state.params, rows)).reshape(reward.shape)

        def improve(state, key):
            index = jax.random.randint(key, rows.shape[:1], 0, ctx.data["obs"].shape[0])
            drawn = discriminator_rows(ctx, ctx.data["obs"][index], ctx.data["action"][index], index.shape)
            grads, told = jax.grad(discriminator.loss, has_aux=True)(state.params, drawn, rows)
            return Judge(*self._optimiser.step(state.params, state.opt, grads)), told

        state, told = jax.lax.scan(improve, state, jax.random.split(ctx.key, self.n_updates))
        told = {"reward": judged.mean()} | jax.tree.map(jnp.mean, told)
        return judged, state, {f"{self.log_name}/{name}": value for name, value in told.items()}

    @property
    def _optimiser(self):
        return Adam(learning_rate=self.learning_rate)

    def _discriminator(self, inputs):
        return Discriminator(inputs, self.hidden, self.activation)


def discriminator_rows(ctx: Context, obs: jax.Array, action: jax.Array, rows: tuple[int, ...]) -> jax.Array:
    """What the discriminator sees of rows with leading axes `rows`: [R, D + A], flat."""
    told = jax.nn.one_hot(action, ctx.spec.action_dim) if ctx.spec.discrete else jnp.clip(action, -1.0, 1.0)
    count = math.prod(rows)
    return jnp.concatenate([obs.reshape(count, -1), told.reshape(count, -1)], axis=-1)
