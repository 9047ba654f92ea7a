"""One run from its first step to its last: train to a mark, evaluate, save, go on.

    marks = 0, the end, every multiple of evaluation.every, every segment's end, every checkpoint
    for mark in marks:
        train whole windows until none fits before the mark
        evaluate the policy in force; tell of a shift (oracle); save a checkpoint

The harness sees a `Learner` and numbers; nothing here knows what learns, or in which library.
"""

import contextlib
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from perdure.core import records
from perdure.core.capabilities import DATA
from perdure.core.errors import ConfigError, DataError, PerdureError, RunFailed, told
from perdure.harness import checkpoint, directory, evaluation, parts, progress, signals, sinks, trace
from perdure.harness.evaluation import EvaluationPlan
from perdure.harness.job import Job, RecordsItself, RunResult
from perdure.harness.signals import Interrupted

__all__ = ["EvaluationPlan", "Interrupted", "Job", "RunResult", "execute"]


class _Live:
    """The mutable rest of a run: files, counters, and the learner's state."""

    def __init__(self, job: Job, place: directory.RunDirectory, at: Mapping[str, Any], state: Any):
        self.job, self.folder, self.state = job, place.path, state
        self.began = time.monotonic() - float(place.meta.get("wall_seconds", 0.0) if at else 0.0)
        first = directory.with_facts(job.meta, place.path, job.schedule.segments)
        self.meta = {**first, **place.meta, "config": first["config"], "segments": first["segments"]}
        self.mark = int(at.get("mark", -1))
        """The last mark whose evaluation, shift and checkpoint are done."""
        self.origins = set(at.get("origins", ()))
        self.trace = trace.open_trace(place.path, self.meta, job.schedule, _trace_path(job), at.get("trace"))
        try:
            self.files = sinks.FileSink(place.path, at.get("files"))
        except BaseException:
            self.trace.close()
            raise
        self.shown = progress.Progress(place.path / "log.txt", self.meta, job.schedule, show=job.progress)
        self.sinks: list[sinks.Sink] = [self.files, self.shown, *job.sinks]

    @property
    def step(self) -> int:
        return int(self.job.learner.step(self.state))

    def event(self, kind: str, message: str, step: int | None = None) -> None:
        line = {"step": self.step if step is None else step, "kind": kind, "message": message, "wall": self.wall}
        for sink in self.sinks:
            sink.event(line)

    @property
    def wall(self) -> float:
        return round(time.monotonic() - self.began, 3)

    def write_meta(self, **changes: Any) -> None:
        self.meta.update(changes, done_steps=self.step, wall_seconds=self.wall)
        directory.write_meta(self.folder, self.meta)

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()
        self.trace.close()


def execute(job: Job) -> RunResult:
    """Run a job to its end in its folder, or go on where its newest checkpoint stands.

    Raises DataError where the folder cannot be used, RunFailed where learner, environment or disk
    fail (run.json then says "failed" and all rows are readable), and Interrupted after Ctrl-C or
    SIGTERM, with a checkpoint saved. The learner is closed in every case.
    """
    try:
        if job.schedule.total_steps != job.total_steps:
            raise ConfigError(
                f"the schedule covers {job.schedule.total_steps} steps, rollout.total_steps is {job.total_steps}"
            )
        place = directory.open_directory(job.folder, str(job.meta.get("config_hash", "")), job.resume)
        try:
            if place.meta.get("status") == "finished":
                return _result(job, place.path, place.meta)
            return _run(job, place)
        finally:
            place.close()
    finally:
        job.learner.close()


