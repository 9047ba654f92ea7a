"""Penalties on what a network says, not on its parameters: how far behaviour may move, and from where.

Policies are compared by `rl.views.divergence`: the Kullback-Leibler divergence; of deterministic
actors half the squared distance; of agents without an actor, where an extension takes them, that
of the softmax of their action values.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.extension import Extension
from perdure.rl import importance, ranges, views
from perdure.rl.optim import Adam, OptState


class Remembered(NamedTuple):
    """A policy, and 1 once there is one."""

    params: Any
    known: jax.Array


@component
class PreviousPolicy(Extension):
    """Stay near the policy of the last shift: strength * mean KL(pi || pi_then) on the update's rows.

    After learning without forgetting (Li and Hoiem, 2016, arXiv:1606.09282), which also compares on the
    present rows; the divergence is that of the present policy from the old one, as where
    reinforcement learning is held to a prior policy. Before the first shift there is none.
    """

    strength: float = 1.0
    """Weight of the penalty, at least 0."""

    def __post_init__(self):
        ranges.check(self, strength=ranges.AT_LEAST_ZERO)

    def all_needs(self) -> frozenset[str]:
        """A boundary source and a critic, which decides where there is no actor."""
        return frozenset({"critic", "boundary"})

    def init_state(self, agent_state: Any, key: jax.Array, ctx: Any) -> Remembered:
        """No policy yet."""
        return Remembered(importance.held(ctx, agent_state.params, critic=False), jnp.zeros(()))

    def critic_loss(self, agent_state: Any, state: Remembered, batch: Any, ctx: Any) -> jax.Array:
        """The pull on a network that both values and decides."""
        return jnp.zeros(()) if "actor" in ctx.nets else self._pull(state, batch, ctx)

    def actor_loss(self, agent_state: Any, state: Remembered, batch: Any, ctx: Any) -> jax.Array:
        """The pull on an actor."""
        return self._pull(state, batch, ctx)

    def post_update(self, agent_state: Any, state: Remembered, ctx: Any) -> tuple[Any, Remembered]:
        """At a shift, remember the policy from before this update."""
        now = Remembered({name: ctx.before.params[name] for name in state.params}, jnp.ones(()))
        return agent_state, jax.tree.map(lambda new, old: jnp.where(ctx.shift, new, old), now, state)

    def _pull(self, state, batch, ctx):
        return self.strength * state.known * views.divergence(ctx, batch.params, state.params, batch.obs).mean()


class Cascade(NamedTuple):
    """Hidden policies 2 to N along a leading axis, as they are and as they were, and their moments."""

    hidden: Any
    old: Any
    opt: OptState


@component
class PolicyConsolidation(Extension):
    """A cascade of hidden policies that remember the agent's at longer and longer time scales.

    Kaplanis et al., 2019, arXiv:1902.00255, section 3. The agent's policy pi_1 pays
    `pull` * KL(pi_1 || pi_2). Hidden policy k, from 2 to `depth`, descends
    beta flow^(k-1) KL(pi_k || its old self) + flow KL(pi_k || pi_(k-1)) + KL(pi_k || pi_(k+1)) on recent rows: each
    follows the policy before it and, less, the one after it, and moves the more slowly the deeper it
    lies. Neighbours count as they were when the old selves were last renewed, pi_1 as it is.
    All begin as the agent's first policy. No boundary is told. Departure: an agent's own trust region
    takes the place of the paper's for pi_1, and the hidden policies descend after the agent's
    updates instead of beside each of them.
    """

    depth: int = 8
    """N, policies with the agent's own, at least 2."""
    pull: float = 1.0
    """omega_12, at least 0."""
    flow: float = 4.0
    """omega, how much slower each policy is than the one before it; at least 1."""
    beta: float = 0.5
    """How strongly the agent's own policy would be held to its old self; at least 0."""
    learning_rate: float = 3e-4
    """Of the hidden policies' Adam."""
    interval: int = 4
    """Updates of the agent for each step of the hidden policies."""
    renewal: int = 256
    """Updates after which old selves are renewed; with windows at least that long, once a window."""
    rows: int = 64
    """Rows that a step of the hidden policies sees."""

    def __post_init__(self):
        ranges.check(self, depth=(2, ranges.ANY), flow=(1.0, ranges.ANY), learning_rate=ranges.POSITIVE)
        ranges.check(self, **dict.fromkeys(("pull", "beta"), ranges.AT_LEAST_ZERO))
        ranges.check(self, **dict.fromkeys(("interval", "renewal", "rows"), ranges.COUNT))

    def init_state(self, agent_state: Any, key: jax.Array, ctx: Any) -> Cascade:
        """The agent's first policy, over and over."""
        policy = importance.held(ctx, agent_state.params, critic=False)
        hidden = jax.tree.map(lambda x: jnp.repeat(x[None], self.depth - 1, axis=0), policy)
        return Cascade(hidden, hidden, self._optimiser.init(hidden))

    def actor_loss(self, agent_state: Any, state: Cascade, batch: Any, ctx: Any) -> jax.Array:
        """The pull of the first hidden policy on the agent's."""
        second = jax.tree.map(lambda x: x[0], state.hidden)
        return self.pull * views.divergence(ctx, batch.params, second, batch.obs).mean()

    def post_update(self, agent_state: Any, state: Cascade, ctx: Any) -> tuple[Any, Cascade]:
        """As many steps of the hidden policies as the agent's updates brought."""
        renewed = state._replace(old=state.hidden)
        state = jax.lax.cond(ctx.crossed(self.renewal), lambda: renewed, lambda: state)
        rows = importance.few(ctx.recent, self.rows)
        steps = ctx.clock.updates // self.interval - ctx.previous.updates // self.interval
        policy = {name: agent_state.params[name] for name in state.hidden}

        def step(_, state):
            grads = jax.grad(self._cascade_loss)(state.hidden, state.old, policy, rows.obs, ctx)
            hidden, opt = self._optimiser.step(state.hidden, state.opt, grads)
            return state._replace(hidden=hidden, opt=opt)

        return agent_state, jax.lax.fori_loop(0, steps, step, state)

    def eval_metrics(self, agent_state: Any, state: Cascade, ctx: Any) -> dict[str, jax.Array]:
        """How far the agent's policy is from the nearest and from the deepest hidden one, on recent rows."""
        apart = lambda k: views.divergence(
            ctx, agent_state.params, jax.tree.map(lambda x: x[k], state.hidden), ctx.recent.obs
        ).mean()
        return {"policy_consolidation/first_kl": apart(0), "policy_consolidation/last_kl": apart(-1)}

    @property
    def _optimiser(self):
        return Adam(learning_rate=self.learning_rate)

    def _cascade_loss(self, hidden, old, policy, obs, ctx):
        """The sum over hidden policies, each of which only its own terms move."""
        shallower = jax.tree.map(lambda first, x: jnp.concatenate([first[None], x[:-1]]), policy, old)
        deeper = jax.tree.map(lambda x: jnp.concatenate([x[1:], x[-1:]]), old)
        apart = jax.vmap(lambda one, other: views.divergence(ctx, one, other, obs).mean())
        slowness = self.beta * self.flow ** jnp.arange(1, self.depth)
        has_deeper = jnp.arange(1, self.depth) < self.depth - 1
        held, before, after = apart(hidden, old), apart(hidden, shallower), apart(hidden, deeper)
        return (slowness * held + self.flow * before + jnp.where(has_deeper, after, 0.0)).sum()


