"""What shows that an agent has noticed a drift: claims in reports and words, and conduct that fits the new contract.

A claim names a vendor and a kind of drift (report_drift), or is a sentence that holds the new fact: one of the
pattern's expressions and its numbers, in any of the languages and digits.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from perdure.worlds.concierge.catalogue import PAYMENT, Catalogue, Pattern
from perdure.worlds.concierge.patterns import numbers_of
from perdure.worlds.concierge.records import Action, Episode, Turn

DISCOUNT = 0.9
"""What a turn of delay leaves of the credit for a drift."""
FALSE_CLAIM = 0.25
"""What a claim that matches no exposed drift costs of R2."""


class Detection(NamedTuple):
    """How one exposed drift was met."""

    pattern_id: str
    exposed: int
    adapted: int | None
    """The turn of the first action that fits the new contract, None where there is none."""
    disclosed: int | None
    """The turn the user was told, or the drift reported."""

    @property
    def latency(self) -> int | None:
        """Turns from exposure to the first evidence; None without any."""
        turns = [turn for turn in (self.adapted, self.disclosed) if turn is not None]
        return min(turns) - self.exposed if turns else None

    @property
    def score(self) -> float:
        """Half for adapting, half for telling, discounted by the latency."""
        if self.latency is None:
            return 0.0
        share = 0.5 * (self.adapted is not None) + 0.5 * (self.disclosed is not None)
        return share * DISCOUNT ** (self.latency - 1)


class Evidence(NamedTuple):
    """All that was noticed in an episode, and all that was claimed without cause."""

    detections: tuple[Detection, ...]
    claims: int
    false_claims: int

    @property
    def recall(self) -> float | None:
        """Share of exposed drifts with any evidence; None where none was exposed."""
        if not self.detections:
            return None
        return sum(each.latency is not None for each in self.detections) / len(self.detections)


def gathered(catalogue: Catalogue, episode: Episode) -> Evidence:
    """The evidence in a finished episode; only what comes after a drift's exposure counts for it."""
    disclosed = told(catalogue, episode.turns, episode.exposed)
    detections = tuple(
        Detection(name, turn, _adapted(catalogue.pattern(name), episode, turn), disclosed.get(name))
        for name, turn in episode.exposed.items()
    )
    claims = false = 0
    for turn in episode.turns:
        count, wrong = _claims(catalogue, turn, episode)
        claims, false = claims + count, false + wrong
    return Evidence(detections, claims, false)


def told(catalogue: Catalogue, turns: Sequence[Turn], exposed: Mapping[str, int]) -> dict[str, int]:
    """pattern_id -> the first turn after its exposure at which it was reported or told."""
    found: dict[str, int] = {}
    for turn in turns:
        action = turn.action
        if action is None or (action.message is None and action.action_type != "report_drift"):
            continue
        for name, since in exposed.items():
            if turn.turn > since and name not in found and _is_told(catalogue.pattern(name), action):
                found[name] = turn.turn
    return found


def normalised(text: str) -> str:
    """Text with Roman digits, no commas between digits, and case folded."""
    folded = text.translate(_DIGITS).casefold()
    return re.sub(r"(?<=\d),(?=\d)", "", folded)


def states(pattern: Pattern, message: str) -> bool:
    """Whether a message holds the new fact of a pattern."""
    return _holds_fact(pattern, normalised(message))


def _holds_fact(pattern: Pattern, text: str) -> bool:
    for expression in pattern.expressions:
        if expression[0] in text and all(part in text for part in expression):
            break
    else:
        return False
    if not pattern.numbers:
        return True
    return numbers_of(text).issuperset(pattern.numbers)


def _is_told(pattern: Pattern, action: Action) -> bool:
    if action.action_type == "report_drift":
        return (action.domain, action.kind) == (pattern.domain, pattern.type)
    return states(pattern, action.message or "")


def _claims(catalogue: Catalogue, turn: Turn, episode: Episode) -> tuple[int, int]:
    """How many claims a turn makes, and how many of them match no drift exposed before it."""
    action = turn.action
    if action is None or (action.message is None and action.action_type != "report_drift"):
        return 0, 0
    known = [catalogue.pattern(name) for name, since in episode.exposed.items() if since < turn.turn]
    if action.action_type == "report_drift":
        return 1, not any(_is_told(pattern, action) for pattern in known)
    if not action.message:
        return 0, 0
    text = normalised(action.message)
    possible = [*catalogue.of_domain(episode.goal.domain), *catalogue.of_domain(PAYMENT)]
    possible += [pattern for pattern in known if "@" in pattern.id]
    stated = [pattern for pattern in possible if _holds_fact(pattern, text)]
    kinds = {(pattern.domain, pattern.type) for pattern in known}
    false = [pattern for pattern in stated if (pattern.domain, pattern.type) not in kinds]
    return len(stated), len(false)


def _adapted(pattern: Pattern, episode: Episode, since: int) -> int | None:
    """The first turn after `since` whose action works under the new contract.

    A drift is met by a booking after the exposure that is accepted and fulfils the user's constraints; one of
    payment by a token of the new scope too. Where the booking that exposed it may stand, since nothing else was
    to be done, submitting it with success counts.
    """
    for turn in episode.turns:
        if turn.turn <= since or turn.action is None:
            continue
        result = turn.result
        if result is None or result.status != "ok":
            if turn.action.action_type == "submit" and episode.success:
                return turn.turn
            continue
        verb = result.tool_name.partition(".")[2]
        accepted = turn.turn in episode.fitting
        renewed = pattern.domain == PAYMENT and verb == "get_token"
        if accepted or renewed:
            return turn.turn
    return None


_DIGITS = str.maketrans({ord(zero) + value: str(value) for zero in "०௦೦" for value in range(10)})
