"""The evaluation matrix of one seed: how a frozen policy does on every configuration after each segment.

p[i, j] is the mean return on configuration j after segment i; row 0 is before training. A column
is a distinct origin: segments that repeat a configuration share one. What follows for a
configuration that is trained several times is said at each measure, in `matrix`.
"""

# pyright: strict

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from perdure.core.errors import DataError
from perdure.core.records import EvaluationRow, Segment
from perdure.metrics.metric import FloatArray


class EvaluationMatrix(NamedTuple):
    """Rows: before training, then after each of K segments. Columns: J configurations."""

    values: FloatArray
    """[K + 1, J] mean returns; NaN where nothing was evaluated."""
    row_labels: tuple[str, ...]
    """[K + 1] "start", then the ids of the segments."""
    regimes: tuple[str, ...]
    """[J] the origin that each column stands for: trained ones in order, then others that were evaluated."""
    steps: tuple[int, ...]
    """[K + 1] the step of each row."""
    origins: tuple[str, ...]
    """[K + 1] the origin trained just before each row; empty for row 0."""

    def visits(self, column: int) -> list[int]:
        """The rows right after a segment that trained this column's configuration."""
        return [row for row, origin in enumerate(self.origins) if row and origin == self.regimes[column]]

    def trained(self) -> list[int]:
        """The columns whose configuration is trained at least once."""
        return [column for column in range(len(self.regimes)) if self.visits(column)]


def evaluation_matrix(rows: Sequence[EvaluationRow], segments: Sequence[Segment]) -> EvaluationMatrix:
    """The matrix of one seed's evaluations; those of policies that no segment ended with are left out.

    Of two evaluations of one regime at one step the later line counts (a resumed run repeats one);
    ids that share an origin are averaged. Raises DataError for rows of several seeds and for
    returns that are not finite.
    """
    if not segments:
        raise DataError("an evaluation matrix needs the run's segments; there are none")
    _check_one_seed(rows)
    origin_of = {segment.id: segment.origin for segment in segments}
    steps = (segments[0].start, *(segment.end for segment in segments))
    evaluated = [origin_of.get(row.regime, row.regime) for row in rows]
    regimes = tuple(dict.fromkeys([*(segment.origin for segment in segments), *evaluated]))
    return EvaluationMatrix(
        values=_cells(_latest(rows), origin_of, steps, regimes),
        row_labels=("start", *(segment.id for segment in segments)),
        regimes=regimes,
        steps=steps,
        origins=("", *(segment.origin for segment in segments)),
    )


def _check_one_seed(rows: Sequence[EvaluationRow]) -> None:
    owners = {(row.algorithm_id, row.task, row.seed) for row in rows}
    if len(owners) > 1:
        names = ", ".join(f"{algorithm} on {task} seed {seed}" for algorithm, task, seed in sorted(owners)[:3])
        raise DataError(f"evaluations of several runs are mixed ({names}); build one matrix a seed")


def _latest(rows: Sequence[EvaluationRow]) -> dict[tuple[int, str], float]:
    """(steps trained, regime id) -> mean return."""
    found: dict[tuple[int, str], float] = {}
    for row in rows:
        if not np.isfinite(row.returns).all():
            raise DataError(
                f"run {row.run_id!r}, seed {row.seed}: the evaluation on {row.regime!r} at step {row.step} "
                "holds a return that is not finite; evaluate again"
            )
        if len(row.returns):
            found[row.step if row.trained is None else row.trained, row.regime] = float(np.mean(row.returns))
    return found


def _cells(
    found: Mapping[tuple[int, str], float],
    origin_of: Mapping[str, str],
    steps: Sequence[int],
    regimes: Sequence[str],
) -> FloatArray:
    cells: dict[tuple[int, str], list[float]] = {}
    for (step, regime), value in found.items():
        cells.setdefault((step, origin_of.get(regime, regime)), []).append(value)
    means = [[cells.get((step, regime), [np.nan]) for regime in regimes] for step in steps]
    return np.array([[float(np.mean(values)) for values in line] for line in means], np.float64)
