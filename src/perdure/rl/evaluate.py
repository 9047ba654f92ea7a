"""Greedy episodes of a frozen policy under one task; training state is read, never changed."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from perdure.rl import acting, collect, learning
from perdure.rl.nets import joined
from perdure.rl.ops import prng


def episodes(
    trainer: Any, state: Any, task: Any, count: int, numbers: jax.Array, data: Any = ()
) -> tuple[jax.Array, jax.Array]:
    """Returns and lengths of `count` episodes for every seed: [S, count] each.

    `numbers` [S] are the evaluation streams; the draws depend on them and the clock alone, so every
    regime sees the same first states. A reward specification scores with its
    default weights. In a never-ending world an episode is `horizon` steps, and
    its return is the mean reward.
    """
    clock = state.clock._replace(data=data)
    run = lambda seed, number: _episodes_one(trainer, seed, clock, task, count, number)
    return jax.vmap(run)(state.seeds, numbers)


def diagnostics(trainer: Any, state: Any, data: Any = ()) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Extension metrics [S] each, and last hidden activations on recent rows, network -> [S, rows, units]."""
    clock = state.clock._replace(data=data)
    return jax.vmap(lambda seed: diagnose(trainer, seed, clock))(state.seeds)


@partial(jax.jit, static_argnames="trainer")
def act_greedy(trainer: Any, seed: Any, clock: Any, obs: jax.Array, guide: acting.Guide) -> tuple[jax.Array, Any]:
    """The action of an evaluation for each row of raw observations, in world units, and the guide after it."""
    return acting.evaluated(trainer, seed, obs, guide, trainer.context(clock, key=seed.keys.policy))


def _episodes_one(trainer, seed, clock, task, count, number):
    world, spec = trainer.world, trainer.world.spec
    key = jax.random.fold_in(prng.key(number), clock.t)
    keys_E = jax.random.split(key, count)
    fold = jax.vmap(jax.random.fold_in, (0, None))
    env, obs = jax.vmap(world.reset, (0, None))(fold(keys_E, jnp.uint32(collect.FIRST)), task)

    weights = None if trainer.reward is None else trainer.reward.weights()

    def step(carry):
        t, env, obs, guide, memory, alive, returns, lengths = carry
        ctx = trainer.context(clock, key=jax.random.fold_in(key, t))
        action, guide = acting.evaluated(trainer, seed, obs, guide, ctx)
        env, obs, _, terminated, truncated, *_ = outcome = jax.vmap(world.step, (0, 0, 0, None))(
            fold(keys_E, t), env, action, task
        )
        memory, reward, _ = collect.rewarded(trainer, memory, weights, action, outcome)
        returns, lengths = returns + jnp.where(alive, reward, 0.0), lengths + alive
        ended = (terminated | truncated) if spec.episodic else jnp.zeros_like(alive)
        return t + 1, env, obs, guide, memory, alive & ~ended, returns, lengths

    memory, alive = collect.start_memory(trainer, obs), jnp.ones(count, bool)
    guide = acting.start_guide(trainer, count)
    start = (jnp.uint32(0), env, obs, guide, memory, alive, jnp.zeros(count), jnp.zeros(count, jnp.int32))
    going = lambda carry: (carry[0] < spec.horizon) & carry[5].any()
    *_, returns, lengths = jax.lax.while_loop(going, step, start)
    return (returns if spec.episodic else returns / spec.horizon), lengths


def diagnose(trainer: Any, seed: Any, clock: Any) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """`diagnostics` of one seed."""
    recent = learning.seen(trainer, seed.normaliser, seed.recent)
    ctx = trainer.context(clock, key=seed.keys.policy, recent=recent)
    features = {}
    for name, network in ctx.nets.items():
        last = network.trace(seed.agent.params[name], joined(network, recent.obs, recent.action))[-2]
        features[name] = last if network.members is None else last[0]
    return seed.extensions.eval_metrics(seed.agent, ctx), features
