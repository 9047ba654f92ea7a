"""How experience reaches an update: which rows are kept, and which the next updates see."""

from fractions import Fraction
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.rl.ops import buffers, shuffle
from perdure.rl.phases import Batch, Clock


class Ring(NamedTuple):
    """The last `capacity` rows; the write position is the shared clock's, so it carries none."""

    rows: Batch


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

    def __post_init__(self):
        if self.capacity < self.batch_size:
            raise ConfigError(
                f"feed.capacity is {self.capacity}, less than feed.batch_size {self.batch_size}; enlarge it"
            )
        if self.batch_size < 1 or self.ratio < 1e-4 or self.learning_starts < 0:
            raise ConfigError(
                f"feed has batch_size {self.batch_size}, ratio {self.ratio}, learning_starts {self.learning_starts}; "
                "the first must be positive, the second at least 0.0001, the last not negative"
            )

    def rows(self, total_steps: int, n_envs: int) -> int:
        """Rows to allocate: the smaller of capacity and budget, in whole vector steps."""
        return max(1, min(self.capacity, total_steps) // n_envs) * n_envs

    def due(self, clock: Clock, n_envs: int) -> jax.Array:
        """How many updates follow vector step `clock.t`; none during warm-up."""
        rate = Fraction(self.ratio * n_envs).limit_denominator(10_000)
        phase = clock.t % rate.denominator
        count = (phase + 1) * rate.numerator // rate.denominator - phase * rate.numerator // rate.denominator
        return jnp.where((clock.t + 1) * n_envs > self.learning_starts, count, 0)

    def most(self, n_envs: int) -> float:
        """An upper bound of `due`."""
        return self.ratio * n_envs

    def write(self, ring: Ring, rows_N: Batch, t) -> Ring:
        """The ring with one vector step written at its place."""
        n_envs = rows_N.reward.shape[0]
        slots = ring.rows.reward.shape[0] // n_envs
        start = (t % slots) * n_envs
        return Ring(jax.tree.map(lambda store, rows: buffers.put(store, rows, start), ring.rows, rows_N))

    def sample(self, ring: Ring, written, key) -> Batch:
        """`batch_size` rows drawn uniformly, with replacement, from those written so far."""
        filled = jnp.minimum(written, ring.rows.reward.shape[0])
        index = jax.random.randint(key, (self.batch_size,), 0, filled)
        return jax.tree.map(lambda x: x.at[index].get(mode="promise_in_bounds"), ring.rows)


@component
class Epochs:
    """Several shuffled passes over the window just collected, in equal minibatches."""

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

    write = Replay.write

    def sample(self, ring: Ring, written, key) -> Batch:
        """The rows of the newest vector step, all of them."""
        n_envs = ring.rows.reward.shape[0] // self.KEPT
        start = (written - n_envs) % ring.rows.reward.shape[0]
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, n_envs), ring.rows)
