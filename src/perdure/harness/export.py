"""Export bundles: a policy that can be handed on, with what is needed to use and to trust it.

bundle.json    format version, algorithm, config hash, when, sha256 of every other file, external weights
config.yaml    the resolved document        spaces.json   observation and action spaces
regimes.json   regimes seen, with bounds    README.md     the same for people
policy/        weights: npz, safetensors or JSON, never pickle
"""

# JSON carries no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import datetime
import json
import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from perdure.core import arrays
from perdure.core.errors import DataError, PerdureError
from perdure.harness import checkpoint, directory, spaces

FORMAT = "perdure.bundle/1"


class Bundle(NamedTuple):
    """A bundle that was verified while it was read."""

    path: Path
    manifest: Mapping[str, Any]
    """bundle.json."""
    config: Mapping[str, Any]
    spaces: Mapping[str, Any]
    regimes: Mapping[str, Any]
    policy: Path
    """Folder of the weights."""


def export_bundle(
    folder: Path, env: Any, algorithm: Any, run: Mapping[str, Any], external: Mapping[str, Any] | None = None
) -> Path:
    """Write a bundle of a third-party algorithm while its environment is still open.

    `run` is the run's run.json (or any part of it). With `external`, {"uri", "sha256"} of weights
    kept elsewhere, none are written here. Raises DataError where `folder` is not empty or the
    algorithm wrote pickle.
    """
    described = {name: spaces.as_json(getattr(env, f"{name}_space")) for name in ("observation", "action")}

    def write(policy: Path) -> Mapping[str, Any]:
        if external is None:
            algorithm.save_checkpoint(policy)
        return {
            "kind": "algorithm checkpoint",
            "algorithm": f"{type(algorithm).__module__}:{type(algorithm).__qualname__}",
        }

    return _write(Path(folder), write, described, run, external)


def export_run(
    run: Path,
    learner: Any,
    destination: Path,
    *,
    state: Any = None,
    spec: Any = None,
    external: Mapping[str, Any] | None = None,
) -> Path:
    """Write a bundle of a run's policy: that of `state`, or of the newest checkpoint.

    The spaces come from the learner's description ("spaces"), else from `spec`.
    """
    meta = directory.read_meta(run)
    if state is None:
        state = learner.load(checkpoint.newest(run))
    found: dict[str, Any] = {} if spec is None else spaces.of_spec(spec)

    def write(policy: Path) -> Mapping[str, Any]:
        description = dict(learner.export(state, policy)) if external is None else {}
        found.update(description.pop("spaces", {}))
        return description

    return _write(Path(destination), write, found, meta, external)


def verify(path: Path) -> list[str]:
    """Everything wrong with a bundle, a sentence each; an empty list if it is whole.

    Looks for missing, altered and unlisted files, names that lead out of the bundle, links, and pickle.
    """
    path = Path(path)
    try:
        index = checkpoint.read_json(path / "bundle.json")
    except DataError as error:
        return [str(error)]
    if index.get("format") != FORMAT:
        return [f"{path / 'bundle.json'} has format {index.get('format')!r}, not {FORMAT!r}"]
    listed = index.get("files")
    if not isinstance(listed, Mapping):
        return [f"{path / 'bundle.json'} lists no files"]
    problems = [problem for name, digest in listed.items() for problem in _file_problems(path, name, digest)]
    for name in _files(path):
        if (path / name).is_symlink():
            problems.append(f"{name} is a link; a bundle holds files only")
        elif name not in listed and name != "bundle.json":
            problems.append(f"{name} is not listed in bundle.json")
    return problems


def load_bundle(path: Path) -> Bundle:
    """Read a bundle; DataError naming the first problem that `verify` finds."""
    path = Path(path)
    problems = verify(path)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise DataError(f"{path} is not a whole bundle: {problems[0]}{more}; export it again")
    import yaml

    return Bundle(
        path=path,
        manifest=checkpoint.read_json(path / "bundle.json"),
        config=yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8")) or {},
        spaces=checkpoint.read_json(path / "spaces.json"),
        regimes=checkpoint.read_json(path / "regimes.json"),
        policy=path / "policy",
    )


