"""The steps that action-value agents over discrete actions are assembled from. Suffixes: B batch, A actions."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.core.records import Spec
from perdure.rl import fit
from perdure.rl.nets import Network, perceptron
from perdure.rl.ops import policies, values
from perdure.rl.phases import Batch, Context, Metrics, merged

OFFERS = frozenset({"q_critic", "critic", "discounted", "off_policy", "obs_networks"})


@component
class Epsilon:
    """Probability of a uniform action: linear from `start` to `end` over the first `share` of the run."""

    start: float = 1.0
    end: float = 0.05
    share: float = 0.5

    def __post_init__(self):
        if not (0 <= self.end <= 1 and 0 <= self.start <= 1 and 0 < self.share <= 1):
            raise ConfigError(
                f"epsilon has start {self.start}, end {self.end}, share {self.share}; "
                "start and end lie in [0, 1], share in (0, 1]"
            )

    def at(self, fraction: jax.Array) -> jax.Array:
        """The probability after this share of the run, in [0, 1]."""
        return self.start + (self.end - self.start) * jnp.clip(fraction / self.share, 0.0, 1.0)


def networks(agent: Any, spec: Spec, *, initialiser: str = "torch", **shape: Any) -> dict[str, Network]:
    """One network from observations to the value of every action; `shape` is what else it is given."""
    return {"critic": perceptron(agent, spec, outputs=spec.action_dim, initialiser=initialiser, **shape)}


def begin(agent: Any, key: jax.Array, ctx: Context) -> fit.AgentState:
    """A fresh network, and a slow copy of it."""
    state = begin_alone(agent, key, ctx)
    return state._replace(slow=state.params)


def begin_alone(agent: Any, key: jax.Array, ctx: Context) -> fit.AgentState:
    """A fresh network."""
    params = {"critic": ctx.nets["critic"].init(key)}
    return fit.AgentState(params, {"critic": agent.optimiser.init(params)})


def noise(agent: Any, key: jax.Array, rows: int, spec: Spec) -> jax.Array:
    """[2, rows] uniform numbers: which action, and whether to take it."""
    return jax.random.uniform(key, (2, rows))


def act(agent: Any, state: fit.AgentState, obs: jax.Array, ctx: Context) -> tuple[jax.Array, tuple[()]]:
    """The best action, or a uniform one with the present epsilon."""
    q_BA = ctx.nets["critic"].apply(state.params["critic"], obs)
    return policies.epsilon_greedy(q_BA, ctx.noise, agent.epsilon.at(ctx.fraction)), ()


def act_greedy(agent: Any, state: fit.AgentState, obs: jax.Array, ctx: Context) -> jax.Array:
    """The best action."""
    return ctx.nets["critic"].apply(state.params["critic"], obs).argmax(-1).astype(jnp.int32)


def spanned(discount: float, batch: Batch) -> Any:
    """The discount of what follows `batch.next_obs`: one factor for each step that a row stands for."""
    return discount if isinstance(batch.span, tuple) else discount**batch.span


def huber(error: jax.Array) -> jax.Array:
    """Quadratic within 1, linear beyond: the clipped error of Mnih et al., 2015."""
    size = jnp.abs(error)
    quadratic = jnp.minimum(size, 1.0)
    return 0.5 * jnp.square(quadratic) + (size - quadratic)


def half_square(error: jax.Array) -> jax.Array:
    """Half of the squared error."""
    return 0.5 * jnp.square(error)


def regress(
    agent: Any,
    state: fit.AgentState,
    batch: Batch,
    target: jax.Array,
    ctx: Context,
    extensions: Any,
    size: Callable[[jax.Array], jax.Array] = huber,
) -> tuple[fit.AgentState, Metrics]:
    """The value of the action taken towards `target`, by the mean `size` of the errors, each times its row's weight.

    Of a prioritised batch the errors [B] are left in the state's `memory`.
    """

    def loss(params):
        q_B = values.taken(ctx.nets["critic"].apply(params["critic"], batch.obs), batch.action)
        assert q_B.shape == target.shape
        term, extra = extensions.loss("critic_loss", state, batch._replace(params=params, target=target), ctx)
        error_B = q_B - target
        size_B = size(error_B) if isinstance(batch.weight, tuple) else batch.weight * size(error_B)
        value = size_B.mean()
        return value + term, (merged({"loss/critic": value, "value/q": q_B.mean()}, extra), error_B)

    state, (metrics, error_B) = fit.descend(state, "critic", agent.optimiser, loss, batch, ctx, extensions)
    return (state if isinstance(batch.index, tuple) else state._replace(memory=error_B)), metrics
