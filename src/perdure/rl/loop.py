"""Collect a window, plan the updates, apply them: one compiled loop for every agent, world and regime.

All randomness comes from (seed, stream, counter), so no key is carried and a resumed run draws
the same numbers. Counters are shared by the seeds, which are the mapped axis of everything else.
Suffixes: S seeds, T steps of a window, N environment copies.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.rl import collect
from perdure.rl import schedule as schedules
from perdure.rl.feeds import Epochs, Ring
from perdure.rl.ops import buffers, prng
from perdure.rl.phases import Batch, Clock, Context, Extensions, Metrics, Occasional, merged

RECENT_ROWS = 256


class Seed(NamedTuple):
    """Everything of one seed that changes."""

    agent: Any
    extensions: Extensions
    lanes: Any
    """collect.Lanes; () where the host steps the world."""
    normaliser: collect.Normaliser
    detector: Any
    shift: jax.Array
    """Whether the boundary source reported a shift that no post_update has seen yet."""
    recent: Any
    """A batch of recent rows, for diagnostics."""
    store: Any
    keys: collect.Keys


class TrainState(NamedTuple):
    """The whole of a run's state: one pytree, seeds on the leading axis of `seeds`."""

    clock: Clock
    seeds: Seed


@component
class Trainer:
    """Binds an agent, a world and extensions to shapes; a value without state, and the key of its programs."""

    agent: Any
    world: Any
    extensions: tuple[Any, ...] = ()
    n_envs: int = 1
    window_steps: int = 128
    store_rows: int = 0
    """Rows of the replay store; 0 for agents without one."""
    chunk_rounds: int = 1
    """Most windows that one call of `advance` runs."""
    reward: Any = None
    """A rewards.spec.RewardSpec that takes the place of the world's reward."""
    detector: Any = None
    """A regimes.detectors component, where the boundary source is one."""

    @property
    def on_policy(self) -> bool:
        return isinstance(self.agent.feed, Epochs)

    def __hash__(self) -> int:
        """By content, also where a part (a reward's overrides, say) holds mappings."""
        return hash(repr(self))

    def context(self, clock: Clock, **known: Any) -> Context:
        spec = self.world.spec
        return Context(spec, self.agent.networks(spec), self.n_envs, clock, **known)


def init(trainer: Trainer, seeds: collect.SeedNumbers, schedule: schedules.TracedSchedule) -> TrainState:
    """The state before the first step, for all seeds."""
    clock = Clock(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), schedule.total)
    return TrainState(clock, jax.vmap(lambda numbers: _begin(trainer, numbers, schedule, clock))(seeds))


def advance(
    trainer: Trainer, state: TrainState, schedule: schedules.TracedSchedule, rounds: jax.Array, last_length: jax.Array
) -> tuple[TrainState, collect.Record, Metrics]:
    """Run `rounds` windows (at most `trainer.chunk_rounds`), the last of them only `last_length` steps long.

    Returns the state, the trace columns [S, rounds * T, N] and the metrics of each window [S, rounds].
    """
    clock = state.clock._replace(total=schedule.total)
    run = lambda seed: _advance_one(trainer, seed, clock, schedule, rounds, last_length)
    (seeds, clock), record, metrics = jax.vmap(run, out_axes=((0, None), 0, 0))(state.seeds)
    return TrainState(clock, seeds), record, metrics


def _begin(trainer, numbers, schedule, clock):
    seed = begin(trainer, numbers, clock)
    seed = seed._replace(lanes=collect.first_lanes(trainer, seed.keys, schedule))
    rows_TN, _ = collect.blank(collect.step, trainer, seed, collect.plan(trainer, seed.keys, clock, schedule), clock)
    return with_stores(trainer, seed, jax.tree.map(lambda x: x[0], rows_TN))


def begin(trainer: Trainer, numbers: collect.SeedNumbers, clock: Clock) -> Seed:
    """A seed's learnt state, before any world or store is attached."""
    ctx = trainer.context(clock)
    agent = trainer.agent.init(prng.key(numbers.init), ctx)
    extensions = Extensions.begin(trainer.extensions, agent, prng.key(numbers.extensions), ctx)
    agent, extensions = extensions.pretrain(agent, ctx)
    detector = trainer.detector.start(jnp) if trainer.detector else ()
    normaliser = collect.Normaliser.begin(trainer)
    return Seed(agent, extensions, (), normaliser, detector, jnp.zeros((), bool), (), (), collect.Keys.of(numbers))


