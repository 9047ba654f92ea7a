"""Updates on stored rows, one vector step at a time: what off-policy agents do between two steps of the world."""

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from perdure.rl import prior
from perdure.rl.normalise import Normaliser
from perdure.rl.phases import Batch, Clock, Metrics, Occasional, merged

if TYPE_CHECKING:
    from perdure.rl.loop import Seed, Trainer

RECENT_ROWS = 256
"""Rows that diagnostics look at."""


def seen(trainer: "Trainer", normaliser: Normaliser, rows: Batch) -> Batch:
    """Raw rows as an update sees them."""
    return told(trainer.agent, normaliser.see(trainer, rows))


def told(agent: Any, batch: Batch) -> Batch:
    """The batch with what phases may know of the criterion; a constant, so never among the arrays that are mapped."""
    return batch._replace(discount=discount(agent))


def discount(agent: Any) -> float | None:
    """The agent's discount; None under an average-reward criterion."""
    return agent.discount if "discounted" in agent.offers else None


def no_metrics(trainer: "Trainer", seed: "Seed", clock: Clock) -> Metrics:
    """Zeros, one for each metric of an update."""
    shapes = jax.eval_shape(partial(_update, trainer), seed, clock, clock)[1]
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def averaged(sums: Metrics, updates: jax.Array) -> Metrics:
    """Sums over updates as means over those that measured the metric; NaN where there were none."""
    mean = lambda total, count: jnp.where(count > 0, total / jnp.maximum(count, 1), jnp.nan)
    return {name: mean(*x) if isinstance(x, Occasional) else mean(x, updates) for name, x in sums.items()}


def refreshed(trainer: "Trainer", seed: "Seed", clock: Clock) -> "Seed":
    """The seed with new rows to look at, drawn from its store."""
    key = jax.random.fold_in(seed.keys.replay, -1 - clock.t)
    index = jax.random.randint(key, (RECENT_ROWS,), 0, jnp.minimum(clock.t * trainer.n_envs, trainer.store_rows))
    return seed._replace(recent=jax.tree.map(lambda x: x[index], seed.store.rows))


def store_and_update(
    trainer: "Trainer", seed: "Seed", clock: Clock, rows_N: Batch, sums: Metrics
) -> "tuple[Seed, Clock, Metrics]":
    """Put one vector step into the store and do the updates it brings; metrics are added to `sums`."""
    seed = seed._replace(
        store=trainer.agent.feed.write(seed.store, rows_N, clock.t),
        normaliser=seed.normaliser.absorb(trainer, jax.tree.map(lambda x: x[None], rows_N)),
    )
    due = trainer.agent.feed.due(clock, trainer.n_envs)
    clock = clock._replace(t=clock.t + 1)
    seed, updates, sums = _updates(trainer, seed, clock, due, sums)
    return seed, clock._replace(updates=updates), sums


def _updates(trainer, seed, clock, due, sums):
    """`due` updates in a row."""

    def one(carry):
        seed, updates, sums = carry
        moment = clock._replace(updates=updates)
        seed, metrics = _update(trainer, seed, moment, moment._replace(updates=updates + 1))
        return seed, updates + 1, jax.tree.map(jnp.add, sums, metrics)

    start = (seed, clock.updates, sums)
    if trainer.agent.feed.most(trainer.n_envs) <= 1:
        return jax.lax.cond(due > 0, one, lambda carry: carry, start)
    return jax.lax.fori_loop(0, due, lambda _, carry: one(carry), start)


@partial(jax.jit, static_argnames="trainer")
def _update(trainer, seed, clock, after):
    """One update on a batch from the store."""
    rows_B = _sampled(trainer, seed, clock, jax.random.fold_in(seed.keys.replay, clock.updates))
    return update_on(trainer, seed, rows_B, clock, after)


def update_on(trainer: "Trainer", seed: "Seed", rows_B: Batch, clock: Clock, after: Clock) -> "tuple[Seed, Metrics]":
    """One update on raw rows, and what follows it; the clock before and after."""
    batch = seen(trainer, seed.normaliser, rows_B)
    ctx = trainer.context(clock, key=jax.random.fold_in(seed.keys.policy, clock.updates))
    batch, extensions, reward_metrics = seed.extensions.reward(seed.agent, batch, ctx)
    state, metrics = trainer.agent.update(seed.agent, batch, ctx, extensions)
    if not isinstance(batch.index, tuple):
        # Of a prioritised batch the agent leaves its errors, which become the rows' priorities.
        seed = seed._replace(store=trainer.agent.feed.reweigh(seed.store, batch.index, state.memory))
        state = state._replace(memory=())
    later = trainer.context(after, shift=seed.shift, recent=batch, previous=clock, before=seed.agent)
    state, extensions, post_metrics = extensions.post_update(state, later)
    seed = seed._replace(agent=state, extensions=extensions, shift=jnp.zeros((), bool))
    return seed, merged(metrics, reward_metrics, post_metrics)


def _sampled(trainer, seed, clock, key):
    """Raw rows for one update: from the store, and from a dataset where an extension brings one."""
    batch = trainer.agent.feed.sample(seed.store, trainer.context(clock), key, discount(trainer.agent))
    given = prior.of(trainer, clock.data)
    if given is None:
        return batch
    return prior.mixed(trainer, given, batch, jnp.minimum(clock.t * trainer.n_envs, trainer.store_rows), key)