class Rows(NamedTuple):
    """What networks are asked about, and 1 once there are any."""

    obs: jax.Array
    action: jax.Array
    known: jax.Array


class Reference(NamedTuple):
    """The networks to compare with, the rows to compare on, and the rows of the newest update."""

    params: Any
    rows: Rows
    latest: Rows


@component
class Churn(Extension):
    """Let an update change little what is said of rows outside its batch (CHAIN).

    Tang and Berseth, 2024, arXiv:2409.04792, section 4: `value` * sum over critics of the mean of (Q - Q_before)^2
    and `policy` * mean KL(pi || pi_before) on reference rows. "Before" is one update ago, and the reference are the
    rows of the update before that one, so that what the last update did beside its own batch is
    undone in part. Agents that do many updates between two looks compare, on the rows of the last
    round, with the networks that began the present one. The coefficients are fixed; the paper's
    rule that sets them from the size of the losses is left out.
    """

    value: float = 0.1
    """lambda_Q, at least 0."""
    policy: float = 0.1
    """lambda_pi, at least 0; counts where there is an actor."""
    rows: int = 64
    """Reference rows."""

    def __post_init__(self):
        ranges.check(self, value=ranges.AT_LEAST_ZERO, policy=ranges.AT_LEAST_ZERO, rows=ranges.COUNT)

    def all_needs(self) -> frozenset[str]:
        """A critic; where there is no actor, there is one network less to look after."""
        return frozenset({"critic"})

    def init_state(self, agent_state: Any, key: jax.Array, ctx: Any) -> Reference:
        """No reference yet."""
        shape, kind = ((), jnp.int32) if ctx.spec.discrete else ((ctx.spec.action_dim,), jnp.float32)
        obs, action = jnp.zeros((self.rows, *ctx.spec.obs_shape)), jnp.zeros((self.rows, *shape), kind)
        none = Rows(obs, action, jnp.zeros(()))
        return Reference(importance.held(ctx, agent_state.params, critic=True), none, none)

    def critic_loss(self, agent_state: Any, state: Reference, batch: Any, ctx: Any) -> jax.Array:
        """Value churn."""
        change_NB = _change(ctx, batch.params, state)
        return self.value * state.rows.known * jnp.square(change_NB).mean(-1).sum()

    def actor_loss(self, agent_state: Any, state: Reference, batch: Any, ctx: Any) -> jax.Array:
        """Policy churn."""
        change = views.divergence(ctx, batch.params, state.params, state.rows.obs).mean()
        return self.policy * state.rows.known * change

    def post_update(self, agent_state: Any, state: Reference, ctx: Any) -> tuple[Any, Reference]:
        """The networks from before this update, and rows that it did not train on, are the next one's reference."""
        index = jnp.arange(self.rows) * ctx.recent.reward.shape[0] // self.rows
        latest = Rows(ctx.recent.obs[index].astype(jnp.float32), ctx.recent.action[index], jnp.ones(()))
        many = ctx.clock.updates > ctx.previous.updates + 1
        pick = lambda now, before: jax.tree.map(lambda x, y: jnp.where(many, x, y), now, before)
        params = {name: pick(agent_state.params[name], ctx.before.params[name]) for name in state.params}
        return agent_state, Reference(params, pick(latest, state.latest), latest)

    def eval_metrics(self, agent_state: Any, state: Reference, ctx: Any) -> dict[str, jax.Array]:
        """Mean absolute change of the reference rows' values since the networks they are compared with."""
        return {"churn/value": jnp.abs(_change(ctx, agent_state.params, state)).mean()}


def _change(ctx, params, state):
    """Of every critic's values of the reference rows: [N, B]."""
    of = lambda params: views.critic_values(ctx, params["critic"], state.rows.obs, state.rows.action)
    return of(params) - of(state.params)
