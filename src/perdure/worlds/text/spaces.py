"""The spaces of text worlds, and answers as they come from a model that nobody vouches for."""

import json
import string
from collections.abc import Mapping
from typing import Any

from gymnasium import spaces

from perdure.core import jsontext
from perdure.core.errors import ConfigError

LONGEST = 8192
"""Characters of the longest observation or answer that is read."""


def text_space() -> spaces.Text:
    """Any printable ASCII text of up to LONGEST characters, the empty one included."""
    return spaces.Text(LONGEST, min_length=0, charset=string.printable)


def as_text(action: Any) -> str | None:
    """An answer as text: a string with its outer white space gone, or a JSON value written out.

    None for what no world reads: a text of more than LONGEST characters, and a value that is neither
    text nor JSON (or is nested too deeply to be written).
    """
    if isinstance(action, str):
        return action.strip() if len(action) <= LONGEST else None
    try:
        written = json.dumps(action, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return written if len(written) <= LONGEST else None


def as_object(action: Any) -> dict[str, Any] | None:
    """An answer as a JSON object: a mapping itself, or the first acceptable object within a text; else None."""
    if isinstance(action, str):
        found = jsontext.first_object(action)
        return None if found is None else found.value
    written = as_text(action) if isinstance(action, Mapping) else None
    return None if written is None else jsontext.accepted(written)


def whole(value: Any, most: int, place: str) -> int:
    """A parameter of a regime that chooses one of `most` + 1 cases; ConfigError, naming `place`, for any other."""
    if isinstance(value, (int, float)) and value in range(most + 1):
        return int(value)
    raise ConfigError(f"{place} is {value!r}; it must be a whole number from 0 to {most}")


class AnyText(spaces.Text):
    """Any text of up to `max_length` characters, in any script: what somebody else's world may say."""

    def __init__(self, max_length: int = 10**7):
        super().__init__(max_length, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        """Whether `x` is text and not too long."""
        return isinstance(x, str) and len(x) <= self.max_length
