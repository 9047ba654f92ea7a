"""How a report groups runs: a section is one task under one schedule, an arm one algorithm in it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from perdure.core.errors import DataError
from perdure.core.records import EvaluationRow, Segment, Stream
from perdure.report import theme


class Arm(NamedTuple):
    """One algorithm on one task under one schedule, with all its seeds."""

    label: str
    slot: int | None
    """The arm's colour and mark; None where there are more arms than colours and it is not among the first."""
    streams: tuple[Stream, ...]
    evaluations: tuple[EvaluationRow, ...]
    windows: tuple[dict[str, Any], ...] = ()
    """The lines of windows.jsonl of these seeds."""


class Section(NamedTuple):
    """Everything that can be drawn over one x axis."""

    task: str
    segments: tuple[Segment, ...]
    arms: tuple[Arm, ...]
    origins: dict[str, int]
    """Each configuration in order of appearance -> its tint."""
    score: str
    """"return" or "reward", as in `Stream`."""

    @property
    def schedule(self) -> str:
        """The segments' names in order, those in the middle of a long schedule counted."""
        names = [segment.id for segment in self.segments]
        shown = names if len(names) <= 8 else [*names[:6], f"… {len(names) - 7} more …", names[-1]]
        return " → ".join(shown)

    @property
    def title(self) -> str:
        """The task and its schedule."""
        return f"{self.task}: {self.schedule}"


def sections(runs: Sequence[Any], slots: dict[tuple[str, str], int]) -> list[Section]:
    """Group the runs' streams by task and schedule, in order of appearance.

    `slots` gives colours to (task, algorithm_id); the arms not in it are drawn in grey.
    """
    groups: dict[tuple[str, tuple[Any, ...]], list[tuple[Any, Stream]]] = {}
    for run in runs:
        for stream in run.streams:
            shape = tuple((segment.id, segment.origin, segment.start, segment.end) for segment in stream.segments)
            groups.setdefault((stream.task, shape), []).append((run, stream))
    return [_section(task, members, slots) for (task, _), members in groups.items()]


def arm_order(streams: Sequence[Stream]) -> list[tuple[str, str]]:
    """Every (task, algorithm_id), in order of first appearance."""
    return list(dict.fromkeys((stream.task, stream.algorithm_id) for stream in streams))


def colour_slots(ranked: Sequence[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """The first arms of each task get a colour; an algorithm keeps its colour across tasks while colours last."""
    slots: dict[tuple[str, str], int] = {}
    known: dict[str, int] = {}
    for task, algorithm in ranked:
        taken = {slot for (other, _), slot in slots.items() if other == task}
        if len(taken) == theme.LINES:
            continue
        wanted = known.get(algorithm, len(known) % theme.LINES)
        slot = wanted if wanted not in taken else min(set(range(theme.LINES)) - taken)
        known.setdefault(algorithm, slot)
        slots[task, algorithm] = slot
    return slots


def check_distinct(runs: Sequence[Any]) -> None:
    """Raise DataError where two runs hold the same arm, task and seed, naming both folders."""
    owners: dict[tuple[str, str, int], Any] = {}
    for run in runs:
        for stream in run.streams:
            identity = (stream.algorithm_id, stream.task, stream.seed)
            if identity in owners:
                raise DataError(
                    f"{owners[identity]} and {run.path} both hold {stream.algorithm_id} on {stream.task} with seed"
                    f" {stream.seed}; report one of them, or give one another run.algorithm_id"
                )
            owners[identity] = run.path


def _section(task: str, members: list[tuple[Any, Stream]], slots: dict[tuple[str, str], int]) -> Section:
    segments = members[0][1].segments
    by_arm: dict[str, list[tuple[Any, Stream]]] = {}
    for run, stream in members:
        by_arm.setdefault(stream.algorithm_id, []).append((run, stream))
    arms = tuple(
        Arm(
            label=algorithm,
            slot=slots.get((task, algorithm)),
            streams=tuple(stream for _, stream in held),
            evaluations=tuple(row for run, stream in held for row in _rows_of(run, stream)),
            windows=tuple(row for run, stream in held for row in run.windows if row.get("seed") == stream.seed),
        )
        for algorithm, held in by_arm.items()
    )
    names = list(dict.fromkeys(segment.origin for segment in segments))
    origins = {origin: i % theme.BANDS for i, origin in enumerate(names)}
    return Section(task, segments, arms, origins, members[0][1].score)


def _rows_of(run: Any, stream: Stream) -> list[EvaluationRow]:
    identity = (stream.algorithm_id, stream.task, stream.seed)
    return [row for row in run.evaluations if (row.algorithm_id, row.task, row.seed) == identity]
