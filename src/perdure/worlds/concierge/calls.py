"""Calls as a contract wants them: which arguments are needed, under which names, and how they are written."""

from collections.abc import Callable, Mapping
from typing import Any

from perdure.worlds.concierge.contract import Argument, Contract, Tool
from perdure.worlds.concierge.judge import Choice
from perdure.worlds.concierge.records import Action


def of_kind(contract: Contract, kind: str) -> Tool:
    """The vendor's tool of a kind (search, book, cancel, read)."""
    return next(tool for tool in contract.tools.values() if tool.kind == kind)


def has(contract: Contract, kind: str) -> bool:
    """Whether the vendor has a tool of a kind."""
    return any(tool.kind == kind for tool in contract.tools.values())


def search(contract: Contract, wanted: Mapping[str, Any], page: int = 1, window: str | None = None) -> Action:
    """A search for `wanted`; `window` overrides a part of the day that the contract would assume."""

    def fill(argument: Argument) -> Any:
        if argument.name == "page":
            return page if page > 1 else None
        if argument.filter == "window" and argument.default is not None:
            return window
        return None if argument.optional else wanted.get(argument.name)

    return _call(of_kind(contract, "search"), fill)


def book(contract: Contract, choice: Choice, given: Mapping[str, str]) -> Action:
    """A booking of a choice (whose facts hold its "id"), with no more arguments than are needed.

    `given` are values that come from elsewhere: the payment token, a one-time code, a GST number.
    """
    tool = of_kind(contract, "book")

    def fill(argument: Argument) -> Any:
        if argument.name in given:
            return given[argument.name]
        if argument.name == tool.selects and argument.name not in choice.offer:
            return choice.facts["id"]
        if argument.type == "items":
            extra = {name: [] for name in contract.item_fields}
            return [{"dish_id": dish, "qty": count, **extra} for dish, count in choice.request["items"]]
        name = argument.request or argument.name
        value = choice.request.get(name, choice.keys.get(name, choice.offer.get(name)))
        always = argument.required_by is not None and "above" not in argument.required_by
        needed = not argument.optional or always or (name in choice.request and value != argument.default)
        return value if needed else None

    return _call(tool, fill)


def cancel(contract: Contract, booking_id: str) -> Action:
    """The cancellation of a booking."""
    return _call(of_kind(contract, "cancel"), lambda argument: booking_id)


def _call(tool: Tool, fill: Callable[[Argument], Any]) -> Action:
    arguments: dict[str, Any] = {}
    for name, argument in tool.arguments.items():
        value = fill(argument)
        if value is None:
            continue
        arguments[name] = f"{value[8:10]}-{value[5:7]}-{value[:4]}" if argument.type == "date_dmy" else value
    return Action("tool_call", tool.name, arguments)
