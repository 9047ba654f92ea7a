"""Words that no vendor owns: what a file of them holds, and what its entries mean to each other."""

from collections.abc import Mapping
from typing import Any

from perdure.core.errors import ConfigError
from perdure.worlds.concierge import checks, schema
from perdure.worlds.concierge.forms import TEXT, TEXTS, Leaf, Many, Named, Row, Table, refuse, refuse_unknown
from perdure.worlds.concierge.judge import WINDOWS
from perdure.worlds.concierge.records import LANGUAGES

DIGITS = Leaf(
    "the ten digits from 0 to 9", lambda value: isinstance(value, str) and len(set(value)) == len(value) == 10
)
BY_ALL = Table(dict.fromkeys(LANGUAGES, TEXT), LANGUAGES)
NAME = Table(dict.fromkeys(LANGUAGES, TEXT), ("en",))
SOME = Named(Many(TEXT, 1), LANGUAGES)
FORM = Table(
    {
        "places": Named(TEXTS),
        "held_out": Named(TEXTS),
        "city": Named(NAME),
        "place": Named(NAME),
        "window": Named(NAME, tuple(WINDOWS)),
        "days": Named(BY_ALL, ("today", "tomorrow", "this", "either", "on")),
        "weekdays": Named(Row((TEXT,) * 7, 7), LANGUAGES),
        "months": Named(Row((TEXT,) * 12, 12), LANGUAGES),
        "digits": Named(DIGITS, LANGUAGES),
        "money": SOME,
        "asked": Named(SOME),
        "asking": Named(BY_ALL),
        "answers": Named(BY_ALL),
        "telling": SOME,
        "done": Named(TEXT, LANGUAGES),
        "roman": Named(TEXTS, ("hinglish",)),
    }
)
"""An entry of two names (days.today) takes the place of the one before; other entries of its table stay."""
FILLED = {"money": ("n",), "asking": (), "telling": ("fact",), "done": (), "window": (), "city": (), "place": ()}
_OF_DAYS = {"this": ("day",), "either": ("first", "second"), "on": ("date",)}
_OF_ANSWERS = {"yes": (), "unknown": (), "enough": ()}
LEAST = 2
"""Places of a kind that a task draws from at least: it may need two that differ."""


def refuse_unusable(found: Mapping[str, Any], words: Mapping[str, Any], place: str) -> None:
    """Raise ConfigError for an entry of one file that cannot be used among the `words` of all of them."""
    for kind in found.get("places", ()):
        if kind in schema.TYPES:
            refuse(f"{place}: a kind of places", kind, "that is a type of arguments; give it another name")
    for kind in {**found.get("places", {}), **found.get("held_out", {})}:
        _refuse_few(kind, words, place)
    for slot in found.get("asked", ()):
        refuse_unknown(f"{place}: asked has an entry without answer that", slot, words["answers"])
    for table, entries in found.items():
        for name, entry in entries.items():
            allowed = _allowed(table, name)
            if allowed is not None:
                _check_texts(entry, allowed, f"{place}: {table}.{name}")


def _refuse_few(kind: str, words: Mapping[str, Any], place: str) -> None:
    """Raise ConfigError where too few places of a kind are left, or held out, for a task."""
    refuse_unknown(f"{place}: held_out has a key that", kind, words["places"])
    codes, held_out = words["places"][kind], words["held_out"].get(kind, [])
    for code in held_out:
        refuse_unknown(f"{place}: held_out.{kind} has an entry that", code, codes)
    left = len(set(codes) - set(held_out))
    if left < LEAST:
        raise ConfigError(f"{place}: {left} of the places of kind {kind!r} are not held out; leave at least {LEAST}")
    if held_out and len(set(held_out)) < LEAST:
        raise ConfigError(f"{place}: held_out.{kind} has one place; hold out at least {LEAST}, or none")


def _allowed(table: str, name: str) -> tuple[str, ...] | None:
    """Placeholders that an entry's texts may have; None where it is no text to be filled in."""
    if table == "days":
        return _OF_DAYS.get(name, ())
    if table == "answers":
        return _OF_ANSWERS.get(name, ("value",))
    return FILLED.get(table)


def _check_texts(entry: Any, allowed: tuple[str, ...], where: str) -> None:
    if isinstance(entry, str):
        checks.check_text(entry, allowed, where, allowed)
        return
    items = entry.items() if isinstance(entry, Mapping) else enumerate(entry)
    for key, item in items:
        _check_texts(item, allowed, f"{where}.{key}" if isinstance(key, str) else f"{where}[{key}]")
