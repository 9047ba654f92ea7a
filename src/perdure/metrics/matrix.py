"""Forgetting and transfer read off an evaluation matrix, as their papers define them.

Continual World (Wolczyk et al. 2021, arXiv 2105.10919), CORA (Powers et al. 2022, arXiv 2110.10067),
Lopez-Paz and Ranzato 2017 (arXiv 1706.08840), L2M (New et al. 2022, arXiv 2201.08278). Each is a
`Metric` in units of the return unless it says otherwise, and None with a reason where an
evaluation it needs is missing. Rows and columns are named as in `cells`.
"""

# pyright: strict

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from perdure.core.errors import DataError
from perdure.metrics.cells import EvaluationMatrix as EvaluationMatrix
from perdure.metrics.cells import evaluation_matrix as evaluation_matrix
from perdure.metrics.metric import FloatArray, Metric

Cell = tuple[int, int]


def average_performance(matrix: EvaluationMatrix) -> Metric:
    """P = mean_j p[K, j] over the trained configurations (Continual World). Higher is better."""
    columns = matrix.trained()
    last = _last(matrix)
    rows = [_row(matrix, column, matrix.values[last, column]) for column in columns]
    return _metric("average_performance", rows, _missing(matrix, ((last, column) for column in columns)), True)


def forgetting(matrix: EvaluationMatrix) -> Metric:
    """F = mean_j (p[j, j] - p[K, j]) over the trained configurations (Continual World). Above 0 is loss.

    p[j, j] is the row after the last segment before the final one that trained j; a configuration
    trained only by the final segment has had no time to be forgotten and counts 0.
    """
    last = _last(matrix)
    pairs = [(max([row for row in matrix.visits(j) if row < last], default=last), j) for j in matrix.trained()]
    rows = [_row(matrix, j, matrix.values[i, j] - matrix.values[last, j]) for i, j in pairs]
    needed = [*pairs, *((last, j) for _, j in pairs)]
    return _metric("matrix_forgetting", rows, _missing(matrix, needed), False)


def backward_transfer(matrix: EvaluationMatrix) -> Metric:
    """B = mean over j < K of (p[K, j] - p[j, j]) (Lopez-Paz and Ranzato). Higher is better.

    p[j, j] is the row after the first segment that trained j: everything learned since counts,
    also a second visit. Configurations first met in the final segment have nothing behind them.
    """
    last = _last(matrix)
    pairs = [(matrix.visits(j)[0], j) for j in matrix.trained() if matrix.visits(j)[0] < last]
    rows = [_row(matrix, j, matrix.values[last, j] - matrix.values[i, j]) for i, j in pairs]
    needed = [*pairs, *((last, j) for _, j in pairs)]
    few = "one configuration was trained only; backward transfer needs a second after it"
    return _metric("backward_transfer", rows, _missing(matrix, needed) or (None if rows else few), True)


def probe_forgetting(matrix: EvaluationMatrix) -> Metric:
    """Mean over trained configurations of the best p[i, j] so far minus p[K, j]. At least 0; lower is better.

    Chaudhry et al. 2018 (arXiv 1801.10112), the present row included in the best.
    """
    columns = matrix.trained()
    missing = _missing(matrix, ((row, column) for column in columns for row in range(len(matrix.values))))
    if missing:
        return _metric("probe_forgetting", [], missing, False)
    lost = matrix.values.max(axis=0) - matrix.values[-1]
    return _metric("probe_forgetting", [_row(matrix, column, lost[column]) for column in columns], None, False)


def forward_transfer(auc: Sequence[float | None], auc_single: Sequence[float | None]) -> Metric:
    """FT_j = (AUC_j - AUCb_j) / (1 - AUCb_j), averaged over j (Continual World). Higher is better.

    AUC is the area under the success curve of configuration j in [0, 1] while it is trained in the
    stream, AUCb that of a run on it alone. Raises DataError for areas outside [0, 1].
    """
    if len(auc) != len(auc_single):
        raise DataError(f"there are {len(auc)} areas and {len(auc_single)} single-task areas; give one a configuration")
    rows: list[dict[str, Any]] = []
    for position, (area, alone) in enumerate(zip(auc, auc_single, strict=True)):
        if area is None or alone is None:
            return _metric("forward_transfer", [], f"the area of configuration {position} is missing", True, "ratio")
        if not (0 <= area <= 1 and 0 <= alone <= 1):
            raise DataError(f"areas[{position}] are {area} and {alone}; a success curve's area lies between 0 and 1")
        if alone < 1:
            rows.append({"configuration": position, "value": (area - alone) / (1 - alone)})
    perfect = "every single-task run succeeds at once, so that nothing is left to transfer"
    return _metric("forward_transfer", rows, None if rows else perfect, True, "ratio")


def cora_forgetting(matrix: EvaluationMatrix) -> Metric:
    """Isolated forgetting (p[i-1, j] - p[i, j]) / max_i |p[i, j]|, averaged over pairs (CORA). Lower is better.

    Pairs are a segment i and a configuration j that some earlier segment trained and i does not.
    """
    pairs = [
        (row, column)
        for column in matrix.trained()
        for row in range(2, len(matrix.values))
        if min(matrix.visits(column)) < row and row not in matrix.visits(column)
    ]
    none = "no configuration was trained before a segment that trains another"
    return _cora("cora_forgetting", matrix, pairs, -1.0, none)


