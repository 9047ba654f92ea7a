"""Document files to experiments and sweeps, with `--set` overrides and the file's line in every error."""

import contextlib
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from perdure.core.errors import ConfigError, DataError, nearest
from perdure.harness import directory, mistakes, syntax
from perdure.harness.config import ExperimentConfig
from perdure.harness.sections import mapping
from perdure.harness.sweep import SweepConfig

_PLACE = re.compile(r"[^.\[\]]+(\.[^.\[\]]+|\[\d+\])*")
_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


class Document(NamedTuple):
    """A document's values, and where each of them stands."""

    values: dict[str, Any]
    source: str
    """The file's path as it was given."""
    marks: Mapping[str, str]
    """Dotted path -> "file:line:column", or the `--set` that wrote it."""

    @property
    def is_sweep(self) -> bool:
        """Whether this is a sweep document rather than an experiment."""
        return "base" in self.values or "families" in self.values


def read(path: str | Path, overrides: Iterable[str] = ()) -> Document:
    """The values of a document file, `overrides` ("a.b=c", "a.list[1]=c") applied in order.

    A run's folder stands for the document it was made from, so that it can be resumed or looked at.
    Raises ConfigError naming file, line and column for anything that is not such a document: a
    missing file, broken syntax, a key that stands twice, a value that is not plain.
    """
    file = Path(path)
    values, marks = _of_run(file) if _is_run(file) else syntax.parse(_text(file), file)
    if values is None:
        raise ConfigError(
            f"{file} is empty; an experiment begins with a line such as 'environment: {{id: perdure/cartpole}}'"
        )
    if not isinstance(values, dict):
        raise ConfigError(f"{file} holds {mistakes.shown(values)}, not a mapping of sections")
    document = Document(cast("dict[str, Any]", values), str(file), marks)
    with located(document):
        document = document._replace(values=mistakes.plain(document.values, ""))
    for override in overrides:
        document = _override(document, override)
    return document


def experiment(path: str | Path, overrides: Iterable[str] = ()) -> ExperimentConfig:
    """The experiment that a file describes; every ConfigError opens with its file and line."""
    return experiment_of(read(path, overrides))


def experiment_of(document: Document) -> ExperimentConfig:
    """The experiment of a document already read."""
    if document.is_sweep:
        raise ConfigError(f"{document.source} is a sweep (it has base or families); run it with: perdure sweep")
    if "stages" in document.values:
        raise ConfigError(f"{document.source} is a pipeline (it has stages); run it with: perdure pipeline")
    with located(document):
        return ExperimentConfig.from_document(document.values)


def sweep(path: str | Path, overrides: Iterable[str] = ()) -> SweepConfig:
    """The sweep that a file describes; `base: other.yaml` is read relative to it."""
    return sweep_of(read(path, overrides))


def sweep_of(document: Document) -> SweepConfig:
    """The sweep of a document already read."""
    if not document.is_sweep:
        raise ConfigError(f"{document.source} is one experiment (it has no base or families); run it with: perdure run")
    values = dict(document.values)
    if isinstance(values.get("base"), str):
        values["base"] = read(Path(document.source).parent / values["base"]).values
    with located(document):
        return SweepConfig.from_document(values)


def _is_run(file: Path) -> bool:
    try:
        return (file / "run.json").is_file()
    except OSError as error:
        raise ConfigError(f"{mistakes.shown(str(file))} cannot be read: {error.strerror}; check the path") from None


def _of_run(folder: Path) -> tuple[Any, dict[str, str]]:
    """The document of a run, placed where the run lies now."""
    config = mapping(directory.read_meta(folder).get("config"))
    if not config:
        raise DataError(f"{folder / 'run.json'} holds no document (config); name the document's file instead")
    here = {"output_dir": str(folder.parent), "run_id": folder.name}
    return {**config, "run": {**mapping(config.get("run")), **here}}, {}


@contextlib.contextmanager
def located(document: Document) -> Generator[None]:
    """Open every ConfigError that leaves the block with the line of `document` that it is about, else its file."""
    try:
        yield
    except ConfigError as error:
        where = _mark(document.marks, str(error)) or document.source
        raise type(error)(f"{where}: {error}") from None


def _mark(marks: Mapping[str, str], message: str) -> str | None:
    """Where the place that a message opens with stands, or the nearest section around it."""
    steps = _steps(message.split(" ", 1)[0].rstrip(":"))
    while steps:
        path = mistakes.dotted(steps)
        if path in marks:
            return marks[path]
        steps = steps[:-1]
    return None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        hint = nearest(file.name, (entry.name for entry in file.parent.iterdir()) if file.parent.is_dir() else ())
        remedy = hint if hint.startswith("did you mean") else "name a document, or a run's folder"
        raise ConfigError(f"{file} does not exist; {remedy}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{file} cannot be read: {why}; check the path and its permissions") from None


def _override(document: Document, override: str) -> Document:
    """The document with one "a.b=c" written into it."""
    place, equals, text = override.partition("=")
    label, steps = f"--set {override}", _steps(place.strip())
    if not equals or not _PLACE.fullmatch(place.strip()):
        raise ConfigError(f"{label} does not read path=value; write for example --set rollout.total_steps=100_000")
    value = mistakes.plain(syntax.parse_yaml(text, label, {}), label)
    where = mistakes.dotted(steps)
    values = _written(_without_other_spelling(document.values, where), steps, value, label)
    kept = {path: mark for path, mark in document.marks.items() if not _is_inside(path, where)}
    return document._replace(values=values, marks={**kept, where: label})


def _written(part: Any, steps: list[int | str], value: Any, label: str) -> Any:
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if isinstance(part, list):
        entries = cast("list[Any]", part)
        if not isinstance(step, int) or step >= len(entries):
            held = f"has entries [0] to [{len(entries) - 1}], not" if entries else "is empty and has no"
            raise ConfigError(f"{label}: the list {held} {step!r}; write the whole list to add one")
        return [_written(entry, rest, value, label) if i == step else entry for i, entry in enumerate(entries)]
    if isinstance(step, int) or not (part is None or isinstance(part, dict)):
        raise ConfigError(f"{label}: {step!r} cannot be set inside {mistakes.shown(part)}; check the path")
    section = cast("dict[str, Any]", part or {})
    return {**section, step: _written(section.get(step), rest, value, label)}


def _without_other_spelling(values: dict[str, Any], place: str) -> dict[str, Any]:
    """The values without run.seeds where run.seed is about to be set, and the other way round."""
    other = {"run.seed": "seeds", "run.seeds": "seed"}.get(place)
    run = values.get("run")
    if other is None or not isinstance(run, dict):
        return values
    entries = cast("dict[str, Any]", run)
    return {**values, "run": {key: entry for key, entry in entries.items() if key != other}}


def _is_inside(path: str, place: str) -> bool:
    return path == place or path.startswith((f"{place}.", f"{place}["))


def _steps(place: str) -> list[int | str]:
    """ "a.b[1]" and "a.b.1" as ["a", "b", 1]."""
    return list(_parts(place))


def _parts(place: str) -> Iterator[int | str]:
    for index, name in _STEP.findall(place):
        yield int(index) if index else int(name) if name.isdecimal() else name
