"""Reads runs back from disk, perdure's own and those of anybody who writes one JSON object a step."""

# JSON carries no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perdure.core.errors import DataError
from perdure.core.records import EvaluationRow, Said, Segment, Stream
from perdure.harness import directory, rows
from perdure.harness.rows import Rows

UNLABELLED = "constant"
"""The id of the one regime of a trace without labels."""


class Run(NamedTuple):
    """A run as the metrics and the report read it."""

    path: Path
    meta: dict[str, Any]
    """run.json; where there is none, what the rows themselves say (run_id, algorithm_id, task, seeds)."""
    segments: tuple[Segment, ...]
    streams: list[Stream]
    """One for each seed, rows ordered by step."""
    evaluations: list[EvaluationRow]
    windows: list[dict[str, Any]]
    events: list[dict[str, Any]]
    warnings: list[str]
    """What was tolerated while reading, such as a torn last line."""


def find_runs(path: Path) -> list[Path]:
    """Every run at or below `path`, sorted: folders with run.json, steps/ or traces.jsonl, or a trace file itself.

    Raises DataError if the path does not exist or no run is found.
    """
    path = Path(path)
    if path.is_file():
        return [path.parent if path.name in ("run.json", "traces.jsonl") else path]
    if not path.is_dir():
        raise DataError(f"{path} does not exist; name a run's folder, a folder above it, or a trace file")
    found = sorted(_below(path))
    if not found:
        raise DataError(f"no run at or below {path}; a run is a folder with run.json, steps/ or traces.jsonl")
    return found


def load_run(path: Path) -> Run:
    """Read a run's folder, or a bare file of JSON lines.

    Raises DataError naming file and line for what cannot be read; a torn tail, a missing run.json
    and missing labels are put up with.
    """
    path, warnings = Path(path), []
    if path.is_file():
        folder, meta, found = path.parent, {}, rows.read_jsonl(path, warnings)
    else:
        folder = path
        meta = directory.read_meta(path) if (path / "run.json").exists() else {}
        found = _rows(path, warnings)
    planned = _planned(meta, folder)
    streams = _streams(found, meta, planned, path)
    meta = meta or _reconstructed(streams, path)
    warnings += _shortfall(found, meta)
    bare = path.is_file()
    return Run(
        path=path,
        meta=meta,
        segments=streams[0].segments if streams else planned,
        streams=streams,
        evaluations=[] if bare else _evaluations(folder / "evaluations.jsonl", meta, warnings),
        windows=[] if bare else read_lines(folder / "windows.jsonl", warnings),
        events=[] if bare else read_lines(folder / "events.jsonl", warnings),
        warnings=warnings,
    )


def _shortfall(found: Rows, meta: Mapping[str, Any]) -> list[str]:
    """What is missing of a run that says how much it did."""
    if not len(found.step):
        return ["it holds no steps yet"]
    told = meta.get("rows", meta.get("done_steps", 0) * len(meta.get("seeds") or ()))
    promised = told if meta.get("status") == "finished" else 0
    return [f"run.json tells of {promised} rows, {len(found.step)} are there"] if len(found.step) < promised else []


