"""From what an agent says to an action and back: the JSON protocol and native tool calls.

JSON protocol: the first JSON object of an answer, in full
({"action_type": "tool_call", "tool_name": "airline.search", "tool_args": {...}}) or short:

    {"tool": "airline.search", "args": {...}}   {"say": "..."}   {"ask": "..."}   {"probe": "airline"}
    {"report": "airline", "kind": "pricing"}    {"submit": 0.9, "message": "..."}   {"abort": true}

Native tools: {"name": "airline_search", "arguments": {...}}, with say, ask_user, probe_schema, report_drift,
submit and abort as tools of their own. Either protocol also takes the parsed object instead of text.
"""

import json
from collections.abc import Mapping
from typing import Any

from perdure.core import jsontext
from perdure.worlds.concierge.records import ACTION_TYPES, KINDS, Action

PROTOCOLS = ("json", "native")
MOST_MESSAGE = 2000
MOST_RATIONALE = 200

_FIELDS = {
    "tool_call": ({"tool_name", "tool_args"}, set()),
    "speak": ({"message"}, set()),
    "clarify": ({"message"}, set()),
    "probe_schema": ({"tool_name"}, set()),
    "report_drift": ({"domain", "kind"}, {"message"}),
    "submit": ({"confidence"}, {"message"}),
    "abort": (set(), {"message"}),
}
"""Action type -> fields it must and may have; rationale may stand in each."""

_SHORT = {
    "tool": ("tool_call", "tool_name"),
    "say": ("speak", "message"),
    "ask": ("clarify", "message"),
    "probe": ("probe_schema", "tool_name"),
    "report": ("report_drift", "domain"),
    "submit": ("submit", "confidence"),
    "abort": ("abort", ""),
}
_NATIVE = {
    "say": ("speak", ("message",)),
    "ask_user": ("clarify", ("message",)),
    "probe_schema": ("probe_schema", ("domain",)),
    "report_drift": ("report_drift", ("domain", "kind")),
    "submit": ("submit", ("confidence", "message")),
    "abort": ("abort", ("message",)),
}


def parsed(said: Any, protocol: str = "json") -> tuple[Action | None, str]:
    """The action that an answer (text or a JSON object) holds, or None and why it holds none; never raises."""
    if isinstance(said, Action):
        if said.tool_args is None:
            return checked(said)
        arguments = _object(said.tool_args)
        if arguments is None:
            return None, "tool_args is no JSON object"
        return checked(said._replace(tool_args=arguments))
    fields = _object(said)
    if fields is None:
        return None, "no JSON object was found"
    made = _from_native(fields) if protocol == "native" else _from_json(fields)
    return (None, made) if isinstance(made, str) else checked(made)


def checked(action: Action) -> tuple[Action | None, str]:
    """The action, or None and which rule of its type it breaks."""
    if not isinstance(action.action_type, str) or action.action_type not in _FIELDS:
        return None, f"action_type is one of {', '.join(ACTION_TYPES)}"
    must, may = _FIELDS[action.action_type]
    for name, value in zip(Action._fields[1:], action[1:], strict=True):
        if value is None and name in must:
            return None, f"{action.action_type} needs {name}"
        if value is not None and name not in must | may | {"rationale"}:
            return None, f"{action.action_type} does not take {name}"
        if value is not None and not _VALID[name](value):
            return None, f"{name} is not valid"
    return action, ""


def written(action: Action, protocol: str = "json", terse: bool = False) -> str:
    """An action as an agent would say it: in short form, or as a native call; `parsed` is the inverse."""
    return (_TERSE if terse else _PLAIN)(_said(action, protocol))


def _said(action: Action, protocol: str) -> dict[str, Any]:
    kind = action.action_type
    if protocol == "native":
        if kind == "tool_call":
            return {"name": (action.tool_name or "").replace(".", "_"), "arguments": action.tool_args}
        name = next(name for name, (of, _) in _NATIVE.items() if of == kind)
        given = {"message": action.message, "confidence": action.confidence, "kind": action.kind}
        given["domain"] = action.tool_name if kind == "probe_schema" else action.domain
        arguments = {key: given[key] for key in _NATIVE[name][1] if given[key] is not None}
        return {"name": name, "arguments": arguments}
    if kind == "tool_call":
        return {"tool": action.tool_name, "args": action.tool_args}
    short = next(key for key, (of, _) in _SHORT.items() if of == kind)
    first: Any = {
        "speak": action.message,
        "clarify": action.message,
        "probe_schema": action.tool_name,
        "report_drift": action.domain,
        "submit": action.confidence,
        "abort": True,
    }[kind]
    said = {short: first} | ({"kind": action.kind} if action.kind else {})
    if kind in ("submit", "abort", "report_drift") and action.message:
        said["message"] = action.message
    return said


def _object(said: Any) -> dict[str, Any] | None:
    if isinstance(said, str):
        found = jsontext.first_object(said)
        return None if found is None else found.value
    if not isinstance(said, Mapping):
        return None
    try:
        text = json.dumps(said, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    found = jsontext.first_object(text)
    return None if found is None or found.end != len(text) else found.value


def _from_json(fields: dict[str, Any]) -> Action | str:
    if "action_type" in fields:
        unknown = fields.keys() - set(Action._fields)
        return f"unknown field {sorted(unknown)[0][:40]!r}" if unknown else Action(**fields)
    for short, (kind, name) in _SHORT.items():
        if short in fields:
            rest = {key: value for key, value in fields.items() if key != short}
            if kind == "tool_call":
                rest["tool_args"] = rest.pop("args", {})
            unknown = rest.keys() - set(Action._fields)
            if unknown:
                return f"unknown field {sorted(unknown)[0][:40]!r}"
            if not name and fields[short] is not True:
                return f"{short} is true or left out"
            return Action(**{"action_type": kind, **({name: fields[short]} if name else {}), **rest})
    return "no action was found in the object"


def _from_native(fields: dict[str, Any]) -> Action | str:
    fields = fields.get("function", fields) if isinstance(fields.get("function", fields), Mapping) else fields
    name, arguments = fields.get("name"), fields.get("arguments", {})
    if isinstance(arguments, str):
        arguments = _object(arguments)
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        return "a call has a name and arguments"
    if name not in _NATIVE:
        domain, _, verb = name.partition("_")
        return Action("tool_call", f"{domain}.{verb}" if verb else name, arguments)
    kind, allowed = _NATIVE[name]
    unknown = arguments.keys() - set(allowed)
    if unknown:
        return f"{name} does not take {sorted(map(str, unknown))[0][:40]!r}"
    given = dict(arguments)
    if kind == "probe_schema":
        given["tool_name"] = given.pop("domain", None)
    return Action(kind, **given)


_PLAIN = json.JSONEncoder(ensure_ascii=False).encode
_TERSE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _is_message(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MOST_MESSAGE and "\x00" not in value


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 64


def _is_share(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


_VALID = {
    "tool_name": _is_name,
    "tool_args": lambda value: isinstance(value, Mapping),
    "message": _is_message,
    "confidence": _is_share,
    "rationale": lambda value: isinstance(value, str) and len(value) <= MOST_RATIONALE,
    "domain": _is_name,
    "kind": lambda value: isinstance(value, str) and value in KINDS,
}
