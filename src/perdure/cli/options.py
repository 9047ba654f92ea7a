"""Arguments and options that several commands share, and how tables are printed."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.core.errors import ConfigError

Document = Annotated[
    Path, typer.Argument(metavar="FILE", help="A YAML, JSON or TOML document, or a run's folder.", show_default=False)
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change one value of the document, such as rollout.n_envs=8 or run.seeds=[0,1]; may be repeated.",
        show_default=False,
    ),
]
Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUNS...", help="Folders of runs or of sweeps, or a traces.jsonl.", show_default=False),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.", show_default=False)]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what was interrupted; what is finished stays.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress; log.txt has it in any case.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text under their headers; those that hold only numbers are set to the right."""
    columns = list(zip(headers, *rows, strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    right = [bool(rows) and all(_is_number(cell) for cell in column[1:]) for column in columns]
    lines = [headers, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def check(groups: Iterable[Any]) -> None:
    """Build everything that the runs of a sweep name, without training; errors open with the run's family and task."""
    from perdure import build

    for group in groups:
        try:
            build.check(group.config)
        except ConfigError as error:
            raise type(error)(f"families.{group.family} on {group.task}: {error}") from None


def say(text: str) -> None:
    """A line on standard error, so that standard output holds results only."""
    typer.echo(text, err=True)


def _is_number(cell: str) -> bool:
    return cell.strip() in ("", "-") or cell.lstrip("+-")[:1].isdecimal()
