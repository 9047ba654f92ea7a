"""Files of JSON objects, one a line: appended to, readable while they grow, cut back by a resume."""

# Rows hold values of any type.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from perdure.core.errors import DataError
from perdure.harness import directory


class JsonLines:
    """A file of JSON objects, one a line, flushed after every `write`.

    Opened at the `rows` and `bytes` of a checkpoint, the file is cut back to them.
    """

    def __init__(self, path: Path, rows: int = 0, bytes: int = 0):
        self.path, self.rows, self._bytes = path, rows, bytes
        with directory.disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
        try:
            self._cut(bytes)
        except BaseException:
            self._file.close()
            raise

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append objects; NaN and infinities become null. RunFailed if the disk is full."""
        lines = [_line(row) for row in rows]
        if not lines:
            return
        content = "".join(lines).encode()
        with directory.disk(self.path):
            written = 0
            while written < len(content):
                written += self._file.write(content[written:])
        self.rows += len(lines)
        self._bytes += len(content)

    def flush(self) -> None:
        """Bring what was written to the disk itself."""
        with directory.disk(self.path):
            os.fsync(self._file.fileno())

    def counts(self) -> dict[str, int]:
        """Lines and bytes written so far."""
        return {"rows": self.rows, "bytes": self._bytes}

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with directory.disk(self.path):
            self._file.close()

    def _cut(self, length: int) -> None:
        size = self.path.stat().st_size
        if size < length:
            raise DataError(
                f"{self.path} has {size} bytes, its checkpoint {length}; restore the file or start a new run"
            )
        if size == length:
            return
        if length:
            with self.path.open("rb") as file:
                file.seek(length - 1)
                if file.read(1) != b"\n":
                    raise DataError(
                        f"{self.path} was changed since its checkpoint; restore the file or start a new run"
                    )
        with directory.disk(self.path):
            os.truncate(self.path, length)


def _line(row: Mapping[str, Any]) -> str:
    try:
        return _ENCODER.encode(row) + "\n"
    except (ValueError, TypeError):
        return json.dumps(_without_nan(row), allow_nan=False, separators=(",", ":")) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)


def _without_nan(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_without_nan(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


_ENCODER = json.JSONEncoder(allow_nan=False, default=_plain, separators=(",", ":"))
