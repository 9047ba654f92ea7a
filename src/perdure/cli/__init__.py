"""The command line: `perdure COMMAND`. Each command imports what it needs when it runs."""

import os
import sys

import typer

from perdure.cli import documents, play, reading, recording, serve, stages, training
from perdure.core.errors import PerdureError

app = typer.Typer(
    help="Train agents in worlds that keep changing; measure what they learned and forgot.",
    epilog="Begin with: perdure demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (training.run, training.demo, training.sweep):
    app.command()(command)
for command in (reading.metrics, reading.report, reading.compare):
    app.command()(command)
for command in (documents.validate, documents.show):
    app.command()(command)
app.command("list")(documents.list_names)
app.command("eval")(training.evaluate)
for command in (training.export, training.verify, recording.record):
    app.command()(command)
for command in (stages.pipeline, stages.sft):
    app.command()(command)
app.command("warmup-value")(stages.warmup_value)
app.command("warmup-lcm")(stages.warmup_lcm)
for name, commands in (("serve", serve.group), ("play", play.group)):
    app.add_typer(commands, name=name)


def main() -> None:
    """Run the command line; what a user can mend ends in one line on standard error and its exit code.

    Documents may name modules of the working directory: a console script, unlike `python -m`,
    does not look there by itself.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        app()
    except PerdureError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(error.exit_code) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        typer.echo(f"perdure {metadata.version('perdure')}")
        raise typer.Exit()


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Train agents in worlds that keep changing; measure what they learned and forgot."""
