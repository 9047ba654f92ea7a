"""`@component`: a frozen dataclass whose fields are its configuration schema."""

# Documents carry no types.
# pyright: reportUnknownMemberType=false

import collections
import dataclasses
import re
import reprlib
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast, dataclass_transform

from perdure.core.errors import ConfigError, PerdureError, nearest

T = TypeVar("T")

_KINDS = {bool: "true or false", str: "text", int: "a whole number", float: "a number"}
_PHRASES = {
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "dataclass_type": "must be a mapping of keys to values",
    "dict_type": "must be a mapping of keys to values",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "list_type": "must be a list",
    "model_type": "must be a mapping of keys to values",
    "string_too_short": "must not be empty",
    "string_type": "must be text",
    "too_short": "must not be empty",
    "tuple_type": "must be a list",
}


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

    if not dataclasses.is_dataclass(cls) or "__pydantic_config__" not in vars(cls):
        raise ConfigError(f"{place}: {cls!r} is no component; decorate it with perdure.core.component.component")
    try:
        made = TypeAdapter(cls).validate_python(_completed(cls, values))
    except ValidationError as error:
        raise ConfigError(_problem(error.errors(), cls, place)) from None
    _check_kinds(values, made, place)
    return made


def phrase(problem: Mapping[str, Any]) -> str:
    """What a value must be, from one of pydantic's problems: "must be a list"."""
    message: str = problem["msg"].removeprefix("Value error, ").replace("Input should", "must")
    return _PHRASES.get(problem["type"], message)


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


def _check_kinds(given: Any, made: Any, place: str) -> None:
    """Refuse what pydantic turns into something else without a word, such as "8" or true for a number."""
    if isinstance(given, Mapping):
        became = cast("Mapping[str, Any]", made if isinstance(made, Mapping) else vars(made))
        for key, value in cast("Mapping[str, Any]", given).items():
            _check_kinds(value, became[key], f"{place}.{key}")
    elif isinstance(given, (list, tuple)):
        for index, pair in enumerate(zip(cast("Sequence[Any]", given), made, strict=True)):
            _check_kinds(*pair, f"{place}[{index}]")
    elif isinstance(made, (bool, int, float, str)):
        for kind in (bool, str):
            if isinstance(given, kind) != isinstance(made, kind):
                raise ConfigError(f"{place} is {reprlib.repr(given)}; it must be {_KINDS[type(made)]}")


def _problem(problems: list[Any], cls: type, place: str) -> str:
    """The text of the problem to mend first: a misspelt key explains a missing one."""
    located = _of_likeliest_members([(problem, *_located(cls, problem["loc"])) for problem in problems])
    unknown = [each for each in located if each[0]["type"] in ("unexpected_keyword_argument", "extra_forbidden")]
    problem, path, _ = (unknown or located)[0]
    where = place + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    cause = problem.get("ctx", {}).get("error")
    if unknown:
        return f"{where} is not a key here; {nearest(str(path[-1]), _fields(cls, problem['loc'][:-1]))}"
    if isinstance(cause, PerdureError):
        opening = re.split(r"\W", str(cause), maxsplit=1)[0]  # A component's own check begins with its field.
        return f"{where}.{cause}" if opening in _fields(cls, problem["loc"]) else f"{where}: {cause}"
    if problem["type"] in ("missing", "missing_argument"):
        return f"{where} is missing; give it a value"
    return f"{where} is {reprlib.repr(problem['input'])}; it {phrase(problem)}"


def _located(cls: Any, loc: tuple[str | int, ...]) -> tuple[tuple[str | int, ...], tuple[str, ...]]:
    """A problem's path as a document has it, and the members of unions that pydantic put into it."""
    path: list[str | int] = []
    members: list[str] = []
    for position, part in enumerate(loc):
        names = [getattr(each, "__name__", "") for each in typing.get_args(_at(cls, loc[:position]))]
        if isinstance(part, str) and part in names:
            members.append(part)
        else:
            path.append(part)
    return tuple(path), tuple(members)


def _of_likeliest_members(located: list[Any]) -> list[Any]:
    """The problems of the union's member that has the fewest: the one that was meant."""
    counts = collections.Counter(members for *_, members in located)
    fewest = min(counts, key=lambda members: counts[members])
    return [each for each in located if each[2] == fewest]


def _fields(cls: type, path: tuple[str | int, ...]) -> list[str]:
    """Field names of the component that stands at `path` below `cls`."""
    found = _at(cls, path)
    members = [found, *typing.get_args(found)]
    return sorted(
        {field.name for each in members if dataclasses.is_dataclass(each) for field in dataclasses.fields(each)}
    )


def _at(cls: Any, path: tuple[str | int, ...]) -> Any:
    """The type that stands at `path` below `cls`."""
    for part in path:
        if isinstance(part, str) and dataclasses.is_dataclass(cls):
            cls = typing.get_type_hints(cls).get(part)
        else:
            # Into an entry of a tuple, or past the name that tells the members of a union apart.
            members = [each for each in typing.get_args(cls) if dataclasses.is_dataclass(each)]
            named = [each for each in members if getattr(each, "__name__", "") == part]
            cls = (named or members or [cls])[0]
    return cls
