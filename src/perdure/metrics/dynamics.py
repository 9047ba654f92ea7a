"""The metrics that follow the score in time: adaptation speed, recovery after a shift, stability."""

# pyright: strict

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from perdure.metrics import aggregate, visits
from perdure.metrics.metric import Metric, Options, share
from perdure.metrics.visits import Visit

FEWEST_SEGMENTS = 5
"""Fewer values than this are too few to resample."""


class Adaptation(NamedTuple):
    """How a segment was learned."""

    level: float
    """A_k = head + a (tail - head)."""
    steps: int
    """T_k; the segment's length where the level was never held."""
    climbed: bool
    """False where the tail is not above the head: nothing to climb, adapted at W."""
    censored: bool


def adaptation(visit: Visit, options: Options) -> Adaptation | None:
    """T_k, the steps until m_k reaches A_k and holds it for W / 2; None without a head or a tail."""
    if visit.head is None or visit.tail is None:
        return None
    level = visit.head + options.adaptation_level * (visit.tail - visit.head)
    if visit.tail <= visit.head + visit.slack:
        return Adaptation(level, min(visit.window, visit.length), climbed=False, censored=False)
    time = visits.first_hold(visit.smooth, level - visit.slack, visit.hold, visit.segment.start)
    if time is None:
        return Adaptation(level, visit.length, climbed=True, censored=True)
    return Adaptation(level, time - visit.segment.start, climbed=True, censored=False)


def adaptation_speed(seen: Sequence[Visit], nothing: str, options: Options, seed: int) -> Metric:
    """1 - T_k / n_k averaged over segments, in [0, 1]; 0 where the level was never held. Higher is better."""
    rows = [_adaptation_row(visit, options) for visit in seen]
    after_shifts = [row["speed"] for row in rows[1:] if row["speed"] is not None]
    areas = [row["area"] for row in rows if row["area"] is not None]
    details: dict[str, Any] = {
        "segments": rows,
        "after_shifts": float(np.mean(after_shifts)) if after_shifts else None,
        "area": float(np.mean(areas)) if areas else None,
        "median_steps": _median(rows),
    }
    summed = _summed(rows, "speed", _unfinished(seen, nothing), options, seed)
    return Metric("adaptation_speed", **summed, unit="share of segment", higher_is_better=True, details=details)


def recovery_time(seen: Sequence[Visit], nothing: str, options: Options, seed: int) -> Metric:
    """Steps after a boundary until the previous level is back, averaged over boundaries. Lower is better.

    A boundary that sees no recovery enters with all the steps it was watched.
    """
    rows = [_recovery_row(before, visit, options) for before, visit in itertools.pairwise(seen)]
    details: dict[str, Any] = {
        "boundaries": rows,
        "drop": _mean_of(rows, "drop"),
        "area_lost": _mean_of(rows, "area_lost"),
        "median_steps": _median(rows),
    }
    reason = _unfinished(seen, nothing) if len(seen) > 1 else "there is one segment only, so there is no shift"
    summed = _summed(rows, "steps", reason, options, seed)
    return Metric("recovery_time", **summed, unit="steps", higher_is_better=False, details=details)


def stability(seen: Sequence[Visit], nothing: str, options: Options, seed: int) -> Metric:
    """1 / (1 + CV) of the smoothed score after adaptation, averaged over segments, in [0, 1]. Higher is better.

    A segment that never adapted is measured over its tail, and counted as censored.
    """
    rows = [_stability_row(visit, options) for visit in seen]
    names = ("sd", "drawdown", "worst_mean", "least_u")
    details: dict[str, Any] = {"segments": rows, **{name: _mean_of(rows, name) for name in names}}
    summed = _summed(rows, "stability", _unfinished(seen, nothing), options, seed)
    return Metric("stability", **summed, unit="ratio", higher_is_better=True, details=details)


def _summed(rows: Sequence[dict[str, Any]], key: str, reason: str, options: Options, seed: int) -> dict[str, Any]:
    """The fields of a Metric that is the mean of `key` over the rows that have it."""
    measured = [row for row in rows if row[key] is not None]
    values = [float(row[key]) for row in measured]
    low = high = None
    if len(values) >= FEWEST_SEGMENTS:
        _, low, high, _, _ = aggregate.moving_block_interval(values, options.level, options.samples, seed)
    return {
        "value": float(np.mean(values)) if values else None,
        "n": len(values),
        "censored": sum(row["censored"] for row in measured),
        "low": low,
        "high": high,
        "reason": None if values else reason,
    }


def _unfinished(seen: Sequence[Visit], nothing: str) -> str:
    if not any(len(visit.value) for visit in seen):
        return nothing
    return "no segment was both run to its end and scored; let the run finish"


def _place(visit: Visit) -> dict[str, Any]:
    return {"segment": visit.segment.id, "origin": visit.segment.origin, "start": visit.segment.start}


def _adaptation_row(visit: Visit, options: Options) -> dict[str, Any]:
    found, form = adaptation(visit, options), visits.score_form(visit)
    area = None
    if form is not None and len(visit.value):
        area = float(np.mean(visits.scaled(visit.value, *form)))
    return {
        **_place(visit),
        "steps": None if found is None else found.steps,
        "speed": None if found is None else 1 - found.steps / visit.length,
        "level": None if found is None else found.level,
        "climbed": None if found is None else found.climbed,
        "censored": found is not None and found.censored,
        "area": area,
    }


