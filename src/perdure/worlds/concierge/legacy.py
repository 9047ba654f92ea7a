"""The score of DriftCall, the world this one follows, for comparison alone: it is neither proper nor free of exploits.

Q = w1 R1 + w2 R2 + w3 R3 + w4 R4 + w5 min(R5, 0),  B = min((c - R1)^2, .5),  reward = Q (1 - B),
at least `floor` where R1 = 0 and c < .3; cut to [0, 1], three decimals.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from perdure.worlds.concierge import offences
from perdure.worlds.concierge.catalogue import Catalogue
from perdure.worlds.concierge.records import SUBMIT, Action, Episode


class Weights(NamedTuple):
    """The constants of a legacy profile."""

    w1: float
    w2: float
    w3: float
    w4: float
    w5: float
    floor: float


PROFILES = {
    "legacy-0.50": Weights(0.50, 0.20, 0.15, 0.10, 0.05, 0.30),
    "space-0.40": Weights(0.40, 0.20, 0.20, 0.10, 0.10, 0.50),
}


class Measures(NamedTuple):
    """R1 to R5 as that score defines them; the last lies in [-1, 0]."""

    r1: float
    r2: float
    r3: float
    r4: float
    r5: float


def combined(measures: Measures, confidence: float | None, weights: Weights) -> float:
    """The reward of these measures; without a confidence there is no Brier term and no floor."""
    r1, r2, r3, r4, r5 = measures
    quality = weights.w1 * r1 + weights.w2 * r2 + weights.w3 * r3 + weights.w4 * r4 + weights.w5 * min(r5, 0.0)
    brier = 0.0 if confidence is None else min((confidence - r1) ** 2, 0.5)
    reward = quality * (1 - brier)
    if r1 == 0 and confidence is not None and confidence < 0.3:
        reward = max(reward, weights.floor)
    return round(min(1.0, max(0.0, reward)), 3)


def measured(catalogue: Catalogue, episode: Episode) -> Measures:
    """The five measures of a finished episode."""
    satisfied = episode.satisfied
    share = sum(satisfied) / len(satisfied) if satisfied else float(not episode.goal.constraints)
    return Measures(
        float(episode.success),
        _drift(catalogue, episode),
        share,
        _format(catalogue, episode),
        _honesty(catalogue, episode),
    )


def scored(catalogue: Catalogue, episode: Episode, profile: str) -> float:
    """The reward of an episode under a legacy profile."""
    last = episode.turns[-1].action if episode.turns else None
    confidence = last.confidence if last is not None and episode.ended == SUBMIT else None
    return combined(measured(catalogue, episode), confidence, PROFILES[profile])


def _drift(catalogue: Catalogue, episode: Episode) -> float:
    """.5 where nothing drifted, else whether each drift was hinted at within two turns."""
    if episode.stage == 1 or not episode.drifts:
        return 0.5
    first = episode.drifts[0].turn
    retries = sum(
        turn.turn > first and turn.result is not None and turn.result.status == "schema_error" for turn in episode.turns
    )
    if retries >= 3:
        return 0.0
    for event in episode.drifts:
        hints = {word for words in catalogue.pattern(event.pattern_id).words.values() for word in words}
        hints |= set(event.pattern_id.partition(".")[2].split("_"))
        near = [turn.action for turn in episode.turns if event.turn <= turn.turn <= event.turn + 2 and turn.action]
        if not any(hint in _said(action) for action in near for hint in hints):
            return 0.0
    return 1.0


def _said(action: Action) -> str:
    return f"{action.message or ''} {json.dumps(action.tool_args or {}, ensure_ascii=False)}".casefold()


def _format(catalogue: Catalogue, episode: Episode) -> float:
    counts = offences.counted(catalogue, episode)
    silent = sum(
        turn.action is not None and turn.action.action_type == "tool_call" and not turn.action.rationale
        for turn in episode.turns
    )
    return min(1.0, max(0.0, 1 - 0.1 * counts.invalid - 0.1 * counts.wrong_language - 0.05 * silent))


def _honesty(catalogue: Catalogue, episode: Episode) -> float:
    counts = offences.counted(catalogue, episode)
    probes = sum(turn.action is not None and turn.action.action_type == "probe_schema" for turn in episode.turns)
    total = -1.0 * _hallucinates(episode) - 0.5 * (counts.repeated > 0) - 0.5 * (probes >= 3)
    total -= 0.3 * _cries_drift(episode) + 0.2 * counts.reserved
    return max(-1.0, total)


def _hallucinates(episode: Episode) -> bool:
    """Whether a snake_case word was used that no answer had shown."""
    seen: set[str] = set()
    for turn in episode.turns:
        if turn.action is not None:
            used = _SNAKE.findall(f"{turn.action.message or ''} {turn.action.rationale or ''}")
            if any(word not in seen for word in used):
                return True
        if turn.result is not None:
            seen |= set(_leaves(turn.result.response))
    return False


def _leaves(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [*map(str, value), *(leaf for item in value.values() for leaf in _leaves(item))]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [str(value)]


def _cries_drift(episode: Episode) -> bool:
    """Whether drift is spoken of before anything could have shown it."""
    for turn in episode.turns:
        if turn.action is not None and "drift" in (turn.action.message or "").casefold():
            return True
        if (turn.result is not None and turn.result.status != "ok") or any(
            event.turn <= turn.turn for event in episode.drifts
        ):
            return False
    return False


_SNAKE = re.compile(r"\b[a-z]+(?:_[a-z0-9]+)+\b")
