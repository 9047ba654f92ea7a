"""What worlds say of evaluated episodes: shares and means over time, and broken down by the worlds' own labels."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perdure.core import records
from perdure.core.records import EvaluationRow
from perdure.metrics import aggregate
from perdure.report import figures, svg, tables
from perdure.report.figures import Figure
from perdure.report.panels import Panel
from perdure.report.sections import Arm, Section
from perdure.report.svg import Safe, element

MOST_PANELS = 8
"""Facts drawn over time."""
MOST_COLUMNS = 5
"""Facts in a breakdown."""
MOST_LABELS = 60
"""Rows of a breakdown."""


def figure(section: Section) -> Figure | None:
    """Each number that the world tells, averaged over an evaluation's episodes; None where it tells none."""
    rows = [row for arm in section.arms for row in arm.evaluations]
    names = _numbers(rows)
    if not names:
        return None
    drawn = []
    for name in names[:MOST_PANELS]:
        lines = figures.arm_lines(section, lambda arm, of=name: [_averaged(row, of) for row in arm.evaluations], name)
        least, most, whole = _range(rows, name)
        within = least >= 0 and most <= 1
        drawn.append(
            Panel(
                name,
                figures.STEPS,
                "share of episodes" if within and whole else "mean over episodes",
                lines,
                figures.bands(section),
                y_range=(0.0, 1.0) if within else None,
            )
        )
    left = f" The first {MOST_PANELS} of {len(names)} are drawn." if len(names) > MOST_PANELS else ""
    caption = f"What the world says of the evaluated episodes, over all configurations.{left} {figures.spread(section)}"
    return Figure(tuple(drawn), caption)


def breakdowns(section: Section) -> list[Safe]:
    """For each label that the world gives, a table for each arm: the first evaluation against the last."""
    rows = [row for arm in section.arms for row in arm.evaluations]
    labels = list(dict.fromkeys(name for row in rows for name, values in row.facts.items() if _labels(values)))
    names = _numbers(rows)[:MOST_COLUMNS]
    parts = []
    for label in labels if names else []:
        made = [_breakdown(arm, label, names) for arm in section.arms if arm.evaluations]
        parts += [table for table in made if table]
    return parts


def _breakdown(arm: Arm, label: str, names: Sequence[str]) -> Safe | None:
    steps = sorted({row.step for row in arm.evaluations})
    first, last = (
        _grouped([row for row in arm.evaluations if row.step == step], label, names) for step in (steps[0], steps[-1])
    )
    if not last:
        return None
    body = []
    for value in sorted(last.keys() | first.keys())[:MOST_LABELS]:
        before, after = first.get(value, {}), last.get(value, {})
        body.append([(value, _count(after)), *(_cell(before.get(name, []), after.get(name, [])) for name in names)])
    caption = f"{arm.label}, by {label}: step {steps[0]:,} → step {steps[-1]:,}"
    table = tables.text_table([label, *names], body, caption=caption)
    left = len(last) - MOST_LABELS
    more = [element("p", f"{left} further values are left out.", class_="note")] if left > 0 else []
    return svg.join([table, *more])


def _grouped(rows: Sequence[EvaluationRow], label: str, names: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """{value of the label: {fact: numbers of its episodes}}; an episode counts under each of its labels."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        for episode, value in enumerate(row.facts.get(label, ())):
            for each in (value or ["none"]) if isinstance(value, list | tuple) else [value]:
                if not isinstance(each, str):
                    continue
                place = found.setdefault(each, {})
                for name in names:
                    told = row.facts.get(name, ())[episode : episode + 1]
                    place.setdefault(name, []).extend(records.numbers(told))
    return found


def _cell(before: Sequence[float], after: Sequence[float]) -> tables.Cell:
    if not before and not after:
        return "-"
    shown = " → ".join(svg.number(float(np.mean(values))) if values else "-" for values in (before, after))
    if not after:
        return shown
    interval = aggregate.mean_interval(after)
    if interval.low is None or interval.high is None:
        return shown
    return shown, f"{svg.number(interval.low)} to {svg.number(interval.high)} over episodes"


def _count(groups: Mapping[str, Sequence[float]]) -> str:
    count = max((len(values) for values in groups.values()), default=0)
    return f"{count} episode{'' if count == 1 else 's'}"


def _averaged(row: EvaluationRow, name: str) -> EvaluationRow:
    values = records.numbers(row.facts.get(name, ()))
    return row._replace(metrics={name: float(np.mean(values))} if values else {})


def _numbers(rows: Sequence[EvaluationRow]) -> list[str]:
    told = [(name, values) for row in rows for name, values in row.facts.items()]
    return list(dict.fromkeys(name for name, values in told if records.numbers(values)))


def _range(rows: Sequence[EvaluationRow], name: str) -> tuple[float, float, bool]:
    """The least and the greatest value that a fact has, and whether all are whole numbers."""
    values = [value for row in rows for value in records.numbers(row.facts.get(name, ()))]
    return min(values), max(values), all(value.is_integer() for value in values)


def _labels(values: Sequence[Any]) -> bool:
    return any(isinstance(value, str | list | tuple) for value in values)