def _recovery_row(before: Visit, visit: Visit, options: Options) -> dict[str, Any]:
    row: dict[str, Any] = {
        **_place(visit),
        "before": before.segment.id,
        "steps": None,
        "censored": False,
        "dropped": None,
        "form": None,
        "previous": None,
        "lowest": None,
        "drop": None,
        "area_lost": None,
    }
    if before.tail is None or not len(visit.value):
        return row
    previous, pieces, form = _comparable(before, before.tail, visit)
    lowest = float(pieces.value.min())
    slack = visits.SLACK * max(abs(previous), float(np.abs(pieces.value).max()))
    steps, censored = _recovered(visit, pieces, previous, lowest, slack, options)
    lost = np.maximum(0.0, previous - pieces.value) * pieces.durations()
    return {
        **row,
        "steps": steps,
        "censored": censored,
        "dropped": lowest < previous - slack,
        "form": form,
        "previous": previous,
        "lowest": lowest,
        "drop": previous - lowest,
        "area_lost": float(lost.sum()),
    }


def _comparable(before: Visit, tail: float, visit: Visit) -> tuple[float, visits.Pieces, str]:
    """The previous level and the smoothed score on one scale: u where both bounds are known, else raw."""
    old, new = visits.score_form(before), visits.score_form(visit)
    if old is None or new is None:
        return tail, visit.smooth, "raw"
    value = np.asarray(visits.scaled(visit.smooth.value, *new), np.float64)
    return float(visits.scaled(tail, *old)), visit.smooth._replace(value=value), "u"


def _recovered(
    visit: Visit, pieces: visits.Pieces, previous: float, lowest: float, slack: float, options: Options
) -> tuple[int, bool]:
    """Steps from the boundary to the first held return to the level, and whether that was never seen.

    The search starts where the score first falls below the level: the steps in which an agent has
    yet to notice the shift are not a recovery.
    """
    if lowest >= previous - slack:
        return 0, False
    level = lowest + options.recovery_level * (previous - lowest) - slack
    below = np.flatnonzero(pieces.value < level)
    after = int(pieces.time[below[0]]) if len(below) else visit.segment.start
    time = visits.first_hold(pieces, level, visit.hold, after)
    if time is None:
        return visit.observed_end - visit.segment.start, True
    return time - visit.segment.start, False


def _stability_row(visit: Visit, options: Options) -> dict[str, Any]:
    names = ("from", "stability", "mean", "sd", "drawdown", "worst_mean", "least_u")
    row: dict[str, Any] = {**_place(visit), **dict.fromkeys(names), "censored": False}
    found, form = adaptation(visit, options), visits.score_form(visit)
    if form is not None and len(visit.value):
        row["least_u"] = float(np.min(visits.scaled(visit.smooth.value, *form)))
    if found is None:
        return row
    start = visit.segment.end - visit.tail_steps if found.censored else visit.segment.start + found.steps
    start = min(start, visit.segment.end - 1)
    mean, sd = _weighted_mean_and_sd(visit.from_time(start))
    scores = visit.value[np.searchsorted(visit.step, start) :]
    return {
        **row,
        "from": start,
        "stability": 1 / (1 + sd / max(abs(mean), options.epsilon)),
        "mean": mean,
        "sd": sd,
        "drawdown": _drawdown(scores),
        "worst_mean": _worst_mean(scores, options.worst_fraction),
        "censored": found.censored,
    }


def _weighted_mean_and_sd(pieces: visits.Pieces) -> tuple[float, float]:
    """Mean and standard deviation over time of a step function."""
    weights = pieces.durations() / pieces.durations().sum()
    anchor = float(pieces.value[0])
    apart = pieces.value - anchor
    centre = float(np.dot(weights, apart))
    return anchor + centre, float(np.sqrt(np.dot(weights, (apart - centre) ** 2)))


def _drawdown(scores: visits.FloatArray) -> float:
    """The largest fall of the cumulative score from an earlier high, the start included."""
    total = np.concatenate([[0.0], np.cumsum(scores)])
    return float(np.max(np.maximum.accumulate(total) - total))


def _worst_mean(scores: visits.FloatArray, fraction: float) -> float | None:
    """Conditional value at risk: the mean of the worst `fraction` of the scores, at least one of them."""
    if not len(scores):
        return None
    count = share(fraction, len(scores))
    return visits.mean(np.partition(scores, count - 1)[:count])


def _median(rows: Sequence[dict[str, Any]]) -> float | None:
    """The Kaplan-Meier median of the steps; None where fewer than half were seen to get there."""
    known = [row for row in rows if row["steps"] is not None]
    return aggregate.censored_median([row["steps"] for row in known], [row["censored"] for row in known])


def _mean_of(rows: Sequence[dict[str, Any]], key: str) -> float | None:
    known = [row[key] for row in rows if row[key] is not None]
    return float(np.mean(known)) if known else None
