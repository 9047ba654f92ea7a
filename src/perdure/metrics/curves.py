"""Curves for plots: the smoothed score of a run, and its course around each shift."""

# pyright: strict

import itertools
from typing import NamedTuple

import numpy as np

from perdure.core.records import Stream
from perdure.metrics.metric import DEFAULTS, FloatArray, IntArray, Options
from perdure.metrics.scores import score_points
from perdure.metrics.visits import Pieces, Visit, visits_of


class Curve(NamedTuple):
    """The smoothed score on a grid of steps that depends on the segments only, so that seeds share it."""

    step: IntArray
    value: FloatArray
    """NaN where nothing is scored yet, so that a drawn line breaks there."""


class RecoveryCurve(NamedTuple):
    """The smoothed score around one boundary."""

    ending: str
    ending_origin: str
    starting: str
    starting_origin: str
    step: int
    """Where the boundary lies."""
    previous: float | None
    """The tail of the ending segment, the level to come back to."""
    offset: IntArray
    """Steps after the boundary, negative before it."""
    value: FloatArray


def smoothed(stream: Stream, points: int = 400, options: Options = DEFAULTS) -> Curve:
    """m_k at about `points` evenly spaced steps over all segments."""
    start, end = stream.segments[0].start, stream.segments[-1].end
    grid = _grid(start, end, points)
    value = np.full(len(grid), np.nan)
    for visit in visits_of(stream, score_points(stream), options):
        inside = (grid >= visit.segment.start) & (grid < visit.segment.end)
        value[inside] = _sample(visit.smooth, grid[inside])
    return Curve(grid, value)


def recovery_curves(stream: Stream, options: Options = DEFAULTS, points: int = 200) -> list[RecoveryCurve]:
    """The course around each boundary: the tail before it and the whole segment after it, NaN-free.

    Boundaries after which nothing was scored are left out.
    """
    seen = visits_of(stream, score_points(stream), options)
    pairs = itertools.pairwise(seen)
    return [_recovery_curve(before, visit, points) for before, visit in pairs if len(visit.value)]


def _recovery_curve(before: Visit, visit: Visit, points: int) -> RecoveryCurve:
    boundary = visit.segment.start
    earlier = _grid(boundary - before.tail_steps, boundary, max(2, points // 5))
    later = _grid(boundary, visit.segment.end, points)
    value = np.concatenate([_sample(before.smooth, earlier), _sample(visit.smooth, later)])
    known = np.isfinite(value)
    return RecoveryCurve(
        ending=before.segment.id,
        ending_origin=before.segment.origin,
        starting=visit.segment.id,
        starting_origin=visit.segment.origin,
        step=boundary,
        previous=before.tail,
        offset=(np.concatenate([earlier, later]) - boundary)[known],
        value=value[known],
    )


def _grid(start: int, end: int, points: int) -> IntArray:
    return np.unique(np.linspace(start, end - 1, min(points, end - start)).astype(np.int64))


def _sample(pieces: Pieces, times: IntArray) -> FloatArray:
    """The step function at `times`; NaN before its first piece and from its end on."""
    if not len(pieces.time):
        return np.full(len(times), np.nan)
    index = np.searchsorted(pieces.time, times, side="right") - 1
    known = (index >= 0) & (times < pieces.end)
    return np.where(known, pieces.value[np.maximum(index, 0)], np.nan)
