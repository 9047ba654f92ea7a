"""`@component`: a frozen dataclass whose fields are its configuration schema."""

import dataclasses
import reprlib
import typing
from collections.abc import Mapping
from typing import Any, TypeVar, cast, dataclass_transform

from perdure.core.errors import ConfigError, PerdureError, nearest

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def component(cls: type[T]) -> type[T]:
    """Freeze `cls` into a hashable value and have schema readers refuse fields it does not have."""
    cls.__pydantic_config__ = {"extra": "forbid"}  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True)(cls)


def make(cls: type[T], values: Mapping[str, Any], place: str) -> T:
    """Build a component from plain document values, nested components included.

    Where a field's default is itself a component, the given keys change that default: the others
    keep the values it has there. Raises ConfigError naming `place`, the key and what was wrong: an unknown key with the
    nearest valid one, a wrong type, or whatever the component's own checks refuse.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(cls).validate_python(_completed(cls, values))
    except ValidationError as error:
        raise ConfigError(_problem(error.errors(), cls, place)) from None


def _completed(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with nested mappings laid over the default components they change."""
    completed = dict(values)
    for field in dataclasses.fields(cls):
        given, default = completed.get(field.name), field.default
        if isinstance(given, Mapping) and dataclasses.is_dataclass(default) and not isinstance(default, type):
            known = {each.name: getattr(default, each.name) for each in dataclasses.fields(default)}
            same = given.keys() <= known.keys() and given.get("kind") in (None, known.get("kind"))
            if same:  # Else it is another member of a union, or misspelt.
                completed[field.name] = known | _completed(type(default), cast("Mapping[str, Any]", given))
    return completed


def _problem(problems: list[Any], cls: type, place: str) -> str:
    """The text of the problem to mend first: a misspelt key explains a missing one."""
    unknown = [each for each in problems if each["type"] in ("unexpected_keyword_argument", "extra_forbidden")]
    problem = (unknown or problems)[0]
    path: tuple[str | int, ...] = problem["loc"]
    where = place + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    cause = problem.get("ctx", {}).get("error")
    if unknown:
        return f"{where} is not a key here; {nearest(str(path[-1]), _fields(cls, path[:-1]))}"
    if isinstance(cause, PerdureError):  # A component's own check: its text opens with the field.
        return f"{where}.{cause}"
    if problem["type"] in ("missing", "missing_argument"):
        return f"{where} is missing; give it a value"
    return f"{where} is {reprlib.repr(problem['input'])}: {problem['msg']}"


def _fields(cls: Any, path: tuple[str | int, ...]) -> list[str]:
    """Field names of the component that stands at `path` below `cls`."""
    for part in path:
        if isinstance(part, str) and dataclasses.is_dataclass(cls):
            cls = typing.get_type_hints(cls).get(part)
        else:
            # Into an entry of a tuple, or past the name that tells the members of a union apart.
            members = [each for each in typing.get_args(cls) if dataclasses.is_dataclass(each)]
            named = [each for each in members if getattr(each, "__name__", "") == part]
            cls = (named or members or [cls])[0]
    members = [cls, *typing.get_args(cls)]
    return sorted(
        {field.name for each in members if dataclasses.is_dataclass(each) for field in dataclasses.fields(each)}
    )
