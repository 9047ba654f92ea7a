"""Observations as messages: the system's text, what was said lately, and the user's turn with its prefix."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perdure.core.errors import ConfigError

Message = dict[str, str]
"""A "role" (system, user, assistant) and its "content"."""


@dataclass(frozen=True)
class PromptBuilder:
    """How a policy is told what it sees.

    `system` opens every conversation where it is not empty. `prefix_provider(lane)` gives text that is
    prepended to the user's turn, on a line of its own (a description of the regime, say). `context_turns`
    earlier exchanges are repeated where a prompt is rendered anew.
    """

    system: str = ""
    prefix_provider: Callable[[int], str] | None = None
    context_turns: int = 0

    def __post_init__(self):
        if self.context_turns < 0:
            raise ConfigError(f"context_turns is {self.context_turns}; it counts exchanges, so it must be 0 or more")

    def text(self, observation: Any, lane: int = 0) -> str:
        """The content of the user's turn about an observation of an environment copy."""
        prefix = self.prefix_provider(lane) if self.prefix_provider is not None else ""
        return f"{prefix}\n{text_of(observation)}" if prefix else text_of(observation)

    def messages(self, observation: Any, earlier: Sequence[tuple[str, str]] = (), lane: int = 0) -> list[Message]:
        """A prompt: the system's text, the last `context_turns` of `earlier` (user, assistant), the user's turn."""
        opening = [_message("system", self.system)] if self.system else []
        kept = earlier[-self.context_turns :] if self.context_turns else ()
        told = [_message(role, text) for pair in kept for role, text in zip(("user", "assistant"), pair, strict=True)]
        return [*opening, *told, _message("user", self.text(observation, lane))]


def text_of(observation: Any) -> str:
    """Text as it is, any JSON value (arrays included) as JSON; ConfigError for what is neither."""
    if isinstance(observation, str):
        return observation
    try:
        return json.dumps(observation, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        kind = type(observation).__name__
        raise ConfigError(
            f"an observation is a {kind} that has no JSON form ({error}); a language policy reads text or JSON values"
        ) from None


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        raise TypeError("a set has no order; hand out a list")
    raise TypeError(f"a {type(value).__name__} stands in it")


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
