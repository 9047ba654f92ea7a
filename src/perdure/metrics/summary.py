"""What a folder of runs says: each metric over the seeds of every algorithm and task, and who beats whom."""

# pyright: strict

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from perdure.core.errors import DataError
from perdure.core.records import EvaluationRow, Stream
from perdure.metrics import aggregate, matrix
from perdure.metrics.metric import DEFAULTS, Metric, Options
from perdure.metrics.six import NAMES, six_metrics

FEWEST_FOR_IQM = 4
"""Below this many seeds an interquartile mean would cut nothing, so the mean is shown."""


class Aggregate(NamedTuple):
    """One metric over the seeds of a group."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    statistic: str
    """"iqm" with four defined seeds or more, else "mean"."""
    interval: str | None
    """"seeds" (bootstrap over seeds), "within_run" (one seed, its own interval) or None."""
    n: int
    """Seeds for which the metric is defined."""
    censored: int
    """Censored segments or boundaries of all seeds together."""
    reason: str | None
    """Why the value is None: the first seed's reason."""
    unit: str
    higher_is_better: bool
    values: tuple[float | None, ...]
    """One a seed, in the order of the group's seeds."""


class Run(NamedTuple):
    """One seed, with every metric of it."""

    run_id: str
    seed: int
    metrics: Mapping[str, Metric]