def refuse_taken(folder: Path) -> None:
    """Raise DataError where something is that a bundle would write over."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} exists already and is not empty; export to another folder")


def _write(folder: Path, write: Any, described: Mapping[str, Any], meta: Mapping[str, Any], external: Any) -> Path:
    if external is not None and not {"uri", "sha256"} <= set(external):
        raise PerdureError(
            f"external weights are described by uri and sha256, not by {', '.join(external) or 'nothing'}"
        )
    refuse_taken(folder)
    partial = folder.with_name(f".{folder.name}{directory.PARTIAL}")
    with directory.disk(folder):
        shutil.rmtree(partial, ignore_errors=True)
        (partial / "policy").mkdir(parents=True)
    try:
        description = write(partial / "policy")
        _write_texts(partial, description, described, meta)
        _refuse_pickle(partial)
        _write_index(partial, description, meta, external)
        with directory.disk(folder):
            os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _write_texts(folder: Path, description: Any, described: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
    import yaml

    config = yaml.safe_dump(dict(meta.get("config") or {}), sort_keys=False, allow_unicode=True)
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    _write_json(folder / "spaces.json", described)
    segments = meta.get("segments") or []
    origins = {segment["id"]: segment["origin"] for segment in segments}
    _write_json(
        folder / "regimes.json", {"origins": origins, "bounds": meta.get("bounds") or {}, "params": _params(segments)}
    )
    (folder / "README.md").write_text(_card(description, meta, origins), encoding="utf-8")


def _write_index(folder: Path, description: Any, meta: Mapping[str, Any], external: Any) -> None:
    index = {
        "format": FORMAT,
        "algorithm_id": meta.get("algorithm_id"),
        "task": meta.get("task"),
        "run_id": meta.get("run_id"),
        "config_hash": meta.get("config_hash"),
        "steps": meta.get("done_steps"),
        "created": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "versions": directory.versions(),
        "policy": dict(description),
        "external": dict(external) if external else None,
        "files": {name: arrays.sha256(folder / name) for name in _files(folder)},
    }
    _write_json(folder / "bundle.json", index)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _params(segments: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {segment["id"]: segment["params"] for segment in segments}


def _card(description: Mapping[str, Any], meta: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    told = ", ".join(name if origin == name else f"{name} (= {origin})" for name, origin in origins.items())
    return (
        f"# {meta.get('algorithm_id', 'policy')} on {meta.get('task', 'an unnamed task')}\n\n"
        f"Trained by perdure for {meta.get('done_steps', 'an unknown number of')} steps of each seed "
        f"({', '.join(map(str, meta.get('seeds') or [])) or 'unknown'}).\n\n"
        f"- run: {meta.get('run_id', 'unknown')}\n"
        f"- document: config.yaml, sha256 {meta.get('config_hash', 'unknown')}\n"
        f"- regimes seen: {told or 'none labelled'}\n- told of shifts by: {meta.get('boundary_source', 'none')}\n"
        f"- weights: {description.get('kind', 'elsewhere, see bundle.json')}\n\n"
        "`perdure verify` checks every file against bundle.json.\n"
    )


def _files(folder: Path) -> list[str]:
    """All files and links below a folder, as sorted posix names; links are not followed."""
    names = []
    for place, folders, files in os.walk(folder):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        names.extend((Path(place) / name).relative_to(folder).as_posix() for name in [*files, *links])
    return sorted(names)


def _file_problems(folder: Path, name: Any, digest: Any) -> list[str]:
    parts = PurePosixPath(str(name)).parts
    if not isinstance(name, str) or not parts or name.startswith("/") or ".." in parts or "\\" in name or ":" in name:
        return [f"bundle.json lists {name!r}, which leads out of the bundle"]
    file = folder / name
    above = [folder.joinpath(*parts[:depth]) for depth in range(1, len(parts) + 1)]
    try:
        if any(place.is_symlink() for place in above):
            return [f"{name} is or lies behind a link; a bundle holds files only"]
        if not file.is_file():
            return [f"{name} is missing"]
        if arrays.sha256(file) != digest:
            return [f"{name} was altered: its sha256 is not the recorded one"]
        return [f"{name} holds pickle; weights are npz, safetensors or JSON"] if _is_pickle(file) else []
    except OSError as error:
        return [f"{name[:80]} cannot be read: {error.strerror}"]
    except DataError as error:
        return [str(error)]


def _refuse_pickle(folder: Path) -> None:
    for name in _files(folder):
        if (folder / name).is_symlink():
            raise DataError(f"{name} is a link; a bundle holds files only")
        if _is_pickle(folder / name):
            raise DataError(f"{name} holds pickle, which can run code when read; save npz, safetensors or JSON instead")


def _is_pickle(path: Path) -> bool:
    """Whether a file is a pickle, a zip with one inside (as torch writes), or arrays of objects."""
    import zipfile

    with path.open("rb") as file:
        head = file.read(512)
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return True
    if head[:6] == b"\x93NUMPY":
        return _has_objects(head)
    if not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return any(_is_pickled(member, archive) for member in archive.namelist())
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # RuntimeError: it is encrypted.
        raise DataError(f"{path.name} is an archive that cannot be read ({error}); save the weights again") from None


def _is_pickled(member: str, archive: Any) -> bool:
    """Whether a member of a zip archive is a pickle or an array of objects."""
    with archive.open(member) as inner:
        start = inner.read(512)
    return member.endswith(".pkl") or start[:1] == b"\x80" or (start[:6] == b"\x93NUMPY" and _has_objects(start))


def _has_objects(header: bytes) -> bool:
    """Whether the header of an .npy file names a type that holds Python objects."""
    return b"'descr': '|O'" in header or b"'|O'" in header or b"'O'" in header
