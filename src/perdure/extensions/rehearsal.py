"""Rows of the whole past in a small store, and agents that do not forget what they made of them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.extension import Extension
from perdure.rl import heads, ranges, views
from perdure.rl.ops import reservoirs
from perdure.rl.phases import Context

COLUMNS = ("obs", "action")
REPLAYED = (*COLUMNS, "reward", "terminated", "next_obs")
MANY = 1 << 30
"""Rows beyond which a newcomer's chance to be kept falls no further."""


class Memory(NamedTuple):
    """A uniform sample of the rows that were offered, with what the agent said of each when it came in."""

    columns: dict[str, jax.Array]
    """Columns of a batch, `value` [C, N] of every critic and `policy` [C, P] (`rl.heads.said`)."""
    seen: jax.Array
    """Rows offered so far."""


@component
class CLEAR(Extension):
    """Rehearse a sample of the whole past: cloning of what was said then, and replay (Rolnick et al., 2019).

    arXiv:1811.11682, section 3. Added to the losses, on rows of the memory: `policy_cloning` times
    KL(then || now) of the policy, `value_cloning` times the squared distance from the critics' values then, and, for
    discounted agents with a state value, `replay` times the actor-critic losses with V-trace
    corrections (Espeholt et al., 2018, arXiv:1802.01561, eq. 1 for one step, both truncations at 1). Replay agents
    learn from the past anyway, and are given the cloning terms alone.

    Departures: V-trace over single rows; rows as the networks saw them then; replay agents offer the rows of their
    batches, where the paper has the stream itself, and what was said "then" is what the agent said when a row came in.
    """

    capacity: int = 10_000
    """Rows remembered."""
    rows: int = 256
    """Remembered rows that an update sees."""
    policy_cloning: float = 0.01
    value_cloning: float = 0.005
    replay: float = 1.0

    def __post_init__(self):
        ranges.check(self, capacity=ranges.COUNT, rows=ranges.COUNT)
        weights = ("policy_cloning", "value_cloning", "replay")
        ranges.check(self, **dict.fromkeys(weights, ranges.AT_LEAST_ZERO))

    def all_needs(self) -> frozenset[str]:
        """A critic; where there is no actor, there is one network less to hold."""
        return frozenset({"critic"})

    def init_state(self, agent_state: Any, key: jax.Array, ctx: Any) -> Memory:
        """An empty memory."""
        return begin(self._kept(ctx), self.capacity, agent_state, ctx)

    def post_update(self, agent_state: Any, state: Memory, ctx: Any) -> tuple[Any, Memory]:
        """Offer the recent rows to the memory, with what the agent said of them before the updates."""
        return agent_state, offered(state, self._kept(ctx), ctx)

    def critic_loss(self, agent_state: Any, state: Memory, batch: Any, ctx: Any) -> tuple[jax.Array, dict[str, Any]]:
        """The distance from remembered values, and the regression towards V-trace targets."""
        rows = drawn(state, self.rows, ctx.key)
        cloning = value_distance(ctx, batch.params["critic"], rows)
        term = self.value_cloning * cloning
        if self._replays(ctx):
            ratio, error = self._corrected(agent_state, rows, batch.discount, ctx)
            value = views.critic_values(ctx, batch.params["critic"], rows["obs"], rows["action"])[0]
            term = term + self.replay * 0.5 * jnp.square(value - jax.lax.stop_gradient(value + ratio * error)).mean()
        return _known(state, term), {"clear/value_cloning": _known(state, cloning)}

    def actor_loss(self, agent_state: Any, state: Memory, batch: Any, ctx: Any) -> tuple[jax.Array, dict[str, Any]]:
        """The divergence from remembered policies, and the policy gradient of V-trace."""
        rows = drawn(state, self.rows, ctx.key)
        now = heads.said(ctx, agent_state.params | batch.params, rows["obs"])
        cloning = heads.divergence(ctx, rows["policy"], now).mean()
        term = self.policy_cloning * cloning
        if self._replays(ctx):
            ratio, error = self._corrected(agent_state, rows, batch.discount, ctx)
            term = term - self.replay * (ratio * error * heads.log_prob(ctx, now, rows["action"])).mean()
        return _known(state, term), {"clear/policy_cloning": _known(state, cloning)}

    def eval_metrics(self, agent_state: Any, state: Memory, ctx: Any) -> dict[str, jax.Array]:
        """How much of the memory is filled."""
        return {"clear/filled": jnp.minimum(state.seen, self.capacity) / self.capacity}

    def _kept(self, ctx):
        return REPLAYED if self._replays(ctx) else COLUMNS

    def _replays(self, ctx):
        """Whether the V-trace terms are there: on-policy values of states, discounted."""
        return self.replay > 0 and {"v_critic", "discounted"} <= set(ctx.agent.offers)

    def _corrected(self, agent_state, rows, discount, ctx):
        """Truncated importance ratios and temporal-difference errors of remembered rows, as constants: [B] each."""
        params = agent_state.params
        log_prob = heads.log_prob(ctx, heads.said(ctx, params, rows["obs"]), rows["action"])
        ratio = jnp.minimum(1.0, jnp.exp(log_prob - heads.log_prob(ctx, rows["policy"], rows["action"])))
        value, following = (
            views.critic_values(ctx, params["critic"], rows[name], rows["action"])[0] for name in ("obs", "next_obs")
        )
        target = rows["reward"] + discount * jnp.where(rows["terminated"], 0.0, following)
        return jax.lax.stop_gradient((ratio, target - value))


