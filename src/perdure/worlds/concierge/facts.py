"""Which facts a vendor's file gives, of what kind each is, and whether those that it names exist and can be used so."""

from collections.abc import Iterator, Mapping
from typing import Any

from perdure.core.errors import ConfigError
from perdure.worlds.concierge import forms, judge

NUMBER, TEXT, FLAG, DAY, MOMENT, OTHER = "a number", "a text", "true or false", "a day", "a moment", "a list"
ANY = (NUMBER, TEXT, FLAG, DAY, MOMENT, OTHER)
ORDERED = (NUMBER, TEXT, FLAG, DAY, MOMENT)
Kinds = Mapping[str, str]

_OF_TYPE = {
    "integer": NUMBER,
    "count": NUMBER,
    "boolean": FLAG,
    "date": DAY,
    "date_dmy": DAY,
    "moment": MOMENT,
    "items": OTHER,
}
_FIXED = {"checkin": DAY, "checkout": DAY, "arrival_time": TEXT, "depart": MOMENT, "items": OTHER, "menu": OTHER}
"""Facts that the world itself reads, and what they must be."""
_RECKONED = {"index": NUMBER, "quote": NUMBER, "total": NUMBER, "breakdown": OTHER}
_OF_BOOKING = {"id": TEXT, "booking_id": TEXT, "cancelled": FLAG}
_OF_STAY = {"nights": NUMBER, "early": FLAG}
_OF_MENU = {
    "menu_shown": OTHER,
    "least_price": NUMBER,
    "serves_egg": FLAG,
    "order_lines": OTHER,
    "missing": OTHER,
    "subtotal": NUMBER,
}
_COMPARED = {
    "at_most": (NUMBER,),
    "at_least": (NUMBER,),
    "equals": (NUMBER, TEXT, FLAG, DAY),
    "holds": ANY,
    "lacks": ANY,
    "window": (MOMENT,),
}
"""Test or filter -> what it can be made of."""
_TRANSFORMED = {"paise": (NUMBER,), "dmy": (DAY, MOMENT)}


def kind_of(value: Any) -> str:
    """What a plain value is."""
    if isinstance(value, bool):
        return FLAG
    return NUMBER if isinstance(value, int) else TEXT


def kind_of_type(name: str) -> str:
    """What an argument or a slot of a type is."""
    return _OF_TYPE.get(name, TEXT)


def kinds(spec: Mapping[str, Any], place: str) -> Kinds:
    """Fact -> what it is, of every fact that an offer or a booking of this vendor may have."""
    known: dict[str, str] = {}
    for name, kind, where in _given(spec):
        wanted = _FIXED.get(name, known.get(name, kind))
        if name in _RECKONED or name in _OF_BOOKING:
            raise ConfigError(f"{place}: {where} is a fact that the world reckons; give it another name")
        if kind != wanted:
            raise ConfigError(f"{place}: {where} gives {kind}; the fact {name!r} must be {wanted}")
        known[name] = kind
    if "checkin" in known and "checkout" in known:
        known |= _OF_STAY
    if "menu" in known:
        known |= _OF_MENU
    return {**known, **_RECKONED, **_OF_BOOKING}


def refuse_unusable(spec: Mapping[str, Any], known: Kinds, place: str) -> None:
    """Raise ConfigError for an entry that names a fact which nothing gives, or which is not of the kind it needs."""
    for fact, usable, where in _named(spec):
        refuse_unless(fact, usable, known, f"{place}: {where}")


def refuse_unless(fact: str, usable: tuple[str, ...], known: Kinds, where: str) -> None:
    """Raise ConfigError for a fact that is unknown, or of none of the kinds."""
    forms.refuse_unknown(where, fact, known)
    if known[fact] not in usable:
        forms.refuse(where, fact, f"that fact is {known[fact]}; it must be {' or '.join(usable)}")


