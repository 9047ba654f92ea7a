"""The demonstrations: documents of the package, run as any other, and their reports."""

import os
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from perdure import build
from perdure.core.errors import RunFailed
from perdure.harness import executor, load, runs, sweep

NAMES = ("control", "language")


class Shown(NamedTuple):
    """What a demonstration ends with."""

    headers: list[str]
    rows: list[list[str]]
    page: Path


def control(output_dir: Path, progress: bool = True) -> Shown:
    """Three arms of PPO through a cart-pole whose world shifts, four seeds each, in about a minute."""
    with _document("demo.yaml") as path:
        config = load.sweep(path, (f"output_dir={output_dir}",))
    folders = []
    for group in sweep.plan(config):
        finished = group.config.folder / "run.json"
        result = build.run_experiment(group.config, resume=finished.exists(), progress=progress)
        folders.append(result.folder)
    return _shown(folders, output_dir, "perdure demo: a cart-pole whose world shifts")


def language(output_dir: Path, progress: bool = True, say: Any = print) -> Shown:
    """A tiny model is taught arithmetic, then PPO, PPO with EWC and GRPO take it through three rules and back.

    Two seeds each, a process a run, one thread a process. RunFailed where a run fails.
    """
    from perdure.pipeline import Pipeline

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # Two processes with a thread for every core stall each other.
    tell = say if progress else lambda text: None
    with _document("demo_language_start.yaml") as path:
        start = Pipeline.read(path, (f"run.output_dir={output_dir}",)).run_stage("sft", say=tell)
    with _document("demo_language.yaml") as path:
        begun = f"base.algorithm.policy.kwargs.name_or_path={start.folder}"
        config = load.sweep(path, (f"output_dir={output_dir}", begun))
    workers = min(2, os.cpu_count() or 1)
    outcomes = executor.run_sweep(config, workers=workers, resume=True, say=tell)
    failed = [outcome for outcome in outcomes if outcome.status != "finished"]
    if failed:
        raise RunFailed(f"{failed[0].group.name}: {failed[0].reason or failed[0].status}; mend it and start again")
    folders = [group.config.folder for group in sweep.plan(config)]
    return _shown(folders, output_dir, "perdure demo language: arithmetic whose rule shifts")


def _document(name: str) -> Any:
    return resources.as_file(resources.files("perdure") / "documents" / name)


def _shown(folders: list[Path], output_dir: Path, title: str) -> Shown:
    from perdure.metrics.summary import summarise
    from perdure.report.page import write_report

    found = [runs.load_run(folder) for folder in folders]
    page = write_report(found, Path(output_dir) / "report.html", title=title)
    streams = [stream for each in found for stream in each.streams]
    headers, rows = summarise(streams, [row for each in found for row in each.evaluations]).table()
    return Shown(headers, rows, page)
