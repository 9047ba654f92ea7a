"""From a provider to the segments of a run, and from a step to the regime in force.

A segment that follows one with the same id is the same configuration going on (a piece of a
drift, say): there is no boundary between them.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from perdure.core.errors import ConfigError, Refused, nearest
from perdure.core.records import Params, RegimeSchedule, Segment

BOUNDARY_SOURCES = ("oracle", "detector", "none")


class RegimeState(NamedTuple):
    """The regime in force at one step."""

    id: str
    boundary: bool
    """First step of a new configuration."""
    origin: str
    params: Params | None = None
    """What a controller sets at this step; None where the provider only labels."""


class Scheduled:
    """A provider that knows the whole run beforehand: all but `Environment`."""

    scheduled: ClassVar[bool] = True

    def plan(self, total_steps: int, n_envs: int = 1) -> tuple[Segment, ...]:
        """Segments contiguous from 0 up to `total_steps`, in environment steps of one seed.

        Lengths that the provider chooses itself are multiples of `n_envs`.
        """
        raise NotImplementedError

    def covering(self, step: int) -> tuple[Segment, ...]:
        """Segments from 0 to beyond `step`, for a run whose length nobody has said."""
        return self.plan(step + 1)

    def at(self, step: int, info: Mapping[str, Any]) -> RegimeState:
        """The regime in force at `step`; the info is not read.

        It looks the segments up anew: a loop over a whole run does better with `schedule`.
        """
        return state_at(self.covering(step), step)


def schedule(provider: Any, total_steps: int, boundary_source: str = "none", n_envs: int = 1) -> RegimeSchedule:
    """The schedule of a run of `total_steps` steps of each seed over `n_envs` copies.

    Raises ConfigError where the provider's segments do not fit the run or cut through a step of
    all copies, and Refused for a provider whose labels come from the environment alone.
    """
    if boundary_source not in BOUNDARY_SOURCES:
        hint = nearest(boundary_source, BOUNDARY_SOURCES)
        raise ConfigError(f"regime.boundary_source is {boundary_source!r}, which does not exist; {hint}")
    if total_steps <= 0:
        raise ConfigError(f"rollout.total_steps is {total_steps}; a run needs at least one step")
    if not provider.scheduled:
        raise Refused(
            "regime.provider environment has no schedule: its labels come from the environment step by step; "
            "use it with a host environment that reports info['regime'], or choose provider schedule"
        )
    segments = provider.plan(total_steps, n_envs)
    _refuse_uneven(segments, n_envs)
    return RegimeSchedule(segments, boundary_source)


def labels_only(segments: Sequence[Segment]) -> bool:
    """Whether the segments only label a run (a Labeller), rather than also set its physics (a Controller)."""
    return all(segment.params is None for segment in segments)


def boundaries(segments: Sequence[Segment]) -> tuple[int, ...]:
    """The steps at which a new configuration starts, step 0 left out."""
    pairs = itertools.pairwise(segments)
    return tuple(later.start for earlier, later in pairs if later.id != earlier.id)


def params_at(segment: Segment, step: int) -> Params | None:
    """The parameters in force at a step of the segment; in a drift they lie on the line between its ends."""
    if segment.params is None or segment.params_end is None:
        return segment.params
    share = (step - segment.start) / (segment.end - segment.start)
    return {name: value + share * (segment.params_end[name] - value) for name, value in segment.params.items()}


def state_at(segments: Sequence[Segment], step: int) -> RegimeState:
    """The regime in force at a step; a step past the end is an error of the caller."""
    assert 0 <= step < segments[-1].end, f"step {step} lies outside [0, {segments[-1].end})"
    index = int(RegimeSchedule(tuple(segments)).index_at(step))
    segment = segments[index]
    starts_new = index == 0 or segments[index - 1].id != segment.id
    return RegimeState(segment.id, starts_new and step == segment.start, segment.origin, params_at(segment, step))


def lay(pieces: Sequence[tuple[str, str, int, Params | None]]) -> tuple[Segment, ...]:
    """Segments from (id, origin, steps, params) in order, the first at step 0.

    As soon as one piece has parameters, a piece without them means the world as it comes: {}.
    """
    controlled = any(params is not None for _, _, _, params in pieces)
    segments, start = [], 0
    for name, origin, steps, params in pieces:
        settings = {} if params is None and controlled else params
        segments.append(Segment(name, origin, start, start + steps, settings))
        start += steps
    return tuple(segments)


def cut(segments: Sequence[Segment], total_steps: int) -> tuple[Segment, ...]:
    """The part of the segments that lies before `total_steps`; a drift that is cut ends where it then stands."""
    kept = []
    for segment in segments:
        if segment.start >= total_steps:
            break
        if segment.end > total_steps:
            reached = params_at(segment, total_steps) if segment.params_end is not None else None
            segment = segment._replace(end=total_steps, params_end=reached)
        kept.append(segment)
    return tuple(kept)


def refuse_misfit(segments: Sequence[Segment], total_steps: int, place: str, remedy: str) -> None:
    """Raise ConfigError unless the segments end exactly where the run does; names what never occurs."""
    length = segments[-1].end
    if length == total_steps:
        return
    absent = next((segment for segment in segments if segment.start >= total_steps), None)
    note = f", so {absent.id!r} never occurs" if absent is not None else ""
    raise ConfigError(f"{place} add up to {length} steps, but rollout.total_steps is {total_steps}{note}; {remedy}")


def _refuse_uneven(segments: Sequence[Segment], n_envs: int) -> None:
    for position, segment in enumerate(segments):
        if segment.end % n_envs:
            raise ConfigError(
                f"regime.segments[{position}] ({segment.id}) ends at step {segment.end}, inside a step of all "
                f"{n_envs} copies; make its steps a multiple of rollout.n_envs"
            )