class Group(NamedTuple):
    """The seeds of one algorithm on one task."""

    algorithm_id: str
    task: str
    runs: tuple[Run, ...]
    metrics: Mapping[str, Aggregate]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, in rising order."""
        return tuple(run.seed for run in self.runs)


class Comparison(NamedTuple):
    """How likely a seed of `first` does better than a seed of `second` on one metric; ties count half."""

    task: str
    metric: str
    first: str
    second: str
    probability: float | None
    low: float | None
    high: float | None


class Summary(NamedTuple):
    """Groups ordered by task and algorithm, their comparisons, and what was left out."""

    groups: tuple[Group, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]
    options: Options

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON values; undefined numbers are None."""
        return {
            "schema": "perdure.summary/1",
            "options": {**self.options._asdict(), "attainable": dict(self.options.attainable)},
            "groups": [_group_dict(group) for group in self.groups],
            "comparisons": [comparison._asdict() for comparison in self.comparisons],
            "notes": list(self.notes),
        }

    def reasons(self) -> list[str]:
        """Why the table has dashes: a line for each metric and reason, with the algorithms it is undefined for."""
        found: dict[tuple[str, str], list[str]] = {}
        for group in self.groups:
            for name, metric in group.metrics.items():
                if metric.value is None and metric.reason:
                    found.setdefault((name, metric.reason), []).append(group.algorithm_id)
        return [f"{name} ({', '.join(dict.fromkeys(who))}): {reason}" for (name, reason), who in found.items()]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headers and rows of text: a row a task and metric, a column an algorithm.

        An arrow says which way is better, a dash that the metric is undefined.
        """
        algorithms = list(dict.fromkeys(group.algorithm_id for group in self.groups))
        rows: list[list[str]] = []
        for task in dict.fromkeys(group.task for group in self.groups):
            here = {group.algorithm_id: group.metrics for group in self.groups if group.task == task}
            for name in dict.fromkeys(name for metrics in here.values() for name in metrics):
                known = [metrics[name] for metrics in here.values() if name in metrics]
                label = f"{name} {'↑' if known[0].higher_is_better else '↓'}"
                cells = [_cell(here.get(algorithm, {}).get(name)) for algorithm in algorithms]
                rows.append([task, label, known[0].unit, *cells])
        return ["task", "metric", "unit", *algorithms], rows


def summarise(
    streams: Sequence[Stream], evaluations: Sequence[EvaluationRow] = (), options: Options = DEFAULTS
) -> Summary:
    """Measure every stream and sum up over seeds.

    Raises DataError for two streams of one algorithm, task and seed: which of them counts is the
    caller's to say. Evaluations of a run without a stream are left out with a note.
    """
    _check_distinct(streams)
    belonging: dict[tuple[str, str, str, int], list[EvaluationRow]] = {}
    for row in evaluations:
        belonging.setdefault((row.run_id, row.algorithm_id, row.task, row.seed), []).append(row)
    members: dict[tuple[str, str], list[Run]] = {}
    for stream in sorted(streams, key=lambda stream: (stream.task, stream.algorithm_id, stream.seed)):
        rows = belonging.pop((stream.run_id, stream.algorithm_id, stream.task, stream.seed), [])
        run = Run(stream.run_id, stream.seed, _measure(stream, rows, options))
        members.setdefault((stream.task, stream.algorithm_id), []).append(run)
    groups = tuple(_group(task, algorithm, runs, options) for (task, algorithm), runs in members.items())
    notes = tuple(
        f"run {run_id!r} ({algorithm} on {task}, seed {seed}) has evaluations but no steps; they are left out"
        for run_id, algorithm, task, seed in belonging
    )
    return Summary(groups, _comparisons(groups, options), notes, options)


def _check_distinct(streams: Sequence[Stream]) -> None:
    seen: dict[tuple[str, str, int], str] = {}
    for stream in streams:
        key = (stream.algorithm_id, stream.task, stream.seed)
        if key in seen:
            raise DataError(
                f"runs {seen[key]!r} and {stream.run_id!r} are both {key[0]} on {key[1]} with seed {key[2]}; "
                "leave one out, or give them different algorithm ids"
            )
        seen[key] = stream.run_id


def _measure(stream: Stream, rows: Sequence[EvaluationRow], options: Options) -> dict[str, Metric]:
    """The six, then, where there are evaluations, the matrix metrics; then the recovery slope."""
    found = six_metrics(stream, options)
    if rows:
        found |= matrix.matrix_metrics(matrix.evaluation_matrix(rows, stream.segments))
    boundaries = found["recovery_time"].details["boundaries"]
    if len(boundaries) > 1:
        found["recovery_slope"] = matrix.recovery_slope([boundary["steps"] for boundary in boundaries])
    return found


def _group(task: str, algorithm: str, runs: Sequence[Run], options: Options) -> Group:
    names = dict.fromkeys([*NAMES, *(name for run in runs for name in run.metrics)])
    metrics = {name: _aggregate([run.metrics.get(name) for run in runs], options) for name in names}
    return Group(algorithm, task, tuple(runs), metrics)


def _aggregate(found: Sequence[Metric | None], options: Options) -> Aggregate:
    """One metric over seeds, some of which may lack it."""
    present = [metric for metric in found if metric is not None]
    defined = [metric for metric in present if metric.value is not None]
    values = [metric.value for metric in defined if metric.value is not None]
    many = len(values) >= FEWEST_FOR_IQM
    value = low = high = interval = None
    if values:
        statistic = aggregate.iqm if many else aggregate.average
        value, low, high, _, _ = aggregate.stratified_bootstrap(values, statistic, options.level, options.samples)
        interval = "seeds" if low is not None else None
    if len(values) == 1 and defined[0].low is not None:
        low, high, interval = defined[0].low, defined[0].high, "within_run"
    return Aggregate(
        name=present[0].name,
        value=value,
        low=low,
        high=high,
        statistic="iqm" if many else "mean",
        interval=interval,
        n=len(values),
        censored=sum(metric.censored for metric in present),
        reason=None if values else present[0].reason,
        unit=present[0].unit,
        higher_is_better=present[0].higher_is_better,
        values=tuple(None if metric is None else metric.value for metric in found),
    )


def _comparisons(groups: Sequence[Group], options: Options) -> tuple[Comparison, ...]:
    pairs = [(a, b) for a, b in itertools.combinations(groups, 2) if a.task == b.task]
    return tuple(
        _comparison(first, second, name, options)
        for first, second in pairs
        for name in first.metrics
        if first.metrics[name].n and name in second.metrics and second.metrics[name].n
    )


def _comparison(first: Group, second: Group, name: str, options: Options) -> Comparison:
    sign = 1.0 if first.metrics[name].higher_is_better else -1.0
    x, y = (
        sign * np.array([value for value in group.metrics[name].values if value is not None])
        for group in (first, second)
    )
    found = aggregate.probability_of_improvement(x, y, options.level, options.samples)
    return Comparison(first.task, name, first.algorithm_id, second.algorithm_id, found.value, found.low, found.high)


def _group_dict(group: Group) -> dict[str, Any]:
    return {
        "algorithm_id": group.algorithm_id,
        "task": group.task,
        "seeds": list(group.seeds),
        "metrics": {name: {**found._asdict(), "values": list(found.values)} for name, found in group.metrics.items()},
        "runs": [
            {
                "run_id": run.run_id,
                "seed": run.seed,
                "metrics": {
                    name: {**metric._asdict(), "details": dict(metric.details)} for name, metric in run.metrics.items()
                },
            }
            for run in group.runs
        ],
    }


def _cell(found: Aggregate | None) -> str:
    if found is None or found.value is None:
        return "-"
    text = f"{found.value:.4g}"
    if found.low is not None and found.high is not None:
        text += f" [{found.low:.4g}, {found.high:.4g}]"
    return f"{text} ({found.censored} censored)" if found.censored else text
