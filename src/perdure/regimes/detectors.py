"""Shift detectors: sequential tests on a signal (reward, say), without being told of any boundary.

Each is a pure function of arrays that takes the array module `xp` (numpy on the host, jax.numpy in a
compiled loop), element-wise over any leading shape, in single precision. A signal that is not finite
is no observation: the state stays and no alarm is given, so that sparse signals (a return where an
episode ended, NaN elsewhere) can be fed as they come. After an alarm an element starts anew.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from perdure.core.component import component
from perdure.core.errors import ConfigError

Sides = Literal["rise", "fall", "both"]

SMALLEST_DEVIATION = 1e-6
"""Stands in for the standard deviation of a signal that never moved while it was learned."""


class PageHinkleyState(NamedTuple):
    """What Page-Hinkley remembers, one element for each signal."""

    count: Any
    """Observations since the start or the last alarm."""
    mean: Any
    rise: Any
    """Height of the upward sum above its lowest value."""
    fall: Any


@component
class PageHinkley:
    """Page-Hinkley: alarm when the sum of deviations from the running mean has moved by `threshold`.

    m_t = m_{t-1} + x_t - mean_t - tolerance; alarm if m_t - min m > threshold (Page, 1954; Hinkley,
    1971). The difference m - min m obeys h_t = max(0, h_{t-1} + x_t - mean_t - tolerance), which is
    what is kept, since the sums themselves would lose precision without bound.
    """

    threshold: float = 50.0
    """In units of the signal, summed over steps. About 20 deviations suit noise that is let pass by
    half a deviation of tolerance."""
    tolerance: float = 0.005
    """Drift per step that is let pass, in units of the signal."""
    warm_up: int = 30
    """Observations before the first alarm, also after each alarm."""
    sides: Sides = "both"

    def __post_init__(self):
        _check_fields(self.threshold, self.tolerance, "tolerance", self.warm_up)

    def start(self, xp: Any, shape: tuple[int, ...] = ()) -> PageHinkleyState:
        """The state before the first observation of signals of this shape."""
        zeros = xp.zeros(shape, xp.float32)
        return PageHinkleyState(xp.zeros(shape, xp.int32), zeros, zeros, zeros)

    def step(self, xp: Any, state: PageHinkleyState, x: Any) -> tuple[PageHinkleyState, Any]:
        """The state after observing `x`, and where it raised an alarm (bool, of the signal's shape)."""
        x, seen = _observation(xp, x)
        count = state.count + 1
        mean = state.mean + (x - state.mean) / xp.asarray(count, xp.float32)
        rise = xp.maximum(state.rise + x - mean - self.tolerance, 0)
        fall = xp.maximum(state.fall - x + mean - self.tolerance, 0)
        alarm = seen & (count > self.warm_up) & (_watched(xp, rise, fall, self.sides) > self.threshold)
        after = PageHinkleyState(count, mean, rise, fall)
        return _settle(xp, state, after, seen, alarm), alarm


class CusumState(NamedTuple):
    """What CUSUM remembers, one element for each signal."""

    count: Any
    """Observations since the start or the last alarm."""
    mean: Any
    squares: Any
    """Sum of squared deviations from the mean (Welford)."""
    rise: Any
    fall: Any


@component
class Cusum:
    """Self-starting CUSUM: alarm when standardised deviations beyond `slack` add up to `threshold`.

    g_t = max(0, g_{t-1} + z_t - slack), alarm if g_t > threshold, and its mirror image (Page, 1954).
    z_n = sqrt((n - 1) / n) (x_n - mean) / deviation, both of the n - 1 observations before (Hawkins,
    1987), so one setting serves signals of any scale and no level need be known beforehand.
    """

    threshold: float = 12.0
    """In standard deviations, summed over steps."""
    slack: float = 0.5
    """Deviation per step that is let pass, in standard deviations: half the shift to be found."""
    warm_up: int = 50
    """Observations before sums are taken, also after each alarm."""
    sides: Sides = "both"

    def __post_init__(self):
        _check_fields(self.threshold, self.slack, "slack", self.warm_up)

    def start(self, xp: Any, shape: tuple[int, ...] = ()) -> CusumState:
        """The state before the first observation of signals of this shape."""
        zeros = xp.zeros(shape, xp.float32)
        return CusumState(xp.zeros(shape, xp.int32), zeros, zeros, zeros, zeros)

    def step(self, xp: Any, state: CusumState, x: Any) -> tuple[CusumState, Any]:
        """The state after observing `x`, and where it raised an alarm (bool, of the signal's shape)."""
        x, seen = _observation(xp, x)
        count = state.count + 1
        before, now = xp.asarray(state.count, xp.float32), xp.asarray(count, xp.float32)
        mean = state.mean + (x - state.mean) / now
        deviation = xp.sqrt(state.squares / xp.maximum(before - 1, 1))
        # A signal that never moved has no deviation: any other value is then far away.
        scaled = (x - state.mean) / xp.maximum(deviation, SMALLEST_DEVIATION)
        z = xp.where(count > self.warm_up, xp.sqrt(before / now) * scaled, 0)
        rise = xp.maximum(state.rise + z - self.slack, 0)
        fall = xp.maximum(state.fall - z - self.slack, 0)
        alarm = seen & (_watched(xp, rise, fall, self.sides) > self.threshold)
        squares = state.squares + (x - state.mean) * (x - mean)
        return _settle(xp, state, CusumState(count, mean, squares, rise, fall), seen, alarm), alarm


class Delays(NamedTuple):
    """How well alarms tell of boundaries."""

    delays: tuple[int | None, ...]
    """For each boundary, steps from it to the first alarm before the next one; None if there is none."""
    false_alarms: int
    """Alarms that are not the first after a boundary."""
    missed: int
    """Boundaries that no alarm tells of."""


def delays(alarms: Sequence[int], boundaries: Sequence[int]) -> Delays:
    """Detection delay, false alarms and missed boundaries; all arguments in environment steps.

    `boundaries` are ascending and leave step 0 out. An alarm belongs to the last boundary at or
    before it.
    """
    first: dict[int, int] = {}
    for alarm in sorted(int(step) for step in alarms):
        owner = bisect_right(boundaries, alarm) - 1
        if owner >= 0:
            first.setdefault(owner, alarm)
    found = tuple(
        first[position] - int(boundary) if position in first else None for position, boundary in enumerate(boundaries)
    )
    return Delays(found, len(alarms) - len(first), found.count(None))


def _observation(xp: Any, x: Any) -> tuple[Any, Any]:
    """The signal in single precision with zero where it is not finite, and where it is."""
    x = xp.asarray(x, xp.float32)
    seen = xp.isfinite(x)
    return xp.where(seen, x, 0), seen


def _watched(xp: Any, rise: Any, fall: Any, sides: Sides) -> Any:
    if sides == "both":
        return xp.maximum(rise, fall)
    return rise if sides == "rise" else fall


def _settle(xp: Any, before: Any, after: Any, seen: Any, alarm: Any) -> Any:
    """The old state where nothing was seen, an empty one after an alarm, the new one elsewhere."""
    return type(after)(*[xp.where(seen, xp.where(alarm, 0, new), old) for old, new in zip(before, after, strict=True)])


def _check_fields(threshold: float, allowance: float, allowance_name: str, warm_up: int) -> None:
    if not 0 < threshold < math.inf:
        raise ConfigError(f"threshold is {threshold}; give a positive number")
    if not 0 <= allowance < math.inf:
        raise ConfigError(f"{allowance_name} is {allowance}; give zero or a positive number")
    if warm_up < 2:
        raise ConfigError(f"warm_up is {warm_up}; it takes at least two observations to know a level")
