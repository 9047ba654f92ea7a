"""Commands for pipelines: pipeline, sft, warmup-value, warmup-lcm."""

import shlex
from typing import Annotated, Any

import typer

from perdure.cli import options, training


def pipeline(
    file: options.Document,
    overrides: options.Overrides = None,
    quiet: options.Quiet = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the stages and how far each is; run none.")] = False,
) -> None:
    """Tune, warm up, train, export: the whole chain of a document.

    The document is an experiment with `stages` beside its sections: sft, value, lcm and export, each of them
    optional. What is finished is not run again; what was interrupted goes on.

    \b
    Examples:
      perdure pipeline configs/language_pipeline.yaml
      perdure pipeline configs/language_pipeline.yaml --dry-run
      perdure pipeline configs/language_pipeline.yaml --set stages.sft.steps=500
    """
    chain = _read(file, overrides)
    if not dry_run:
        with _again("pipeline", file, overrides):
            chain.run(say=_saying(quiet), progress=not quiet)
    rows = [[step.name, step.status, str(step.folder)] for step in chain.plan()]
    typer.echo(options.table(["stage", "status", "folder"], rows))


def sft(file: options.Document, overrides: options.Overrides = None, quiet: options.Quiet = False) -> None:
    """Tune a document's policy on examples (stages.sft).

    The examples are a trajectories.jsonl, or episodes of the world's scripted expert.

    \b
    Examples:
      perdure sft configs/language_pipeline.yaml
      perdure sft configs/language_pipeline.yaml --set stages.sft.data='{file: trajectories.jsonl}'
    """
    _one("sft", "sft", file, overrides, quiet)


def warmup_value(file: options.Document, overrides: options.Overrides = None, quiet: options.Quiet = False) -> None:
    """Train the critic of a frozen policy on its own returns (stages.value).

    \b
    Example:
      perdure warmup-value configs/language_pipeline.yaml --set stages.value.lam=0.95
    """
    _one("warmup-value", "value", file, overrides, quiet)


def warmup_lcm(file: options.Document, overrides: options.Overrides = None, quiet: options.Quiet = False) -> None:
    """Train the encoder of a latent context to tell regimes apart (stages.lcm).

    \b
    Example:
      perdure warmup-lcm experiment.yaml --set stages.lcm.rollouts.runs=16
    """
    _one("warmup-lcm", "lcm", file, overrides, quiet)


def _one(command: str, name: str, file: Any, overrides: Any, quiet: bool) -> None:
    chain = _read(file, overrides)
    with _again(command, file, overrides):
        step = chain.run_stage(name, say=_saying(quiet))
    typer.echo(str(step.folder))


def _read(file: Any, overrides: Any) -> Any:
    from perdure.pipeline import Pipeline

    return Pipeline.read(file, overrides or ())


def _saying(quiet: bool) -> Any:
    return (lambda text: None) if quiet else options.say


def _again(command: str, file: Any, overrides: Any) -> Any:
    """Tell how to go on where the command is interrupted."""
    changes = [part for value in overrides or () for part in ("--set", value)]
    return training.resumable(shlex.join(["perdure", command, str(file), *changes]))