def _run(job: Job, place: directory.RunDirectory) -> RunResult:
    saved = checkpoint.checkpoints(place.path)
    at = checkpoint.read_counts(saved[-1]) if saved else {}
    _spare_what_is_there(job, place)
    # A checkpoint that cannot be loaded must leave the files as they are, so this comes before they are cut.
    try:
        state = job.learner.load(checkpoint.verify(saved[-1])) if saved else job.learner.init(tuple(job.meta["seeds"]))
    except PerdureError:
        raise
    except Exception as error:
        raise RunFailed(f"the run cannot begin: {told(error)}; mend it and start again") from error
    live = _Live(job, place, at, state)
    try:
        with signals.caught() as stop:
            _begin(live, at)
            for mark in _marks(job):
                if mark > live.mark:
                    _train_to(live, mark, stop)
                    _at_mark(live, mark)
        rows = live.trace.counts()["rows"]
        live.write_meta(status="finished", stationary=len(live.origins) <= 1, rows=rows)
    except PerdureError as error:
        _record_failure(live, error)
        raise
    except Exception as error:
        _record_failure(live, error)
        raise RunFailed(f"step {live.step}: {told(error)}; mend it and go on with --resume") from error
    finally:
        live.close()
    if job.export_dir is not None:
        from perdure.harness import export

        export.export_run(live.folder, job.learner, job.export_dir, state=live.state, external=job.export_external)
    return _result(job, live.folder, live.meta)


def _begin(live: _Live, at: Mapping[str, Any]) -> None:
    learner = live.job.learner
    if isinstance(learner, RecordsItself):
        assert isinstance(live.trace, trace.JsonlTrace)
        learner.record_to(live.trace)
        said, held = learner.provenance(), live.meta["provenance"]
        if at and held.get(DATA, said.get(DATA)) != said.get(DATA):
            raise DataError(
                f"{live.folder}: the run began with data files of hash {held[DATA]}, and the world's are now of hash "
                f"{said.get(DATA)}; put them back to resume it, or begin another run"
            )
        live.meta["provenance"] = {**said, **held}
    live.write_meta(status="running", error=None)
    now = directory.versions()
    changed = [
        f"{name} {old} -> {now[name]}" for name, old in at.get("versions", {}).items() if now.get(name, old) != old
    ]
    if changed:
        live.event("warning", f"resumed under other versions ({', '.join(changed)}); bit for bit no longer holds")


def _spare_what_is_there(job: Job, place: directory.RunDirectory) -> None:
    """Refuse, before anything is trained, to write over a stranger's trace or into a folder with a bundle."""
    path = job.trace_path
    if path is not None and not place.meta and path.is_file() and path.stat().st_size:
        raise DataError(f"{path} exists already and is not this run's; choose another trace path")
    if job.export_dir is not None:
        from perdure.harness import export

        export.refuse_taken(job.export_dir)


def _marks(job: Job) -> list[int]:
    marks = {0, job.total_steps, *(segment.end for segment in job.schedule.segments)}
    for every in (job.evaluation.every, job.checkpoint_every):
        if every:
            marks.update(range(every, job.total_steps, every))
    return sorted(marks)


def _train_to(live: _Live, mark: int, stop: signals.Stop) -> None:
    learner, schedule = live.job.learner, live.job.schedule
    while live.step < mark:
        if stop.signal is not None:
            _interrupt(live, stop.signal)
        live.state, window, metrics = learner.advance(live.state, schedule, mark - live.step)
        if not len(window):
            break
        _take(live, window, metrics)


def _take(live: _Live, window: records.RolloutWindow, metrics: Mapping[str, Any]) -> None:
    if not isinstance(live.job.learner, RecordsItself):
        live.trace.write_window(trace.finite(window))
    if not np.isfinite(window.rewards()).all():
        row = trace.first_bad(window)
        step, seed, reward = (window.columns[name][row] for name in ("step", "seed", "reward"))
        raise RunFailed(f"step {step}, seed {seed}: the reward is {reward}; mend the world and start a new run")
    origins = window.columns["origin"]
    changes = np.concatenate([[True], origins[1:] != origins[:-1]])
    live.origins.update(parts.label_names(origins[changes], "origin", live.job.schedule).tolist())
    lines = _window_lines(metrics, live.meta["seeds"])
    for sink in live.sinks:
        sink.window(window, lines)
    for line in lines:
        if line["metrics"].get("detector/alarm"):
            live.event("alarm", f"detector alarm, seed {line['seed']}", line["step"])


