"""What is wrong with a document, in one line: the dotted place, the value, and the nearest right key."""

import dataclasses
import math
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from perdure.core import component, registry
from perdure.core.errors import ConfigError, PerdureError, nearest


def explain(error: ValidationError, model: type[BaseModel], place: str = "") -> PerdureError:
    """The first problem of a document: unknown keys first, since they explain what else seems missing."""
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    problem = problems[0]
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, PerdureError):
        return cause
    where = dotted(problem["loc"], place)
    if problem["type"] == "extra_forbidden":
        return unknown_key(dotted(problem["loc"][:-1], place), str(problem["loc"][-1]), problem["input"], model)
    if problem["type"] == "missing":
        return ConfigError(f"{where} is missing; give it a value")
    return ConfigError(f"{where} is {shown(problem['input'])}; it {component.phrase(problem)}")


def unknown_key(
    section: str, key: str, value: Any, model: type[BaseModel], known: Iterable[str] | None = None
) -> ConfigError:
    """The error for a key that `section` does not have: where it belongs, or the nearest one.

    `known` are the section's keys where the model alone does not tell them.
    """
    where, places = f"{section}.{key}".lstrip("."), keys_by_section(model)
    own = set(known) if known is not None else set(places.get(_generic(section), ()))
    others = {other: keys for other, keys in places.items() if "[" not in other and other not in (section, "regime")}
    elsewhere = [f"{other}.{key}".lstrip(".") for other, keys in others.items() if key in keys]
    if key == "seed":
        elsewhere.append("run.seed")
    if elsewhere:
        remedy = f"it belongs elsewhere: write {elsewhere[0]}"
    else:
        remedy = nearest(key, own)
        if "kwargs" in own and "did you mean" not in remedy:
            remedy += f"; what is the component's own goes under {section}.kwargs"
    return ConfigError(f"{where} ({shown(value)}) is not a key here; {remedy}")


def keys_by_section(model: type[BaseModel], prefix: str = "") -> dict[str, list[str]]:
    """Dotted section -> its keys, for every section that can stand in a document of `model`."""
    sections = {prefix: list(model.model_fields)}
    for name, field in model.model_fields.items():
        part, listed = _section_of(field.annotation)
        if part is not None:
            sections |= keys_by_section(part, f"{prefix}.{name}".lstrip(".") + ("[]" if listed else ""))
    if "regime" in sections and not prefix:
        sections["regime"] += sorted(_fields_of_providers() - set(sections["regime"]))
    return sections


def dotted(parts: Iterable[int | str], place: str = "") -> str:
    """A document path as text: ("regime", "segments", 1) -> "regime.segments[1]"."""
    for part in parts:
        place += f"[{part}]" if isinstance(part, int) else f".{part}"
    return place.lstrip(".")


def shown(value: Any) -> str:
    """A value as an error message shows it, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def plain_document(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Every section as plain values; sections that are absent (None) are left out."""
    return {name: plain(value, name) for name, value in sections.items() if value is not None}


def plain(value: Any, place: str) -> Any:
    """A value as a document holds it (text, finite numbers, true/false, null, lists, mappings), or ConfigError."""
    if isinstance(value, BaseModel):
        return plain(value.model_dump(exclude_unset=True), place)
    if isinstance(value, Mapping):
        entries = typing.cast("Mapping[Any, Any]", value)
        for key in entries:
            if not isinstance(key, str):
                raise ConfigError(
                    f"{place or 'the document'} has the key {shown(key)}, which is not text; put it in quotes"
                )
        return {key: plain(entry, f"{place}.{key}".lstrip(".")) for key, entry in entries.items()}
    if isinstance(value, list | tuple):
        return [plain(entry, f"{place}[{i}]") for i, entry in enumerate(typing.cast("list[Any]", value))]
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{place} is {value}, but a document holds finite numbers; leave it out or use null")
    if value is None or isinstance(value, str | int | float):
        return value
    raise ConfigError(
        f"{place} is {shown(value)}, a {type(value).__name__}; a document holds text, numbers, lists, mappings"
    )


def _section_of(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for part in typing.get_args(annotation):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part, typing.get_origin(annotation) is tuple
    return None, False


def _generic(section: str) -> str:
    return section if "[" not in section else f"{section[: section.index('[')]}[]"


def _fields_of_providers() -> set[str]:
    targets = [target for target in registry.names("regimes").values() if target.startswith("perdure.")]
    classes = [registry.load(target, "regime.provider") for target in targets]
    return {field.name for cls in classes for field in dataclasses.fields(cls)}
