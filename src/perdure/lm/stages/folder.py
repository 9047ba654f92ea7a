"""The folder of a stage: named by what goes into it, written by one process at a time, finished once.

stage.json     what the stage is, and "status": running, then finished
metrics.jsonl  a line a judgement        data.json  what it was trained on
checkpoints/   while it runs; gone when it is finished
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Generator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from perdure.core import arrays
from perdure.core.errors import ConfigError, DataError
from perdure.harness import checkpoint, directory

FILE = "stage.json"
DIGITS = 12


def address(name: str, contents: Mapping[str, Any]) -> str:
    """NAME-<twelve hex digits> of everything that the stage's result depends on, this version of perdure included."""
    facts = {"name": name, "perdure": metadata.version("perdure"), **contents}
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:DIGITS]}"


def is_finished(folder: Path) -> bool:
    """Whether the stage's result is whole."""
    return (folder / FILE).is_file() and checkpoint.read_json(folder / FILE).get("status") == "finished"


def is_begun(folder: Path) -> bool:
    """Whether the stage was begun, finished or not."""
    return (folder / FILE).is_file()


@contextlib.contextmanager
def opened(folder: Path, contents: Mapping[str, Any]) -> Generator[None]:
    """Create or reopen an unfinished stage, alone until the block ends; DataError where another process writes it."""
    with directory.disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{folder} is being written by another process; wait for it, then start again") from None
        if not is_begun(folder):
            write_json(folder / FILE, {"status": "running", **contents})
        yield
    finally:
        os.close(descriptor)


def finish(folder: Path, contents: Mapping[str, Any]) -> None:
    """Say that the result is whole; checkpoints go."""
    write_json(folder / FILE, {"status": "finished", **contents})
    with directory.disk(folder):
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """A JSON file, written whole or not at all."""
    directory.write_atomic(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def digest(path: Path, place: str) -> str:
    """The sha256 of a file that a document names at `place`; ConfigError where it cannot be read."""
    try:
        return arrays.sha256(path)
    except OSError as error:
        raise ConfigError(f"{place} is {str(path)!r}: {error.strerror}; check the path") from None


def base(kwargs: Mapping[str, Any]) -> str:
    """What a document's own policy holds: a digest of its folder's files, or nothing where a name says it all."""
    folder = Path(str(kwargs.get("name_or_path", "")))
    if "name_or_path" not in kwargs or not folder.is_dir():
        return ""
    found = hashlib.sha256()
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        found.update(f"{file.name} {arrays.sha256(file)}\n".encode())
    return found.hexdigest()
