"""Commands about documents and names: validate, show, list."""

import dataclasses
import inspect
import re
from typing import Annotated, Any, get_args

import typer

from perdure.cli import options
from perdure.core import registry
from perdure.core.errors import PerdureError

Family = Annotated[str | None, typer.Argument(help=f"One of: {', '.join(registry.FAMILIES)}.", show_default=False)]


def validate(file: options.Document, overrides: options.Overrides = None) -> None:
    """Check a document without training anything.

    Every part that it names is built as well, so a misspelt field of an agent is found too.

    \b
    Examples:
      perdure validate experiment.yaml
      perdure validate sweep.yaml
    """
    from perdure import build
    from perdure.harness import load, sweep

    document = load.read(file, overrides or ())
    if document.is_sweep:
        config = load.sweep_of(document)
        for message in sweep.unseeded(config):
            options.say(f"warning: {message}")
        groups = sweep.plan(config)
        options.check(groups)
        for group in groups:
            typer.echo(f"OK {group.name}: seeds {' '.join(map(str, group.seeds))}")
        return
    if "stages" in document.values:
        from perdure.pipeline import Pipeline

        with load.located(document):
            chain = Pipeline(document.values)
            chain.check(policy=True)
        typer.echo(f"OK {file}: {', '.join(chain.names)}")
        return
    experiment = load.experiment_of(document)
    with load.located(document):
        build.check(experiment)
    typer.echo(f"OK {file}: {experiment.run_id}, seeds {' '.join(map(str, experiment.run.seeds))}")


def show(file: options.Document, overrides: options.Overrides = None) -> None:
    """Print a document with every default filled in.

    A run's folder holds the document in run.json, and beside it, under "components", the defaults of
    the agent and the extensions.

    \b
    Examples:
      perdure show experiment.yaml
      perdure show experiment.yaml --set rollout.n_envs=8 > resolved.yaml
    """
    from perdure.harness import load, syntax

    document = load.read(file, overrides or ())
    if document.is_sweep:
        typer.echo(syntax.to_yaml(load.sweep_of(document).resolved()), nl=False)
        return
    from perdure import named

    config = load.experiment_of(document)
    resolved = config.resolved()
    with load.located(document):
        resolved["algorithm"] |= named.components(config)
    typer.echo(syntax.to_yaml(resolved), nl=False)


def list_names(
    family: Family = None,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One of them, for its fields.")] = None,
) -> None:
    """List what a document may name.

    A line about each; or, with a NAME, its fields and their defaults.

    \b
    Examples:
      perdure list
      perdure list agents
      perdure list agents ppo
    """
    if family is None:
        rows = [[each, " ".join(sorted(registry.names(each)))] for each in registry.FAMILIES if registry.names(each)]
        typer.echo(options.table(["family", "names"], rows))
        return
    if name is not None:
        found = registry.resolve(family, name)
        typer.echo(inspect.getdoc(found) or name)
        fields = _fields(found)
        if fields:
            typer.echo("\n" + options.table(["field", "type", "default"], fields))
        return
    rows = [[name, _about(family, name)] for name in sorted(registry.names(family))]
    typer.echo(options.table(["name", "what it is"], rows) if rows else f"no {family} are registered")


def _about(family: str, name: str) -> str:
    """The first line of what is said of a name, or why it cannot be imported here."""
    try:
        found = registry.resolve(family, name)
    except PerdureError as error:
        return f"({error})"
    return (inspect.getdoc(found) or "").partition("\n")[0]


def _fields(found: Any) -> list[list[str]]:
    """A row for each key: those of the parts that a class says it reads (`keys_of`), else its own fields."""
    rows: dict[str, list[str]] = {}
    for part in getattr(found, "keys_of", (found,)):
        for field in dataclasses.fields(part) if dataclasses.is_dataclass(part) else ():
            rows[field.name] = [field.name, _type(field.type), _shown(field.default)]
            if dataclasses.is_dataclass(field.default):
                for each in dataclasses.fields(field.default):
                    name = f"{field.name}.{each.name}"
                    rows[name] = [name, _type(each.type), _shown(getattr(field.default, each.name))]
    return list(rows.values())


def _shown(default: Any) -> str:
    """A default; that of a nested component is told field by field, and named here only."""
    if default is dataclasses.MISSING:
        return ""
    return type(default).__name__ if dataclasses.is_dataclass(default) else repr(default)


def _type(annotation: Any) -> str:
    """A type as a reader of documents says it: without the modules it comes from."""
    text = annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    return re.sub(r"\b(\w+\.)+", "", text)
