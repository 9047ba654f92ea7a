"""The records that agents and extensions see in every phase of the loop."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.errors import PerdureError
from perdure.core.records import Spec
from perdure.rl.nets import Network

Metrics = dict[str, Any]
"""Name -> scalar, or `Occasional`."""


class Batch(NamedTuple):
    """Rows of experience, with leading axes [T, N] or [B], and what an update adds to them.

    A column that a run does not keep is (). Actions are in agent units.
    """

    obs: Any
    action: Any
    reward: Any
    """Unscaled."""
    terminated: Any
    """Where the bootstrap is cut."""
    truncated: Any
    next_obs: Any
    """The true successor, also where an episode ended."""
    aux: Any = ()
    """What the agent attached to the rows (PPO: log-probability, advantage)."""
    target: Any = None
    """Regression targets, from the phase on_target on."""
    params: Any = None
    """The parameters being differentiated, in the loss phases: network name -> tree."""
    discount: float | None = None
    """None under an average-reward criterion."""
    reset_obs: Any = ()
    """What the copy would begin anew with, for agents that offer the column `reset_obs`."""
    raw_obs: Any = ()
    """`obs` as the world gave it, before normalisation."""
    raw_next_obs: Any = ()
    expert_action: Any = ()
    """What the agent's own expert does at `obs`."""
    next_expert_action: Any = ()
    """What it does at `next_obs`."""
    is_expert: Any = ()
    """Whether a proposal of an extension was executed."""
    return_to_go: Any = ()
    """Discounted return of the rest of the episode; -inf where unknown."""
    next_action: Any = ()
    """The action that a dataset holds for `next_obs`; NaN, or -1 for an index, where unknown."""
    scored_action: Any = ()
    """From on_target on: the action at `next_obs` whose value the target is made of; () for state values."""
    agent_loss: Any = ()
    """In actor_loss: the agent's own loss, to be differentiated like the parameters."""
    span: Any = ()
    """Steps between `obs` and `next_obs`, where a feed sums rewards over several."""
    weight: Any = ()
    """Importance of each row, where a feed does not draw uniformly."""
    index: Any = ()
    """Where a prioritised store holds each row."""


class Occasional(NamedTuple):
    """A metric that some updates leave unmeasured: the sum of what was measured, and how often it was."""

    total: jax.Array
    count: jax.Array


class Clock(NamedTuple):
    """What all seeds share: counters, so that conditions on them stay conditions, and the extensions' data."""

    t: jax.Array
    """Steps of each environment copy so far."""
    updates: jax.Array
    """Gradient updates so far."""
    total: jax.Array
    """Environment steps of one seed in the whole run (traced: a longer horizon recompiles nothing)."""
    data: Any = ()
    """What `Extension.data` gave, an entry an extension; () between two calls of a program."""


class Scene(NamedTuple):
    """What is known where an action is chosen, besides the observation that the networks see."""

    raw_obs: Any = ()
    expert_action: Any = ()
    """[N, A] in agent units, or [N]: the agent's own expert; () without one."""
    policy_action: Any = ()
    """[N, A] or [N]: the action the agent would take (uniform while it warms up)."""
    age: Any = ()
    """[N] steps of the unfinished episode, where an extension reads `step_in_episode`."""


class Context(NamedTuple):
    """What surrounds a phase or an agent's call."""

    spec: Spec
    nets: Mapping[str, Network]
    n_envs: int
    clock: Clock
    key: Any = None
    noise: Any = None
    """In act: what the agent's `noise` drew for this step."""
    shift: Any = False
    """In post_update: whether the boundary source reported a shift since the last one."""
    recent: Any = None
    """A batch of recent rows, observations as the networks see them."""
    previous: Any = None
    """In post_update: the clock before the updates just done."""
    before: Any = None
    """In post_update: the agent's state before them."""
    agent: Any = None
    expert: Any = None
    """The agent's own expert."""
    world: Any = None
    task: Any = None
    """In pretrain: the task of the run's first step."""
    reward: Any = None
    """A rewards.spec.RewardSpec that takes the place of the world's reward."""
    weights: Any = None
    """In pretrain: its weights at the run's first step."""
    scene: Scene = Scene()
    """In action, eval_action and transform_action."""
    data: Any = ()
    """What the extension's `data` gave."""
    provided: Mapping[str, Any] = {}
    """What the extensions' `provided` gave; of a name given twice, the last."""
    learn: Callable[..., tuple[Any, Metrics]] | None = None
    """In pretrain: `learn(agent_state, raw rows, key, number)`, the agent's own update, extensions folded."""

    @property
    def step(self) -> jax.Array:
        """Environment steps of one seed so far."""
        return self.clock.t * self.n_envs

    @property
    def fraction(self) -> jax.Array:
        """Share of the run that is done, in [0, 1]."""
        return self.step / self.clock.total

    def crossed(self, interval: int) -> jax.Array:
        """Whether the update counter passed a multiple of `interval` since `previous`."""
        return self.clock.updates // interval > self.previous.updates // interval


class Proposal(NamedTuple):
    """An action an extension would rather take."""

    action: jax.Array
    mask: Any
    """[N] where it takes the place of the agent's action."""
    bonus: Any = 0.0
    """[N] added to the reward of the step."""
    end: Any = False
    """[N] where the row is to be stored as terminated."""


def merged(metrics: Metrics, *others: Metrics) -> Metrics:
    """The union of metrics; a name given twice raises."""
    for other in others:
        repeated = sorted(metrics.keys() & other.keys())
        if repeated:
            raise PerdureError(f"metric {repeated[0]!r} is logged twice; rename one of them")
        metrics = metrics | other
    return metrics


def occasionally(when: jax.Array, step: Callable[[Any], tuple[Any, Metrics]], state: Any) -> tuple[Any, Metrics]:
    """`step(state) -> (state, metrics)` where `when`, which all seeds share; elsewhere nothing is done or measured."""
    blank = {name: Occasional(jnp.zeros(()), jnp.zeros(())) for name in jax.eval_shape(step, state)[1]}

    def taken(state):
        state, metrics = step(state)
        return state, {name: Occasional(jnp.float32(value), jnp.ones(())) for name, value in metrics.items()}

    return jax.lax.cond(when, taken, lambda state: (state, blank), state)
