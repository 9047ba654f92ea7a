"""The metrics that compare levels: reward per configuration, forgetting at a revisit, gap to the best possible."""

# pyright: strict

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perdure.metrics import aggregate, visits
from perdure.metrics.metric import FloatArray, Metric, Options, number
from perdure.metrics.visits import Visit

FEWEST_POINTS = 4
"""A stretch with fewer scores than this is too short to resample."""


def reward(seen: Sequence[Visit], nothing: str, options: Options, seed: int) -> Metric:
    """R(z): the mean score over everything whose origin is z, averaged over configurations. Higher is better."""
    groups = by_origin(seen)
    origins = [_origin_row(origin, group) for origin, group in groups.items()]
    values = [row["reward"] for row in origins if row["reward"] is not None]
    low, high = _interval(list(origin_draws(groups, options, seed).values()), len(values), options)
    return Metric(
        name="reward",
        value=float(np.mean(values)) if values else None,
        n=len(values),
        censored=0,
        low=low,
        high=high,
        reason=None if values else nothing,
        unit="score",
        higher_is_better=True,
        details={"origins": origins, "segments": [_segment_row(visit) for visit in seen]},
    )


def performance_gap(seen: Sequence[Visit], nothing: str, options: Options, seed: int) -> Metric:
    """G(z) = UB(z) - R(z), averaged over the configurations whose upper bound is known. Lower is better.

    The upper bound of the world is theoretical and may be out of reach; the gap to what is known
    to be attainable stands beside it in the details.
    """
    groups = by_origin(seen)
    origins = [_gap_row(origin, group, options) for origin, group in groups.items()]
    values = [row["gap"] for row in origins if row["gap"] is not None]
    draws = origin_draws(
        {origin: group for origin, group in groups.items() if group[0].high is not None}, options, seed
    )
    gaps = [
        high - draws[row["origin"]]
        for row in origins
        if row["gap"] is not None and row["origin"] in draws and (high := row["high"]) is not None
    ]
    low, high = _interval(gaps, len(values), options)
    reason = "no configuration has an upper bound; a world offers one by bounds(task), a reward spec by its caps"
    return Metric(
        name="performance_gap",
        value=float(np.mean(values)) if values else None,
        n=len(values),
        censored=0,
        low=low,
        high=high,
        reason=None if values else (reason if any(len(visit.value) for visit in seen) else nothing),
        unit="score",
        higher_is_better=False,
        details={
            "origins": origins,
            "relative": _mean([row["relative"] for row in origins]),
            "attainable_gap": _mean([row["attainable_gap"] for row in origins]),
        },
    )


def forgetting(seen: Sequence[Visit], options: Options, seed: int) -> Metric:
    """F = tail of the last earlier visit - head of this one, averaged over revisits. Above 0 is loss."""
    latest: dict[str, Visit] = {}
    rows: list[dict[str, Any]] = []
    pairs: list[tuple[Visit, Visit]] = []
    for visit in seen:
        before = latest.get(visit.segment.origin)
        if before is not None:
            rows.append(_revisit_row(before, visit, options))
            if rows[-1]["forgetting"] is not None:
                pairs.append((before, visit))
        latest[visit.segment.origin] = visit
    values = [row["forgetting"] for row in rows if row["forgetting"] is not None]
    unseen = "no revisit has both a finished earlier visit and scores of its own"
    low, high = _interval(_revisit_draws(pairs, options, seed), len(pairs), options)
    return Metric(
        name="forgetting",
        value=float(np.mean(values)) if values else None,
        n=len(values),
        censored=0,
        low=low,
        high=high,
        reason=None if values else (unseen if rows else "no configuration is visited twice"),
        unit="score",
        higher_is_better=False,
        details={
            "revisits": rows,
            "relative": _mean([row["relative"] for row in rows]),
            "normalised": _mean([row["normalised"] for row in rows]),
        },
    )


