"""Checkpoints without pickle: arrays in one npz with a described tree, and the folders a run keeps them in.

A checkpoint folder is written under a temporary name and renamed, so one that bears its final name
is whole. Its `harness.json` says how many rows every file of the run had at that moment.
"""

# JSON carries no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import base64
import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from perdure.core.errors import DataError, nearest
from perdure.harness import directory

KEPT = 2
"""How many checkpoints a run keeps."""

_TREE = "perdure.arrays/1"


def save_arrays(folder: Path, leaves: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Write arrays into FOLDER/arrays.npz and their names, shapes and types, with `meta`, into tree.json.

    `leaves` maps a path such as "params/actor/0/kernel" to an array; bfloat16 is stored as a uint16
    view and comes back as bfloat16. Object arrays are refused: they would need pickle.
    """
    described, stored = {}, {}
    for position, (path, leaf) in enumerate(leaves.items()):
        array = np.asarray(leaf)
        if array.dtype.hasobject:
            raise DataError(f"checkpoint leaf {path!r} is an object array; store numbers, or text as a unicode array")
        name = f"a{position}"
        described[path] = {"array": name, "shape": list(array.shape), "dtype": array.dtype.name}
        stored[name] = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
    file = folder / "arrays.npz"
    with directory.disk(file), file.open("wb") as handle:
        np.savez(handle, **stored)
        handle.flush()
        os.fsync(handle.fileno())
    tree = {"schema": _TREE, "sha256": sha256(file), "leaves": described, "meta": dict(meta)}
    directory.write_atomic(folder / "tree.json", (json.dumps(tree, indent=1, allow_nan=False) + "\n").encode())


def load_arrays(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What `save_arrays` wrote: (leaves, meta).

    Raises DataError for a missing, torn or altered file, and for a type this process does not know.
    """
    tree = read_json(folder / "tree.json")
    file = folder / "arrays.npz"
    if tree.get("schema") != _TREE:
        raise DataError(f"{folder / 'tree.json'} has schema {tree.get('schema')!r}, not {_TREE!r}; it is no checkpoint")
    if not file.exists() or sha256(file) != tree["sha256"]:
        raise DataError(
            f"{file} is missing, torn or altered (its sha256 is not the recorded one); use another checkpoint"
        )
    leaves = {}
    try:
        with np.load(file, allow_pickle=False) as arrays:
            for path, leaf in tree["leaves"].items():
                leaves[path] = _restored(arrays[leaf["array"]], leaf, path, file)
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{file} does not hold the arrays that tree.json lists ({error}); use another checkpoint"
        ) from None
    return leaves, tree["meta"]


def match_leaves(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], folder: Path) -> None:
    """Raise DataError unless `found` has exactly the paths, shapes and types of `wanted`."""
    place = f"{folder} is a checkpoint of another program:"
    for path in wanted:
        if path not in found:
            raise DataError(f"{place} it has no {path!r}; {nearest(path, found)}")
        theirs, ours = np.asarray(found[path]), np.asarray(wanted[path])
        if (theirs.shape, theirs.dtype) != (ours.shape, ours.dtype):
            raise DataError(f"{place} {path!r} is {theirs.dtype}{theirs.shape}, not {ours.dtype}{ours.shape}")
    for path in found:
        if path not in wanted:
            raise DataError(f"{place} it has {path!r}, which this one lacks; {nearest(path, wanted)}")


def write_checkpoint(run: Path, step: int, save: Callable[[Path], None], counts: Mapping[str, Any]) -> Path:
    """Write checkpoints/STEP with `save(folder)` and `counts` (harness.json); keep the newest two."""
    parent = run / "checkpoints"
    final, partial = parent / f"{step:012d}", parent / f".{step:012d}{directory.PARTIAL}"
    with directory.disk(final):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        save(partial)
        directory.write_atomic(partial / "harness.json", (json.dumps(counts) + "\n").encode())
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
    except (ValueError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not JSON ({error}); use another copy") from None
    if not isinstance(value, dict):
        raise DataError(f"{path} holds a {type(value).__name__}, not an object; use another copy")
    return value


def sha256(path: Path) -> str:
    """Hex digest of a file's contents."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def _restored(array: np.ndarray, leaf: Mapping[str, Any], path: str, file: Path) -> np.ndarray:
    if leaf["dtype"] == "bfloat16":
        try:
            from ml_dtypes import bfloat16
        except ImportError:
            raise DataError(f"{file}: leaf {path!r} is bfloat16; install ml_dtypes to read it") from None
        array = array.view(bfloat16)
    if list(array.shape) != leaf["shape"] or array.dtype.name != leaf["dtype"]:
        found = f"{array.dtype.name}{list(array.shape)}"
        raise DataError(f"{file}: leaf {path!r} is {found}, not the {leaf['dtype']}{leaf['shape']} of tree.json")
    return array
