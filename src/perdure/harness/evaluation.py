"""Frozen-policy evaluations at the marks of a run, and what they say of the networks' plasticity."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from perdure.core import records
from perdure.core.errors import RunFailed
from perdure.core.protocols import Learner


class EvaluationPlan(NamedTuple):
    """When and under which configurations the policy is tried."""

    every: int | None = None
    """Steps between evaluations, beside row 0 and every segment's end; None for those alone."""
    episodes: int = 8
    regimes: tuple[tuple[str, records.Params | None], ...] = ()
    """Configurations (id, params) in the order of the rows; empty for no evaluation at all."""
    only_current: bool = False
    """Evaluate only the configuration that was in force before the mark."""


def due(plan: EvaluationPlan, schedule: records.RegimeSchedule, mark: int) -> bool:
    """Whether anything is evaluated after exactly `mark` steps."""
    if not plan.regimes:
        return False
    return (
        mark == 0
        or any(segment.end == mark for segment in schedule.segments)
        or bool(plan.every and mark % plan.every == 0)
    )


def evaluate(
    learner: Learner,
    state: Any,
    plan: EvaluationPlan,
    schedule: records.RegimeSchedule,
    mark: int,
    seeds: Sequence[int],
) -> list[dict[str, Any]]:
    """The lines of evaluations.jsonl for one mark: every regime in turn, a line a seed.

    "effective_rank/NAME" (see metrics.plasticity, in units) and "dormant/NAME" (fraction of units)
    describe each network whose activations the learner hands out. RunFailed for a return that is
    not finite.
    """
    origins = {segment.id: segment.origin for segment in schedule.segments}
    current = schedule.segments[int(schedule.index_at(max(mark - 1, 0)))].origin
    lines: list[dict[str, Any]] = []
    ranks: dict[str, list[float | None]] = {}
    for regime, params in plan.regimes:
        origin = origins.get(regime, regime)
        if plan.only_current and origin != current:
            continue
        found = learner.evaluate(state, params, plan.episodes)
        returns = np.asarray(found.returns, np.float64)
        if not np.isfinite(returns).all():
            bad = returns[~np.isfinite(returns)][0]
            raise RunFailed(f"step {mark}: an evaluation under {regime!r} returned {bad}; mend the reward or the world")
        # The networks do not change from one regime to the next, and the decompositions are dear.
        ranks = ranks or plasticity(found.features)
        metrics = {**{name: np.asarray(value).tolist() for name, value in found.metrics.items()}, **ranks}
        for position, seed in enumerate(seeds):
            lines.append(
                {
                    "step": mark,
                    "seed": int(seed),
                    "regime": regime,
                    "origin": origin,
                    "returns": returns[position].tolist(),
                    "lengths": np.asarray(found.lengths)[position].tolist(),
                    "metrics": {name: _finite(value[position]) for name, value in metrics.items()},
                    **_told(found, position),
                    **_reached(found, position, mark, schedule.total_steps),
                }
            )
    return lines


def _told(found: records.Evaluation, position: int) -> dict[str, Any]:
    """What the world says of one seed's episodes, and the conversations kept; keys only where there is any."""
    facts = {name: table[position] for name, table in found.facts.items()}
    kept = [[turn._asdict() for turn in turns] for turns in (found.samples[position] if found.samples else ())]
    return ({"facts": facts} if facts else {}) | ({"samples": kept} if kept else {})


def _reached(found: records.Evaluation, position: int, mark: int, total: int) -> dict[str, Any]:
    """How far past the mark a seed's last window reached; no key where it did not."""
    trained = min(int(found.trained[position]), total) if found.trained else mark
    return {"trained": trained} if trained > mark else {}


def plasticity(features: Mapping[str, np.ndarray]) -> dict[str, list[float | None]]:
    """Effective rank and dormant fraction of each network, a value a seed; None where undefined."""
    from perdure.metrics import plasticity as measures

    found: dict[str, list[float | None]] = {}
    for name, activations in features.items():
        matrices = np.asarray(activations, np.float64)
        found[f"effective_rank/{name}"] = [measures.effective_rank_entropy(matrix) for matrix in matrices]
        found[f"dormant/{name}"] = [measures.dormant_fraction(matrix) for matrix in matrices]
    return found


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
