"""How experience reaches an update: which rows are kept, and which the next updates see."""

from fractions import Fraction
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.rl import priorities
from perdure.rl.ops import buffers, shuffle
from perdure.rl.phases import Batch, Clock, Context

LATER = ("terminated", "truncated", "next_obs", "raw_next_obs", "next_expert_action", "next_action", "reset_obs")
"""Columns of a row that tell of its successor."""


class Ring(NamedTuple):
    """The last `capacity` rows; the write position is the shared clock's, so it carries none."""

    rows: Batch
    priorities: Any = ()
    """priorities.Priorities, where a feed draws by them."""


@component
class Replay:
    """Uniform replay: `ratio` updates for each environment step, independent of the number of copies."""

    capacity: int = 1_000_000
    """Rows kept; the store is sized to the smaller of this and the run's budget."""
    batch_size: int = 256
    ratio: float = 1.0
    """Updates for each environment step; .25 with one copy means every fourth step."""
    learning_starts: int = 10_000
    """Environment steps of uniformly random actions before the first update."""
    steps: int = 1
    """Rewards that a row's return sums before it bootstraps; fewer where the episode ends."""
    kind: Literal["replay"] = "replay"
    """Tells the feeds apart in a document."""

    def __post_init__(self):
        _check(self)

    @property
    def needs(self) -> frozenset[str]:
        """What an agent must offer to learn from these rows."""
        return frozenset({"n_step"} if self.steps > 1 else ())

    def rows(self, total_steps: int, n_envs: int) -> int:
        """Rows to allocate: the smaller of capacity and budget, in whole vector steps."""
        if self.capacity // n_envs < self.steps:
            raise ConfigError(
                f"feed.steps is {self.steps}, but feed.capacity {self.capacity} holds {self.capacity // n_envs} steps "
                f"of {n_envs} copies; enlarge feed.capacity"
            )
        return max(1, min(self.capacity, total_steps) // n_envs) * n_envs

    def begin(self, rows: Batch) -> Ring:
        """An empty store in the place of these rows."""
        return Ring(rows)

    def due(self, clock: Clock, n_envs: int) -> jax.Array:
        """How many updates follow vector step `clock.t`; none during warm-up."""
        rate = Fraction(self.ratio * n_envs).limit_denominator(10_000)
        phase = clock.t % rate.denominator
        count = (phase + 1) * rate.numerator // rate.denominator - phase * rate.numerator // rate.denominator
        return jnp.where((clock.t + 1) * n_envs > max(self.learning_starts, (self.steps - 1) * n_envs), count, 0)

    def most(self, n_envs: int) -> float:
        """An upper bound of `due`."""
        return self.ratio * n_envs

    def write(self, ring: Ring, rows_N: Batch, t) -> Ring:
        """The ring with one vector step written at its place."""
        return _written(ring, rows_N, t)

    def sample(self, ring: Ring, ctx: Context, key, discount: float | None) -> Batch:
        """`batch_size` rows drawn uniformly, with replacement, from those written so far.

        With several steps, the newest rows wait until theirs are all written.
        """
        size = ring.rows.reward.shape[0]
        filled = jnp.minimum(ctx.step, size)
        if self.steps == 1:
            return gathered(ring.rows, jax.random.randint(key, (self.batch_size,), 0, filled))
        whole = filled - (self.steps - 1) * ctx.n_envs
        index = (ctx.step - filled + jax.random.randint(key, (self.batch_size,), 0, whole)) % size
        return stretched(ring.rows, index, self.steps, ctx.n_envs, discount)


@component
class Prioritised:
    """Replay in proportion to priority^exponent (Schaul et al., 2016, arXiv:1511.05952, algorithm 1).

    A row's priority is the size of its error when it was last learnt from, plus `epsilon`; a new one has the largest
    there is. The weights that make up for it are divided by the largest of their batch.
    """

    capacity: int = 100_000
    """Rows kept; the store is sized to the smaller of this and the run's budget."""
    batch_size: int = 64
    ratio: float = 1.0
    """Updates for each environment step; .25 with one copy means every fourth step."""
    learning_starts: int = 1_000
    """Environment steps of uniformly random actions before the first update."""
    steps: int = 1
    """Rewards that a row's return sums before it bootstraps; fewer where the episode ends."""
    exponent: float = 0.6
    """Alpha in [0, 1]: 0 draws uniformly."""
    importance: float = 0.4
    """Beta in [0, 1] at the run's start: how much of the bias the weights make up for; it rises to 1 linearly."""
    epsilon: float = 1e-6
    """Positive."""
    kind: Literal["prioritised"] = "prioritised"
    """Tells it from uniform replay in a document."""

    rows, due, most = Replay.rows, Replay.due, Replay.most

    def __post_init__(self):
        _check(self)
        if not (0 <= self.exponent <= 1 and 0 <= self.importance <= 1 and self.epsilon > 0):
            raise ConfigError(
                f"feed has exponent {self.exponent}, importance {self.importance}, epsilon {self.epsilon}; "
                "the first two lie in [0, 1], the last is positive"
            )

    @property
    def needs(self) -> frozenset[str]:
        """What an agent must offer to learn from these rows."""
        return frozenset({"n_step", "priorities"} if self.steps > 1 else {"priorities"})

    def begin(self, rows: Batch) -> Ring:
        """An empty store in the place of these rows."""
        return Ring(rows, priorities.empty(rows.reward.shape[0]))

    def write(self, ring: Ring, rows_N: Batch, t) -> Ring:
        """The ring with one vector step written at its place.

        With several steps it is the vector step whose last one this is that can be drawn from now on.
        """
        n_envs = rows_N.reward.shape[0]
        slots = ring.rows.reward.shape[0] // n_envs
        held = ring.priorities
        highest = jnp.where(held.highest > 0, held.highest, 1.0)
        index = (t % slots) * n_envs + jnp.arange(n_envs)
        values = jnp.broadcast_to(highest, n_envs)
        if self.steps > 1:
            whole = t >= self.steps - 1
            ripe = jnp.where(whole, (t + 1 - self.steps) % slots * n_envs + jnp.arange(n_envs), index)
            index = jnp.concatenate([index, ripe])
            values = jnp.concatenate([jnp.zeros(n_envs), jnp.where(whole, values, 0.0)])
        return _written(ring, rows_N, t)._replace(priorities=priorities.assign(held, index, values))

    def sample(self, ring: Ring, ctx: Context, key, discount: float | None) -> Batch:
        """`batch_size` rows with their `weight` in (0, 1] and `index`."""
        held = ring.priorities
        index = priorities.draw(held, jax.random.uniform(key, (self.batch_size,)))
        share = held.levels[0][index]
        beta = self.importance + (1 - self.importance) * jnp.clip(ctx.fraction, 0.0, 1.0)
        # (rows P(i))^-beta over the largest of these: rows and the sum in P(i) cancel.
        weight = (share.min() / share) ** beta
        if self.steps == 1:
            batch = gathered(ring.rows, index)
        else:
            batch = stretched(ring.rows, index, self.steps, ctx.n_envs, discount)
        return batch._replace(weight=weight, index=index)

    def reweigh(self, ring: Ring, index: jax.Array, errors: jax.Array) -> Ring:
        """The ring with priorities of the rows at `index` by their errors."""
        values = (jnp.abs(errors) + self.epsilon) ** self.exponent
        return ring._replace(priorities=priorities.assign(ring.priorities, index, values))


def gathered(rows: Batch, index: jax.Array) -> Batch:
    """The rows at `index`."""
    return jax.tree.map(lambda x: x.at[index].get(mode="promise_in_bounds"), rows)


def stretched(rows: Batch, index: jax.Array, steps: int, n_envs: int, discount: float | None) -> Batch:
    """The rows at `index`, each drawn out over its `steps` - 1 followers, or fewer where the episode ends.

    Reward is the discounted sum, what tells of the successor is the last row's, `span` counts the
    rows. A copy's rows lie `n_envs` apart in the ring, and all followers must be written.
    """
    assert discount is not None, "an average reward has no discounted sum"
    size, ahead = rows.reward.shape[0], jnp.arange(steps)
    read = lambda x, at: x.at[at].get(mode="promise_in_bounds")
    following = (index[:, None] + n_envs * ahead) % size
    ended = read(rows.terminated, following) | read(rows.truncated, following)
    # A row counts if no row before it ended the episode.
    counts = jnp.cumsum(ended, axis=1) - ended == 0
    reward = jnp.where(counts, discount**ahead * read(rows.reward, following), 0.0).sum(1)
    span = counts.sum(1)
    last = (index + n_envs * (span - 1)) % size
    later = {name: jax.tree.map(lambda x: read(x, last), getattr(rows, name)) for name in LATER}
    return gathered(rows, index)._replace(reward=reward, span=span, **later)


@component
class Epochs:
    """Several shuffled passes over the window just collected, in equal minibatches."""

    needs: ClassVar[frozenset[str]] = frozenset()

    epochs: int = 10
    minibatches: int = 32

    def __post_init__(self):
        if self.epochs < 1 or self.minibatches < 1:
            raise ConfigError(
                f"feed has epochs {self.epochs} and minibatches {self.minibatches}; both must be at least 1"
            )

    def check(self, rows: int) -> None:
        """Refuse a window that does not split into equal minibatches."""
        if rows % self.minibatches:
            raise ConfigError(
                f"a window has window_steps * n_envs = {rows} rows, which do not split into "
                f"feed.minibatches = {self.minibatches}; choose numbers that divide"
            )

    def shuffled(self, rows_B: Batch, key) -> Batch:
        """One epoch: the rows in a new order, as [minibatches, rows each]. One gather serves the whole epoch."""
        count = rows_B.reward.shape[0]
        order = shuffle.permutation(key, count)
        cut = lambda x: (
            x.at[order]
            .get(mode="promise_in_bounds", unique_indices=True)
            .reshape(self.minibatches, count // self.minibatches, *x.shape[1:])
        )
        return jax.tree.map(cut, rows_B)


@component
class Latest:
    """No replay: after each vector step one update on the step of every copy, which is then never seen again.

    The store keeps the last `KEPT` vector steps, for diagnostics alone.
    """

    KEPT: ClassVar[int] = 256
    needs: ClassVar[frozenset[str]] = frozenset()
    learning_starts: ClassVar[int] = 0

    def rows(self, total_steps: int, n_envs: int) -> int:
        """Rows to allocate."""
        return self.KEPT * n_envs

    def due(self, clock: Clock, n_envs: int) -> jax.Array:
        """One update follows every vector step."""
        return jnp.ones((), jnp.int32)

    def most(self, n_envs: int) -> float:
        """An upper bound of `due`."""
        return 1.0

    begin, write = Replay.begin, Replay.write

    def sample(self, ring: Ring, ctx: Context, key, discount: float | None) -> Batch:
        """The rows of the newest vector step, all of them."""
        start = (ctx.step - ctx.n_envs) % ring.rows.reward.shape[0]
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, ctx.n_envs), ring.rows)


def _written(ring, rows_N, t):
    n_envs = rows_N.reward.shape[0]
    slots = ring.rows.reward.shape[0] // n_envs
    start = (t % slots) * n_envs
    return ring._replace(rows=jax.tree.map(lambda store, rows: buffers.put(store, rows, start), ring.rows, rows_N))


def _check(feed):
    if feed.capacity < feed.batch_size:
        raise ConfigError(f"feed.capacity is {feed.capacity}, less than feed.batch_size {feed.batch_size}; enlarge it")
    if feed.batch_size < 1 or feed.ratio < 1e-4 or feed.learning_starts < 0 or feed.steps < 1:
        raise ConfigError(
            f"feed has batch_size {feed.batch_size}, ratio {feed.ratio}, learning_starts {feed.learning_starts}, "
            f"steps {feed.steps}; the first and the last must be positive, the second at least 0.0001, "
            "the third not negative"
        )
