"""How the world looks from outside: structured observations, and tools as functions with JSON Schemas."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from gymnasium import spaces

from perdure.worlds.concierge import protocol
from perdure.worlds.concierge.records import KINDS, MAX_TURNS, Action, Observation
from perdure.worlds.text.spaces import AnyText

MOST_TEXT = 32768
"""Characters of a field of a structured observation at most."""


class Demonstration(NamedTuple):
    """An errand as the oracle runs it, for supervised training."""

    messages: list[dict[str, str]]
    """user and assistant in turn, ending with the assistant."""
    reward: float
    success: bool
    regime: dict[str, float]


def structured_space() -> spaces.Dict:
    """The space of structured observations."""
    turns = spaces.Discrete(max(MAX_TURNS.values()) + 1)
    texts = ("user", "language", "tool", "status", "response", "schema_version", "error")
    return spaces.Dict({"turn": turns, "budget_remaining": turns, **{name: AnyText(MOST_TEXT) for name in texts}})


def structured(seen: Observation) -> dict[str, Any]:
    """An observation as a mapping; `response` is JSON text, "" where no vendor answered."""
    result = seen.result
    return {
        "turn": seen.turn,
        "budget_remaining": seen.budget_remaining,
        "user": seen.user,
        "language": seen.language,
        "tool": "" if result is None else result.tool_name,
        "status": "" if result is None else result.status,
        "response": "" if result is None else json.dumps(result.response, ensure_ascii=False, sort_keys=True),
        "schema_version": "" if result is None else result.schema_version,
        "error": seen.error,
    }


def as_text(observation: Any) -> str:
    """An observation of either kind as one text."""
    return observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False)


def plain(action: Action) -> dict[str, Any]:
    """The fields of an action that are set."""
    return {name: value for name, value in action._asdict().items() if value is not None}


def function(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as chat templates and APIs expect it."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def own_tools(domains: list[str]) -> list[dict[str, Any]]:
    """The actions that are no vendor's, as functions."""
    message = {"message": {"type": "string", "minLength": 1, "maxLength": protocol.MOST_MESSAGE}}
    domain = {"domain": {"type": "string", "enum": domains}}
    kind = {"kind": {"type": "string", "enum": list(KINDS)}}
    confidence = {"confidence": {"type": "number", "minimum": 0, "maximum": 1}}
    described = [
        ("say", "Tell the user something.", message, ["message"]),
        ("ask_user", "Ask the user a question.", message, ["message"]),
        ("probe_schema", "A vendor's present schema; at most twice.", domain, ["domain"]),
        ("report_drift", "Report that a vendor's contract has changed.", domain | kind, ["domain", "kind"]),
        ("submit", "End the errand with the probability of having got it right.", confidence | message, ["confidence"]),
        ("abort", "Give up.", message, []),
    ]
    return [
        function(
            name, text, {"type": "object", "properties": fields, "required": required, "additionalProperties": False}
        )
        for name, text, fields, required in described
    ]
