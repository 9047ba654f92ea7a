"""What users may want of a vendor, by its file: slots, constraints, templates, and what each pattern needs of them."""

from collections.abc import Collection, Mapping
from typing import Any

from perdure.core.errors import ConfigError
from perdure.worlds.concierge import facts, judge, schema
from perdure.worlds.concierge.forms import refuse, refuse_unknown
from perdure.worlds.concierge.patterns import Pattern

Places = Mapping[str, list[str]]
_DRAWN = {"date": "days", "moment": "days", "items": "dishes"}
_OF_MENU = {"serves_egg", "least_price", "subtotal"}
"""What a menu that is shown tells."""
_ANYWHERE = ("total_above", "not_after")
"""Needs that do not depend on what users want of the vendor."""


def check_slots(spec: Mapping[str, Any], places: Places, place: str) -> None:
    """Raise ConfigError for a slot, as a domain or one of its templates has it, for which no value can be drawn."""
    earlier: list[str] = []
    for name, slot in spec["slots"].items():
        _check_slot(spec, places, name, slot, earlier, f"{place}: slots.{name}")
        earlier.append(name)
    for name in spec.get("unrequested", ()):
        refuse_unknown(f"{place}: unrequested has an entry that", name, spec["slots"])
    for template in spec["templates"]:
        _check_overrides(spec, places, template.get("slots", {}), f"{place}: template {template['id']!r}: slots")


def check_wishes(spec: Mapping[str, Any], known: facts.Kinds, place: str) -> None:
    """Raise ConfigError for a constraint or template that no goal can be made of."""
    for name, constraint in spec["constraints"].items():
        where, test = f"{place}: constraints.{name}", constraint["test"]
        if name == "budget" and test != "at_most":
            refuse(f"{where}.test", test, "a budget is 'at_most'")
        if "choice" not in constraint and not constraint.get("planted") and test not in ("holds", "lacks"):
            raise ConfigError(f"{where} lacks choice; give the values that users name, or planted = true for a budget")
        if constraint.get("planted") and name != "budget":
            raise ConfigError(f"{where} is planted; only a budget is, give choice")
        for value in constraint.get("choice", ()):
            facts.refuse_value(test, known[constraint["fact"]], value, f"{where}.choice has a value that")
    named: set[str] = set()
    for template in spec["templates"]:
        where = f"{place}: template {template['id']!r}"
        if template["id"] in named:
            raise ConfigError(f"{where} stands twice; ids are unique")
        named.add(template["id"])
        for name in template["constraints"]:
            refuse_unknown(f"{where}: constraints has an entry that", name, spec["constraints"])
        for name in template["prefer"]:
            _check_preference(name, known, f"{where}: prefer has an entry that")
        _check_spoken(spec, (*template["constraints"], *template["prefer"]), where)
        _refuse_unseen(spec, template["constraints"], template["prefer"], where)
        if "en" not in template["purpose"] or not spec["skeletons"].get("en"):
            raise ConfigError(f"{where}: purpose and skeletons need at least en")


def check_pattern(
    spec: Mapping[str, Any],
    pattern: Pattern,
    versions: Collection[int],
    ids: Collection[str],
    places: Places,
    where: str,
) -> None:
    """Raise ConfigError for a pattern that does not belong to its vendor's file."""
    if pattern.from_version not in versions:
        refuse(f"{where}: from", pattern.from_version, f"a vendor drifts from one of the versions {sorted(versions)}")
    for name in pattern.tools:
        refuse_unknown(f"{where}: shows.tools has an entry that", name.partition(".")[2], spec["tools"])
    needs = pattern.needs
    for name in needs.get("not_after", ()):
        refuse_unknown(f"{where}: needs.not_after has an entry that", name, ids)
    if "templates" not in spec:
        for name in needs:
            refuse_unknown(f"{where}: needs has a key that", name, _ANYWHERE)
        return
    if (pattern.type == "pricing" or needs.get("budget")) and "en" not in spec["phrases"].get("budget", {}):
        raise ConfigError(f"{where} needs a budget; add phrases.budget with at least en")
    known = facts.kinds(spec, where)
    for index, need in enumerate((needs, *needs.get("either", ()))):
        _check_need(spec, known, places, need, f"{where}: needs" + f".either[{index - 1}]" * bool(index))


def refuse_unanswered(after: Mapping[str, Any], pattern: Pattern, where: str) -> None:
    """Raise ConfigError where the vendor, drifted so, never answers with what a pattern or its goals count on."""
    needs = pattern.needs
    for need in (needs, *needs.get("either", ())) if "templates" in after else ():
        asked = [need["constraint"]] if "constraint" in need else []
        _refuse_unseen(after, asked, need.get("prefer", ()), f"{where}: needs")
    rules = [*after.get("policies", {}).values()]
    arguments = [each for tool in after["tools"].values() for each in tool["args"].values()]
    rules += [each["required_by"] for each in arguments if "required_by" in each]
    known = {*judge.ANYWHERE, *(rule["code"] for rule in rules if "code" in rule)}
    for code in pattern.codes:
        refuse_unknown(f"{where}: shows.codes has an entry that", code, known)


