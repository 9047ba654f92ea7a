"""A world that changes gradually: parameters move along straight lines, and no step is a boundary."""

from collections.abc import Sequence

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.core.records import Params, Segment
from perdure.regimes.schedules import Scheduled, cut, refuse_misfit


@component
class Waypoint:
    """One leg of a piecewise drift: after `steps` more steps the parameters are `state`."""

    steps: int
    state: dict[str, float]


@component
class Drift(Scheduled):
    """Parameters moving from `start` to `end` over the run, to and fro, or along waypoints.

    With `end` alone the whole run is one line. With `period` too they go to `end` and back once a
    period (in environment steps of one seed; half of it each way), until the run is over. With
    `waypoints` they go from one to the next. All pieces share one id: a drift has no boundary.
    """

    start: dict[str, float]
    end: dict[str, float] | None = None
    period: int | None = None
    waypoints: tuple[Waypoint, ...] = ()
    id: str = "drift"

    def __post_init__(self):
        if (self.end is None) == (not self.waypoints):
            raise ConfigError("end and waypoints: give exactly one of the two; a drift must lead somewhere")
        if self.period is not None and (self.end is None or self.period < 2 or self.period % 2):
            raise ConfigError(f"period is {self.period}; it must be even, at least 2, and stand beside end")
        _refuse_other_names(self.start, self.end, "end")
        for position, waypoint in enumerate(self.waypoints):
            if waypoint.steps <= 0:
                raise ConfigError(f"waypoints[{position}].steps is {waypoint.steps}; a leg needs at least one step")
            _refuse_other_names(self.start, waypoint.state, f"waypoints[{position}].state")

    def plan(self, total_steps: int, n_envs: int = 1) -> tuple[Segment, ...]:
        """The legs of the drift as segments of one id, each with `params` and `params_end`."""
        if self.waypoints:
            segments = self._legs([(waypoint.steps, waypoint.state) for waypoint in self.waypoints])
            refuse_misfit(segments, total_steps, "regime.waypoints", "make them add up")
            return segments
        assert self.end is not None
        if self.period is None:
            return self._legs([(total_steps, self.end)])
        half = self.period // 2
        count = -(-total_steps // half)
        turns = [(half, self.start if turn % 2 else self.end) for turn in range(count)]
        return cut(self._legs(turns), total_steps)

    def covering(self, step: int) -> tuple[Segment, ...]:
        """The legs up to beyond `step`; a single line needs the run's length and is refused."""
        if self.waypoints:
            length = sum(waypoint.steps for waypoint in self.waypoints)
            if step >= length:
                raise ConfigError(f"regime.waypoints end at step {length}, before step {step}; add one")
            return self.plan(length)
        if self.period is None:
            raise ConfigError("regime.end is reached where the run ends; use schedule(provider, total_steps)")
        return self.plan(step + 1)

    def _legs(self, legs: Sequence[tuple[int, Params]]) -> tuple[Segment, ...]:
        segments, position, here = [], 0, self.start
        for steps, there in legs:
            segments.append(Segment(self.id, self.id, position, position + steps, here, there))
            position, here = position + steps, there
        return tuple(segments)


def _refuse_other_names(start: Params, other: Params | None, place: str) -> None:
    if other is not None and set(other) != set(start):
        odd = sorted(set(start) ^ set(other))
        raise ConfigError(f"{place}: {', '.join(odd)} must stand in both start and {place}; a drift needs both values")