def refuse_misread(before: Mapping[str, Any], after: Mapping[str, Any], place: str) -> None:
    """Raise ConfigError for a field that keeps its name and holds another kind of fact than its readers expect."""
    known = {**kinds(before, place), **kinds(after, place)}
    shown = {field[0]: field[1] for field in before["views"]["offer"]}
    for name, source, *_ in after["views"]["offer"]:
        old = shown.get(name, "=")
        if old.startswith("=") or source in (old, "=null"):
            continue
        if source.startswith("=") or known[source] != known[old]:
            forms.refuse(f"{place}: views.offer.{name}", source, f"it was {known[old]}; rename what becomes another")


def compared(test: str) -> tuple[str, ...]:
    """What a test can be made of."""
    return _COMPARED[test]


def refuse_value(test: str, kind: str, value: Any, where: str) -> None:
    """Raise ConfigError for a value that a fact of a kind cannot be tested against."""
    if test == "window":
        forms.refuse_unknown(where, value, judge.WINDOWS)
    elif test in ("at_most", "at_least", "equals") and kind_of(value) != (TEXT if kind == DAY else kind):
        forms.refuse(where, value, f"it must be {kind}, as the fact is")


def _given(spec: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Each fact that an entry gives, its kind, and the entry."""
    for index, row in enumerate(spec.get("offers", {}).get("each", ())):
        for name, value in row.items():
            yield name, kind_of(value), f"offers.each[{index}].{name}"
    for name, drawn in spec.get("offers", {}).get("attributes", {}).items():
        yield name, _drawn(drawn), f"offers.attributes.{name}"
    for name, slot in spec.get("slots", {}).items():
        yield name, kind_of_type(slot["type"]), f"slots.{name}"
    for verb, tool in spec["tools"].items():
        if tool["kind"] not in ("search", "book"):
            continue
        for name, argument in tool["args"].items():
            named = argument.get("request", name)
            if "filter" not in argument and named not in (*_RECKONED, *_OF_BOOKING):
                yield named, kind_of_type(argument["type"]), f"tools.{verb}.args.{name}"
    for name, term in spec.get("derived", {}).items():
        yield name, kind_of(spec["terms"][term]), f"derived.{name}"


def _drawn(drawn: Mapping[str, Any]) -> str:
    if "times" in drawn:
        return MOMENT
    if "menu" in drawn:
        return OTHER
    if "choice" in drawn and "factor" not in drawn:
        return kind_of(drawn["choice"][0])
    return FLAG if "chance" in drawn else NUMBER


def _named(spec: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Each fact that an entry names, the kinds it may be of, and the entry."""
    for name, view in spec.get("views", {}).items():
        for index, (_, source, *transform) in enumerate(view):
            if not source.startswith("="):
                yield source, _TRANSFORMED[transform[0]] if transform else ANY, f"views.{name}[{index}]"
    for index, part in enumerate(spec.get("pricing", ())):
        if part.get("of", "sum") != "sum":
            yield part["of"], (NUMBER,), f"pricing[{index}].of"
        if "per" in part:
            yield part["per"], (NUMBER,), f"pricing[{index}].per"
        for condition in ("if", "unless"):
            if condition in part:
                yield part[condition], ANY, f"pricing[{index}].{condition}"
    for name, constraint in spec.get("constraints", {}).items():
        yield constraint["fact"], compared(constraint["test"]), f"constraints.{name}.fact"
    for name, policy in spec.get("policies", {}).items():
        if policy["kind"] in ("offered", "hours_refused"):
            yield policy["attribute"], ORDERED, f"policies.{name}.attribute"
        if policy["kind"] == "hours_refused":
            yield policy["of"], (MOMENT,), f"policies.{name}.of"
    for verb, tool in spec["tools"].items():
        for name, argument in tool["args"].items():
            if "filter" in argument:
                yield argument.get("of", ""), compared(argument["filter"]), f"tools.{verb}.args.{name}.of"
