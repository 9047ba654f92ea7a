"""Curves of what learners measured while they trained (windows.jsonl)."""

import numpy as np

from perdure.report import curves, figures
from perdure.report.figures import Figure
from perdure.report.panels import Panel
from perdure.report.sections import Arm, Section

POINTS = 120
MOST_PANELS = 24
"""Metrics drawn, in the order in which the learner tells them."""


def training(section: Section) -> Figure | None:
    """One panel a metric, over every arm that has it; None where the runs have no windows."""
    told = [name for arm in section.arms for row in arm.windows for name in row.get("metrics", {})]
    names = [name for name in dict.fromkeys(told) if _changes(section, name)]
    if not names:
        return None
    drawn = []
    for name in names[:MOST_PANELS]:
        lines = [(arm, _curve(arm, name)) for arm in section.arms]
        lines = tuple(figures.line(arm, curve) for arm, curve in lines if curve is not None)
        measured = name.rpartition("/")[2].replace("_", " ")
        drawn.append(Panel(name, figures.STEPS, measured, lines, figures.bands(section)))
    left = f" The first {MOST_PANELS} of {len(names)} are drawn." if len(names) > MOST_PANELS else ""
    caption = (
        f"What the learner measured in its updates, where it varies, in at most {POINTS} stretches of the run."
        f"{left} {figures.spread(section)}"
    )
    return Figure(tuple(drawn), caption)


def _changes(section: Section, name: str) -> bool:
    rows = (row["metrics"].get(name) for arm in section.arms for row in arm.windows if row.get("metrics"))
    return len({value for value in rows if value is not None}) > 1


def _curve(arm: Arm, name: str) -> curves.Curve | None:
    """Means over seeds of each seed's means within equal stretches."""
    rows = [row for row in arm.windows if (row.get("metrics") or {}).get(name) is not None]
    if not rows:
        return None
    steps = np.array([row["step"] for row in rows], float)
    values = np.array([row["metrics"][name] for row in rows], float)
    owners = np.array([row["seed"] for row in rows])
    distinct = np.unique(steps)
    edges = distinct if len(distinct) <= POINTS else np.linspace(0.0, steps.max(), POINTS + 1)[1:]
    place = np.minimum(np.searchsorted(edges, steps), len(edges) - 1)
    order = np.unique(owners)
    table = np.full((len(order), len(edges)), np.nan)
    for i, seed in enumerate(order):
        mine = (owners == seed) & np.isfinite(values)
        count = np.bincount(place[mine], minlength=len(edges))
        total = np.bincount(place[mine], weights=values[mine], minlength=len(edges))
        table[i, count > 0] = total[count > 0] / count[count > 0]
    known = np.isfinite(table).any(axis=0)
    return curves.over_seeds(edges[known], table[:, known])
