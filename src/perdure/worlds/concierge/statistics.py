"""What many errands tell: calibration, reliability over repetitions, tables, paired comparisons."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from perdure.core.errors import DataError
from perdure.metrics import aggregate
from perdure.worlds.concierge.records import Episode
from perdure.worlds.concierge.scoring import Scored


class Brier(NamedTuple):
    """The Brier score and its parts: score = reliability - resolution + uncertainty (Murphy 1973), exactly.

    The groups are the distinct confidences, so nothing is lost to bins.
    """

    score: float
    reliability: float
    """How far confidences lie from what then happened; 0 is perfect."""
    resolution: float
    """How much the confidences tell errands apart; higher is better."""
    uncertainty: float
    """The variance of the outcome."""


class McNemar(NamedTuple):
    """Two agents on the same errands."""

    only_first: int
    only_second: int
    p_value: float
    """Two-sided and exact; 1 where they never differ."""


class Row(NamedTuple):
    """A line of a table: errands of one language, or with one drift."""

    name: str
    episodes: int
    success: float
    reward: float
    exposed: int
    """Drifts that were exposed."""
    recall: float | None
    """Share of exposed drifts with any evidence; None without exposed drifts."""
    latency: float | None
    """Mean turns to the first evidence, over the drifts that have any."""
    false_claims: int


def brier(confidence: npt.ArrayLike, outcome: npt.ArrayLike) -> Brier:
    """The Brier score of stated probabilities against outcomes 0 or 1, decomposed."""
    stated, happened = _pairs(confidence, outcome)
    base = happened.mean()
    values, group = np.unique(stated, return_inverse=True)
    count = np.bincount(group)
    rate = np.bincount(group, happened) / count
    total = len(stated)
    return Brier(
        score=float(np.mean((stated - happened) ** 2)),
        reliability=float(count @ (values - rate) ** 2 / total),
        resolution=float(count @ (rate - base) ** 2 / total),
        uncertainty=float(base * (1 - base)),
    )


def expected_calibration_error(confidence: npt.ArrayLike, outcome: npt.ArrayLike, bins: int = 10) -> float:
    """Mean gap between confidence and success over equal bins of confidence, weighted by their size."""
    stated, happened = _pairs(confidence, outcome)
    group = np.minimum((stated * bins).astype(int), bins - 1)
    count = np.bincount(group, minlength=bins)
    gap = np.abs(np.bincount(group, stated, bins) - np.bincount(group, happened, bins))
    return float(gap.sum() / count.sum())


def pass_hat(successes: Sequence[Sequence[bool]], k: int) -> float:
    """pass^k: the chance that k trials of a task all succeed, averaged over tasks (tau-bench, arXiv 2406.12045).

    `successes` holds the trials of each task, at least k of each; unbiased: C(c, k) / C(n, k).
    """
    if not successes or any(len(trials) < k for trials in successes) or k < 1:
        raise DataError(f"pass^{k} needs at least {max(k, 1)} trials of every task")
    return sum(math.comb(sum(trials), k) / math.comb(len(trials), k) for trials in successes) / len(successes)


def paired_difference(
    first: npt.ArrayLike, second: npt.ArrayLike, level: float = 0.95, samples: int = 10_000, seed: int = 0
) -> aggregate.Interval:
    """The mean of second - first over the same errands with its percentile bootstrap interval."""
    before, after = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if before.shape != after.shape or before.ndim != 1:
        raise DataError(
            f"the two have shapes {before.shape} and {after.shape}; compare the same errands, one number each"
        )
    return aggregate.mean_interval(after - before, level, samples, seed)


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> McNemar:
    """Whether two agents succeed equally often on the same errands (McNemar 1947, exact)."""
    from scipy.stats import binomtest

    if len(first) != len(second):
        raise DataError(f"the two have {len(first)} and {len(second)} errands; compare the same ones")
    only_first = sum(a and not b for a, b in zip(first, second, strict=True))
    only_second = sum(b and not a for a, b in zip(first, second, strict=True))
    differing = only_first + only_second
    p_value = float(binomtest(only_first, differing).pvalue) if differing else 1.0
    return McNemar(only_first, only_second, p_value)


def by_language(episodes: Sequence[Episode], results: Sequence[Scored]) -> list[Row]:
    """A row for each language, in alphabetical order."""
    return _table(episodes, results, lambda episode: [episode.goal.language])


def by_pattern(episodes: Sequence[Episode], results: Sequence[Scored]) -> list[Row]:
    """A row for each drift pattern, and one named "none" for errands without drift."""
    return _table(episodes, results, lambda episode: [event.pattern_id for event in episode.drifts] or ["none"])


def precision(results: Sequence[Scored]) -> float | None:
    """Share of claims that match an exposed drift; None where nothing was claimed."""
    claims = sum(result.evidence.claims for result in results)
    return 1 - sum(result.evidence.false_claims for result in results) / claims if claims else None


def _table(episodes: Sequence[Episode], results: Sequence[Scored], keys: Callable[[Episode], list[str]]) -> list[Row]:
    groups: dict[str, list[tuple[Episode, Scored]]] = {}
    for pair in zip(episodes, results, strict=True):
        for key in keys(pair[0]):
            groups.setdefault(key, []).append(pair)
    return [_row(name, groups[name]) for name in sorted(groups)]


def _row(name: str, pairs: Sequence[tuple[Episode, Scored]]) -> Row:
    detections = [
        each for _, result in pairs for each in result.evidence.detections if each.pattern_id == name or "." not in name
    ]
    latencies = [each.latency for each in detections if each.latency is not None]
    return Row(
        name=name,
        episodes=len(pairs),
        success=sum(episode.success for episode, _ in pairs) / len(pairs),
        reward=sum(result.reward for _, result in pairs) / len(pairs),
        exposed=len(detections),
        recall=len(latencies) / len(detections) if detections else None,
        latency=sum(latencies) / len(latencies) if latencies else None,
        false_claims=sum(result.evidence.false_claims for _, result in pairs),
    )


def _pairs(confidence: npt.ArrayLike, outcome: npt.ArrayLike):
    stated, happened = np.asarray(confidence, np.float64), np.asarray(outcome, np.float64)
    if stated.shape != happened.shape or stated.ndim != 1 or not len(stated):
        raise DataError(f"confidences have shape {stated.shape}, outcomes {happened.shape}; give one of each an errand")
    if not ((stated >= 0) & (stated <= 1)).all():
        raise DataError("a confidence lies outside [0, 1]")
    return stated, happened
