"""The curve figures of a report: what each shows, as panels, and its caption."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from perdure.metrics import six
from perdure.metrics.six import RecoveryCurve
from perdure.report import curves, panels, svg
from perdure.report.panels import Band, Line, Panel
from perdure.report.sections import Arm, Section

STEPS = "environment steps of one seed"
POINTS = 240
"""Points of a score curve over the whole run, or more where there are many segments."""

POINTS_PER_SEGMENT = 6

RECOVERY_POINTS = 100

MOST_MARKS = 40
"""A curve with more points than this is drawn without marks."""

MOST_REGIMES = 24
"""Evaluation curves are drawn for this many configurations at most."""

MOST_SHIFTS = 12
"""Recovery curves are drawn for this many shifts at most."""


class Figure(NamedTuple):
    """Panels side by side under one legend and caption."""

    panels: tuple[Panel, ...]
    caption: str
    single: bool = False
    """Whether its one panel takes the full width."""


def score(section: Section) -> Figure:
    """The smoothed training score over time, one line an arm, over the regimes it lived through."""
    lines = tuple(line(arm, _score_curve(arm, section)) for arm in section.arms)
    panel = Panel(
        title=f"Score over time on {section.task}",
        x_label=STEPS,
        y_label=unit(section),
        lines=lines,
        bands=bands(section),
        strip=True,
        end_labels=len(section.arms) > 1,
    )
    caption = (
        f"Training score, averaged over a causal window of a twentieth of each segment. {spread(section)}"
        " Equal tints are equal configurations."
    )
    return Figure((panel,), caption, single=True)


def evaluations(section: Section) -> Figure | None:
    """The frozen policy's return in each configuration over time; None where nothing was evaluated."""
    rows = [row for arm in section.arms for row in arm.evaluations]
    regimes = list(dict.fromkeys(row.regime for row in rows))
    if not regimes:
        return None
    origin_of = {segment.id: segment.origin for segment in section.segments}
    drawn = []
    for regime in regimes[:MOST_REGIMES]:
        origin = origin_of.get(regime, regime)
        lines = arm_lines(section, lambda arm, regime=regime: [row for row in arm.evaluations if row.regime == regime])
        trained = [segment for segment in section.segments if segment.origin == origin]
        bands = tuple(Band(f"trained on {s.id}", section.origins[origin], s.start, s.end) for s in trained)
        drawn.append(Panel(f"Evaluated in {regime}", STEPS, "return of an evaluation episode", lines, bands))
    shared = panels.value_range(tuple(line for panel in drawn for line in panel.lines))
    span = (float(section.segments[0].start), float(section.segments[-1].end))
    drawn = [panel._replace(y_range=shared, x_range=span) for panel in drawn]
    left = f" The first {MOST_REGIMES} of {len(regimes)} are drawn." if len(regimes) > MOST_REGIMES else ""
    caption = (
        "Greedy episodes of the frozen policy in every configuration, whatever it was trained on at the time. Shaded:"
        " the stretches in which this configuration was trained. A line that falls outside the shading is forgetting."
        f"{left} {spread(section)}"
    )
    return Figure(tuple(drawn), caption)


def recovery(section: Section) -> Figure | None:
    """The smoothed score around each shift, aligned at it; None where there is no shift."""
    found: dict[int, list[tuple[Arm, RecoveryCurve]]] = {}
    for arm in section.arms:
        for stream in arm.streams:
            for curve in six.recovery_curves(stream, points=RECOVERY_POINTS):
                found.setdefault(curve.step, []).append((arm, curve))
    drawn = [_recovery_panel(section, found[step]) for step in sorted(found)[:MOST_SHIFTS]]
    if not drawn:
        return None
    shared = panels.value_range(tuple(line for panel in drawn for line in panel.lines))
    left = f" The first {MOST_SHIFTS} of {len(found)} shifts are drawn." if len(found) > MOST_SHIFTS else ""
    caption = (
        "The smoothed training score around each shift, which lies at 0. Left of it is the level to come back to: each"
        f" arm's own, so an arm that stood low has less to recover.{left} {spread(section)}"
    )
    return Figure(tuple(panel._replace(y_range=shared) for panel in drawn), caption)


def plasticity(section: Section) -> Figure | None:
    """Effective rank and dormant units of each network over time; None where neither was measured."""
    names = {name for arm in section.arms for row in arm.evaluations for name in row.metrics}
    wanted = [name for name in sorted(names) if name.partition("/")[0] in ("effective_rank", "dormant")]
    if not wanted:
        return None
    wanted.sort(key=lambda name: (name.startswith("dormant"), name))
    drawn = []
    for name in wanted:
        kind, _, network = name.partition("/")
        title, label = {
            "effective_rank": (f"Effective rank, {network}", "effective rank (dimensions)"),
            "dormant": (f"Dormant units, {network}", "share of units"),
        }[kind]
        lines = arm_lines(section, lambda arm: arm.evaluations, name)
        from_zero = (0.0, panels.value_range(lines)[1]) if kind == "dormant" else None
        drawn.append(Panel(title, STEPS, label, lines, bands(section), y_range=from_zero))
    caption = (
        "Measured on the last hidden layer's activations over recent observations. A falling rank and a growing share"
        f" of dormant units are signs that a network is losing its ability to learn. {spread(section)}"
    )
    return Figure(tuple(drawn), caption)


