"""What a run scored, and when: a stream of environment steps turned into scored points.

In an episodic world ("return") a point is a finished episode, standing at its last row; in a
never-ending one ("reward") it is every row. Every metric of the protocol reads these points.
"""

# pyright: strict

from typing import NamedTuple

import numpy as np

from perdure.core.errors import DataError
from perdure.core.records import Stream
from perdure.metrics.metric import FloatArray, IntArray

LARGEST_REWARD = 1e100
"""Rewards beyond this could overflow a sum or a square; no world needs them."""


class Scores(NamedTuple):
    """The M points of a stream with K segments, ordered by step."""

    step: IntArray
    """[M] the step at which each score became known."""
    value: FloatArray
    """[M] the return of the episode that ended there, or the reward of the step."""
    edges: IntArray
    """[K + 1] points edges[k]:edges[k + 1] belong to segment k."""
    straddling: int
    """Episodes that began in one segment and ended in a later one; they count in neither."""
    unfinished: int
    """Episodes still running when the rows end; they are not scored."""
    observed_end: int
    """One past the last step recorded."""


def score_points(stream: Stream) -> Scores:
    """The scored points of a stream; raises DataError for a stream that cannot be used."""
    check_stream(stream)
    step = np.asarray(stream.step, np.int64)
    reward = np.asarray(stream.reward, np.float64)
    observed_end = int(step[-1]) + 1 if len(step) else stream.segments[0].start
    if stream.score == "reward":
        return Scores(step, reward, _edges(stream, step), 0, 0, observed_end)
    first, last, total, unfinished = _episodes(stream, step, reward)
    ends = np.array([segment.end for segment in stream.segments], np.int64)
    inside = np.searchsorted(ends, first, side="right") == np.searchsorted(ends, last, side="right")
    step, value = last[inside], total[inside]
    order = np.argsort(step)
    step, value = step[order], value[order]
    return Scores(step, value, _edges(stream, step), int(len(inside) - inside.sum()), unfinished, observed_end)


def _episodes(stream: Stream, step: IntArray, reward: FloatArray) -> tuple[IntArray, IntArray, FloatArray, int]:
    """First step, last step and return of every finished episode, and how many are unfinished."""
    lane = np.asarray(stream.lane, np.int64)
    ended = np.asarray(stream.terminated, bool) | np.asarray(stream.truncated, bool)
    if not len(step):
        return step, step, reward, 0
    if lane.min() != lane.max():
        # NumPy sorts 16-bit integers by radix, in linear time.
        narrow = lane.astype(np.int16) if lane.min() >= 0 and lane.max() < 2**15 else lane
        order = np.argsort(narrow, kind="stable")
        lane, step, reward, ended = lane[order], step[order], reward[order], ended[order]
    closes = ended.copy()
    closes[:-1] |= lane[1:] != lane[:-1]
    closes[-1] = True
    last = np.flatnonzero(closes)
    first = np.concatenate([[0], last[:-1] + 1])
    finished = ended[last]
    total = np.add.reduceat(reward, first)
    unfinished = int(len(finished) - finished.sum())
    return step[first[finished]], step[last[finished]], total[finished], unfinished


def _edges(stream: Stream, step: IntArray) -> IntArray:
    limits = [stream.segments[0].start, *(segment.end for segment in stream.segments)]
    return np.searchsorted(step, limits).astype(np.int64)


def check_stream(stream: Stream) -> None:
    """Raise DataError, naming the run and the row, unless the stream can be measured."""
    place = f"run {stream.run_id!r}, seed {stream.seed}"
    if stream.score not in ("return", "reward"):
        raise DataError(f"{place}: score is {stream.score!r}; use 'return' or 'reward'")
    _check_segments(stream, place)
    _check_bounds(stream, place)
    columns = {name: getattr(stream, name) for name in ("step", "lane", "reward", "terminated", "truncated")}
    shapes = {name: np.shape(column) for name, column in columns.items()}
    if len(set(shapes.values())) > 1 or len(shapes["step"]) != 1:
        raise DataError(f"{place}: columns have shapes {shapes}; each needs one value a row")
    if shapes["step"] != (0,):
        _check_rows(stream, place)


def _check_segments(stream: Stream, place: str) -> None:
    if not stream.segments:
        raise DataError(f"{place}: there are no segments; give at least one that covers the run")
    for index, segment in enumerate(stream.segments):
        if segment.end <= segment.start:
            raise DataError(f"{place}: segments[{index}] ends at {segment.end}, not after its start {segment.start}")
        if index and segment.start != stream.segments[index - 1].end:
            before = stream.segments[index - 1].end
            raise DataError(f"{place}: segments[{index}] starts at {segment.start}; the one before ends at {before}")


def _check_bounds(stream: Stream, place: str) -> None:
    for origin, pair in stream.bounds.items():
        for bound in pair:
            if bound is not None and not abs(bound) < LARGEST_REWARD:
                raise DataError(f"{place}: bounds[{origin!r}] holds {bound}; give a finite number or null")


def _check_rows(stream: Stream, place: str) -> None:
    step, reward = np.asarray(stream.step), np.asarray(stream.reward, np.float64)
    if not np.issubdtype(step.dtype, np.integer):
        raise DataError(f"{place}: steps have type {step.dtype}; they count environment steps, so give integers")
    backward = np.flatnonzero(step[1:] <= step[:-1])
    if len(backward):
        row = int(backward[0]) + 1
        raise DataError(
            f"{place}: row {row} has step {step[row]} after step {step[row - 1]}; order rows, each step once"
        )
    start, end = stream.segments[0].start, stream.segments[-1].end
    if step[0] < start or step[-1] >= end:
        raise DataError(f"{place}: steps {step[0]} to {step[-1]} leave the segments, which cover [{start}, {end})")
    bad = np.flatnonzero(~(np.abs(reward) < LARGEST_REWARD))
    if len(bad):
        row = int(bad[0])
        raise DataError(
            f"{place}: the reward at step {step[row]} is {reward[row]}; it must be finite and below {LARGEST_REWARD:g}"
        )