def cora_transfer(matrix: EvaluationMatrix) -> Metric:
    """Zero-shot transfer (p[i, j] - p[i-1, j]) / max_i |p[i, j]|, averaged over pairs (CORA). Higher is better.

    Pairs are a segment i and a configuration j that is trained later for the first time.
    """
    pairs = [(row, column) for column in matrix.trained() for row in range(1, min(matrix.visits(column)))]
    none = "no configuration is first trained after another"
    return _cora("cora_transfer", matrix, pairs, 1.0, none)


def performance_maintenance(matrix: EvaluationMatrix) -> Metric:
    """Mean of p[i, j] minus the latest terminal performance of j (L2M). Higher is better.

    Over every row i and configuration j trained before segment i but not by it; the terminal
    performance is the row after the latest segment that trained j.
    """
    rows: list[dict[str, Any]] = []
    needed: list[Cell] = []
    for column in matrix.trained():
        for row in range(1, len(matrix.values)):
            earlier = [visit for visit in matrix.visits(column) if visit <= row]
            if earlier and earlier[-1] < row:
                change = matrix.values[row, column] - matrix.values[earlier[-1], column]
                rows.append({**_row(matrix, column, change), "after": matrix.row_labels[row]})
                needed += [(row, column), (earlier[-1], column)]
    none = "no configuration was trained before a segment that trains another"
    missing = _missing(matrix, needed) or (None if rows else none)
    return _metric("performance_maintenance", rows, missing, True)


def recovery_slope(times: Sequence[float | None]) -> Metric:
    """Theil-Sen slope of the recovery times over the boundaries, in steps a boundary (L2M). Lower is better.

    Below 0 the agent recovers faster and faster. Boundaries without a time (None) are left out.
    """
    known = [(position, float(time)) for position, time in enumerate(times) if time is not None]
    slopes = [(b - a) / (j - i) for place, (i, a) in enumerate(known) for j, b in known[place + 1 :]]
    return Metric(
        name="recovery_slope",
        value=float(np.median(slopes)) if slopes else None,
        n=len(known),
        censored=0,
        low=None,
        high=None,
        reason=None if slopes else f"a slope needs recovery times at two boundaries; there are {len(known)}",
        unit="steps a boundary",
        higher_is_better=False,
        details={"times": [None if time is None else float(time) for time in times]},
    )


def matrix_metrics(matrix: EvaluationMatrix) -> dict[str, Metric]:
    """Every measure that needs nothing but the matrix, by name."""
    measures = (
        average_performance,
        forgetting,
        backward_transfer,
        probe_forgetting,
        cora_forgetting,
        cora_transfer,
        performance_maintenance,
    )
    found = [measure(matrix) for measure in measures]
    return {metric.name: metric for metric in found}


def _cora(name: str, matrix: EvaluationMatrix, pairs: Sequence[Cell], sign: float, none: str) -> Metric:
    columns = {column for _, column in pairs}
    missing = _missing(matrix, ((row, column) for column in sorted(columns) for row in range(len(matrix.values))))
    if missing or not pairs:
        return _metric(name, [], missing or none, sign > 0, "ratio")
    largest: FloatArray = np.abs(matrix.values).max(axis=0)
    rows: list[dict[str, Any]] = []
    for row, column in pairs:
        change = sign * (matrix.values[row, column] - matrix.values[row - 1, column])
        # A column of zeros has neither lost nor gained anything.
        relative = change / largest[column] if largest[column] > 0 else 0.0
        rows.append({**_row(matrix, column, relative), "after": matrix.row_labels[row]})
    return _metric(name, rows, None, sign > 0, "ratio")


def _last(matrix: EvaluationMatrix) -> int:
    return len(matrix.values) - 1


def _row(matrix: EvaluationMatrix, column: int, value: float) -> dict[str, Any]:
    return {"configuration": matrix.regimes[column], "value": float(value)}


def _missing(matrix: EvaluationMatrix, cells: Iterable[Cell]) -> str | None:
    """A sentence naming the first of the cells that was not evaluated."""
    for row, column in cells:
        if np.isnan(matrix.values[row, column]):
            when = f"after segment {matrix.row_labels[row]!r}" if row else "before training"
            return f"{matrix.regimes[column]!r} was not evaluated {when} (step {matrix.steps[row]})"
    return None


def _metric(
    name: str, rows: list[dict[str, Any]], reason: str | None, higher_is_better: bool, unit: str = "return"
) -> Metric:
    """The mean of the rows' values, or None for `reason`."""
    reason = reason or (None if rows else "no column is a configuration that a segment trains")
    rows = [] if reason else rows
    return Metric(
        name=name,
        value=float(np.mean([row["value"] for row in rows])) if rows else None,
        n=len(rows),
        censored=0,
        low=None,
        high=None,
        reason=reason,
        unit=unit,
        higher_is_better=higher_is_better,
        details={"cells": rows},
    )
