"""The concierge's tools as methods that transformers can describe: annotations, defaults, Google docstrings.

They are made from the catalogue as published, so that what a model is told of a tool is what the vendors check.
`from` is no name that Python takes, so the method says `from_`; a call may use either.
"""

import inspect
import keyword
from collections.abc import Callable, Mapping
from typing import Any, Literal

from perdure.worlds.concierge import catalogue as catalogues
from perdure.worlds.concierge import interface, schema
from perdure.worlds.concierge.contract import Tool

FORMS = {
    "date": ", as YYYY-MM-DD",
    "moment": ", as YYYY-MM-DDTHH:MM in Indian time",
    "time": ", as HH:MM",
    "gst": ", 15 letters and digits",
    "token": " from payment_get_token",
    "code": " that the user has been sent",
    "items": ', a list of {"dish_id": ..., "qty": ...}',
}
"""Type of an argument -> what its JSON Schema alone does not say to a reader."""
TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list[dict[str, Any]],
}
ANSWER = "What the vendor or the user answers."

Act = Callable[[Any, str, dict[str, Any]], str]
"""Carries out a call: (environment, tool, arguments) -> what the model is told."""


def published(act: Act) -> dict[str, Callable[..., str]]:
    """Name -> method of every tool: the vendors' sixteen and the six of the concierge's own."""
    catalogue = catalogues.default()
    places = catalogue.words["places"]
    made: dict[str, Callable[..., str]] = {}
    for domain in catalogue.domains:
        contract = catalogue.contract(domain, 1)
        for tool in contract.tools.values():
            name, parameters = tool.name.replace(".", "_"), schema.json_schema(tool, contract, places)
            made[name] = _method(act, name, tool.description, parameters, _forms(tool))
    for each in interface.own_tools(sorted(catalogue.domains)):
        told = each["function"]
        made[told["name"]] = _method(act, told["name"], told["description"], told["parameters"], {})
    return made


def _forms(tool: Tool) -> dict[str, str]:
    return {name: FORMS.get(argument.type, "") for name, argument in tool.arguments.items()}


def _method(act: Act, name: str, description: str, parameters: Mapping[str, Any], forms: Mapping[str, str]):
    """A method that takes any arguments: what a call has wrong is the world's to judge, and costs a turn there."""

    def method(self: Any, /, **arguments: Any) -> str:
        return act(self, name, {_meant(key): value for key, value in arguments.items() if value is not None})

    required = set(parameters["required"])
    properties = sorted(parameters["properties"].items(), key=lambda item: item[0] not in required)
    found = [_parameter(key, each, key in required) for key, each in properties]
    method.__name__, method.__qualname__ = name, f"DriftCallToolEnv.{name}"
    method.__annotations__ = {each.name: each.annotation for each in found} | {"return": str}
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = inspect.Signature([receiver, *found], return_annotation=str)  # pyright: ignore[reportFunctionMemberAccess]
    method.__doc__ = _docstring(description, [(_name(key), _told(key, forms)) for key, _ in properties])
    return method


def _parameter(name: str, described: Mapping[str, Any], required: bool) -> inspect.Parameter:
    values = described.get("enum")
    annotation: Any = Literal[tuple(values)] if values else TYPES[described["type"]]
    if required:
        return inspect.Parameter(_name(name), inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
    return inspect.Parameter(_name(name), inspect.Parameter.KEYWORD_ONLY, annotation=annotation | None, default=None)


def _name(argument: str) -> str:
    return f"{argument}_" if keyword.iskeyword(argument) else argument


def _meant(name: str) -> str:
    """The argument that a call means by a name: `from_` is `from`."""
    return name[:-1] if name.endswith("_") and keyword.iskeyword(name[:-1]) else name


def _told(name: str, forms: Mapping[str, str]) -> str:
    return f"{name.replace('_', ' ').capitalize()}{forms.get(name, '')}."


def _docstring(description: str, arguments: list[tuple[str, str]]) -> str:
    told = "\n".join(f"    {name}: {text}" for name, text in arguments)
    return "\n\n".join([description, *([f"Args:\n{told}"] if told else []), f"Returns:\n    {ANSWER}"])
