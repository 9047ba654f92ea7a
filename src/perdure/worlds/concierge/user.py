"""The user: answers what is asked from the hidden goal, a few times, and knows nothing of vendors."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from perdure.worlds.concierge import chance, phrases
from perdure.worlds.concierge.catalogue import Catalogue
from perdure.worlds.concierge.records import Goal

MOST_ANSWERS = 3
"""Questions answered; after that the user only urges."""


class Reply(NamedTuple):
    """What the user says."""

    text: str
    slots: tuple[str, ...]
    """What it answers."""
    helpful: bool
    """Whether it counts against MOST_ANSWERS."""


def reply(catalogue: Catalogue, goal: Goal, message: str, language: str, answered: int, seed: int, now: str) -> Reply:
    """The answer to a question, spoken in `language`; a pure function of its arguments."""
    words = catalogue.words
    if answered >= MOST_ANSWERS:
        return Reply(words["answers"]["enough"][language], (), False)
    lowered = message.casefold()
    slots = [slot for slot in words["asked"] if _mentioned(lowered, words["asked"][slot]) and _known(goal, slot)]
    if slots:
        speaker = phrases.Speaker(catalogue, goal.domain, language, now, chance.Draws(seed, "answer", answered))
        parts = [words["answers"][slot][language].format(value=_value(goal, slot, speaker)) for slot in slots]
        return Reply(" ".join(parts), tuple(slots), True)
    kind = "yes" if any(sign.isdigit() for sign in message) else "unknown"
    return Reply(words["answers"][kind][language], (), False)


def _mentioned(lowered: str, keywords: Mapping[str, list[str]]) -> bool:
    return any(word.casefold() in lowered for expressions in keywords.values() for word in expressions)


def _known(goal: Goal, slot: str) -> bool:
    return slot in goal.secrets or any(each.name == slot for each in goal.constraints)


def _value(goal: Goal, slot: str, speaker: phrases.Speaker) -> Any:
    if slot in goal.secrets:
        return goal.secrets[slot]
    return speaker.value(slot, next(each.value for each in goal.constraints if each.name == slot))
