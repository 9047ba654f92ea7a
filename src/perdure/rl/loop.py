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
from perdure.core.errors import Refused
from perdure.core.extension import Extension, Run
from perdure.rl import collect, learning, prior, windows
from perdure.rl import schedule as schedules
from perdure.rl.feeds import Epochs
from perdure.rl.fold import Extensions
from perdure.rl.normalise import Normaliser
from perdure.rl.ops import buffers, prng
from perdure.rl.phases import Batch, Clock, Context, Metrics, merged


class Seed(NamedTuple):
    """Everything of one seed that changes."""

    agent: Any
    extensions: Extensions
    lanes: Any
    """collect.Lanes; () where the host steps the world."""
    normaliser: Normaliser
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
    expert: Any = None
    """The agent's own expert, which extensions ask and nothing else."""

    def __post_init__(self):
        name, needs = type(self.agent).__name__, self.agent.feed.needs
        if needs - self.agent.offers:
            raise Refused(
                f"{name} does not learn from a feed that needs {' and '.join(sorted(needs - self.agent.offers))}; "
                "give a uniform one with steps 1"
            )
        if needs and any(type(part).prior is not Extension.prior for part in self.extensions):
            raise Refused(
                f"{name} has a feed of {' and '.join(sorted(needs))}, but an extension mixes a dataset's rows into its "
                "batches; give a uniform feed with steps 1, or leave the extension out"
            )

    @property
    def on_policy(self) -> bool:
        return isinstance(self.agent.feed, Epochs)

    def given(self) -> tuple[Any, ...]:
        """What `Extension.data` gives, an entry an extension."""
        run = Run(self.world.spec, self.agent, self.extensions, self.expert)
        return tuple(part.data(run) for part in self.extensions)

    @property
    def extended(self) -> bool:
        """Whether any extension does anything."""
        return any(part.implemented_phases() for part in self.extensions)

    @property
    def columns(self) -> frozenset[str]:
        """The optional columns and counters that some extension reads."""
        return frozenset().union(*(part.reads for part in self.extensions))

    def __hash__(self) -> int:
        """By content, also where a part (a reward's overrides, say) holds mappings."""
        return hash(repr(self))

    def context(self, clock: Clock, **known: Any) -> Context:
        spec, nets = self.world.spec, self.agent.networks(windows.frame_spec(self.world))
        surroundings = {"agent": self.agent, "expert": self.expert, "world": self.world, "reward": self.reward}
        return Context(spec, nets, self.n_envs, clock, **surroundings, **known)


def init(
    trainer: Trainer, seeds: collect.SeedNumbers, schedule: schedules.TracedSchedule, data: Any = ()
) -> TrainState:
    """The state before the first step, for all seeds. `data` is what `Extension.data` gave, an entry each."""
    clock = Clock(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), schedule.total, data)
    return TrainState(
        clock._replace(data=()), jax.vmap(lambda numbers: _begin(trainer, numbers, schedule, clock))(seeds)
    )


def advance(
    trainer: Trainer,
    state: TrainState,
    schedule: schedules.TracedSchedule,
    rounds: jax.Array,
    last_length: jax.Array,
    data: Any = (),
) -> tuple[TrainState, collect.Record, Metrics]:
    """Run `rounds` windows (at most `trainer.chunk_rounds`), the last of them only `last_length` steps long.

    Returns the state, the trace columns [S, rounds * T, N] and the metrics of each window [S, rounds].
    """
    clock = state.clock._replace(total=schedule.total, data=data)
    run = lambda seed: _advance_one(trainer, seed, clock, schedule, rounds, last_length)
    (seeds, clock), record, metrics = jax.vmap(run, out_axes=((0, None), 0, 0))(state.seeds)
    return TrainState(clock._replace(data=()), seeds), record, metrics


def _begin(trainer, numbers, schedule, clock):
    opening_1 = schedules.at(schedule, jnp.zeros(1, jnp.int32))
    seed = begin(trainer, numbers, clock, *jax.tree.map(lambda x: x[0], opening_1))
    seed = seed._replace(lanes=collect.first_lanes(trainer, seed.keys, schedule))
    rows_TN, _ = collect.blank(collect.step, trainer, seed, collect.plan(trainer, seed.keys, clock, schedule), clock)
    return with_stores(trainer, seed, jax.tree.map(lambda x: x[0], rows_TN))


