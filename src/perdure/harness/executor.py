"""Run a sweep: one process a run, so that a crash of one stops no other; resumed by what is missing."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from perdure.core.errors import ConfigError, DataError, nearest
from perdure.harness import directory
from perdure.harness.sections import mapping
from perdure.harness.sweep import CellGroup, SweepConfig, plan, seedless, with_seeds

SCHEMA = "perdure.sweep/1"
EXECUTORS = ("local",)
CELLS = "cells"
"""Folder of the runs' documents, logs and locks, in the sweep's folder."""
PATIENCE = 60.0
"""Seconds that an interrupted run has to save its checkpoint before it is killed."""

Command = Callable[[Path, bool], Sequence[str]]
"""(document, whether to resume) -> the command line that runs it."""


class Outcome(NamedTuple):
    """How one run of a sweep ended."""

    group: CellGroup
    status: str
    """ "finished", "failed" or "interrupted"."""
    reason: str = ""
    """Of a failure: the last thing the run said, and where its log is."""
    seconds: float = 0.0


def cell_command(document: Path, resume: bool) -> Sequence[str]:
    """The command that runs a cell's document in a process of its own."""
    return [sys.executable, "-m", "perdure", "run", str(document), "--quiet", *(["--resume"] if resume else [])]


def run_sweep(
    sweep: SweepConfig,
    run_cell: Command = cell_command,
    *,
    executor: str = "local",
    workers: int = 1,
    resume: bool = False,
    say: Callable[[str], None] = print,
) -> list[Outcome]:
    """Run every cell of a sweep, `workers` processes at a time, and say how each ended.

    With `resume` only the missing and unfinished ones run; without it a folder that holds a sweep
    is refused (DataError). A failed run stops no other. KeyboardInterrupt stops every process
    after it saved a checkpoint, then goes on to the caller; SIGTERM does the same.
    """
    if executor not in EXECUTORS:
        raise ConfigError(f"executor {executor!r} does not exist; {nearest(executor, EXECUTORS)}")
    if workers < 1:
        raise ConfigError(f"workers is {workers}; a sweep needs at least one")
    groups, folder = remaining(sweep, resume), Path(sweep.output_dir)
    cells = folder / CELLS
    with directory.disk(cells):
        cells.mkdir(parents=True, exist_ok=True)
    _write_record(sweep, folder)
    with _terminated_like_interrupted():
        return _Pool(folder, run_cell, threading.Event(), [], say).run(groups, workers)


def remaining(sweep: SweepConfig, resume: bool) -> list[CellGroup]:
    """The runs of a sweep that are still to be done, without writing anything.

    A seed that some finished run of the folder holds already is not run again. Raises DataError
    where the folder holds a sweep and `resume` was not asked for.
    """
    folder, groups = Path(sweep.output_dir), plan(sweep)
    if not resume:
        if (folder / "sweep.json").exists():
            raise DataError(
                f"{folder} holds a sweep; pass --resume to run what is missing, or choose another output_dir"
            )
        return groups
    done = _finished_seeds(folder)
    wanted: list[CellGroup] = []
    for group in groups:
        seeds = [seed for seed in group.seeds if seed not in done.get(seedless(group.config.resolved()), ())]
        if seeds and len(seeds) < len(group.seeds):
            config = with_seeds(group.config, seeds)
            group = group._replace(config=config, name=config.run_id)
        if seeds:
            wanted.append(group)
    return wanted


