"""A bonus for observations not met before in the episode, by counting hashed cells."""

import math
from collections.abc import Mapping
from typing import Any

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.rewards.component import Bounds, RewardComponent, check_positive
from perdure.rewards.reading import number

MULTIPLIER = 2654435761
"""Knuth's multiplicative hash: the golden ratio of 2**32."""

FARTHEST = 2.0**20
"""Cells beyond this many widths from zero are one cell, so that cell numbers fit 32 bits."""


@component
class Exploration(RewardComponent):
    """1 / sqrt(visits) of the cell that the observation lies in, counted within the episode.

    The observation, flattened, is cut into cells of `width` and hashed into `buckets` (collisions
    make a new cell look old, never the reverse). Since it fades it belongs to no bound of a step's
    reward; a policy that does nothing earns it too where the world moves by itself.
    """

    width: float = 0.5
    """Side of a cell in units of the observation."""
    buckets: int = 256
    """A power of two."""

    sustained = False

    def __post_init__(self):
        check_positive(width=self.width)
        if self.buckets < 2 or self.buckets & (self.buckets - 1):
            raise ConfigError(f"buckets is {self.buckets}; give a power of two")

    def requires(self) -> tuple[str, ...]:
        """The observation."""
        return ("obs",)

    def bounds(self) -> Bounds:
        """(0, 1]."""
        return 0.0, 1.0

    def start(self, xp: Any, info: Mapping[str, Any]) -> Any:
        """Visits of each bucket, shape (*lanes, buckets), the first observation counted."""
        lanes = xp.shape(info["terminated"])
        return self._here(xp, info["obs"], lanes)

    def step(self, xp: Any, memory: Any, action: Any, info: Mapping[str, Any]) -> tuple[Any, Any]:
        """The visits with this one, and the bonus for it."""
        here = self._here(xp, info["obs"], xp.shape(info["terminated"]))
        visits = memory + here
        return visits, 1 / xp.sqrt(number(xp, xp.sum(visits * here, axis=-1)))

    def _here(self, xp: Any, observation: Any, lanes: tuple[int, ...]) -> Any:
        """One at the bucket of the observation and zero elsewhere, shape (*lanes, buckets)."""
        features = math.prod(xp.shape(observation)[len(lanes) :])
        flat = xp.reshape(xp.asarray(observation, xp.float32), (*lanes, features))
        cells = xp.asarray(xp.clip(xp.floor(flat / self.width), -FARTHEST, FARTHEST), xp.int32)
        # Two multiplications and a shift between them, so that neighbouring cells and permuted features part.
        positions = xp.arange(1, features + 1, dtype=xp.uint32) * xp.asarray(MULTIPLIER, xp.uint32)
        mixed = (xp.asarray(cells, xp.uint32) + positions) * xp.asarray(MULTIPLIER, xp.uint32)
        mixed = (mixed ^ (mixed >> 15)) * (positions | 1)
        key = xp.sum(mixed, axis=-1, dtype=xp.uint32)
        bucket = xp.asarray((key >> 8) % self.buckets, xp.int32)
        return xp.asarray(bucket[..., None] == xp.arange(self.buckets), xp.float32)
