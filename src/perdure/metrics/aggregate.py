"""How uncertain numbers are summed up: means, interquartile means, bootstrap intervals, comparisons.

Agarwal et al. 2021 (arXiv 2108.13264) for the interquartile mean, stratified bootstrap and
probability of improvement; Künsch 1989 for moving blocks; Kaplan and Meier 1958 for censored times.
Every random number comes from `seed`.
"""

# pyright: strict

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from perdure.core.errors import DataError
from perdure.core.seeds import stream
from perdure.metrics.metric import FloatArray

Statistic = Callable[[FloatArray], float]


class Interval(NamedTuple):
    """A value with a two-sided percentile interval."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    """How many independent values (or points of a series) stand behind it."""
    reason: str | None
    """Why there is no interval (or no value)."""


def average(scores: npt.ArrayLike) -> float:
    """The mean over everything."""
    return float(np.mean(np.asarray(scores, np.float64)))


def iqm(scores: npt.ArrayLike) -> float:
    """The interquartile mean over everything: a quarter of the values, rounded down, is cut at each end."""
    ordered = np.sort(np.asarray(scores, np.float64), axis=None)
    if not len(ordered):
        raise DataError("the interquartile mean of no scores is asked for; give at least one")
    cut = len(ordered) // 4
    return float(np.mean(ordered[cut : len(ordered) - cut]))


def stratified_bootstrap(
    scores: npt.ArrayLike, statistic: Statistic = iqm, level: float = 0.95, samples: int = 2000, seed: int = 0
) -> Interval:
    """`statistic` of scores [runs, tasks] (or [runs]), runs resampled independently within each task."""
    table = _table(scores)
    value = float(statistic(table))
    runs = len(table)
    if runs < 2:
        return Interval(value, None, None, runs, "an interval needs at least two runs")
    generator = generator_of(seed)
    rows = generator.integers(0, runs, (samples, *table.shape))
    drawn = table[rows, np.arange(table.shape[1])]
    draws = _statistic_of_each(drawn, statistic)
    return Interval(value, *percentiles(draws, level), runs, None)


def _statistic_of_each(drawn: FloatArray, statistic: Statistic) -> FloatArray:
    """`statistic` of every [runs, tasks] table in `drawn`; the two common ones without a Python loop."""
    flat = drawn.reshape(len(drawn), -1)
    if statistic is average:
        return flat.mean(axis=1)
    if statistic is iqm:
        cut = flat.shape[1] // 4
        return np.sort(flat, axis=1)[:, cut : flat.shape[1] - cut].mean(axis=1)
    return np.array([statistic(table) for table in drawn], np.float64)


def mean_interval(values: npt.ArrayLike, level: float = 0.95, samples: int = 2000, seed: int = 0) -> Interval:
    """The mean of independent values with its bootstrap interval."""
    return stratified_bootstrap(np.asarray(values, np.float64).reshape(-1), average, level, samples, seed)


def probability_of_improvement(
    x: npt.ArrayLike, y: npt.ArrayLike, level: float = 0.95, samples: int = 2000, seed: int = 0
) -> Interval:
    """How likely a run of `x` beats a run of `y`, ties counting half, averaged over tasks.

    `x` and `y` are [runs] or [runs, tasks] with the same tasks; higher scores are better.
    """
    first, second = _table(x), _table(y)
    if first.shape[1] != second.shape[1]:
        raise DataError(f"x has {first.shape[1]} tasks and y has {second.shape[1]}; compare over the same tasks")
    above = first[:, None, :] > second[None, :, :]
    level_with = first[:, None, :] == second[None, :, :]
    wins = (above + 0.5 * level_with).transpose(2, 0, 1)
    value, runs = float(wins.mean()), min(len(first), len(second))
    if runs < 2:
        return Interval(value, None, None, runs, "an interval needs at least two runs on each side")
    generator = generator_of(seed)
    draws = np.zeros(samples)
    for task in wins:
        rows = generator.multinomial(len(first), np.full(len(first), 1 / len(first)), samples) / len(first)
        columns = generator.multinomial(len(second), np.full(len(second), 1 / len(second)), samples) / len(second)
        draws += np.einsum("sx,xy,sy->s", rows, task, columns, optimize=True)
    return Interval(value, *percentiles(draws / len(wins), level), runs, None)


def moving_block_interval(
    series: npt.ArrayLike, level: float = 0.95, samples: int = 1000, seed: int = 0, block: int | None = None
) -> Interval:
    """The mean of an autocorrelated series with an interval that respects its runs of similar values.

    Blocks of `block` neighbouring points are resampled whole; the default is the cube root of the
    length, or a fiftieth of it where that is more.
    """
    values = np.asarray(series, np.float64).reshape(-1)
    if not len(values):
        return Interval(None, None, None, 0, "the series is empty")
    if len(values) < 4:
        return Interval(average(values), None, None, len(values), "an interval needs at least four points")
    draws = block_means(values, samples, generator_of(seed), block)
    return Interval(average(values), *percentiles(draws, level), len(values), None)


def block_means(
    values: FloatArray, samples: int, generator: np.random.Generator, block: int | None = None
) -> FloatArray:
    """[samples] means of the series rebuilt from randomly chosen blocks of neighbours."""
    count = len(values)
    if block is None:
        block = max(int(np.ceil(count ** (1 / 3))), -(-count // 50))
    block = min(max(block, 1), count)
    blocks = -(-count // block)
    sums = np.concatenate([[0.0], np.cumsum(values - values[0])])
    starts = generator.integers(0, count - block + 1, (samples, blocks))
    totals = sums[starts + block] - sums[starts]
    # The last block is cut so that each rebuilt series is as long as the original.
    rest = count - (blocks - 1) * block
    totals[:, -1] = sums[starts[:, -1] + rest] - sums[starts[:, -1]]
    return values[0] + totals.sum(axis=1) / count


def percentiles(draws: FloatArray, level: float) -> tuple[float, float]:
    """The two ends of the central `level` share of the draws."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def censored_median(times: Sequence[float], censored: Sequence[bool]) -> float | None:
    """The Kaplan-Meier median of times of which some are only lower bounds; None if half never came."""
    survival = 1.0
    for time in sorted(set(times)):
        at_risk = sum(other >= time for other in times)
        events = sum(other == time and not late for other, late in zip(times, censored, strict=True))
        survival *= 1 - events / at_risk
        if survival <= 0.5 + 1e-12:
            return float(time)
    return None


def _table(scores: npt.ArrayLike) -> FloatArray:
    table = np.asarray(scores, np.float64)
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or not table.size:
        raise DataError(f"scores have shape {table.shape}; give [runs] or [runs, tasks] with at least one run")
    if not np.isfinite(table).all():
        raise DataError("scores hold a value that is not finite; leave out runs whose metric is undefined")
    return table


def generator_of(seed: int) -> np.random.Generator:
    """The random numbers of the intervals of one seed."""
    return np.random.default_rng(stream(seed, "bootstrap"))
