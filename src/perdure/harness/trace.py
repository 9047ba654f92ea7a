"""Writers of the step trace: Parquet parts for compiled runs, JSON lines for host runs.

Both count what they wrote (`counts`), so that a checkpoint can say where the trace stood, and both
can be opened again at such counts, dropping whatever was written later.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from perdure.core import records
from perdure.harness import lines, parts
from perdure.harness.parts import ParquetTrace

SCHEMA = "perdure.trace/1"

__all__ = ["JsonlTrace", "ParquetTrace", "Trace", "open_trace"]


class Trace(Protocol):
    """Where the rows of a run go."""

    path: Path

    def write_window(self, window: records.RolloutWindow) -> None:
        """Append the rows of a window."""
        ...

    def flush(self) -> None:
        """Return once everything written so far is on the disk, readable."""
        ...

    def counts(self) -> dict[str, int]:
        """What has been written, for a checkpoint; call `flush` first."""
        ...

    def close(self) -> None:
        """Flush and let go of the files."""
        ...


def open_trace(
    folder: Path,
    meta: Mapping[str, Any],
    schedule: records.RegimeSchedule,
    path: Path | None = None,
    at: Mapping[str, int] | None = None,
) -> Trace:
    """The trace of a run: FOLDER/steps, or JSON lines at `path` if one is given.

    `at` are the counts of a checkpoint; what was written after it is deleted. Without them the
    trace starts empty. `meta` is the run's run.json.
    """
    if path is not None:
        return JsonlTrace(path, meta, schedule, at or {"rows": 0, "bytes": 0})
    return ParquetTrace(folder / "steps", tuple(meta["seeds"]), schedule, at or {"rows": 0, "parts": 0})


def first_bad(window: records.RolloutWindow) -> int:
    """The row with the earliest reward that is not finite; there must be one."""
    bad = np.flatnonzero(~np.isfinite(window.rewards()))
    return int(bad[np.argmin(window.columns["step"][bad])])


def finite(window: records.RolloutWindow) -> records.RolloutWindow:
    """The rows of all seeds before the first reward that is not finite: a trace holds no others."""
    if np.isfinite(window.rewards()).all():
        return window
    before = window.columns["step"] < window.columns["step"][first_bad(window)]
    return records.RolloutWindow(columns={name: column[before] for name, column in window.columns.items()})


class JsonlTrace:
    """`traces.jsonl`: one object a step (schema perdure.trace/1), flushed row by row.

    Rows carry the run's own facts (`run_id`, `algorithm_id`, `task`, `config_hash`).
    """

    def __init__(self, path: Path, meta: Mapping[str, Any], schedule: records.RegimeSchedule, at: Mapping[str, int]):
        self.path = path
        self.source = schedule.boundary_source
        self._schedule = schedule
        self._facts = {name: meta.get(name, "") for name in ("run_id", "algorithm_id", "task", "config_hash")}
        self._lines = lines.JsonLines(path, **at)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row, completed with the run's facts."""
        regime = dict(row.get("regime") or {})
        if regime.get("source") is None:
            row = {**row, "regime": {**regime, "source": self.source}}
        self._lines.write([{"v": 1, **self._facts, **row}])

    def write_window(self, window: records.RolloutWindow) -> None:
        """Append the rows of a window that only has columns."""
        columns = {name: np.asarray(values).tolist() for name, values in window.columns.items()}
        for name in ("regime", "origin"):
            columns[name] = parts.label_names(window.columns[name], name, self._schedule).tolist()
        components = [name for name in columns if name.startswith("component/")]
        for position in range(len(window)):
            row = {name: values[position] for name, values in columns.items()}
            terms = {name.removeprefix("component/"): row.pop(name) for name in components}
            regime = {"id": row["regime"], "origin": row.pop("origin"), "boundary": row.pop("boundary"), "source": None}
            self.write({**row, "regime": regime, "components": terms})

    def flush(self) -> None:
        """Bring the rows to the disk."""
        self._lines.flush()

    def counts(self) -> dict[str, int]:
        """Rows and bytes written so far."""
        return self._lines.counts()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._lines.close()