@component
class AGEM(Extension):
    """Averaged gradient episodic memory: no step that undoes, to first order, what is remembered.

    Chaudhry et al., 2019, arXiv:1812.00420, equation 11: where the gradient g of the loss and the gradient r of the
    loss on remembered rows point apart (g.r < 0), g - (g.r / r.r) r takes the place of g.

    Departure: an agent's own loss on old rows needs targets that are long stale, so the loss on
    remembered rows is how far the agent has moved from what it said of them when they came in: half the squared
    distance of the critics' values, and the Kullback-Leibler divergence of the policy. The two are held each in its
    own optimiser's step; where one optimiser moves both networks, together.
    """

    capacity: int = 10_000
    """Rows remembered."""
    rows: int = 256
    """Remembered rows that a gradient is compared with."""

    def __post_init__(self):
        ranges.check(self, capacity=ranges.COUNT, rows=ranges.COUNT)

    def all_needs(self) -> frozenset[str]:
        """A critic; where there is no actor, there is one network less to hold."""
        return frozenset({"critic"})

    def init_state(self, agent_state: Any, key: jax.Array, ctx: Any) -> Memory:
        """An empty memory."""
        return begin(COLUMNS, self.capacity, agent_state, ctx)

    def post_update(self, agent_state: Any, state: Memory, ctx: Any) -> tuple[Any, Memory]:
        """Offer the recent rows to the memory, with what the agent said of them before the updates."""
        return agent_state, offered(state, COLUMNS, ctx)

    def gradient(self, agent_state: Any, state: Memory, grads: Any, batch: Any, ctx: Any) -> Any:
        """The gradient without what undoes the past."""
        names = [name for name in grads if name in ctx.nets]
        if not names:
            return grads
        rows = drawn(state, self.rows, ctx.key)
        params = {name: agent_state.params[name] for name in grads}
        reference = jax.grad(lambda params: self._moved(agent_state, params, rows, ctx))(params)
        return projected(grads, jax.tree.map(lambda r: _known(state, r), reference))

    def _moved(self, agent_state, params, rows, ctx):
        """How far the networks among `params` are from what is remembered."""
        distance = jnp.zeros(())
        if "critic" in params:
            distance += 0.5 * value_distance(ctx, params["critic"], rows)
        if "actor" in params:
            now = heads.said(ctx, agent_state.params | params, rows["obs"])
            distance += heads.divergence(ctx, rows["policy"], now).mean()
        return distance


def begin(names: tuple[str, ...], capacity: int, agent_state: Any, ctx: Context) -> Memory:
    """An empty memory of the columns `names` of batches."""
    spec = ctx.spec
    action = jnp.zeros(capacity, jnp.int32) if spec.discrete else jnp.zeros((capacity, spec.action_dim))
    obs = jnp.zeros((capacity, *spec.obs_shape))
    every = {
        "obs": obs,
        "action": action,
        "reward": jnp.zeros(capacity),
        "terminated": jnp.zeros(capacity, bool),
        "next_obs": obs,
    }
    columns = {name: every[name] for name in names}
    columns["value"] = jnp.zeros((capacity, ctx.nets["critic"].members or 1))
    columns["policy"] = jnp.zeros((capacity, heads.size(ctx, agent_state.params)))
    return Memory(columns, jnp.zeros((), jnp.int32))


def offered(state: Memory, names: tuple[str, ...], ctx: Context) -> Memory:
    """In post_update: the memory after the recent rows were offered to it."""
    rows, then = ctx.recent, ctx.before.params
    found = {name: getattr(rows, name) for name in names}
    found["value"] = views.critic_values(ctx, then["critic"], rows.obs, rows.action).T
    found["policy"] = heads.said(ctx, then, rows.obs)
    count, capacity = rows.obs.shape[0], state.columns["obs"].shape[0]
    places = reservoirs.places(ctx.key, state.seen, count, capacity)
    return Memory(reservoirs.written(state.columns, found, places), jnp.minimum(state.seen, MANY) + count)


def drawn(state: Memory, count: int, key: jax.Array) -> dict[str, jax.Array]:
    """`count` remembered rows, drawn uniformly with replacement."""
    filled = jnp.clip(state.seen, 1, state.columns["obs"].shape[0])
    index = jax.random.randint(key, (count,), 0, filled)
    return {name: column[index] for name, column in state.columns.items()}


def value_distance(ctx: Context, critic: Any, rows: dict[str, jax.Array]) -> jax.Array:
    """Mean squared distance of every critic's values from the remembered ones."""
    now_NB = views.critic_values(ctx, critic, rows["obs"], rows["action"])
    return jnp.square(now_NB - rows["value"].T).mean()


def projected(grads: Any, reference: Any) -> Any:
    """`grads`, less their component along `reference` where the two point apart; trees of one shape."""
    dot = lambda a, b: sum((x * y).sum() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    along, length = dot(grads, reference), dot(reference, reference)
    share = jnp.where((along < 0) & (length > 0), along / jnp.where(length > 0, length, 1.0), 0.0)
    return jax.tree.map(lambda g, r: g - share * r, grads, reference)


def _known(state, x):
    """Zero while nothing is remembered."""
    return jnp.where(state.seen > 0, x, jnp.zeros_like(x))