def read_lines(path: Path, warnings: list[str]) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines, torn tail left out; empty if the file is absent."""
    return [line for _, line in rows.read_lines(path, warnings)]


def _below(path: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(path):
        if "run.json" in files or "traces.jsonl" in files or _has_parts(Path(folder)):
            yield Path(folder)
        names[:] = sorted(name for name in names if name not in ("checkpoints", "steps") and not name.startswith("."))


def _has_parts(folder: Path) -> bool:
    return any((folder / "steps").glob("part-*.parquet"))


def _rows(folder: Path, warnings: list[str]) -> Rows:
    if (folder / "traces.jsonl").exists():
        if _has_parts(folder):
            raise DataError(f"{folder} holds both steps/ and traces.jsonl; move one of them away")
        return rows.read_jsonl(folder / "traces.jsonl", warnings)
    return rows.read_parts(folder / "steps", warnings)


def _streams(found: Rows, meta: Mapping[str, Any], planned: tuple[Segment, ...], path: Path) -> list[Stream]:
    keys = np.stack([found.seed, *(labels.codes.astype(np.int64) for labels in found.facts.values())])
    # Rows of one stream come in long runs, so whole runs are sorted into streams, not single rows.
    starts = np.flatnonzero(np.concatenate([[True], (keys[:, 1:] != keys[:, :-1]).any(axis=0)]))[: len(found.step)]
    ends = np.append(starts[1:], len(found.step))
    kinds, which = np.unique(keys[:, starts], axis=1, return_inverse=True)
    name = path.stem if path.is_file() else path.resolve().name
    streams = []
    for position, key in enumerate(kinds.T):
        pieces = [np.arange(starts[piece], ends[piece]) for piece in np.flatnonzero(which.ravel() == position)]
        picked = _ordered(found, np.concatenate(pieces), path)
        facts = {fact: labels.names[code] for (fact, labels), code in zip(found.facts.items(), key[1:], strict=True)}
        streams.append(_stream(found, picked, {**_known(facts), **meta}, planned, name))
    return sorted(streams, key=lambda stream: (stream.algorithm_id, stream.task, stream.run_id, stream.seed))


def _ordered(found: Rows, picked: np.ndarray, path: Path) -> np.ndarray:
    """The rows of one stream by step; DataError for a step that is there twice."""
    step, lane = found.step[picked], found.lane[picked]
    if (np.diff(step) < 0).any() or (np.diff(step) == 0).any():
        picked = picked[np.lexsort((lane, step))]
        step, lane = found.step[picked], found.lane[picked]
        doubled = (np.diff(step) == 0) & (np.diff(lane) == 0)
        if doubled.any():
            where = int(step[:-1][doubled][0])
            raise DataError(f"{path}: seed {found.seed[picked[0]]} has step {where} twice; keep one of its rows")
    return picked


def _stream(
    found: Rows, picked: np.ndarray, meta: Mapping[str, Any], planned: tuple[Segment, ...], name: str
) -> Stream:
    terminated, truncated = found.terminated[picked], found.truncated[picked]
    ends = bool(terminated.any() or truncated.any())
    bounds = {origin: (low, high) for origin, (low, high) in (meta.get("bounds") or {}).items()}
    return Stream(
        run_id=str(meta.get("run_id") or name),
        algorithm_id=str(meta.get("algorithm_id") or name),
        task=str(meta.get("task") or "unknown"),
        seed=int(found.seed[picked[0]]),
        step=found.step[picked],
        lane=found.lane[picked],
        reward=found.reward[picked],
        terminated=terminated,
        truncated=truncated,
        segments=_segments(found, picked, planned),
        score=meta.get("score") or ("return" if ends else "reward"),
        bounds=bounds,
        total_steps=meta.get("total_steps"),
    )


def _segments(found: Rows, picked: np.ndarray, planned: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """The planned segments where the labels agree with them, else those the labels tell."""
    step, codes, names = found.step[picked], found.regime.codes[picked], found.regime.names
    labelled = any(names[code] for code in np.unique(codes))
    if planned:
        code_of = {name: code for code, name in enumerate(names)}
        expected = np.array([code_of.get(segment.id, -1) for segment in planned])
        ends = np.array([segment.end for segment in planned])
        if (
            not labelled
            or (expected[np.minimum(np.searchsorted(ends, step, side="right"), len(ends) - 1)] == codes).all()
        ):
            return planned
    boundary = found.boundary[picked]
    new = (codes[1:] != codes[:-1]) | (boundary[1:] & ~boundary[:-1])
    starts = np.concatenate([[0], np.flatnonzero(new) + 1])
    edges = [0, *step[starts[1:]].tolist(), int(step[-1]) + 1]
    origins = found.origin.codes[picked]
    return tuple(
        Segment(identity, found.origin.names[origins[row]] or identity, begin, end)
        for row, begin, end in zip(starts, edges[:-1], edges[1:], strict=True)
        for identity in [names[codes[row]] or UNLABELLED]
    )


def _planned(meta: Mapping[str, Any], folder: Path) -> tuple[Segment, ...]:
    try:
        return tuple(Segment(**segment) for segment in meta.get("segments") or ())
    except TypeError as error:
        raise DataError(f"{folder / 'run.json'}: segments are malformed ({error}); restore the file") from None


def _known(facts: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in facts.items() if value}


def _reconstructed(streams: Sequence[Stream], path: Path) -> dict[str, Any]:
    if not streams:
        return {}
    first = streams[0]
    return {
        "run_id": first.run_id,
        "algorithm_id": first.algorithm_id,
        "task": first.task,
        "score": first.score,
        "seeds": sorted({stream.seed for stream in streams}),
        "segments": [segment._asdict() for segment in first.segments],
    }


def _evaluations(path: Path, meta: Mapping[str, Any], warnings: list[str]) -> list[EvaluationRow]:
    name = path.parent.name
    run_id, algorithm_id = str(meta.get("run_id") or name), str(meta.get("algorithm_id") or name)
    task = str(meta.get("task") or "unknown")
    found = []
    for number, line in rows.read_lines(path, warnings):
        try:
            returns = tuple(float(value) for value in line["returns"])
            lengths = tuple(int(value) for value in line.get("lengths", ()))
            metrics = {name: float(value) for name, value in line.get("metrics", {}).items() if value is not None}
            facts = {str(name): tuple(values) for name, values in line.get("facts", {}).items()}
            samples = tuple(tuple(_said(turn) for turn in turns) for turns in line.get("samples", ()))
            place = int(line["seed"]), int(line["step"]), str(line["regime"])
            trained = int(line["trained"]) if "trained" in line else None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"{path}:{number} is no evaluation ({type(error).__name__}: {error}); repair or remove it"
            ) from None
        if not np.isfinite(returns).all():
            raise DataError(f"{path}:{number} has a return that is not finite; repair or remove the line")
        if any(len(values) != len(returns) for values in facts.values()):
            raise DataError(f"{path}:{number} has facts of other than its {len(returns)} episodes; repair or remove it")
        found.append(
            EvaluationRow(run_id, algorithm_id, task, *place, returns, lengths, metrics, facts, samples, trained)
        )
    return found


def _said(turn: Mapping[str, Any]) -> Said:
    return Said(str(turn["saw"]), str(turn["said"]), float(turn["reward"]))
