"""Several seeds' curves on one grid of steps, as a mean with an interval."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perdure.core import seeds
from perdure.core.records import EvaluationRow

RESAMPLES = 1000
LEVEL = 0.95


class Curve(NamedTuple):
    """A mean over seeds along x; `low` and `high` bound it, and are None for a single seed."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None


def over_seeds(x: np.ndarray, values_SP: np.ndarray) -> Curve:
    """Mean over the seeds that have a value at each of P points, with a percentile-bootstrap interval.

    Whole seeds are resampled, so neighbouring points move together as they do in the runs.
    Points where fewer than two seeds have a value get no interval; NaN marks a missing value.
    """
    known = np.isfinite(values_SP)
    count = known.sum(axis=0)
    filled = np.where(known, values_SP, 0.0)
    mean = np.where(count > 0, filled.sum(axis=0) / np.maximum(count, 1), np.nan)
    if len(values_SP) < 2:
        return Curve(x, mean, None, None)
    random = np.random.default_rng(seeds.stream(0, "bootstrap"))
    weights = random.multinomial(len(values_SP), np.full(len(values_SP), 1 / len(values_SP)), RESAMPLES)
    drawn = weights @ known
    means = np.where(drawn > 0, (weights @ filled) / np.maximum(drawn, 1), mean)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    enough = count > 1
    return Curve(x, mean, np.where(enough, low, np.nan), np.where(enough, high, np.nan))


def read_at(x: np.ndarray, y: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """A seed's curve around a shift at the grid's offsets; NaN before its first point on either side of 0."""
    values = np.full(len(grid), np.nan)
    for side, there in ((x < 0, grid < 0), (x >= 0, grid >= 0)):
        if side.any():
            inside = there & (grid >= x[side].min()) & (grid <= x[side].max())
            values[inside] = np.interp(grid[inside], x[side], y[side])
    return values


def broken(curve: Curve, edges: Sequence[float]) -> Curve:
    """The curve with a gap at each edge, since a smoothed score never reaches across a shift."""
    places = np.searchsorted(curve.x, edges)
    places = np.unique(places[(places > 0) & (places < len(curve.x))])
    x, y = np.insert(curve.x, places, np.nan), np.insert(curve.y, places, np.nan)
    if curve.low is None or curve.high is None:
        return Curve(x, y, None, None)
    return Curve(x, y, np.insert(curve.low, places, np.nan), np.insert(curve.high, places, np.nan))


def at_marks(rows: Sequence[EvaluationRow], name: str | None = None) -> Curve:
    """Evaluation marks as a curve: mean return, or the metric `name`, over seeds at each mark.

    Several rows of one seed at one mark (several regimes) are averaged first.
    """
    cells: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        values = list(row.returns) if name is None else [row.metrics[name]] if name in row.metrics else []
        finite = [value for value in values if np.isfinite(value)]
        if finite:
            cells.setdefault((row.seed, row.step), []).append(float(np.mean(finite)))
    steps = sorted({step for _, step in cells})
    order = sorted({seed for seed, _ in cells})
    values = [[float(np.mean(cells.get((seed, step), [np.nan]))) for step in steps] for seed in order]
    return over_seeds(np.array(steps, float), np.array(values).reshape(len(order), len(steps)))