def with_stores(trainer: Trainer, seed: Seed, rows_N: Batch) -> Seed:
    """The seed with empty stores for rows like these."""
    zeros = lambda count: jax.tree.map(lambda x: jnp.zeros((count, *x.shape[1:]), x.dtype), rows_N)
    return seed._replace(recent=zeros(RECENT_ROWS), store=() if trainer.on_policy else Ring(zeros(trainer.store_rows)))


def _advance_one(trainer, seed, clock, schedule, rounds, last_length):
    # What is looked at for its shapes and then run is jitted by itself, so that it is traced once.
    one_round = _on_policy_round if trainer.on_policy else _off_policy_round
    full = jnp.int32(trainer.window_steps)
    _, _, record, metrics = jax.eval_shape(partial(one_round, trainer), seed, clock, schedule, full)
    stack = lambda x: jnp.zeros((trainer.chunk_rounds, *x.shape), x.dtype)
    stacks = jax.tree.map(stack, (record, metrics))

    def body(carry):
        index, seed, clock, stacks = carry
        length = jnp.where(index == rounds - 1, last_length, full)
        seed, clock, *result = one_round(trainer, seed, clock, schedule, length)
        put = lambda whole, part: buffers.put_one(whole, part, index)
        return index + 1, seed, clock, jax.tree.map(put, stacks, tuple(result))

    start = (jnp.int32(0), seed, clock, stacks)
    _, seed, clock, (record, metrics) = jax.lax.while_loop(lambda carry: carry[0] < rounds, body, start)
    return (seed, clock), jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), record), metrics


@partial(jax.jit, static_argnames="trainer")
def _on_policy_round(trainer, seed, clock, schedule, length):
    """A whole window, then its updates; a window that is cut short is recorded and trains nothing."""
    plan = collect.plan(trainer, seed.keys, clock, schedule)
    rows_TN, record = collect.blank(collect.brief_step, trainer, seed, plan, clock)

    def step(index, carry):
        seed, rows_TN, record = carry
        moment = clock._replace(t=clock.t + index)
        seed, rows_N, line = collect.brief_step(trainer, seed, jax.tree.map(lambda x: x[index], plan), moment)
        put = lambda buffer, x: buffers.put_one(buffer, x, index)
        return seed, jax.tree.map(put, rows_TN, rows_N), jax.tree.map(put, record, line)

    seed, rows_TN, record = jax.lax.fori_loop(0, length, step, (seed, rows_TN, record))
    record = record.completed(rows_TN)
    clock = clock._replace(t=clock.t + length)
    metrics = jax.eval_shape(partial(learn_window, trainer), seed, rows_TN, clock)[1]
    missing = jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), metrics)
    whole = length == trainer.window_steps
    seed, metrics = jax.lax.cond(
        whole, partial(learn_window, trainer), lambda seed, *_: (seed, missing), seed, rows_TN, clock
    )
    updates = trainer.agent.feed.epochs * trainer.agent.feed.minibatches
    return seed, clock._replace(updates=clock.updates + jnp.where(whole, updates, 0)), record, metrics


@partial(jax.jit, static_argnames="trainer")
def learn_window(trainer: Trainer, seed: Seed, rows_TN: Batch, clock: Clock) -> tuple[Seed, Metrics]:
    """All epochs over one window, and what follows an update."""
    feed, agent = trainer.agent.feed, trainer.agent
    seen_TN = _told(agent, seed.normaliser.see(trainer, rows_TN))
    ctx = trainer.context(clock, key=jax.random.fold_in(seed.keys.policy, clock.updates))
    seen_TN, extensions, reward_metrics = seed.extensions.reward(seed.agent, seen_TN, ctx)
    state, labelled, label_metrics = agent.prepare(seed.agent, seen_TN, ctx, extensions)
    rows_B = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), labelled._replace(discount=None))

    def epoch(carry, number):
        shuffle_key = jax.random.fold_in(seed.keys.replay, clock.updates + number * feed.minibatches)
        return jax.lax.scan(minibatch, carry, feed.shuffled(rows_B, shuffle_key))

    def minibatch(carry, batch):
        state, updates = carry
        moment = clock._replace(updates=updates)
        inner = trainer.context(moment, key=jax.random.fold_in(seed.keys.policy, updates))
        state, metrics = agent.update(state, _told(agent, batch), inner, extensions)
        return (state, updates + 1), metrics

    (state, updates), metrics = jax.lax.scan(epoch, (state, clock.updates), jnp.arange(feed.epochs))
    recent = _recent(rows_TN, trainer)
    after = trainer.context(
        clock._replace(updates=updates), shift=seed.shift, recent=seed.normaliser.see(trainer, recent), previous=clock
    )
    state, extensions, post_metrics = extensions.post_update(state, after)
    seed = seed._replace(
        agent=state,
        extensions=extensions,
        normaliser=seed.normaliser.absorb(trainer, rows_TN),
        shift=jnp.zeros((), bool),
        recent=recent,
    )
    return seed, merged(jax.tree.map(jnp.mean, metrics), reward_metrics, label_metrics, post_metrics)


