"""From what a model said to an action: its first JSON object, or its words as they are."""

from typing import Any

from perdure.core import jsontext


def parse(text: str) -> dict[str, Any] | str:
    """The first balanced JSON object inside `text`, else `text` itself; never raises.

    Accepted is strict JSON: no key twice, no NaN or infinity, at most `jsontext.MOST_BYTES` long and
    `jsontext.MOST_DEPTH` deep. Whether words are an action, and what an invalid one costs, is the world's to say.
    """
    found = jsontext.first_object(text)
    return text if found is None else found.value


def first_object_span(text: str) -> tuple[int, int] | None:
    """Where the object that `parse` returns stands, `text[start:end]`; None where it returns the text."""
    found = jsontext.first_object(text)
    return None if found is None else (found.start, found.end)
