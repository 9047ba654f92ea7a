"""`@component`: a frozen dataclass whose fields are its configuration schema."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar, dataclass_transform

from perdure.core.errors import ConfigError, nearest

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def component(cls: type[T]) -> type[T]:
    """Freeze `cls` into a hashable value and have schema readers refuse fields it does not have."""
    cls.__pydantic_config__ = {"extra": "forbid"}  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True)(cls)


def make(cls: type[T], values: Mapping[str, Any], place: str) -> T:
    """Build a component from plain document values, nested components included.

    Raises ConfigError naming `place`, the key and what was wrong: an unknown key with the
    nearest valid one, a wrong type, or whatever the component's own checks refuse.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(cls).validate_python(dict(values))
    except ValidationError as error:
        raise ConfigError(_first_problem(error, cls, place)) from None


def _first_problem(error: Any, cls: type, place: str) -> str:
    problem = error.errors()[0]
    path = [str(part) for part in problem["loc"]]
    where = ".".join([place, *path])
    if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{where} is not a key here; {nearest(path[-1], _fields(cls, path[:-1]))}"
    if problem["type"] in ("missing", "missing_argument"):
        return f"{where} is missing; give it a value"
    return f"{where} is {problem['input']!r}: {problem['msg']}"


def _fields(cls: Any, path: list[str]) -> list[str]:
    for name in path:
        hints = {field.name: field.type for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}
        cls = hints.get(name, cls)
    return [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