def _told(agent, batch):
    """The batch with what phases may know of the criterion; a constant, so never among the arrays that are mapped."""
    return batch._replace(discount=agent.discount if "discounted" in agent.offers else None)


def _recent(rows_TN, trainer):
    """Rows spread evenly over the window, repeated where it holds fewer than asked."""
    count = trainer.window_steps * trainer.n_envs
    index = jnp.arange(RECENT_ROWS) * count // RECENT_ROWS
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[index], rows_TN)


@partial(jax.jit, static_argnames="trainer")
def _off_policy_round(trainer, seed, clock, schedule, length):
    """Step, store, update; a window is just how many of these are done before the host looks."""
    plan = collect.plan(trainer, seed.keys, clock, schedule)
    _, record = collect.blank(collect.step, trainer, seed, plan, clock)
    sums = no_metrics(trainer, seed, clock)
    first = clock.updates

    def step(index, carry):
        seed, clock, record, sums = carry
        seed, rows_N, line = collect.step(trainer, seed, jax.tree.map(lambda x: x[index], plan), clock)
        put = lambda buffer, x: buffers.put_one(buffer, x, index)
        seed, clock, sums = store_and_update(trainer, seed, clock, rows_N, sums)
        return seed, clock, jax.tree.map(put, record, line), sums

    seed, clock, record, sums = jax.lax.fori_loop(0, length, step, (seed, clock, record, sums))
    return refreshed(trainer, seed, clock), clock, record, averaged(sums, clock.updates - first)


def no_metrics(trainer: Trainer, seed: Seed, clock: Clock) -> Metrics:
    """Zeros, one for each metric of an update."""
    shapes = jax.eval_shape(partial(_update, trainer), seed, clock, clock)[1]
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def averaged(sums: Metrics, updates: jax.Array) -> Metrics:
    """Sums over updates as means over those that measured the metric; NaN where there were none."""
    mean = lambda total, count: jnp.where(count > 0, total / jnp.maximum(count, 1), jnp.nan)
    return {name: mean(*x) if isinstance(x, Occasional) else mean(x, updates) for name, x in sums.items()}


def refreshed(trainer: Trainer, seed: Seed, clock: Clock) -> Seed:
    """The seed with new rows to look at, drawn from its store."""
    key = jax.random.fold_in(seed.keys.replay, -1 - clock.t)
    index = jax.random.randint(key, (RECENT_ROWS,), 0, jnp.minimum(clock.t * trainer.n_envs, trainer.store_rows))
    return seed._replace(recent=jax.tree.map(lambda x: x[index], seed.store.rows))


def store_and_update(
    trainer: Trainer, seed: Seed, clock: Clock, rows_N: Batch, sums: Metrics
) -> tuple[Seed, Clock, Metrics]:
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
    feed = trainer.agent.feed
    keys = jax.random.fold_in(seed.keys.replay, clock.updates), jax.random.fold_in(seed.keys.policy, clock.updates)
    batch = feed.sample(seed.store, clock.t * trainer.n_envs, keys[0])
    batch = _told(trainer.agent, seed.normaliser.see(trainer, batch))
    ctx = trainer.context(clock, key=keys[1])
    batch, extensions, reward_metrics = seed.extensions.reward(seed.agent, batch, ctx)
    state, metrics = trainer.agent.update(seed.agent, batch, ctx, extensions)
    later = trainer.context(after, shift=seed.shift, recent=batch, previous=clock)
    state, extensions, post_metrics = extensions.post_update(state, later)
    seed = seed._replace(agent=state, extensions=extensions, shift=jnp.zeros((), bool))
    return seed, merged(metrics, reward_metrics, post_metrics)