def unit(section: Section) -> str:
    """What one score is, for axes and tables."""
    return "return per episode" if section.score == "return" else "reward per step"


def figure_html(figure: Figure, section: Section) -> svg.Safe:
    """The whole `<figure>`: legend, panels (a wide picture also in a narrow form) and caption."""
    if figure.single:
        panel = figure.panels[0]
        wide = svg.element("div", panels.draw(panel, 960, 380), class_="wide")
        narrow = svg.element("div", panels.draw(panel._replace(end_labels=False), 400, 300), class_="narrow")
        fits = panels.names_fit(panel, 960), panels.names_fit(panel._replace(end_labels=False), 400)
        body = svg.join([_regime_legend(section, fits), wide, narrow])
    else:
        paired = len(figure.panels) in (2, 4)
        size = (420, 245) if paired else (360, 230)
        boxes = [
            svg.element("div", svg.element("h4", panel.title), panels.draw(panel, *size)) for panel in figure.panels
        ]
        body = svg.element("div", *boxes, class_=f"grid-of-plots{' pairs' if paired else ''}")
    caption = svg.element("figcaption", figure.caption)
    return svg.element("figure", arm_legend(section), body, caption, class_="single" if figure.single else None)


def arm_legend(section: Section) -> svg.Safe:
    """Which colour and mark is which arm; grey lines are counted. Empty for a single arm."""
    if len(section.arms) == 1:
        return svg.Safe("")
    items = [
        svg.element("li", panels.key(arm.slot), svg.element("span", arm.label))
        for arm in section.arms
        if arm.slot is not None
    ]
    grey = sum(arm.slot is None for arm in section.arms)
    if grey:
        items.append(svg.element("li", panels.key(None), svg.element("span", f"{grey} other arms, in grey")))
    return svg.element("ul", *items, class_="legend")


def _regime_legend(section: Section, fits: tuple[bool, bool]) -> svg.Safe:
    if all(fits):
        return svg.Safe("")
    items = [
        svg.element("li", svg.element("span", class_=f"swatch band-{slot}"), svg.element("span", origin))
        for origin, slot in section.origins.items()
    ]
    return svg.element("ul", *items, class_="legend" if not fits[0] else "legend narrow-legend")


def _score_curve(arm: Arm, section: Section) -> curves.Curve:
    points = max(POINTS, POINTS_PER_SEGMENT * len(section.segments))
    found = [six.smoothed(stream, points=points) for stream in arm.streams]
    mean = curves.over_seeds(found[0].step.astype(float), np.stack([curve.value for curve in found]))
    return curves.broken(mean, [segment.start for segment in section.segments[1:]])


def _recovery_curve(found: Sequence[RecoveryCurve]) -> curves.Curve:
    grid = np.unique(np.concatenate([curve.offset for curve in found])).astype(float)
    values = [curves.read_at(curve.offset.astype(float), curve.value, grid) for curve in found]
    return curves.broken(curves.over_seeds(grid, np.stack(values)), [0.0])


def arm_lines(section: Section, rows: Callable[[Arm], Iterable], name: str | None = None) -> tuple[Line, ...]:
    """Every arm's evaluation rows as a line: their returns, or the metric `name`."""
    lines = [(arm, curves.at_marks(list(rows(arm)), name)) for arm in section.arms]
    return tuple(line(arm, curve, marks=len(curve.x) <= MOST_MARKS) for arm, curve in lines if len(curve.x))


def _recovery_panel(section: Section, found: Sequence[tuple[Arm, RecoveryCurve]]) -> Panel:
    shift = found[0][1]
    lines = []
    for arm in section.arms:
        mine = [curve for owner, curve in found if owner is arm]
        if mine:
            lines.append(line(arm, _recovery_curve(mine)))
    end = next(segment.end for segment in section.segments if segment.start == shift.step)
    band = Band(shift.starting, section.origins[shift.starting_origin], 0.0, float(end - shift.step))
    title = f"{shift.ending} → {shift.starting}"
    return Panel(title, "steps after the shift", unit(section), tuple(lines), (band,), origin_line=True)


def line(arm: Arm, curve: curves.Curve, marks: bool = False) -> Line:
    """An arm's curve in its colour."""
    return Line(arm.label, arm.slot, curve.x, curve.y, curve.low, curve.high, marks)


def bands(section: Section) -> tuple[Band, ...]:
    """The segments as shaded stretches."""
    return tuple(Band(s.id, section.origins[s.origin], float(s.start), float(s.end)) for s in section.segments)


def spread(section: Section) -> str:
    """What the shading around the lines means."""
    counts = {len(arm.streams) for arm in section.arms}
    if counts == {1}:
        return "One seed, so no interval."
    told = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    return f"Lines are means over {told} seeds; the shading around them is the 95 % bootstrap interval of the mean."
