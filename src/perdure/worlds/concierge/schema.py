"""The arguments of tools: one strict JSON Schema each, and the check that every call goes through."""

import datetime
import re
from collections.abc import Callable, Mapping
from typing import Any

from perdure.worlds.concierge.contract import Argument, Contract, Tool, offered
from perdure.worlds.concierge.judge import WINDOWS, Refusal

SCOPE = "payments:write:v"
MOST_TEXT = 120
"""Characters of a text argument at most."""
MOST_ITEMS = 12


def json_schema(tool: Tool, contract: Contract, places: Mapping[str, list[str]]) -> dict[str, Any]:
    """The parameters of a tool as a JSON Schema object that allows nothing else."""
    properties = {name: _property(argument, contract, places) for name, argument in tool.arguments.items()}
    required = [name for name, argument in tool.arguments.items() if not argument.optional or _always(argument)]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def problem(tool: Tool, arguments: Mapping[str, Any], contract: Contract, places: Mapping[str, list[str]]):
    """The first reason why a vendor does not understand a call, as a Refusal, or None."""
    known = tool.arguments
    for name in arguments:
        if name not in known:
            return Refusal("schema_error", "UNKNOWN_FIELD", {"field_name": _NO_NAME.sub("?", name[:40])})
    for name, argument in known.items():
        if name not in arguments:
            if argument.optional and not _always(argument):
                continue
            rule = argument.required_by or {}
            return Refusal("schema_error", rule.get("code", "MISSING_FIELD"), {"field_name": name})
        refused = _mismatch(argument, arguments[name], contract, places)
        if refused is not None:
            return refused
    return None


def understood(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Checked arguments in canonical form: ISO dates, items as ((dish, quantity), ...), defaults filled in."""
    values: dict[str, Any] = {}
    for name, argument in tool.arguments.items():
        value = arguments.get(name, argument.default)
        if value is None:
            continue
        if argument.type == "date_dmy":
            value = f"{value[6:10]}-{value[3:5]}-{value[:2]}"
        elif argument.type == "moment":
            value = value[:16]
        elif argument.type == "items":
            value = tuple(sorted((item["dish_id"], item["qty"]) for item in value))
        values[name] = value
    return values


def _always(argument: Argument) -> bool:
    return argument.required_by is not None and "above" not in argument.required_by


def _property(argument: Argument, contract: Contract, places: Mapping[str, list[str]]) -> dict[str, Any]:
    if argument.type in places:
        return {"type": "string", "enum": list(places[argument.type])}
    if argument.type.startswith("offered:"):
        return {"type": "string", "enum": list(offered(contract, argument.type[8:]) or ())}
    if argument.type == "scope":
        return {"type": "string", "enum": [f"{SCOPE}{contract.auth}"]}
    if argument.type == "items":
        return {"type": "array", "minItems": 1, "maxItems": MOST_ITEMS, "items": _item(contract)}
    return dict(TYPES[argument.type])


def _item(contract: Contract) -> dict[str, Any]:
    """The schema of one item of an order."""
    fields = {"dish_id": TYPES["id"], "qty": TYPES["count"], "modifiers": {"type": "array", "items": TYPES["text"]}}
    required = ["dish_id", "qty", *contract.item_fields]
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


def _mismatch(argument: Argument, value: Any, contract: Contract, places: Mapping[str, list[str]]) -> Refusal | None:
    kind = argument.type
    if kind == "items":
        return (
            None
            if _are_items(value, contract)
            else Refusal("schema_error", "INVALID_ITEMS_SHAPE", {"field_name": argument.name})
        )
    if kind in places:
        good, expected = isinstance(value, str) and value in places[kind], kind
    elif kind.startswith("offered:"):
        good, expected = isinstance(value, str) and len(value) <= MOST_TEXT, "string"
    else:
        good, expected = CHECKS[kind](value), kind
    if good:
        return None
    return Refusal(
        "schema_error", "TYPE_MISMATCH", {"field_name": argument.name, "expected": expected, "got": _kind_of(value)}
    )


def _are_items(value: Any, contract: Contract) -> bool:
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_ITEMS:
        return False
    allowed = {"dish_id", "qty", "modifiers"}
    return all(
        isinstance(item, Mapping)
        and {"dish_id", "qty", *contract.item_fields} <= item.keys() <= allowed
        and _is_id(item["dish_id"])
        and _is_count(item["qty"])
        and _are_texts(item.get("modifiers", []))
        for item in value
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MOST_ITEMS and all(_is_text(text) for text in value)


def _kind_of(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10_000_000


def _is_count(value: Any) -> bool:
    return _is_integer(value) and 1 <= value <= 20


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MOST_TEXT and "\x00" not in value


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 40


def _is_date(value: Any) -> bool:
    return isinstance(value, str) and _ISO_DATE.fullmatch(value) is not None and _exists(value)


def _is_day_first(value: Any) -> bool:
    if not isinstance(value, str) or _DMY_DATE.fullmatch(value) is None:
        return False
    return _exists(f"{value[6:10]}-{value[3:5]}-{value[:2]}")


def _is_time(value: Any) -> bool:
    return isinstance(value, str) and _CLOCK.fullmatch(value) is not None


def _is_moment(value: Any) -> bool:
    return isinstance(value, str) and _MOMENT.fullmatch(value) is not None and _exists(value[:10])


def _exists(date: str) -> bool:
    try:
        datetime.date.fromisoformat(date)
    except ValueError:
        return False
    return True


_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]")
_ISO_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DMY_DATE = re.compile(r"[0-9]{2}-[0-9]{2}-[0-9]{4}")
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T([01][0-9]|2[0-3]):[0-5][0-9](:00\+05:30)?")
_GST = re.compile(r"[0-9A-Z]{15}")

TYPES: dict[str, dict[str, Any]] = {
    "integer": {"type": "integer", "minimum": 0, "maximum": 10_000_000},
    "count": {"type": "integer", "minimum": 1, "maximum": 20},
    "boolean": {"type": "boolean"},
    "text": {"type": "string", "minLength": 1, "maxLength": MOST_TEXT},
    "id": {"type": "string", "minLength": 1, "maxLength": 40},
    "token": {"type": "string", "minLength": 1, "maxLength": 40},
    "code": {"type": "string", "minLength": 1, "maxLength": 40},
    "gst": {"type": "string", "pattern": "^[0-9A-Z]{15}$"},
    "date": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
    "date_dmy": {"type": "string", "pattern": "^[0-9]{2}-[0-9]{2}-[0-9]{4}$"},
    "time": {"type": "string", "pattern": "^[0-9]{2}:[0-9]{2}$"},
    "moment": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}"},
    "window": {"type": "string", "enum": list(WINDOWS)},
}

CHECKS: dict[str, Callable[[Any], bool]] = {
    "integer": _is_integer,
    "count": _is_count,
    "boolean": lambda value: isinstance(value, bool),
    "text": _is_text,
    "id": _is_id,
    "token": _is_id,
    "code": _is_id,
    "gst": lambda value: isinstance(value, str) and _GST.fullmatch(value) is not None,
    "date": _is_date,
    "date_dmy": _is_day_first,
    "time": _is_time,
    "moment": _is_moment,
    "window": lambda value: isinstance(value, str) and value in WINDOWS,
    "scope": lambda value: isinstance(value, str) and value.startswith(SCOPE) and len(value) <= 24,
}
