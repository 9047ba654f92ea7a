"""The first JSON object in a text that nobody vouches for: found in linear time, and strict about what it holds."""

import json
import math
import re
from typing import Any, NamedTuple, cast

MOST_BYTES = 8192
"""UTF-8 bytes of the longest object that is accepted."""
MOST_DEPTH = 64
"""Objects and lists within one another, at most."""
SEARCHED = 65536
"""Characters of a text that are looked through; what begins later is not found."""

_TELLING = re.compile(r'["{}\[\]]')
_STRING_END = re.compile(r'(?:[^"\\]|\\.)*+"', re.DOTALL)
_HALVES = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_CLOSES = {"}": "{", "]": "["}


class Object(NamedTuple):
    """A JSON object and where it stands: `text[start:end]`."""

    value: dict[str, Any]
    start: int
    end: int


def first_object(text: str) -> Object | None:
    """The first balanced JSON object of `text` that is acceptable, or None; never raises.

    Acceptable: strict JSON, no key twice, no NaN or infinity (1e999 is one), at most MOST_BYTES long and
    MOST_DEPTH deep. Braces that turn out to be no such object are passed over whole, so nothing inside a
    refused object is ever taken for the answer, and the search is linear. What is found in a text is also
    what is found in any continuation of it.
    """
    text = text[:SEARCHED]
    start = text.find("{")
    while start >= 0:
        end, balanced = _end(text, start)
        value = accepted(text[start:end]) if balanced else None
        if value is not None:
            return Object(value, start, end)
        start = text.find("{", end)
    return None


def loads(text: str) -> Any:
    """Strict JSON: ValueError for malformed text, a key given twice, NaN, an infinity, or too deep a nesting."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def exchanged(text: str) -> Any:
    """Strict JSON that can be sent on: ValueError also for half of a surrogate pair, which UTF-8 cannot carry."""
    value = loads(text)
    if _HALVES.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("half of a surrogate pair is no character") from None
    return value


def accepted(text: str) -> dict[str, Any] | None:
    """The object that `text` is from end to end, or None where it is not acceptable as `first_object` says."""
    if len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        return None
    try:
        value = loads(text)
    except ValueError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _end(text: str, start: int) -> tuple[int, bool]:
    """Where the brackets opened at `start` close, or where the search gave up (False)."""
    open_brackets: list[str] = []
    limit = min(len(text), start + MOST_BYTES)
    at = start
    while (found := _TELLING.search(text, at, limit)) is not None:
        mark, at = found.group(), found.end()
        if mark == '"':
            string = _STRING_END.match(text, at, limit)
            if string is None:
                return limit, False
            at = string.end()
        elif mark in "{[":
            open_brackets.append(mark)
            if len(open_brackets) > MOST_DEPTH:
                return at, False
        elif open_brackets.pop() != _CLOSES[mark]:
            return at, False
        elif not open_brackets:
            return at, True
    return limit, False


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large a number")
    return value
