"""What the agent is told, as text: instructions and tools, the request, answers of vendors, and what went wrong."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from perdure.worlds.concierge import schema
from perdure.worlds.concierge.contract import Argument, Contract, Tool, offered
from perdure.worlds.concierge.records import KINDS, Observation, ToolResult
from perdure.worlds.concierge.vendors import Vendors

INSTRUCTIONS = (
    "You are a concierge. Carry out the user's request with the vendors' tools, one action a turn. Vendors may "
    "change their contracts on the way: notice it, adapt, and tell the user. Answer in the user's language. Ask the "
    "user for what only they know. Submit once it is done, with your honest probability of having got it right."
)
TERSE = "One JSON action a turn. Contracts may change: adapt and tell the user."
NEEDED = ("search", "book", "cancel", "issue")
"""Kinds of tools that a terse opening lists; the others can be called all the same."""
FORMS = {
    "json": 'Actions: {"tool": NAME, "args": {...}}, {"say": TEXT}, {"ask": TEXT}, {"probe": VENDOR}, '
    f'{{"report": VENDOR, "kind": one of {", ".join(KINDS)}}}, {{"submit": CONFIDENCE}}, {{"abort": true}}.',
    "native": 'Call one tool a turn: {"name": NAME, "arguments": {...}}. Besides the vendors\' there are say(message), '
    "ask_user(message), probe_schema(domain), report_drift(domain, kind), submit(confidence), abort().",
}


def opening(vendors: Vendors, seen: Observation, protocol: str, terse: bool, domains: Collection[str]) -> str:
    """The first observation: instructions, tools as published, the time, the request."""
    tools = [tool for tool in vendors.tools.values() if tool.domain in domains and (not terse or tool.kind in NEEDED)]
    listed = "\n".join(signature(tool, vendors.contracts[tool.domain], protocol) for tool in tools)
    said = f"Now: {vendors.now}. Turns: {seen.budget_remaining}.\nUser ({seen.language}): {seen.user}"
    if terse:
        return f"{TERSE}\n{listed}\n{said}"
    return f"{INSTRUCTIONS}\n{FORMS[protocol]}\nTools:\n{listed}\n{said}"


def following(seen: Observation, terse: bool, given: Mapping[str, Any]) -> str:
    """An observation after a turn; terse ones leave out what only repeats the arguments `given`."""
    parts: list[str] = []
    if seen.error:
        parts.append(f"invalid action: {seen.error}")
    if seen.result is not None:
        parts.append(answer(seen.result, given if terse else None))
    if seen.user:
        parts.append(f"User ({seen.language}): {seen.user}")
    parts.append(f"{seen.budget_remaining} turns left" if terse else f"Turns left: {seen.budget_remaining}.")
    return "\n".join(parts)


def answer(result: ToolResult, given: Mapping[str, Any] | None = None) -> str:
    """A vendor's answer as JSON; in short (records in a table, nothing of `given` repeated) where `given` is."""
    if given is not None:
        return f"{result.status} {result.schema_version} {_brief(_without(result.response, given))}"
    return f"{result.tool_name} {result.status} {result.schema_version} {_json(result.response)}"


_json = json.JSONEncoder(ensure_ascii=False, sort_keys=True).encode


def signature(tool: Tool, contract: Contract, protocol: str = "json") -> str:
    """A tool in one line: name(argument, optional?, choice=a|b)."""
    name = tool.name.replace(".", "_") if protocol == "native" else tool.name
    return f"{name}({', '.join(_argument(each, contract) for each in tool.arguments.values())})"


def _argument(argument: Argument, contract: Contract) -> str:
    optional = argument.optional and argument.required_by is None
    name = f"{argument.name}{'?' * optional}"
    if argument.type == "scope":
        return f"{name}={schema.SCOPE}{contract.auth}"
    if argument.type.startswith("offered:"):
        return f"{name}={'|'.join(offered(contract, argument.type[8:]) or ())}"
    if argument.type == "items":
        fields = ", ".join(["dish_id", "qty", *(contract.item_fields or ["modifiers?"])])
        return f"{name}=[{{{fields}}}]"
    return name


def _brief(value: Any) -> str:
    if isinstance(value, Mapping):
        tables = {key: rows for key, rows in value.items() if _is_table(rows)}
        rest = ", ".join(f"{key}: {_brief(item)}" for key, item in value.items() if key not in tables)
        return "\n".join([rest, *(_table(rows) for rows in tables.values())]).strip()
    if isinstance(value, list):
        return ";".join(_brief(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value).removesuffix(":00+05:30")


def _without(response: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, also of the records, that do not repeat an argument of the same name."""
    kept = {name: value for name, value in response.items() if name not in given or given[name] != value}
    return {name: [_without(row, given) for row in rows] if _is_table(rows) else rows for name, rows in kept.items()}


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)


def _table(rows: list[Mapping[str, Any]]) -> str:
    """Records with the same fields as lines under one heading; a menu stands in brackets.

    The first field, which names a record, comes last: a model that reads from left to right then knows what it names.
    """
    lines = [_named_last(list(rows[0]))]
    for row in rows:
        lines.append(_named_last([_menu(cell) if _is_table(cell) else _brief(cell) for cell in row.values()]))
    return "\n".join(lines)


def _named_last(cells: list[str]) -> str:
    return " ".join([*cells[1:], cells[0]])


def _menu(dishes: list[Mapping[str, Any]]) -> str:
    return f"[{' '.join(':'.join(map(str, dish.values())) for dish in dishes)}]"
