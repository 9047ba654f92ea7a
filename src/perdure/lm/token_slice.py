"""Which tokens of an answer are the action: all of them, or those from its JSON object on.

A pure function of the answer's token ids, so that the passes before and after an update cut at the same
place. The length of the slice divides a mean log-probability: the choice rescales such a loss.
"""

import enum
from collections.abc import Collection, Sequence

from perdure.core.errors import ConfigError
from perdure.lm.parsing import first_object_span


class ActionTokens(enum.StrEnum):
    """Where the action begins in an answer."""

    QWEN_THINK = "qwen_think"
    """At the last token that opens JSON, which inside a nested object is the inner one."""
    FIRST_JSON = "first_json"
    """At the first token that opens JSON."""
    OUTERMOST_JSON = "outermost_json"
    """At the first whole JSON object, the one that `lm.parsing.parse` returns."""
    ALL = "all"
    """At the beginning."""


def action_token_start(
    ids: Sequence[int],
    *,
    mode: ActionTokens | str = ActionTokens.QWEN_THINK,
    json_open_ids: Collection[int] = (),
    think_open_id: int | None = None,
    think_close_id: int | None = None,
    pieces: Sequence[str] | None = None,
) -> tuple[int, bool]:
    """(index of the action's first token, whether the answer thinks) for the ids of one answer.

    An answer thinks if it closes a thought anywhere or opens one with its first token; then it counts
    from 0, and it does so where `mode` is "all" or finds no object. `pieces` is the text of each id, which
    "outermost_json" needs. Raises ConfigError for an unknown mode or missing `pieces`.
    """
    try:
        mode = ActionTokens(mode)
    except ValueError:
        raise ConfigError(f"action_tokens is {mode!r}; it must be one of {', '.join(ActionTokens)}") from None
    if mode is ActionTokens.ALL:
        return 0, False
    if _thinks(ids, think_open_id, think_close_id):
        return 0, True
    if mode is ActionTokens.OUTERMOST_JSON:
        return _start_of_object(ids, pieces), False
    opening = [position for position, token in enumerate(ids) if token in json_open_ids]
    return (opening[-1 if mode is ActionTokens.QWEN_THINK else 0] if opening else 0), False


def _thinks(ids: Sequence[int], think_open_id: int | None, think_close_id: int | None) -> bool:
    closes = think_close_id is not None and think_close_id in ids
    return closes or (think_open_id is not None and len(ids) > 0 and ids[0] == think_open_id)


def _start_of_object(ids: Sequence[int], pieces: Sequence[str] | None) -> int:
    """The token that holds the opening brace of the first whole object; 0 without one."""
    if pieces is None or len(pieces) != len(ids):
        given = "no pieces" if pieces is None else f"{len(pieces)} pieces"
        raise ConfigError(f"action_tokens outermost_json got {given} for {len(ids)} tokens; give the text of each")
    span = first_object_span("".join(pieces))
    if span is None:
        return 0
    end = 0
    for position, piece in enumerate(pieces):
        end += len(piece)
        if end > span[0]:
            return position
    raise AssertionError("a span lies inside its text")