def by_origin(seen: Sequence[Visit]) -> dict[str, list[Visit]]:
    """The visits of each configuration, configurations in order of first appearance."""
    groups: dict[str, list[Visit]] = {}
    for visit in seen:
        groups.setdefault(visit.segment.origin, []).append(visit)
    return groups


def origin_draws(groups: Mapping[str, Sequence[Visit]], options: Options, seed: int) -> dict[str, FloatArray]:
    """origin -> [samples] moving-block resamples of R(z), where every scored visit is long enough."""
    generator = aggregate.generator_of(seed)
    draws: dict[str, FloatArray] = {}
    for origin, group in groups.items():
        scored = [visit for visit in group if len(visit.value)]
        if not scored or min(len(visit.value) for visit in scored) < FEWEST_POINTS:
            continue
        parts = [aggregate.block_means(visit.value, options.samples, generator) for visit in scored]
        weights = np.array([len(visit.value) for visit in scored], np.float64)
        draws[origin] = (weights / weights.sum()) @ np.stack(parts)
    return draws


def _interval(draws: Sequence[FloatArray], needed: int, options: Options) -> tuple[float | None, float | None]:
    """The interval of the mean over `needed` things, if each of them could be resampled."""
    if not needed or len(draws) < needed:
        return None, None
    return aggregate.percentiles(np.mean(np.stack(draws), axis=0), options.level)


def _revisit_draws(pairs: Sequence[tuple[Visit, Visit]], options: Options, seed: int) -> list[FloatArray]:
    generator = aggregate.generator_of(seed)
    draws: list[FloatArray] = []
    for before, visit in pairs:
        tail, head = before.tail_values(), visit.head_values()
        if min(len(tail), len(head)) >= FEWEST_POINTS:
            lost = aggregate.block_means(tail, options.samples, generator)
            draws.append(lost - aggregate.block_means(head, options.samples, generator))
    return draws


def _pooled(group: Sequence[Visit]) -> float | None:
    """The mean over all scores of a group of visits."""
    values = [visit.value for visit in group if len(visit.value)]
    return visits.mean(np.concatenate(values)) if values else None


def _origin_row(origin: str, group: Sequence[Visit]) -> dict[str, Any]:
    points = sum(len(visit.value) for visit in group)
    return {"origin": origin, "reward": _pooled(group), "visits": len(group), "scores": points}


def _segment_row(visit: Visit) -> dict[str, Any]:
    return {
        "segment": visit.segment.id,
        "origin": visit.segment.origin,
        "start": visit.segment.start,
        "end": visit.segment.end,
        "complete": visit.complete,
        "scores": len(visit.value),
        "reward": visits.mean(visit.value) if len(visit.value) else None,
        "head": number(visit.head),
        "tail": number(visit.tail),
    }


def _gap_row(origin: str, group: Sequence[Visit], options: Options) -> dict[str, Any]:
    value, low, high = _pooled(group), group[0].low, group[0].high
    form = visits.score_form(group[0])
    attainable = options.attainable.get(origin)
    tails = [visit.tail for visit in group if visit.tail is not None]
    gap = None if value is None or high is None else high - value
    return {
        "origin": origin,
        "reward": value,
        "low": number(low),
        "high": number(high),
        "gap": number(gap),
        "relative": None if gap is None or form is None else gap / (form[1] - form[0]),
        "attainable": number(attainable),
        "attainable_gap": None if value is None or attainable is None else attainable - value,
        "best_tail": max(tails) if tails else None,
    }


def _revisit_row(before: Visit, visit: Visit, options: Options) -> dict[str, Any]:
    lost = None if before.tail is None or visit.head is None else before.tail - visit.head
    form = visits.score_form(visit)
    relative = None if lost is None or before.tail is None else lost / max(abs(before.tail), options.epsilon)
    return {
        "segment": visit.segment.id,
        "origin": visit.segment.origin,
        "before": before.segment.id,
        "tail": number(before.tail),
        "head": number(visit.head),
        "forgetting": lost,
        "relative": relative,
        "normalised": None if lost is None or form is None else lost / (form[1] - form[0]),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
