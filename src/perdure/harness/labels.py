"""The regime of each step, from a schedule or from a provider that is asked step by step."""

from collections.abc import Mapping
from typing import Any

from perdure.core.records import RegimeSchedule, Segment
from perdure.regimes.schedules import RegimeState, params_at


class Labels:
    """Answers for a RegimeSchedule, a provider with `at(step, info)`, or None (no labels).

    Steps are mostly asked in order, so the segment last found is looked at first.
    """

    def __init__(self, source: Any):
        self.source = source
        self._segment: Segment | None = None
        self._starts_new = False

    def before(self, step: int, info: Mapping[str, Any]) -> RegimeState | None:
        """The regime that `step` will be taken under, for those who make it so.

        `info` is that of the step before. None where there is no source, or one that merely repeats
        what the environment says (`scheduled` is False).
        """
        if self.source is None or not getattr(self.source, "scheduled", True):
            return None
        return self._state(step, info)

    def at(self, step: int, info: Mapping[str, Any]) -> RegimeState | None:
        """The label of `step`, whose info this is; None where there is no source."""
        return None if self.source is None else self._state(step, info)

    def _state(self, step: int, info: Mapping[str, Any]) -> RegimeState:
        if not isinstance(self.source, RegimeSchedule):
            return self.source.at(step, info)
        segment = self._find(self.source, step)
        boundary = self._starts_new and step == segment.start
        return RegimeState(segment.id, boundary, segment.origin, params_at(segment, step))

    def _find(self, schedule: RegimeSchedule, step: int) -> Segment:
        if self._segment is None or not self._segment.start <= step < self._segment.end:
            index = int(schedule.index_at(step))
            self._segment = schedule.segments[index]
            self._starts_new = index == 0 or schedule.segments[index - 1].id != self._segment.id
        return self._segment