def begin(trainer: Trainer, numbers: collect.SeedNumbers, clock: Clock, task: Any = None, weights: Any = None) -> Seed:
    """A seed's learnt state, before any world or store is attached; task and reward weights are of the first step."""
    ctx, normaliser = trainer.context(clock, task=task, weights=weights), Normaliser.begin(trainer)
    given = prior.of(trainer, clock.data)
    if given is not None:
        normaliser = normaliser.absorb_prior(trainer, prior.rows(trainer, given))
    agent = trainer.agent.init(prng.key(numbers.init), ctx)
    extensions = Extensions.begin(trainer.extensions, agent, prng.key(numbers.extensions), ctx)
    agent, extensions = extensions.pretrain(agent, ctx._replace(learn=partial(_learn, trainer, normaliser, clock)))
    normaliser = normaliser.given(trainer, extensions.provided())
    detector = trainer.detector.start(jnp) if trainer.detector else ()
    return Seed(agent, extensions, (), normaliser, detector, jnp.zeros((), bool), (), (), collect.Keys.of(numbers))


def _learn(trainer, normaliser, clock, extensions, agent, rows_B, key, number):
    """The agent's own update on raw rows before the run begins; what the reward phase remembers is dropped."""
    normaliser = normaliser.given(trainer, extensions.provided())
    ctx = trainer.context(clock._replace(updates=number), key=key)
    batch, extensions, reward_metrics = extensions.reward(agent, learning.seen(trainer, normaliser, rows_B), ctx)
    agent, metrics = trainer.agent.update(agent, batch, ctx, extensions)
    return agent, merged(metrics, reward_metrics)


def with_stores(trainer: Trainer, seed: Seed, rows_N: Batch) -> Seed:
    """The seed with empty stores for rows like these."""
    zeros = lambda count: jax.tree.map(lambda x: jnp.zeros((count, *x.shape[1:]), x.dtype), rows_N)
    store = () if trainer.on_policy else trainer.agent.feed.begin(zeros(trainer.store_rows))
    return seed._replace(recent=zeros(learning.RECENT_ROWS), store=store)


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
    seen_TN = learning.seen(trainer, seed.normaliser, rows_TN)
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
        state, metrics = agent.update(state, learning.told(agent, batch), inner, extensions)
        return (state, updates + 1), metrics

    (state, updates), metrics = jax.lax.scan(epoch, (state, clock.updates), jnp.arange(feed.epochs))
    recent = _recent(rows_TN, trainer)
    after = trainer.context(
        clock._replace(updates=updates),
        shift=seed.shift,
        recent=learning.seen(trainer, seed.normaliser, recent),
        previous=clock,
        before=seed.agent,
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


def _recent(rows_TN, trainer):
    """Rows spread evenly over the window, repeated where it holds fewer than asked."""
    count = trainer.window_steps * trainer.n_envs
    index = jnp.arange(learning.RECENT_ROWS) * count // learning.RECENT_ROWS
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[index], rows_TN)


@partial(jax.jit, static_argnames="trainer")
def _off_policy_round(trainer, seed, clock, schedule, length):
    """Step, store, update; a window is just how many of these are done before the host looks."""
    plan = collect.plan(trainer, seed.keys, clock, schedule)
    _, record = collect.blank(collect.step, trainer, seed, plan, clock)
    sums = learning.no_metrics(trainer, seed, clock)
    first = clock.updates

    def step(index, carry):
        seed, clock, record, sums = carry
        seed, rows_N, line = collect.step(trainer, seed, jax.tree.map(lambda x: x[index], plan), clock)
        put = lambda buffer, x: buffers.put_one(buffer, x, index)
        seed, clock, sums = learning.store_and_update(trainer, seed, clock, rows_N, sums)
        return seed, clock, jax.tree.map(put, record, line), sums

    seed, clock, record, sums = jax.lax.fori_loop(0, length, step, (seed, clock, record, sums))
    return learning.refreshed(trainer, seed, clock), clock, record, learning.averaged(sums, clock.updates - first)