class _Pool(NamedTuple):
    """The processes of one sweep."""

    folder: Path
    command: Command
    stopping: threading.Event
    processes: list[subprocess.Popen[bytes]]
    say: Callable[[str], None]

    def run(self, groups: Sequence[CellGroup], workers: int) -> list[Outcome]:
        """All groups; those that another sweep holds come last."""
        with ThreadPoolExecutor(workers) as threads:
            try:
                first = list(threads.map(self.attempt, groups))
                held = [group for group, outcome in zip(groups, first, strict=True) if outcome is None]
                for group in held:
                    self.say(f"{group.name}: another process runs it; waiting")
                later = list(threads.map(self.wait_for, held))
            except KeyboardInterrupt:
                self.stop()
                raise
        return [outcome for outcome in [*first, *later] if outcome is not None]

    def stop(self) -> None:
        """Interrupt every process, wait for its checkpoint, and kill what does not end."""
        self.stopping.set()
        running = [process for process in self.processes if process.poll() is None]
        self.say(f"stopping {len(running)} run(s); each saves a checkpoint first")
        for process in running:
            process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + PATIENCE
        for process in running:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()

    def wait_for(self, group: CellGroup) -> Outcome | None:
        """Run a group as soon as nobody else does, unless it is finished then."""
        while not self.stopping.is_set():
            outcome = self.attempt(group)
            if outcome is not None:
                return outcome
            self.stopping.wait(0.5)
        return Outcome(group, "interrupted")

    def attempt(self, group: CellGroup) -> Outcome | None:
        """Run one group to its end; None if another process holds its lock."""
        if self.stopping.is_set():
            return Outcome(group, "interrupted")
        with _locked(self.folder / CELLS / f"{group.name}.lock") as lock:
            if lock is None:
                return None
            status = _status(self.folder / group.name)
            if status == "finished":
                return Outcome(group, "finished")
            outcome = self.watch(group, status is not None, lock)
        self.say(f"{group.name}: {outcome.status} in {outcome.seconds:.0f} s{outcome.reason and f': {outcome.reason}'}")
        return outcome

    def watch(self, group: CellGroup, resume: bool, lock: int) -> Outcome:
        """Start a group's process, its output in a log, and wait for its end."""
        document = self.folder / CELLS / f"{group.name}.json"
        directory.write_atomic(document, json.dumps(group.config.resolved(), indent=1, allow_nan=False).encode())
        log, began = document.with_suffix(".log"), time.monotonic()
        self.say(f"{group.name}: {'going on' if resume else 'started'} (seeds {' '.join(map(str, group.seeds))})")
        with log.open("ab") as output:
            # A session of its own: the terminal's Ctrl-C reaches this process only, which passes it on once.
            # The inherited lock outlives this process if that is killed, so no second sweep starts the same run.
            process = subprocess.Popen(
                list(self.command(document, resume)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(lock,),
            )
        self.processes.append(process)
        if self.stopping.is_set():
            process.send_signal(signal.SIGINT)
        code = process.wait()
        seconds = time.monotonic() - began
        if code == 0:
            return Outcome(group, "finished", "", seconds)
        if self.stopping.is_set():
            return Outcome(group, "interrupted", "", seconds)
        return Outcome(group, "failed", f"{_ending(code)}{_last_line(log)} (log: {log})", seconds)


@contextlib.contextmanager
def _terminated_like_interrupted() -> Generator[None, None, None]:
    """SIGTERM raises KeyboardInterrupt inside the block; Python allows that in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _locked(path: Path) -> Generator[int | None, None, None]:
    """A lock that the kernel frees when its holders die; None while another process has it."""
    import fcntl

    with directory.disk(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield descriptor
    finally:
        os.close(descriptor)


def _write_record(sweep: SweepConfig, folder: Path) -> None:
    cells = [
        {"run": group.name, "family": group.family, "task": group.task, "seeds": list(group.seeds)}
        for group in plan(sweep)
    ]
    record = {"schema": SCHEMA, "sweep": sweep.resolved(), "cells": cells}
    directory.write_atomic(folder / "sweep.json", (json.dumps(record, indent=1, allow_nan=False) + "\n").encode())


def _finished_seeds(folder: Path) -> dict[str, set[int]]:
    """What a configuration says apart from its seeds -> the seeds finished, over a sweep's folder."""
    done: dict[str, set[int]] = {}
    for file in sorted(folder.glob("*/run.json")):
        meta = directory.read_meta(file.parent)
        config = mapping(meta.get("config"))
        if meta.get("status") == "finished" and "run" in config:
            done.setdefault(seedless(config), set()).update(meta["seeds"])
    return done


def _status(run: Path) -> str | None:
    """The status of a run's folder; None if it was never begun."""
    return directory.read_meta(run).get("status") if (run / "run.json").exists() else None


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"killed by {name}" + (", perhaps for want of memory" if name == "SIGKILL" else "")


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1]}" if lines else ""
