"""Named arrays on disk without pickle: arrays.npz, and tree.json that describes and seals it."""

# JSON carries no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from perdure.core.errors import DataError, nearest

SCHEMA = "perdure.arrays/1"

_REMEDY = "remove that checkpoint's folder to use the one before it"


def save(folder: Path, leaves: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Write `leaves` into FOLDER/arrays.npz; their names, shapes and types, with `meta`, into tree.json.

    A leaf's name is a path such as "seeds/agent/params/actor/0/w". bfloat16 is stored as a uint16
    view and comes back as bfloat16. Raises DataError for object arrays, which would need pickle,
    and OSError where the disk takes no more.
    """
    described, stored = {}, {}
    for position, (path, leaf) in enumerate(leaves.items()):
        array = np.asarray(leaf)
        if array.dtype.hasobject:
            raise DataError(f"array {path!r} holds objects; store numbers, or text as a unicode array")
        described[path] = {"array": f"a{position}", "shape": list(array.shape), "dtype": array.dtype.name}
        stored[f"a{position}"] = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
    file = folder / "arrays.npz"
    with file.open("wb") as handle:
        np.savez(handle, **stored)
        handle.flush()
        os.fsync(handle.fileno())
    tree = {"schema": SCHEMA, "sha256": sha256(file), "leaves": described, "meta": dict(meta)}
    with (folder / "tree.json").open("w", encoding="utf-8") as handle:
        handle.write(json.dumps(tree, indent=1, allow_nan=False) + "\n")
        handle.flush()
        os.fsync(handle.fileno())


def load(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """What `save` wrote: (leaves, meta). Raises DataError for a missing, torn, altered or foreign file."""
    tree, file = _tree(folder / "tree.json"), folder / "arrays.npz"
    if not file.exists() or sha256(file) != tree["sha256"]:
        raise DataError(f"{file} is missing, torn or altered (its sha256 is not the recorded one); {_REMEDY}")
    leaves = {}
    try:
        with np.load(file, allow_pickle=False) as arrays:
            for path, leaf in tree["leaves"].items():
                leaves[path] = _restored(arrays[leaf["array"]], leaf, f"{file}: {path!r}")
    except DataError:
        raise
    except (ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise DataError(f"{file} does not hold the arrays that tree.json lists ({error}); {_REMEDY}") from None
    return leaves, tree["meta"]


def match(found: Mapping[str, np.ndarray], wanted: Mapping[str, Any], folder: Path) -> None:
    """Raise DataError unless `found` has exactly the paths, shapes and types of `wanted`."""
    place = f"{folder} is a checkpoint of another program:"
    for path, ours in wanted.items():
        if path not in found:
            raise DataError(f"{place} it lacks {path!r}; {nearest(path, found)}")
        theirs = found[path]
        if (tuple(theirs.shape), str(theirs.dtype)) != (tuple(ours.shape), str(ours.dtype)):
            raise DataError(
                f"{place} {path!r} is {theirs.dtype}{list(theirs.shape)}, not {ours.dtype}{list(ours.shape)}"
            )
    for path in found:
        if path not in wanted:
            raise DataError(f"{place} it has {path!r}, which this program does not know; {nearest(path, wanted)}")


def sha256(file: Path) -> str:
    """The sha256 of a file, in hex."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _tree(file: Path) -> dict[str, Any]:
    """The description of some arrays; DataError where it is missing, torn or of something else."""
    try:
        tree = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{file} is missing; {_REMEDY}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read ({error}); {_REMEDY}") from None
    if not isinstance(tree, dict) or tree.get("schema") != SCHEMA:
        raise DataError(f"{file} is not of schema {SCHEMA!r}, so it describes no checkpoint; {_REMEDY}")
    for key, kind in (("sha256", str), ("leaves", dict), ("meta", dict)):
        if not isinstance(tree.get(key), kind):
            raise DataError(f"{file} has no {key!r}, so it is not whole; {_REMEDY}")
    return tree


def _restored(array: np.ndarray, described: Mapping[str, Any], place: str) -> np.ndarray:
    """The array as it was saved; DataError where its shape or type is not the described one."""
    dtype = described["dtype"]
    if dtype == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise DataError(f"{place} is bfloat16; install ml_dtypes to read it") from None
        array = array.view(ml_dtypes.bfloat16)
    if array.dtype.name != dtype or list(array.shape) != described["shape"]:
        found = f"{array.dtype.name}{list(array.shape)}"
        raise DataError(f"{place} is {found}, not the {dtype}{described['shape']} of tree.json; {_REMEDY}")
    return array
