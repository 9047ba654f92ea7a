"""What is never necessary and always costs: made-up identifiers, hammering, reserved keys, the wrong language."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from perdure.worlds.concierge import tongues
from perdure.worlds.concierge.catalogue import Catalogue
from perdure.worlds.concierge.records import Action, Episode

REPEATS_FREE = 3
"""Identical calls that cost nothing."""


class Offences(NamedTuple):
    """Counts over an episode."""

    fabricated: int
    repeated: int
    """Identical calls from the fourth on; a repetition after a timeout is none."""
    reserved: bool
    invalid: int
    """Actions that were none or could not be done."""
    wrong_language: int


def counted(catalogue: Catalogue, episode: Episode) -> Offences:
    """The offences of a finished episode."""
    fabricated = repeated = invalid = wrong = 0
    seen: list[Any] = [episode.goal.utterance]
    calls: dict[str, int] = {}
    after_timeout: set[str] = set()
    for turn in episode.turns:
        action = turn.action
        if action is None:
            invalid += 1
            continue
        fabricated += _made_up(catalogue, action, seen)
        if action.action_type == "tool_call":
            call = _canonical(action)
            if call not in after_timeout:
                calls[call] = calls.get(call, 0) + 1
                repeated += calls[call] > REPEATS_FREE
            after_timeout.discard(call)
            if turn.result is not None and turn.result.status == "timeout":
                after_timeout.add(call)
        if action.message and not tongues.fits(catalogue, action.message, turn.language):
            wrong += 1
        seen.append(turn.user)
        if turn.result is not None:
            seen.append(turn.result.response)
    return Offences(fabricated, repeated, episode.reserved, invalid, wrong)


def _canonical(action: Action) -> str:
    """One text for all calls that are the same, whatever the order of their arguments."""
    arguments = action.tool_args or {}
    return repr((action.tool_name, [(name, arguments[name]) for name in sorted(arguments)]))


def _made_up(catalogue: Catalogue, action: Action, seen: list[Any]) -> int:
    """Identifiers in arguments or words that stand in nothing the agent was shown; `seen` becomes text as needed."""
    named = _named(catalogue.identifiers, action.tool_args) if action.tool_args else []
    if action.message:
        named += _IN_WORDS.findall(action.message)
    if not named:
        return 0
    return sum(not _shown(value, seen) for value in set(named))


def _shown(value: str, seen: list[Any]) -> bool:
    """Whether a value stands in anything that was shown; the latest is looked at first."""
    for index in range(len(seen) - 1, -1, -1):
        if not isinstance(seen[index], str):
            seen[index] = repr(seen[index])
        if value in seen[index]:
            return True
    return False


def _named(identifiers: frozenset[str], arguments: Any, depth: int = 0) -> list[str]:
    found: list[str] = []
    if depth > 8:
        return found
    if isinstance(arguments, Mapping):
        for name, value in arguments.items():
            if name in identifiers and isinstance(value, str):
                found.append(value)
            else:
                found += _named(identifiers, value, depth + 1)
    elif isinstance(arguments, list):
        for item in arguments:
            found += _named(identifiers, item, depth + 1)
    return found


_IN_WORDS = re.compile(r"\b[A-Z]{3}(?:-[0-9a-f]{4}|[a-z]{2})(?:-R\d+)?\b")
