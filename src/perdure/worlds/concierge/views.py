"""How a vendor writes what it knows: named fields of an answer, each from a source and perhaps transformed.

A field is [name, source] or [name, source, transform]. A source is a fact of the offer or booking, or
"=TEXT" for the text itself. Reading back with the same view inverts it; with another it fails or misleads.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from perdure.core.errors import ConfigError, nearest


class Unreadable(Exception):
    """An answer does not have the fields that its reader knows."""


class Field(NamedTuple):
    """One field of an answer."""

    name: str
    source: str
    constant: Any
    """What is written whatever the facts; None where `source` is a fact."""
    write: Callable[[Any], Any] | None
    read: Callable[[Any], Any] | None


View = tuple[Field, ...]


def view_of(fields: list[list[str]], place: str) -> View:
    """A view from its description in a domain file."""
    return tuple(_field(entry, f"{place}[{index}]") for index, entry in enumerate(fields))


def written(view: View, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an answer about something with these facts; facts that do not apply are left out."""
    answer: dict[str, Any] = {}
    for name, source, constant, write, _ in view:
        if constant is not None:
            answer[name] = constant if constant != "null" else None
        elif source in facts:
            value = facts[source]
            answer[name] = value if write is None else write(value)
    return answer


def read(view: View, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that an answer states under this view; Unreadable where a field is missing or is null."""
    facts: dict[str, Any] = {}
    for name, source, constant, _, back in view:
        if constant is not None:
            continue
        value = answer.get(name)
        if value is None:
            raise Unreadable(name)
        facts[source] = value if back is None else back(value)
    return facts


def _field(entry: list[str], place: str) -> Field:
    name, source, *transform = entry
    write, back = (None, None) if not transform else _transform(transform[0], place)
    return Field(name, source, source[1:] if source.startswith("=") else None, write, back)


def _transform(name: str, place: str) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    if name not in TRANSFORMS:
        raise ConfigError(f"{place} has the transform {name!r}; {nearest(name, TRANSFORMS)}")
    return TRANSFORMS[name]


def _to_paise(rupees: int) -> int:
    return rupees * 100


def _from_paise(paise: int) -> int:
    return paise // 100


def _to_day_first(stamp: str) -> str:
    return f"{stamp[8:10]}-{stamp[5:7]}-{stamp[:4]}{stamp[10:]}"


def _from_day_first(stamp: str) -> str:
    return f"{stamp[6:10]}-{stamp[3:5]}-{stamp[:2]}{stamp[10:]}"


TRANSFORMS = {"paise": (_to_paise, _from_paise), "dmy": (_to_day_first, _from_day_first)}
