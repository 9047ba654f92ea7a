"""Where the numbers of a run go as they arise: files of JSON lines here, a terminal in `progress`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from perdure.core.records import RolloutWindow
from perdure.harness.lines import JsonLines

FILES = ("windows", "evaluations", "events")


class Sink(Protocol):
    """What a run tells those who listen. Calls come in order, from one thread."""

    def window(self, window: RolloutWindow, lines: Sequence[Mapping[str, Any]]) -> None:
        """New experience, and its update metrics as lines of windows.jsonl."""
        ...

    def evaluation(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """All evaluations of one mark, as lines of evaluations.jsonl."""
        ...

    def event(self, line: Mapping[str, Any]) -> None:
        """A line of events.jsonl."""
        ...

    def close(self) -> None:
        """The run ended, for whatever reason."""
        ...


class FileSink:
    """windows.jsonl, evaluations.jsonl and events.jsonl of a run's folder.

    Opened at the counts of a checkpoint, each file is cut back to them.
    """

    def __init__(self, folder: Path, at: Mapping[str, Mapping[str, int]] | None = None):
        at = at or {}
        self._files: dict[str, JsonLines] = {}
        try:
            for name in FILES:
                self._files[name] = JsonLines(folder / f"{name}.jsonl", **at.get(name, {}))
        except BaseException:
            self.close()
            raise

    def window(self, window: RolloutWindow, lines: Sequence[Mapping[str, Any]]) -> None:
        """Append update metrics."""
        self._files["windows"].write(lines)

    def evaluation(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Append evaluations."""
        self._files["evaluations"].write(lines)

    def event(self, line: Mapping[str, Any]) -> None:
        """Append an event."""
        self._files["events"].write([line])

    def flush(self) -> None:
        """Bring all three to the disk."""
        for file in self._files.values():
            file.flush()

    def counts(self) -> dict[str, dict[str, int]]:
        """Rows and bytes of each file."""
        return {name: file.counts() for name, file in self._files.items()}

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        for file in self._files.values():
            file.close()