def _check_need(
    spec: Mapping[str, Any], known: facts.Kinds, places: Places, need: Mapping[str, Any], where: str
) -> None:
    if "constraint" in need:
        name = need["constraint"]
        refuse_unknown(f"{where}.constraint", name, spec["constraints"])
        _check_spoken(spec, (name,), where)
        constraint = spec["constraints"][name]
        for value in need.get("values", ()):
            kind = known[constraint["fact"]]
            facts.refuse_value(constraint["test"], kind, value, f"{where}.values has a value that")
    elif "values" in need:
        raise ConfigError(f"{where} has values and no constraint; say of which they are")
    for name in need.get("prefer", ()):
        _check_preference(name, known, f"{where}.prefer has an entry that")
        _check_spoken(spec, (name,), where)
    for name, value in need.get("request", {}).items():
        refuse_unknown(f"{where}.request has a key that", name, spec["slots"])
        _check_value(spec["slots"][name]["type"], places, value, f"{where}.request.{name}")
    _check_overrides(spec, places, need.get("slots", {}), f"{where}.slots")
    if need.get("setting") == "same_day" and spec["slots"].get("date", {}).get("type") != "date":
        raise ConfigError(f"{where}.setting is 'same_day'; that needs a slot date of type 'date'")


def _refuse_unseen(spec: Mapping[str, Any], constraints: Collection[str], prefer: Collection[str], where: str) -> None:
    """Raise ConfigError for a wish about a fact that no offer shows, nor anything that it is reckoned from."""
    shown = {field[1] for field in spec["views"]["offer"]}
    priced = {part["of"] for part in spec["pricing"] if "of" in part} - {"sum"}
    known = shown | (_OF_MENU if "menu_shown" in shown else set())
    if priced <= known or shown & {"quote", "total"}:
        known |= {"quote", "total", *priced}
    wishes = [(name, spec["constraints"][name]["fact"]) for name in constraints]
    for name, fact in (*wishes, *((text, text.partition(":")[2]) for text in prefer)):
        if fact not in known:
            raise ConfigError(
                f"{where}: {name!r} is a wish about the fact {fact!r}, which views.offer does not show; nobody could "
                "fulfil it but by chance: show the fact there"
            )


def _check_preference(text: str, known: facts.Kinds, where: str) -> None:
    order, _, fact = text.partition(":")
    if order not in ("lowest", "highest"):
        refuse(where, text, "it must be lowest:FACT or highest:FACT")
    facts.refuse_unless(fact, facts.ORDERED, known, where)


def _check_spoken(spec: Mapping[str, Any], names: Collection[str], where: str) -> None:
    for name in names:
        if "en" not in spec["phrases"].get(name, {}):
            raise ConfigError(f"{where}: phrases.{name} has no English text; add at least en")


def _check_overrides(spec: Mapping[str, Any], places: Places, given: Mapping[str, Any], where: str) -> None:
    """Slots drawn otherwise than their domain says."""
    names = list(spec["slots"])
    for name, slot in given.items():
        refuse_unknown(f"{where} has a key that", name, names)
        whole = {**spec["slots"][name], **slot}
        if facts.kind_of_type(whole["type"]) != facts.kind_of_type(spec["slots"][name]["type"]):
            refuse(f"{where}.{name}.type", whole["type"], f"the slot is of the type {spec['slots'][name]['type']!r}")
        _check_slot(spec, places, name, whole, names[: names.index(name)], f"{where}.{name}")


def _check_slot(
    spec: Mapping[str, Any], places: Places, name: str, slot: Mapping[str, Any], earlier: list[str], where: str
) -> None:
    kind = slot["type"]
    refuse_unknown(f"{where}.type", kind, {*places, *schema.TYPES, "items"} - {"date_dmy", "boolean"})
    way = "choice" if "choice" in slot and kind != "items" else _DRAWN.get(kind, "" if kind in places else "choice")
    if way and way not in slot:
        raise ConfigError(f"{where} is of type {kind!r}; give it {way}")
    if kind == "items" and "count" not in slot:
        raise ConfigError(f"{where} is of type 'items'; give it count")
    if kind == "moment" and not ("days" in slot and "choice" in slot):
        raise ConfigError(f"{where} is of type 'moment'; give it days and choice, hours")
    for value in slot.get("choice", ()):
        if kind == "moment":
            if facts.kind_of(value) != facts.NUMBER or not 0 <= value <= 23:
                refuse(f"{where}.choice has a value that", value, "it must be an hour, 0 to 23")
        else:
            _check_value(kind, places, value, f"{where}.choice has a value that")
    for link in ("other_than", "after"):
        if link in slot:
            refuse_unknown(f"{where}.{link}", slot[link], earlier)
    if "after" in slot and spec["slots"][slot["after"]]["type"] != "date":
        refuse(f"{where}.after", slot["after"], "it must be a slot of type 'date'")


def _check_value(kind: str, places: Places, value: Any, where: str) -> None:
    """Whether a value may stand in a slot of a type."""
    if kind in places:
        refuse_unknown(where, value, places[kind])
    elif not schema.CHECKS.get(kind, lambda _: False)(value):
        refuse(where, value, f"it must be of the type {kind!r}")
