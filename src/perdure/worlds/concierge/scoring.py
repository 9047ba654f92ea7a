"""The default score of an errand: five measures, a proper score of the stated confidence, and penalties.

    U = .50 R1 + .15 R2 + .08 R3 + .05 R4 + .07 E        b = .15 (1 - (c - R1)^2)
    reward = (.30 + U - P + b) / 1.30

U and P do not depend on the confidence c, and nothing is cut or rounded, so stating the true probability of
success maximises the expected reward (Brier 1950; RLCR, arXiv 2507.16806). Every offence lowers it strictly.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from perdure.worlds.concierge import evidence, offences
from perdure.worlds.concierge.catalogue import Catalogue
from perdure.worlds.concierge.evidence import FALSE_CLAIM, Evidence
from perdure.worlds.concierge.offences import Offences
from perdure.worlds.concierge.records import ABORT, SUBMIT, TIMEOUT, Episode

W1, W2, W3, W4, WE = 0.50, 0.15, 0.08, 0.05, 0.07
CONFIDENCE = 0.15
MOST_PENALTY = 0.30
SILENT = 0.5
"""The confidence that an abort or timeout counts as."""
OFFENCE = 0.1
INVALID, WRONG_LANGUAGE = 0.2, 0.1


class Scored(NamedTuple):
    """A reward with everything it is made of."""

    reward: float
    r1: float
    r2: float | None
    """None where no drift was exposed; its weight then is R1's."""
    r3: float
    r4: float
    efficiency: float
    penalty: float
    confidence: float
    """What entered the score; 0.5 for abort and timeout."""
    brier: float
    """(confidence - R1)^2."""
    evidence: Evidence
    offences: Offences

    def breakdown(self) -> dict[str, Any]:
        """All of it as JSON values."""
        values = self._asdict()
        detections = [
            {**each._asdict(), "latency": each.latency, "score": each.score} for each in self.evidence.detections
        ]
        values["evidence"] = {**self.evidence._asdict(), "detections": detections, "recall": self.evidence.recall}
        values["offences"] = self.offences._asdict()
        return values


def scored(catalogue: Catalogue, episode: Episode) -> Scored:
    """The default reward of a finished episode, in [0, 1]."""
    found, committed = evidence.gathered(catalogue, episode), offences.counted(catalogue, episode)
    r1 = float(episode.success)
    r2 = detection_score(found)
    r3 = sum(episode.satisfied) / len(episode.satisfied) if episode.satisfied else _without_constraints(episode)
    misconduct = INVALID * committed.invalid + WRONG_LANGUAGE * committed.wrong_language
    booked = any(not booking.cancelled and booking.domain == episode.goal.domain for booking in episode.bookings)
    r4 = conduct(misconduct) if booked else 0.0
    efficiency = r1 * _efficiency(episode)
    penalty = _penalty(found, committed, r2, 0.0 if booked else W4 * misconduct)
    confidence = _confidence(episode)
    brier = (confidence - r1) ** 2
    useful = (W1 + W2) * r1 if r2 is None else W1 * r1 + W2 * r2
    useful += W3 * r3 + W4 * r4 + WE * efficiency
    return Scored(
        combined(useful, penalty, brier), r1, r2, r3, r4, efficiency, penalty, confidence, brier, found, committed
    )


def combined(useful: float, penalty: float, brier: float) -> float:
    """The reward from U, P and the squared error of the confidence."""
    return (MOST_PENALTY + useful - penalty + CONFIDENCE * (1 - brier)) / (1 + MOST_PENALTY)


def detection_score(found: Evidence) -> float | None:
    """R2: what exposed drifts were met with, less a quarter for each false claim; None without exposed drifts."""
    if not found.detections:
        return None
    earned = sum(each.score for each in found.detections) / len(found.detections)
    return max(0.0, earned - FALSE_CLAIM * found.false_claims)


def conduct(misconduct: float) -> float:
    """R4: 1 - misconduct down to .2, and from there on ever smaller, so that one more always costs."""
    return 1 - misconduct if misconduct <= 0.8 else 0.2 * math.exp(-(misconduct - 0.8) / 0.2)


def saturated(weight: float) -> float:
    """P of offences of this total weight: the weight itself up to .2, and from there on towards .3."""
    return weight if weight <= 0.2 else 0.3 - 0.1 * math.exp(-(weight - 0.2) / 0.1)


def _penalty(found: Evidence, committed: Offences, r2: float | None, unbooked: float) -> float:
    if committed.reserved:
        return MOST_PENALTY
    weight = OFFENCE * (committed.fabricated + committed.repeated) + unbooked
    if r2 is None:
        weight += W2 * FALSE_CLAIM * found.false_claims
    else:
        # What false claims would take from R2 beyond nothing.
        earned = sum(each.score for each in found.detections) / len(found.detections)
        weight += W2 * max(0.0, FALSE_CLAIM * found.false_claims - earned)
    return saturated(weight)


def _confidence(episode: Episode) -> float:
    """The confidence stated; an errand that ended for misconduct counts as sure of what it did not do."""
    if episode.ended == SUBMIT:
        action = episode.turns[-1].action
        assert action is not None
        return SILENT if action.confidence is None else float(action.confidence)
    return SILENT if episode.ended in (ABORT, TIMEOUT) else 1.0


def _efficiency(episode: Episode) -> float:
    """1 at the oracle's number of turns, 0 at the most turns allowed."""
    spare = episode.max_turns - episode.oracle_turns
    if spare <= 0:
        return 1.0
    return min(1.0, max(0.0, (episode.max_turns - len(episode.turns)) / spare))


def _without_constraints(episode: Episode) -> float:
    """R3 of a goal that has no constraints, or of an errand that left no booking."""
    return float(not episode.goal.constraints and bool(episode.bookings) and not episode.bookings[-1].cancelled)


def components(result: Scored) -> Mapping[str, float]:
    """The measures as reward components for traces."""
    return {
        "r1": result.r1,
        "r2": 0.0 if result.r2 is None else result.r2,
        "r3": result.r3,
        "r4": result.r4,
        "efficiency": result.efficiency,
        "penalty": result.penalty,
        "brier": result.brier,
    }
