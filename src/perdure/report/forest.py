"""Metrics at a glance: for each metric one row an arm, its value as a mark and its interval as a bar."""

from collections.abc import Mapping, Sequence

import numpy as np

from perdure.metrics.summary import Group, Summary
from perdure.report import measures, panels, svg
from perdure.report.svg import Safe, element

WIDTH = 340
ROW = 22
NAMES_WIDTH = 108
MOST_ARMS = 12
"""With more arms than this the table alone is clearer."""


def forest(summary: Summary, task: str, names: Sequence[str], slots: Mapping[tuple[str, str], int]) -> Safe:
    """The figure for one task, or nothing where there is one arm only, or too many."""
    groups = [group for group in summary.groups if group.task == task]
    if not 2 <= len(groups) <= MOST_ARMS:
        return Safe("")
    boxes = []
    for name in names:
        known = [group for group in groups if name in group.metrics and group.metrics[name].value is not None]
        if known:
            heading = measures.heading(name, known)
            boxes.append(element("div", element("h4", heading), _draw(heading, name, known, task, slots)))
    if not boxes:
        return Safe("")
    caption = element("figcaption", "Values over seeds (marks) with their 95 % bootstrap intervals (bars).")
    return element("figure", element("div", *boxes, class_="grid-of-plots"), caption)


def _draw(heading: str, name: str, groups: Sequence[Group], task: str, slots: Mapping[tuple[str, str], int]) -> Safe:
    ends = [(group.metrics[name].low, group.metrics[name].value, group.metrics[name].high) for group in groups]
    flat = np.array([value for end in ends for value in end if value is not None])
    low, high = float(flat.min()), float(flat.max())
    margin = 0.08 * (high - low) or 0.1 * max(abs(high), 1e-3)
    x = svg.Scale(low - margin, high + margin, NAMES_WIDTH, WIDTH - 12)
    bottom = 6 + ROW * len(groups)
    parts = [part for value in svg.ticks(x.low, x.high, 3) for part in _tick(float(x(value)), value, bottom)]
    for i, group in enumerate(groups):
        parts.append(_row(group, name, x, 6 + ROW * (i + 0.5), slots.get((task, group.algorithm_id))))
    told = "; ".join(f"{group.algorithm_id} {_told(group, name)}" for group in groups)
    box = f"0 0 {WIDTH} {bottom + 20}"
    return element("svg", *parts, viewBox=box, role="img", aria_label=f"{heading}: {told}.", class_="plot")


def _row(group: Group, name: str, x: svg.Scale, height: float, slot: int | None) -> Safe:
    found = group.metrics[name]
    assert found.value is not None
    label = panels.clip(group.algorithm_id, NAMES_WIDTH - 12)
    parts = [element("text", label, x=0, y=height + 4, class_="end")]
    if found.low is not None and found.high is not None:
        stretch = f"M{float(x(found.low)):.1f} {height:.1f}H{float(x(found.high)):.1f}"
        parts.append(element("path", d=stretch, class_="whisker"))
    tip = element("title", f"{group.algorithm_id}: {_told(group, name)}")
    parts.append(panels.mark(slot, float(x(found.value)), height, tip))
    return element("g", *parts, class_=panels.line_class(slot))


def _tick(place: float, value: float, bottom: float) -> list[Safe]:
    line = element("path", d=f"M{place:.1f} 4V{bottom:.1f}", class_="grid")
    label = element("text", svg.tick_label(value), x=place, y=bottom + 14, text_anchor="middle", class_="tick")
    return [line, label]


def _told(group: Group, name: str) -> str:
    found = group.metrics[name]
    assert found.value is not None
    text = svg.number(found.value)
    if found.low is None or found.high is None:
        return text
    return f"{text} ({svg.number(found.low)} to {svg.number(found.high)})"
