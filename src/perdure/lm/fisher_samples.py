"""Which samples the Fisher information is measured on: a mix of bands of reward, drawn at random."""

# pyright: strict

import enum
import math
import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from perdure.core.errors import ConfigError, DataError, nearest

T = TypeVar("T")

DEFAULT_SAMPLE_MIX: Mapping[str, float] = MappingProxyType(
    {"solved": 0.4, "positive_progress": 0.3, "valid_neutral": 0.2, "random": 0.1}
)
"""The share of the budget that each band of reward gets."""

SOLVED = 0.9
"""The published code's least reward of a solved sample; a share of the range, or a quantile, under the other edges."""


class BandEdges(enum.StrEnum):
    """From which reward on a sample counts as solved."""

    ABSOLUTE = "absolute"
    """From .9, whatever rewards the world gives; the band is empty in a world whose rewards stay below."""
    BOUNDS = "bounds"
    """From low + .9 (high - low) of the world's bounds."""
    QUANTILE = "quantile"
    """From the .9 quantile of the samples' rewards, but only above 0."""


def solved_edge(
    rewards: Sequence[float],
    *,
    edges: BandEdges = BandEdges.ABSOLUTE,
    bounds: tuple[float, float] | None = None,
) -> float:
    """The least reward of a solved sample. Raises ConfigError for edges `bounds` without increasing bounds."""
    if BandEdges(edges) == BandEdges.ABSOLUTE:
        return SOLVED
    if BandEdges(edges) == BandEdges.BOUNDS:
        if bounds is None or not bounds[0] < bounds[1]:
            raise ConfigError(f"fisher_bands is bounds, and the bounds are {bounds}; give (low, high) with low < high")
        return bounds[0] + SOLVED * (bounds[1] - bounds[0])
    known = [reward for reward in rewards if not math.isnan(reward)]
    edge = float(np.quantile(known, SOLVED)) if known else math.inf
    return edge if edge > 0 else math.inf


def select_fisher_samples(
    pairs: Sequence[T],
    rewards: Sequence[float],
    *,
    max_samples: int,
    mix: Mapping[str, float] = DEFAULT_SAMPLE_MIX,
    rng: random.Random | None = None,
    solved: float = SOLVED,
    truncate: bool = False,
) -> list[T]:
    """Draw about `max_samples` of `pairs` by the bands their rewards fall into.

    Bands: solved (r >= `solved`), positive_progress (above 0), valid_neutral (0), random (below 0). A band is asked
    for round(max_samples * share) samples, half to even, but at least one, and gives what it has, without
    repetition; what is then missing from `max_samples` is drawn from the whole pool with repetition, and such
    duplicates count. The least of one a band overshoots small budgets (1 gives 4 draws, 4 gives 5) unless
    `truncate`, which drops the last draws. Samples with a missing reward (NaN) are left out. Without `rng` a
    generator seeded with 0 draws. Raises DataError for an empty pool, ConfigError for a budget below 1 or a
    mix with unknown bands or negative shares.
    """
    _check_mix(mix, max_samples)
    if len(pairs) != len(rewards):
        raise DataError(f"there are {len(pairs)} samples and {len(rewards)} rewards; give one reward a sample")
    rng = rng or random.Random(0)
    pool = [(pair, reward) for pair, reward in zip(pairs, rewards, strict=True) if not math.isnan(reward)]
    if not pool:
        raise DataError(
            "there is no sample to measure the Fisher information on; collect a window before consolidating"
        )
    drawn: list[T] = []
    for band, share in mix.items():
        members = [pair for pair, reward in pool if band_of(reward, solved) == band]
        wanted = max(round(max_samples * share), 1)
        drawn += rng.sample(members, min(wanted, len(members)))
    missing = max_samples - len(drawn)
    if missing > 0:
        drawn += [pair for pair, _ in rng.choices(pool, k=missing)]
    return drawn[:max_samples] if truncate else drawn


def band_of(reward: float, solved: float = SOLVED) -> str:
    """The band of a reward."""
    if reward >= solved:
        return "solved"
    if reward > 0:
        return "positive_progress"
    return "valid_neutral" if reward == 0 else "random"


def _check_mix(mix: Mapping[str, float], max_samples: int) -> None:
    if max_samples < 1:
        raise ConfigError(f"max_samples is {max_samples}; at least one sample is needed")
    for band, share in mix.items():
        if band not in DEFAULT_SAMPLE_MIX:
            raise ConfigError(f"fisher_sample_mix.{band} is no band; {nearest(band, DEFAULT_SAMPLE_MIX)}")
        if not 0 <= share <= 1:
            raise ConfigError(f"fisher_sample_mix.{band} is {share}; a share lies between 0 and 1")
