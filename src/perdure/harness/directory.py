"""A run's folder: created or opened by one process at a time, its files written whole or not at all."""

import contextlib
import datetime
import errno
import json
import os
import platform
import sys
from collections.abc import Generator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from perdure.core.errors import DataError, RunFailed

SCHEMA = "perdure.run/1"
PARTIAL = ".partial"
"""Ending of a file or folder that is being written; whatever bears it is thrown away by the next opening."""

UNFINISHED = ("running", "interrupted", "failed")


class RunDirectory(NamedTuple):
    """A folder that this process alone may write, until `close`."""

    path: Path
    meta: dict[str, Any]
    """The contents of run.json, or an empty mapping where no run was begun here."""
    lock: int
    """File descriptor that holds the lock; the kernel frees it when the process dies."""

    def close(self) -> None:
        """Let other processes write here."""
        os.close(self.lock)


def open_directory(path: Path, config_hash: str, resume: bool) -> RunDirectory:
    """Create or reopen the folder of a run, and lock it.

    Raises DataError where it holds a finished run (unless `resume`, which then has nothing left to
    do), an unfinished one without `resume`, a run of another document, or files of no known run;
    also where another process is writing it.
    """
    with disk(path):
        path.mkdir(parents=True, exist_ok=True)
    lock = _lock(path)
    try:
        meta = read_meta(path) if (path / "run.json").exists() else {}
        _check(path, meta, config_hash, resume)
        _sweep_partial(path)
    except BaseException:
        os.close(lock)
        raise
    return RunDirectory(path, meta, lock)


def read_meta(path: Path) -> dict[str, Any]:
    """The contents of PATH/run.json; DataError naming the file if it is not a JSON object."""
    file = path / "run.json"
    try:
        meta: Any = json.loads(file.read_bytes())
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}); restore it or remove the folder") from None
    except ValueError as error:
        raise DataError(f"{file} is not JSON ({error}); restore it or remove the folder") from None
    if not isinstance(meta, dict):
        raise DataError(f"{file} holds a {type(meta).__name__}, not an object; restore it or remove the folder")
    return {**meta}


def write_meta(path: Path, meta: Mapping[str, Any]) -> None:
    """Replace PATH/run.json in one step."""
    write_atomic(path / "run.json", (json.dumps(meta, indent=1, allow_nan=False) + "\n").encode())


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, bring it to the disk, and rename it into place.

    Raises RunFailed naming the path where the disk is full or cannot be written.
    """
    partial = path.with_name(f".{path.name}{PARTIAL}")
    with disk(path):
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder (a rename, say) to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def disk(path: Path) -> Generator[None]:
    """Turn an operating-system error into RunFailed that names `path` and what to do."""
    try:
        yield
    except OSError as error:
        raise RunFailed(f"cannot write {path}: {error.strerror or error}; {_remedy(error)}") from error


def with_facts(meta: Mapping[str, Any], path: Path, segments: Sequence[Any]) -> dict[str, Any]:
    """The first run.json of a run: `meta` completed with the facts that can be read off the machine."""
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "run_id": path.name,
        "algorithm_id": path.name,
        "task": "unknown",
        "seeds": [],
        "status": "running",
        "total_steps": segments[-1].end,
        "done_steps": 0,
        "score": "return",
        "boundary_source": "none",
        "config": {},
        "config_hash": "",
        "segments": [_segment(segment) for segment in segments],
        "bounds": {},
        "bounds_source": {},
        "versions": versions(),
        "hardware": {"cpu_count": os.cpu_count(), "machine": platform.machine()},
        "provenance": {},
        "capabilities": [],
        "created": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "wall_seconds": 0.0,
        "error": None,
    }
    return {**facts, **meta}


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that this process has imported."""
    found = {"python": platform.python_version()}
    for library in ("perdure", "numpy", "jax", "jaxlib", "torch", "gymnasium"):
        if sys.modules.get(library) is not None:
            with contextlib.suppress(metadata.PackageNotFoundError):
                found[library] = metadata.version(library)
    return found


def _segment(segment: Any) -> dict[str, Any]:
    fields = segment._asdict()
    for name in ("params", "params_end"):
        fields[name] = None if fields[name] is None else {key: float(value) for key, value in fields[name].items()}
    return fields


def _check(path: Path, meta: Mapping[str, Any], config_hash: str, resume: bool) -> None:
    elsewhere = "choose another run.output_dir or run.run_id"
    if not meta:
        strangers = [name for name in ("steps", "traces.jsonl", "checkpoints") if (path / name).exists()]
        if strangers:
            raise DataError(f"{path} holds {strangers[0]} but no run.json; {elsewhere}")
        return
    if meta.get("config_hash", "") != config_hash:
        theirs = str(meta.get("config_hash", ""))[:12]
        raise DataError(f"{path} holds a run of another document (hash {theirs}, not {config_hash[:12]}); {elsewhere}")
    if resume:
        return
    if meta.get("status") in UNFINISHED:
        raise DataError(f"{path} holds an unfinished run; pass --resume to go on with it, or {elsewhere}")
    raise DataError(f"{path} holds a finished run; {elsewhere}")


def _lock(path: Path) -> int:
    import fcntl

    with disk(path / ".lock"):
        descriptor = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DataError(f"{path} is being written by another process; wait for it or choose another folder") from None
    return descriptor


def _sweep_partial(path: Path) -> None:
    import shutil

    for leftover in [*path.glob(f".*{PARTIAL}"), *path.glob(f"*/.*{PARTIAL}")]:
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free some space and go on with --resume"
    return "check the path and its permissions"
