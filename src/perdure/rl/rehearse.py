"""An expert played in the pure world inside a program, before the run's first step, and what its rows are good for.

Suffixes: T steps, N copies of the world, R rows.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.rl import acting, collect, experts
from perdure.rl.cloning import PretrainLosses
from perdure.rl.fit import AgentState
from perdure.rl.ops import masks, values
from perdure.rl.phases import Batch, Context


class Going(NamedTuple):
    """Where each copy stands, [N, ...]."""

    env: Any
    obs: jax.Array
    memory: Any
    """What reward components remember."""
    expert: Any
    """State of a stateful expert."""


class Returns(NamedTuple):
    """What follows each row: `seen + rate * v`, with v the value of the successor of row `last` of its copy. [T, N]."""

    seen: jax.Array
    """Discounted sum of the rewards from the row to `last`."""
    rate: jax.Array
    """What the value of what lies beyond is multiplied by; 0 where the episode terminates."""
    last: jax.Array
    """int32, the step with which the episode ends, or the last there is."""


def rollout(ctx: Context, expert: Any, key: jax.Array, copies: int, steps: int) -> Batch:
    """Rows [steps, copies] of an expert that acts alone under `ctx.task`, as a run would keep them.

    Every copy begins an episode and goes on with a fresh one where it ends; the last one of each is open unless it
    happens to end there. `expert` None stands for the agent's own. Actions are in agent units, and executed as an
    agent's are; the reward is the run's. Beside the columns that all rows have: `is_expert` (true), `return_to_go`
    (-inf), `expert_action` and `next_expert_action` of this expert, `next_action` (the same, unknown where an
    episode ends), and `reset_obs` for agents that read it.
    """
    expert = ctx.expert if expert is None else expert
    begin_key, step_key = jax.random.split(key)

    def step(going: Going, number: jax.Array) -> tuple[Going, Batch]:
        move_keys, reset_keys = jax.random.split(jax.random.fold_in(step_key, number), (2, copies))
        given, memory = experts.ask(expert, going.expert, going.obs)
        action = experts.agent_units(ctx.spec, given)
        taken = acting.executed(ctx.spec, action)
        outcome = jax.vmap(ctx.world.step, (0, 0, 0, None))(move_keys, going.env, taken, ctx.task)
        env, next_obs, _, terminated, truncated, *_ = outcome
        kept, reward, _ = collect.rewarded(ctx, going.memory, ctx.weights, taken, outcome)
        fresh, ended = _begun(ctx, expert, reset_keys, copies), terminated | truncated
        next_given, _ = experts.ask(expert, memory, next_obs)
        next_action = experts.agent_units(ctx.spec, next_given)
        rows = Batch(going.obs, action, reward, terminated, truncated, next_obs)
        rows = rows._replace(
            expert_action=action,
            next_expert_action=next_action,
            is_expert=jnp.ones(copies, bool),
            return_to_go=jnp.full(copies, -jnp.inf),
            next_action=masks.where(ended, acting.unknown_action(action), next_action),
        )
        if acting.keeps_reset_obs(ctx.agent):
            rows = rows._replace(reset_obs=fresh.obs)
        following = Going(env, next_obs, kept, memory)
        return jax.tree.map(lambda a, b: masks.where(ended, a, b), fresh, following), rows

    start = _begun(ctx, expert, jax.random.split(begin_key, copies), copies)
    return jax.lax.scan(step, start, jnp.arange(steps))[1]


def returns(rows_TN: Batch, discount: float, scale: float = 1.0) -> Returns:
    """The returns of rows in time order, as far as they were seen; rewards are multiplied by `scale`.

    A time limit, or the end of the rows, ends what is seen and not what is to come.
    """
    ends_TN = (rows_TN.terminated | rows_TN.truncated).at[-1].set(True)
    carry_TN = jnp.where(ends_TN, 0.0, discount)
    beyond_TN = jnp.where(ends_TN & ~rows_TN.terminated, jnp.float32(discount), 0.0)
    step_TN = jnp.broadcast_to(jnp.arange(len(ends_TN), dtype=jnp.int32)[:, None], ends_TN.shape)
    return Returns(
        values.linear_recurrence(carry_TN, scale * rows_TN.reward),
        values.linear_recurrence(carry_TN, beyond_TN),
        jax.lax.cummin(jnp.where(ends_TN, step_TN, len(ends_TN)), axis=0, reverse=True),
    )


def flat(rows_TN: Any) -> Any:
    """Rows [T, N, ...] of any tree as [T * N, ...]."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows_TN)


def drawn(rows_R: Any, key: jax.Array, count: int) -> Any:
    """`count` rows drawn uniformly, with replacement."""
    rows = jax.tree.leaves(rows_R)[0].shape[0]
    index = jax.random.randint(key, (count,), 0, rows)
    return jax.tree.map(lambda x: x.at[index].get(mode="promise_in_bounds"), rows_R)


def pretrain_critic_bellman(
    ctx: Context, agent_state: AgentState, rows_R: Batch, key: jax.Array, n_steps: int = 5_000
) -> tuple[AgentState, PretrainLosses]:
    """`n_steps` of the agent's own updates on batches of raw rows, of which only the critic's part stays.

    What else moves in an update is put back after it, so that targets are those of the policy at the start.
    """
    learn = ctx.learn
    assert learn is not None

    def update(state, number):
        draw_key, update_key = jax.random.split(jax.random.fold_in(key, number))
        rows_B = drawn(rows_R, draw_key, ctx.agent.feed.batch_size)
        after, metrics = learn(state, rows_B, update_key, number)
        return _critic_alone(state, after), metrics["loss/critic"]

    agent_state, losses = jax.lax.scan(update, agent_state, jnp.arange(n_steps))
    return agent_state, PretrainLosses(losses[0], losses[-1])


def _critic_alone(before, after):
    """The later state, all networks but the critic, free parameters and their moments as they were before."""
    kept = lambda old, new: {name: new[name] if name == "critic" else old[name] for name in old}
    opt = {name: after.opt[name] if set(own.mean) == {"critic"} else own for name, own in before.opt.items()}
    return after._replace(params=kept(before.params, after.params), slow=kept(before.slow, after.slow), opt=opt)


def _begun(ctx, expert, keys_N, copies):
    env, obs = jax.vmap(ctx.world.reset, (0, None))(keys_N, ctx.task)
    return Going(env, obs, collect.start_memory(ctx, obs), experts.start(expert, copies))
