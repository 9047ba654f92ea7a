"""One segment as the six metrics see it: its points, its smoothed score m_k, its head and its tail.

m_k(t) is the mean of the scores in the causal window [t - W + 1, t], cut at the segment's start.
Where no score falls in the window the newest one stands (an agent is as good as it last showed).
So m_k is a step function of time: it changes only where a point enters or leaves the window.
"""

# pyright: strict

from typing import NamedTuple

import numpy as np

from perdure.core.records import Segment, Stream
from perdure.metrics.metric import FloatArray, IntArray, Options, share
from perdure.metrics.scores import Scores

NARROWEST = 1e-12
"""Bounds closer than this leave the score form undefined."""

SLACK = 1e-9
"""Share of a segment's spread within which two levels count as equal: the rounding of running means."""


class Pieces(NamedTuple):
    """A step function of time: `value[i]` on [time[i], time[i + 1]), the last piece up to `end`."""

    time: IntArray
    value: FloatArray
    end: int

    def durations(self) -> IntArray:
        """Steps that each piece lasts."""
        return np.diff(self.time, append=self.end)


class Visit(NamedTuple):
    """A segment k with what was scored in it."""

    segment: Segment
    step: IntArray
    """[M] where each score stands."""
    value: FloatArray
    """[M] the scores."""
    window: int
    """W, in steps."""
    observed_end: int
    """One past the last step seen; the segment's end if the run went that far."""
    low: float | None
    """Lower bound of the score under this configuration, where known."""
    high: float | None
    smooth: Pieces
    head: float | None
    """Mean over the first W steps (the first score if none fell there); None while those are not all seen."""
    tail: float | None
    """Mean over the last q of the segment (the newest score if none fell there); None if it is unfinished."""
    tail_steps: int

    @property
    def length(self) -> int:
        """n_k, the planned length in steps."""
        return self.segment.end - self.segment.start

    @property
    def hold(self) -> int:
        """How many steps a level must be held to count: W / 2, rounded up."""
        return (self.window + 1) // 2

    @property
    def complete(self) -> bool:
        """Whether the run went through the whole segment."""
        return self.observed_end >= self.segment.end

    @property
    def slack(self) -> float:
        """How far below a level still counts as on it."""
        return SLACK * float(np.ptp(self.value)) if len(self.value) else 0.0

    def head_values(self) -> FloatArray:
        """The scores that the head averages."""
        return self.value[: max(1, int(np.searchsorted(self.step, self.segment.start + self.window)))]

    def tail_values(self) -> FloatArray:
        """The scores that the tail averages."""
        first = int(np.searchsorted(self.step, self.segment.end - self.tail_steps))
        return self.value[min(first, len(self.value) - 1) :] if len(self.value) else self.value

    def from_time(self, time: int) -> Pieces:
        """The smoothed score from `time` on."""
        first = max(0, int(np.searchsorted(self.smooth.time, time, side="right")) - 1)
        times = np.maximum(self.smooth.time[first:], time)
        return Pieces(times, self.smooth.value[first:], max(self.smooth.end, time))


def visits_of(stream: Stream, scores: Scores, options: Options) -> list[Visit]:
    """Every segment of the stream, in order, also those in which nothing was scored."""
    visits: list[Visit] = []
    for index, segment in enumerate(stream.segments):
        points = slice(int(scores.edges[index]), int(scores.edges[index + 1]))
        bounds = stream.bounds.get(segment.origin, (None, None))
        visits.append(_visit(segment, scores, points, bounds, options))
    return visits


def _visit(
    segment: Segment,
    scores: Scores,
    points: slice,
    bounds: tuple[float | None, float | None],
    options: Options,
) -> Visit:
    step, value = scores.step[points], scores.value[points]
    length = segment.end - segment.start
    window = share(options.window_fraction, length)
    end = min(segment.end, max(scores.observed_end, segment.start))
    visit = Visit(
        segment=segment,
        step=step,
        value=value,
        window=window,
        observed_end=end,
        low=bounds[0],
        high=bounds[1],
        smooth=smoothing(step, value, window, end),
        head=None,
        tail=None,
        tail_steps=share(options.tail_fraction, length),
    )
    scored = len(value) > 0
    head = mean(visit.head_values()) if scored and end - segment.start >= window else None
    tail = mean(visit.tail_values()) if scored and visit.complete else None
    return visit._replace(head=head, tail=tail)


def smoothing(step: IntArray, value: FloatArray, window: int, end: int) -> Pieces:
    """m_k of points that lie before `end`, exact at every step."""
    count = len(step)
    if not count:
        return Pieces(step, value, end)
    if int(step[-1]) == end - 1 and end - int(step[0]) == count:
        times = step
        newest = np.arange(1, count + 1)
        oldest = np.maximum(newest - window, 0)
    else:
        times = np.unique(np.concatenate([step, step + window]))
        times = times[times < end]
        newest = np.searchsorted(step, times, side="right")
        oldest = np.minimum(np.searchsorted(step, times - window, side="right"), newest - 1)
    # Sums of differences from one score stay small, and are exact where the score is constant.
    anchor = value[0]
    sums = np.concatenate([[0.0], np.cumsum(value - anchor)])
    return Pieces(times, anchor + (sums[newest] - sums[oldest]) / (newest - oldest), end)


def mean(value: FloatArray) -> float:
    """The mean of at least one score; exact where the score is constant."""
    return float(value[0]) + float((value - value[0]).mean())


def first_hold(pieces: Pieces, level: float, hold: int, after: int) -> int | None:
    """The first time from `after` on that starts `hold` steps at or above `level`, all of them before `end`."""
    reached = np.concatenate([[False], pieces.value >= level, [False]])
    change = np.flatnonzero(reached[1:] != reached[:-1])
    limits = np.append(pieces.time, pieces.end)
    starts = np.maximum(limits[change[0::2]], after)
    lasting = np.flatnonzero(limits[change[1::2]] - starts >= hold)
    return int(starts[lasting[0]]) if len(lasting) else None


def scaled(value: FloatArray | float, low: float, high: float) -> FloatArray | float:
    """The score form u: 0 at the lower bound, 1 at the upper."""
    return (value - low) / (high - low)


def score_form(visit: Visit) -> tuple[float, float] | None:
    """The bounds of u under this configuration, where both are known and apart."""
    if visit.low is None or visit.high is None or visit.high - visit.low < NARROWEST:
        return None
    return visit.low, visit.high
