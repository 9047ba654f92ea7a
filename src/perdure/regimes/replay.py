"""The regimes of an earlier run, read from its trace, as the schedule of a new one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from perdure.core.component import component
from perdure.core.errors import ConfigError, DataError, Refused
from perdure.core.records import Params, Segment
from perdure.regimes.schedules import Scheduled, cut, lay

Label = tuple[int, int, str, str]
"""Seed, step, regime id, origin."""


@component
class Replay(Scheduled):
    """Labels of an earlier run: a run directory, a folder of Parquet parts, or a `traces.jsonl`.

    Where the run directory says which parameters its regimes had (`run.json`), they are set again;
    otherwise the provider only labels. The new run may be shorter than the trace, not longer. A shift
    inside a step of all copies moves to the next such step.
    """

    path: str
    seed: int | None = None
    """Whose rows to read; the first row's by default."""

    def plan(self, total_steps: int, n_envs: int = 1) -> tuple[Segment, ...]:
        """The trace's segments, cut at the run's end."""
        segments = self._read()
        if segments[-1].end < total_steps:
            raise ConfigError(
                f"regime.path {self.path} holds {segments[-1].end} steps, but rollout.total_steps is {total_steps}; "
                "shorten the run or replay a longer trace"
            )
        return _move_to_rounds(cut(segments, total_steps), n_envs)

    def covering(self, step: int) -> tuple[Segment, ...]:
        """The whole trace; ConfigError past its end."""
        segments = self._read()
        if step >= segments[-1].end:
            raise ConfigError(f"regime.path {self.path} ends at step {segments[-1].end}, before step {step}")
        return segments

    def _read(self) -> tuple[Segment, ...]:
        path = Path(self.path)
        steps, names, origins = _labels(path, self.seed)
        if not np.array_equal(steps, np.arange(len(steps))):
            gap = int(np.argmax(steps != np.arange(len(steps))))
            raise DataError(f"{path}: step {gap} is missing or there twice; replay a whole trace")
        starts = [0, *(np.flatnonzero(names[1:] != names[:-1]) + 1).tolist()]
        ends = [*starts[1:], len(steps)]
        params = _params_by_id(path)
        pieces = [
            (str(names[start]), str(origins[start]), end - start, params.get(str(names[start])))
            for start, end in zip(starts, ends, strict=True)
        ]
        return lay(pieces)


def _move_to_rounds(segments: tuple[Segment, ...], n_envs: int) -> tuple[Segment, ...]:
    """The segments with every inner edge moved up to a multiple of `n_envs`; one that vanishes is left out."""
    last = segments[-1].end
    moved = [
        segment._replace(start=min(_up(segment.start, n_envs), last), end=min(_up(segment.end, n_envs), last))
        for segment in segments
    ]
    return tuple(segment for segment in moved if segment.start < segment.end)


def _up(step: int, multiple: int) -> int:
    return -(-step // multiple) * multiple


def _labels(path: Path, seed: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, ids and origins of one seed's rows, ordered by step."""
    parts = sorted((path / "steps").glob("part-*.parquet")) or sorted(path.glob("part-*.parquet"))
    trace = path if path.is_file() else path / "traces.jsonl"
    if parts:
        rows = _parquet_columns(parts)
    elif trace.is_file():
        labels = list(_jsonl_labels(trace))
        columns = list(zip(*labels, strict=True)) if labels else [(), (), (), ()]
        kinds = (int, int, object, object)
        rows = tuple(np.array(column, dtype=kind) for column, kind in zip(columns, kinds, strict=True))
    else:
        raise DataError(f"regime.path {path} holds neither steps/part-*.parquet nor traces.jsonl; name a run directory")
    seeds = rows[0]
    if not len(seeds):
        raise DataError(f"{path} holds no step; replay a trace that has some")
    chosen = seeds[0] if seed is None else seed
    mine = seeds == chosen
    if not mine.any():
        known = ", ".join(str(value) for value in np.unique(seeds))
        raise ConfigError(f"regime.seed is {seed}, which {path} does not hold; it has {known}")
    steps, names, origins = (column[mine] for column in rows[1:])
    order = np.argsort(steps, kind="stable")
    return steps[order], names[order], origins[order]


def _parquet_columns(parts: list[Path]) -> tuple[np.ndarray, ...]:
    import pyarrow
    import pyarrow.parquet

    columns = ["seed", "step", "regime", "origin"]
    try:
        table = pyarrow.concat_tables([pyarrow.parquet.read_table(part, columns=columns) for part in parts])
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{parts[0].parent} cannot be read as Parquet ({error}); replay a whole run") from error
    return tuple(np.asarray(table[name].to_pylist(), dtype=int if name in columns[:2] else object) for name in columns)


def _jsonl_labels(trace: Path) -> Iterator[Label]:
    """One label a row; a torn last line is passed over, any other malformed one is refused."""
    with trace.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith("\n") and not _parses(line):
                return
            try:
                row = json.loads(line)
                yield int(row["seed"]), int(row["step"]), *_names(row.get("regime"))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise DataError(f"{trace}:{number} is no row of a trace ({error}); mend or remove it") from error


def _parses(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _names(label: Any) -> tuple[str, str]:
    """Id and origin of a row's label; a missing one reads as one constant regime."""
    if isinstance(label, dict):
        name = label.get("id") or "constant"
        return name, label.get("origin") or name
    return label or "constant", label or "constant"


def _params_by_id(path: Path) -> dict[str, Params]:
    """Parameters of each regime as `run.json` beside the trace has them; empty where it says nothing."""
    description = (path.parent if path.is_file() else path) / "run.json"
    if not description.is_file():
        return {}
    try:
        segments = json.loads(description.read_text(encoding="utf-8")).get("segments", [])
    except ValueError as error:
        raise DataError(f"{description} is not JSON ({error}); replay a run whose run.json is whole") from error
    for segment in segments:
        if segment.get("params_end") is not None:
            raise Refused(f"{description}: regime {segment['id']!r} was a drift; copy its regime section instead")
    return {segment["id"]: segment["params"] for segment in segments if segment.get("params") is not None}
