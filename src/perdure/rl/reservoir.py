"""A replay store that remembers the whole run evenly, not its end alone."""

from typing import ClassVar, Literal

import jax

from perdure.core.component import component
from perdure.rl.feeds import Replay, Ring
from perdure.rl.ops import prng, reservoirs
from perdure.rl.phases import Batch


@component
class Reservoir:
    """Replay of a uniform sample of everything that was ever stored (Isele and Cosgun, 2018, arXiv:1802.10269).

    Their global distribution matching by random ranks, done as reservoir sampling: each row of the stream is kept with
    the same probability, so the share of a regime in updates is its share of the run. Which rows are kept depends on
    the clock alone; all seeds keep the same ones. Equal to `Replay` until the store is full.
    """

    capacity: int = 1_000_000
    """Rows kept; the store is sized to the smaller of this and the run's budget."""
    batch_size: int = 256
    ratio: float = 1.0
    """Updates for each environment step; .25 with one copy means every fourth step."""
    learning_starts: int = 10_000
    """Environment steps of uniformly random actions before the first update."""
    kind: Literal["reservoir"] = "reservoir"
    """Tells the feeds apart in a document."""

    steps: ClassVar[int] = 1
    """The rows after a kept one may be gone, so returns are of one step."""
    STREAM: ClassVar[int] = 0x5EED
    """Seed of the draws that decide which rows are kept."""

    __post_init__ = Replay.__post_init__
    needs, rows, begin = Replay.needs, Replay.rows, Replay.begin
    due, most, sample = Replay.due, Replay.most, Replay.sample

    def write(self, ring: Ring, rows_N: Batch, t) -> Ring:
        """The store after one vector step; its rows are taken or dropped one by one."""
        count, capacity = rows_N.reward.shape[0], ring.rows.reward.shape[0]
        key = jax.random.fold_in(prng.key(self.STREAM), t)
        places = reservoirs.places(key, t * count, count, capacity)
        return ring._replace(rows=reservoirs.written(ring.rows, rows_N, places))
