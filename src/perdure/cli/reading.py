"""Commands that read finished or growing runs: metrics, report, compare. None needs jax or torch."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.cli import options

Destination = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="The page; report.html beside the runs if unset."),
]
Title = Annotated[str | None, typer.Option(help="The page's title.")]


def metrics(folders: options.Runs, as_json: options.AsJson = False) -> None:
    """Print the six metrics of runs.

    Every run below the given folders counts; metrics are aggregated over seeds.

    Traces that somebody else made are read too: a traces.jsonl with seed, step, reward, terminated
    and truncated is enough.

    \b
    Examples:
      perdure metrics runs
      perdure metrics runs/cartpole-ppo-1a2b3c --json
    """
    summary = _summary(_load(folders))
    if as_json:
        typer.echo(json.dumps(summary.as_dict(), indent=1, allow_nan=False))
        return
    typer.echo(options.table(*summary.table()))
    for reason in summary.reasons():
        typer.echo(f"- {reason}")
    for note in summary.notes:
        options.say(f"note: {note}")


def report(folders: options.Runs, destination: Destination = None, title: Title = None) -> None:
    """Write one HTML page about runs.

    It needs no network, and says what was learned, what was forgotten and what recovered.

    \b
    Examples:
      perdure report runs/cartpole-ppo-1a2b3c
      perdure report runs/demo -o report.html --title "Reversed and back"
    """
    typer.echo(str(_write_page(_load(folders), folders, destination, title)))


def compare(folders: options.Runs, destination: Destination = None, title: Title = None) -> None:
    """Compare algorithms, and write a page.

    Prints their metrics side by side, and how probably one is better than another.

    \b
    Examples:
      perdure compare runs/ppo runs/ppo_redo
      perdure compare runs/sweep -o comparison.html
    """
    runs = _load(folders)
    summary = _summary(runs)
    typer.echo(options.table(*summary.table()))
    rows = [
        [comparison.task, comparison.metric, f"{comparison.first} > {comparison.second}", _chance(comparison)]
        for comparison in summary.comparisons
        if comparison.probability is not None
    ]
    if rows:
        typer.echo("\n" + options.table(["task", "metric", "better", "probability"], rows))
    typer.echo(str(_write_page(runs, folders, destination, title)))


def _load(folders: Sequence[Path]) -> list[Any]:
    from perdure.harness import runs

    paths = [path for folder in folders for path in runs.find_runs(folder)]
    loaded = [runs.load_run(path) for path in dict.fromkeys(path.resolve() for path in paths)]
    for run in loaded:
        for warning in run.warnings:
            options.say(f"warning: {run.path}: {warning}")
    return loaded


def _summary(runs: Sequence[Any]) -> Any:
    from perdure.metrics import summary

    streams = [stream for run in runs for stream in run.streams]
    return summary.summarise(streams, [row for run in runs for row in run.evaluations])


def _write_page(runs: list[Any], folders: Sequence[Path], destination: Path | None, title: str | None) -> Path:
    from perdure.report import page

    beside = folders[0] if folders[0].is_dir() else folders[0].parent
    return page.write_report(runs, destination or beside / "report.html", title)


def _chance(comparison: Any) -> str:
    interval = "" if comparison.low is None else f" [{comparison.low:.2f}, {comparison.high:.2f}]"
    return f"{comparison.probability:.2f}{interval}"
