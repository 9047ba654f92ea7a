"""Commands that train or use what was trained: run, demo, sweep, eval, export, verify."""

import contextlib
import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.cli import options
from perdure.core import records
from perdure.core.errors import ConfigError, nearest


def run(
    file: options.Document,
    overrides: options.Overrides = None,
    resume: options.Resume = False,
    quiet: options.Quiet = False,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the trace there, as JSON lines.")] = None,
    export_to: Annotated[
        Path | None, typer.Option("--export", metavar="FOLDER", help="Export a bundle of the trained policy there.")
    ] = None,
) -> None:
    """Train what a document describes.

    Writes one run: its trace, evaluations and checkpoints.

    \b
    Examples:
      perdure run experiment.yaml
      perdure run experiment.yaml --set algorithm.name=sac --set run.seeds=[0,1,2]
      perdure run runs/cartpole-ppo-1a2b3c --resume
    """
    from perdure.harness import load

    document = load.read(file, overrides or ())
    config = load.experiment_of(document)
    build = _build()
    with load.located(document), resumable(f"perdure run {shlex.quote(str(config.folder))} --resume"):
        result = build.run_experiment(config, trace_path=trace, export_dir=export_to, resume=resume, progress=not quiet)
    if not quiet:
        folder = shlex.quote(str(result.folder))
        options.say(f"{result.folder}: {config.rollout.total_steps:,} steps of each of {len(config.run.seeds)} seed(s)")
        options.say(f"next: perdure metrics {folder}, or perdure report {folder}")


def demo(
    which: Annotated[str, typer.Argument(metavar="[control|language]", help="Which of the two.")] = "control",
    output_dir: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Where the runs go; runs/demo or runs/demo-language."),
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Show the whole of it in about a minute (language: in about four).

    Three arms go through a shifting world; ends with a table of metrics and an HTML report.

    \b
    Examples:
      perdure demo -o runs/demo
      perdure demo language
    """
    from perdure import demos

    if which not in demos.NAMES:
        raise ConfigError(f"demo is {which!r}; {nearest(which, demos.NAMES)}")
    folder = output_dir or Path("runs/demo" if which == "control" else f"runs/demo-{which}")
    with resumable(f"perdure demo {which} -o {shlex.quote(str(folder))}"):
        if which == "control":
            shown = demos.control(folder, progress=not quiet)
        else:
            shown = demos.language(folder, progress=not quiet, say=options.say)
    typer.echo(options.table(shown.headers, shown.rows))
    typer.echo(f"report: {shown.page}")


def sweep(
    file: options.Document,
    overrides: options.Overrides = None,
    resume: options.Resume = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the runs and their cost; write nothing.")] = False,
    executor: Annotated[str, typer.Option(help="Where runs go: local (a process each).")] = "local",
    workers: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
) -> None:
    """Run families x tasks x seeds.

    One failed run does not stop the others. Cells that differ only in their seed are one run.
    Exit code 1 if any run failed.

    \b
    Examples:
      perdure sweep sweep.yaml --dry-run
      perdure sweep sweep.yaml --workers 2
      perdure sweep sweep.yaml --resume
    """
    from perdure.harness import executor as runner
    from perdure.harness import load
    from perdure.harness import sweep as layout

    config = load.sweep(file, overrides or ())
    for message in layout.unseeded(config):
        options.say(f"warning: {message}")
    if dry_run:
        groups = runner.remaining(config, resume)
        typer.echo(options.table(*layout.table(groups)))
        typer.echo(f"{len(groups)} run(s), {sum(group.total_steps for group in groups):,} environment steps")
        return
    options.check(layout.plan(config))
    changes = [part for value in overrides or () for part in ("--set", value)]
    with resumable(shlex.join(["perdure", "sweep", str(file), *changes, "--resume"])):
        outcomes = runner.run_sweep(config, executor=executor, workers=workers, resume=resume, say=options.say)
    failed = [outcome for outcome in outcomes if outcome.status != "finished"]
    typer.echo(f"{len(outcomes) - len(failed)} run(s) finished, {len(failed)} failed; in {config.output_dir}")
    for outcome in failed:
        typer.echo(f"  {outcome.group.name}: {outcome.reason or outcome.status}")
    if failed:
        raise typer.Exit(1)


def evaluate(
    folder: options.RunFolder,
    regimes: Annotated[
        str | None, typer.Option(metavar="ID,ID", help="Regimes to evaluate on; all of the run's if unset.")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes on each regime and seed.")] = 8,
    as_json: options.AsJson = False,
) -> None:
    """Evaluate a run's newest checkpoint.

    Greedy episodes on each of its regimes; the run is left as it is.

    \b
    Examples:
      perdure eval runs/cartpole-ppo-1a2b3c
      perdure eval runs/cartpole-ppo-1a2b3c --regimes earth,heavy --episodes 32 --json
    """
    wanted = None if regimes is None else tuple(name.strip() for name in regimes.split(","))
    rows: Sequence[Any] = _build().evaluate_run(folder, wanted, episodes)
    plain = [dict(row) if isinstance(row, dict) else row._asdict() for row in rows]
    if as_json:
        typer.echo(json.dumps(plain, indent=1, allow_nan=False))
        return
    told = list(
        dict.fromkeys(name for row in plain for name, values in row.get("facts", {}).items() if records.numbers(values))
    )
    lines = [
        [str(row["step"]), str(row["seed"]), row["regime"], _mean(row["returns"]), _mean(row["lengths"])]
        + [_mean(records.numbers(row.get("facts", {}).get(name, ()))) for name in told]
        for row in plain
    ]
    typer.echo(options.table(["step", "seed", "regime", "mean score", "mean length", *told], lines))


def export(
    folder: options.RunFolder,
    destination: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="The bundle's folder; RUN/bundle if unset.")
    ] = None,
) -> None:
    """Write a run's policy as a bundle.

    Weights, spaces, configuration and checksums; no pickle.

    \b
    Example:
      perdure export runs/cartpole-ppo-1a2b3c -o cartpole-bundle
    """
    written = destination or folder / "bundle"
    _build().export_run(folder, written)
    typer.echo(str(written))


def verify(bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="An exported bundle.")]) -> None:
    """Check that a bundle is whole.

    Every file is there, unchanged, and inside the bundle. Exit code 1 if not.

    \b
    Example:
      perdure verify cartpole-bundle
    """
    from perdure.harness import export as bundles

    problems = bundles.verify(bundle)
    for problem in problems:
        typer.echo(problem)
    if problems:
        raise typer.Exit(1)
    typer.echo(f"{bundle}: whole and unchanged")


def _build() -> Any:
    from perdure import build

    return build


@contextlib.contextmanager
def resumable(command: str) -> Iterator[None]:
    """End an interrupted command with how to go on, and the exit code of its signal."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        options.say(f"interrupted; go on with: {command}")
        raise typer.Exit(getattr(stopped, "exit_code", 130)) from None


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.2f}" if values else ""
