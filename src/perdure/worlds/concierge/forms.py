"""Forms that values of a file must have, and the one walk that refuses, by place and entry, what does not fit."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from perdure.core.errors import ConfigError, nearest

MOST = 10_000_000
"""What a number of a file may be at most."""
_MOST_SHOWN = 60


class Leaf(NamedTuple):
    """A plain value: what it must be, in words, and whether one is that."""

    says: str
    accepts: Callable[[Any], bool]


class Option(NamedTuple):
    """One of the names."""

    names: tuple[str, ...]


class Many(NamedTuple):
    """A list with entries of one form, at least so many."""

    form: "Form"
    least: int = 0


class Row(NamedTuple):
    """A list with an entry for each of the forms; those after the first `least` may be left out."""

    forms: tuple["Form", ...]
    least: int


class Named(NamedTuple):
    """A table of entries of one form, under any names, or under some of the `names`."""

    form: "Form"
    names: tuple[str, ...] = ()


class Table(NamedTuple):
    """A table with these keys and no others."""

    fields: Mapping[str, "Form"]
    required: tuple[str, ...] = ()


class Choice(NamedTuple):
    """A table whose `key` says which of the tables it is."""

    key: str
    tables: Mapping[str, Table]


Form = Leaf | Option | Many | Row | Named | Table | Choice


def refuse_misfit(form: Form, value: Any, place: str, name: str = "") -> None:
    """Raise ConfigError, with the place and the entry, for the first value that does not have its form."""
    where = f"{place}: {name}" if name else place
    if isinstance(form, Leaf):
        if not form.accepts(value):
            refuse(where, value, f"it must be {form.says}")
    elif isinstance(form, Option):
        refuse_unknown(where, value, form.names)
    elif isinstance(form, (Many, Row)):
        _refuse_list(form, value, place, name)
    elif not isinstance(value, Mapping):
        refuse(where, value, "it must be a table")
    else:
        _refuse_table(form, value, place, name)


def refuse(where: str, value: Any, remedy: str) -> NoReturn:
    """Raise ConfigError for a value, which is cut where it is long."""
    shown = repr(value)
    raise ConfigError(f"{where} is {shown if len(shown) <= _MOST_SHOWN else shown[:_MOST_SHOWN] + '...'}; {remedy}")


def refuse_unknown(where: str, value: Any, names: Any) -> None:
    """Raise ConfigError for a value that is none of the names, with the nearest one."""
    if not isinstance(value, str) or value not in names:
        refuse(where, value, nearest(str(value), names))


def _refuse_list(form: Many | Row, value: Any, place: str, name: str) -> None:
    where = f"{place}: {name}" if name else place
    most = len(form.forms) if isinstance(form, Row) else len(value) if isinstance(value, list) else 0
    if not isinstance(value, list) or not form.least <= len(value) <= most:
        count = f" of {form.least} or more"
        if isinstance(form, Row):
            count = f" of {most} entries" if form.least == most else f" of {form.least} to {most} entries"
        refuse(where, value, f"it must be a list{count if form.least else ''}")
    for index, item in enumerate(value):
        one = form.forms[index] if isinstance(form, Row) else form.form
        refuse_misfit(one, item, place, f"{name}[{index}]")


def _refuse_table(form: Named | Table | Choice, value: Mapping[str, Any], place: str, name: str) -> None:
    where = f"{place}: {name}" if name else place
    if isinstance(form, Choice):
        if form.key not in value:
            raise ConfigError(f"{where} lacks {form.key}; {nearest('', form.tables)}")
        refuse_unknown(_below(where, name, form.key), value[form.key], form.tables)
        chosen = form.tables[value[form.key]]
        form = Table({form.key: TEXT, **chosen.fields}, chosen.required)
    if isinstance(form, Named):
        fields = dict.fromkeys(form.names or value, form.form)
    else:
        fields = form.fields
        missing = [each for each in form.required if each not in value]
        if missing:
            raise ConfigError(f"{where} lacks {', '.join(missing)}; give each a value")
    for each in value:
        if each not in fields:
            raise ConfigError(f"{where} has the unknown key {each!r}; {nearest(each, fields)}")
    for each in fields:
        if each in value:
            refuse_misfit(fields[each], value[each], place, f"{name}.{each}" if name else each)


def _below(where: str, name: str, key: str) -> str:
    return f"{where}.{key}" if name else f"{where}: {key}"


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number of a size that a file may have."""
    return isinstance(value, int) and not isinstance(value, bool) and -MOST <= value <= MOST


def whole(least: int, most: int = MOST, says: str = "") -> Leaf:
    """A whole number within the bounds."""
    says = says or (f"a whole number from {least} to {most}" if most < MOST else f"a whole number, {least} or more")
    return Leaf(says, lambda value: is_whole(value) and least <= value <= most)


def table(fields: Mapping[str, Form], *optional: str) -> Table:
    """A table that must have all of its keys but the `optional` ones."""
    return Table(fields, tuple(name for name in fields if name not in optional))


ANYTHING = Leaf("a value", lambda value: True)
TEXT = Leaf("a text", lambda value: isinstance(value, str) and bool(value))
ANY_TEXT = Leaf("a text", lambda value: isinstance(value, str))
NAME = Leaf(
    "a name of letters, digits and _",
    lambda value: isinstance(value, str) and re.fullmatch("[A-Za-z][A-Za-z0-9_]*", value) is not None,
)
SWITCH = Leaf("true or false", lambda value: isinstance(value, bool))
WHOLE = whole(0)
ANY_WHOLE = whole(-MOST, says="a whole number")
SHARE = Leaf(
    "a number from 0 to 1",
    lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1,
)
SCALAR = Leaf(
    "a text, a whole number, true or false",
    lambda value: isinstance(value, (str, bool)) or is_whole(value),
)
TEXTS = Many(TEXT)


def pair(least: int, most: int) -> Leaf:
    """[low, high], both within the bounds."""
    return Leaf(
        f"[low, high] of whole numbers from {least} to {most}, low first",
        lambda value: (
            isinstance(value, list)
            and len(value) == 2
            and all(is_whole(number) and least <= number <= most for number in value)
            and value[0] <= value[1]
        ),
    )
