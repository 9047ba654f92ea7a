"""The tasks that a server offers by split and number, without a word on what they hold."""

from typing import Any, NamedTuple

from perdure.core.errors import ConfigError, nearest
from perdure.worlds.concierge import tasks, world
from perdure.worlds.concierge.records import MAX_TURNS

MOST_LISTED = 1000
"""Tasks in one answer at most."""
SEEDS = {
    "train": {stage: range(base, base + world.TRAINING_SEEDS) for stage, base in tasks.STAGE_BASE.items()},
    "validation": dict.fromkeys(MAX_TURNS, tasks.VALIDATION[:50]),
    "probe": dict.fromkeys(MAX_TURNS, tasks.VALIDATION[50:250]),
}
"""Split -> stage -> task seeds. No seed stands in two splits."""
KINDS = {"train": "train", "validation": "validation", "probe": "test"}
"""Split -> what OpenEnv calls one of its kind."""


class NoTask(ConfigError, IndexError):
    """A number beyond those of a split."""


class Served(NamedTuple):
    """A task that can be asked for; all of the seeds of stage 1 come before those of stage 2."""

    id: str
    split: str
    index: int
    stage: int
    seed: int
    max_turns: int


def splits() -> list[dict[str, str]]:
    """The splits with their kinds."""
    return [{"name": name, "type": kind} for name, kind in KINDS.items()]


def count(split: str) -> int:
    """How many tasks a split has."""
    return sum(map(len, _stages(split).values()))


def task(split: str, index: int) -> Served:
    """A task by its number, from 0; NoTask for one that the split does not have."""
    left = index
    if index >= 0:
        for stage, seeds in _stages(split).items():
            if left < len(seeds):
                return Served(f"{split}-{index}", split, index, stage, seeds[left], MAX_TURNS[stage])
            left -= len(seeds)
    raise NoTask(f"{split} has the tasks 0 to {count(split) - 1}, not {index}")


def between(split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
    """Tasks from `start` to before `stop`, as slices count, MOST_LISTED at most."""
    chosen = range(*slice(start, stop).indices(count(split)))
    return [task(split, index)._asdict() for index in chosen[:MOST_LISTED]]


def _stages(split: str) -> dict[int, range]:
    if split not in SEEDS:
        raise ConfigError(f"split is {split!r}; {nearest(split, SEEDS)}")
    return SEEDS[split]