def _window_lines(metrics: Mapping[str, Any], seeds: list[int]) -> list[dict[str, Any]]:
    values = {name: np.asarray(value).tolist() for name, value in metrics.items() if name != "step"}
    return [
        {"step": int(step), "seed": seed, "metrics": {name: value[row][column] for name, value in values.items()}}
        for row, step in enumerate(np.asarray(metrics["step"]).tolist() if "step" in metrics else ())
        for column, seed in enumerate(seeds)
    ]


def _at_mark(live: _Live, mark: int) -> None:
    job = live.job
    if evaluation.due(job.evaluation, job.schedule, mark):
        lines = evaluation.evaluate(job.learner, live.state, job.evaluation, job.schedule, mark, live.meta["seeds"])
        for sink in live.sinks:
            sink.evaluation(lines)
    _tell_of_shift(live, mark)
    live.mark = mark
    if mark == job.total_steps or (job.checkpoint_every and mark and mark % job.checkpoint_every == 0):
        _save(live, mark)


def _tell_of_shift(live: _Live, mark: int) -> None:
    learner, schedule = live.job.learner, live.job.schedule
    if schedule.boundary_source != "oracle" or getattr(learner, "handles_shifts", False):
        return
    for ending, starting in zip(schedule.segments[:-1], schedule.segments[1:], strict=True):
        if ending.end == mark and ending.id != starting.id:
            shift = records.Shift(ending.id, ending.origin, starting.id, starting.origin, mark, "oracle")
            live.state = learner.on_regime_shift(live.state, shift)
            live.event("shift", f"{ending.id} -> {starting.id}", mark)


def _save(live: _Live, step: int) -> None:
    live.event("checkpoint", f"checkpoints/{step:012d}", step)
    live.trace.flush()
    live.files.flush()
    counts = {
        "step": live.step,
        "mark": live.mark,
        "config_hash": live.meta["config_hash"],
        "trace": live.trace.counts(),
        "files": live.files.counts(),
        "origins": sorted(live.origins),
        "versions": directory.versions(),
    }
    checkpoint.write_checkpoint(live.folder, step, lambda folder: live.job.learner.save(live.state, folder), counts)
    live.write_meta()


def _interrupt(live: _Live, signal: int) -> None:
    live.event("interrupted", "stopped by a signal; go on with --resume")
    _save(live, max(live.step, live.mark, 0))
    live.write_meta(status="interrupted")
    raise Interrupted(live.folder, live.step, signal)


def _record_failure(live: _Live, error: Exception) -> None:
    """Say in run.json that the run failed; a disk that takes nothing more must not hide the error."""
    with contextlib.suppress(PerdureError):  # the trace is closed, and its error met, once more
        live.trace.flush()
        live.shown.failure("".join(traceback.format_exception(error)))
    try:
        live.write_meta(status="failed", error=told(error))
    except PerdureError as second:
        error.add_note(f"run.json could not be written either: {second}")


def _trace_path(job: Job) -> Path | None:
    if job.trace_path is None and isinstance(job.learner, RecordsItself):
        return job.folder / "traces.jsonl"
    return job.trace_path


def _result(job: Job, folder: Path, meta: Mapping[str, Any]) -> RunResult:
    from perdure.harness import runs

    lines = {name: runs.read_lines(folder / f"{name}.jsonl", []) for name in sinks.FILES}
    last = lines["evaluations"][-1]["step"] if lines["evaluations"] else None
    final = checkpoint.read_counts(checkpoint.newest(folder))
    counts = {
        "steps": int(meta["done_steps"]),
        "rows": final["trace"]["rows"],
        **{name: len(lines[name]) for name in lines},
    }
    return RunResult(
        window_metrics=lines["windows"],
        provenance=meta.get("provenance", {}),
        stationary=bool(meta.get("stationary", True)),
        trace_path=_trace_path(job) or folder / "steps",
        folder=folder,
        counts=counts,
        evaluations=[line for line in lines["evaluations"] if line["step"] == last],
    )
