"""The checkpoint folders of a run, and plain values that come back from JSON exactly.

A checkpoint folder is written under a temporary name and renamed, so one that bears its final name
is whole. Its `harness.json` says how many rows every file of the run had at that moment.
"""

# JSON carries no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import base64
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from perdure.core import arrays
from perdure.core.errors import DataError
from perdure.harness import directory

KEPT = 2
"""How many checkpoints a run keeps."""


def write_checkpoint(run: Path, step: int, save: Callable[[Path], None], counts: Mapping[str, Any]) -> Path:
    """Write checkpoints/STEP with `save(folder)` and `counts` (harness.json); keep the newest two."""
    parent = run / "checkpoints"
    final, partial = parent / f"{step:012d}", parent / f".{step:012d}{directory.PARTIAL}"
    with directory.disk(final):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        save(partial)
        sealed = {**counts, "sha256": _digests(partial)}
        directory.write_atomic(partial / "harness.json", (json.dumps(sealed) + "\n").encode())
        if final.exists():
            stale = parent / f".{step:012d}.stale{directory.PARTIAL}"
            os.replace(final, stale)
            os.replace(partial, final)
            shutil.rmtree(stale)
        else:
            os.replace(partial, final)
        directory.sync_folder(parent)
        for old in checkpoints(run)[:-KEPT]:
            shutil.rmtree(old)
    return final


def checkpoints(run: Path) -> list[Path]:
    """The whole checkpoints of a run, oldest first."""
    parent = run / "checkpoints"
    if not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if path.name.isdigit() and (path / "harness.json").exists())


def read_counts(folder: Path) -> dict[str, Any]:
    """Where the files of the run stood at a checkpoint; DataError if that is not all there."""
    counts = read_json(folder / "harness.json")
    for key in ("step", "mark", "trace", "files", "versions", "origins"):
        if key not in counts:
            raise DataError(
                f"{folder / 'harness.json'} has no {key!r}, so it is not whole; "
                "remove that checkpoint's folder to use the one before it"
            )
    return counts


def verify(folder: Path) -> Path:
    """The folder itself, if each file of the checkpoint is as it was written; DataError naming one that is not."""
    known: dict[str, str] = read_counts(folder).get("sha256", {})
    found = _digests(folder)
    for name, digest in known.items():
        if found.get(name) != digest:
            what = "is missing" if name not in found else "was altered: its sha256 is not the recorded one"
            raise DataError(f"{folder / name} {what}; remove that checkpoint's folder to use the one before it")
    return folder


def _digests(folder: Path) -> dict[str, str]:
    """The sha256 of every file below a folder but harness.json, by its path in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "harness.json")
    return {path.relative_to(folder).as_posix(): arrays.sha256(path) for path in files}


def newest(run: Path) -> Path:
    """The newest checkpoint of a run; DataError if it has none."""
    found = checkpoints(run)
    if not found:
        raise DataError(f"{run} has no checkpoint; set run.checkpoint_every, or let the run finish")
    return found[-1]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; DataError naming the file if it is missing or damaged."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path} is missing; the folder is not a whole one") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check the path") from None
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); use another copy") from None
    if not isinstance(value, dict):
        raise DataError(f"{path} holds a {type(value).__name__}, not an object; use another copy")
    return value


def encode(value: Any) -> Any:
    """A JSON value for plain containers, numbers, text, bytes, tuples and arrays; DataError for anything else."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise DataError("an object array cannot be stored without pickle; hand out numbers")
        content = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"!": "array", "dtype": value.dtype.str, "shape": list(value.shape), "data": content}
    if isinstance(value, np.generic):
        return {"!": "scalar", "dtype": value.dtype.str, "data": base64.b64encode(value.tobytes()).decode()}
    if isinstance(value, bytes):
        return {"!": "bytes", "data": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {"!": "mapping", "items": [[encode(key), encode(item)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {"!": "tuple", "items": [encode(item) for item in value]}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, float):
        return {"!": "float", "data": value.hex()}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise DataError(f"a {type(value).__name__} cannot be stored as JSON; hand out numbers, text, arrays and containers")


def decode(value: Any) -> Any:
    """The inverse of `encode`."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value["!"]
    if kind == "mapping":
        return {decode(key): decode(item) for key, item in value["items"]}
    if kind == "tuple":
        return tuple(decode(item) for item in value["items"])
    if kind == "float":
        return float.fromhex(value["data"])
    content = base64.b64decode(value["data"])
    if kind == "bytes":
        return content
    array = np.frombuffer(content, np.dtype(value["dtype"]))
    return array[0] if kind == "scalar" else array.reshape(value["shape"]).copy()
