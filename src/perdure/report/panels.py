"""One plot as a value, and its drawing: lines with intervals over shaded stretches, as themeable SVG.

All curve figures of a report are `Panel`s; what they show is decided in `figures`, how it looks here.
"""

from typing import NamedTuple

import numpy as np

from perdure.report import svg

FONT = 11.5
"""Size of all text in a plot, in picture units (one is one CSS pixel at full width)."""

STRIP = 18
"""Height of the strip that names the shaded stretches."""


class Line(NamedTuple):
    """One arm's curve: the mean over seeds and, where given, its interval."""

    label: str
    slot: int | None
    """Which colour and mark; None draws a thin grey line that only gives context."""
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    marks: bool = False
    """Whether each point gets a mark (few points) besides the stroke."""


class Band(NamedTuple):
    """A shaded stretch of the x axis."""

    label: str
    slot: int
    start: float
    end: float


class Panel(NamedTuple):
    """One plot. Ranges that are None follow from the lines."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    bands: tuple[Band, ...] = ()
    strip: bool = False
    """Whether the bands carry their names above the plot."""
    origin_line: bool = False
    """Whether a vertical line stands at x = 0."""
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    end_labels: bool = False
    """Whether each line is named at its right end."""


class _Frame(NamedTuple):
    width: float
    height: float
    x: svg.Scale
    y: svg.Scale


def draw(panel: Panel, width: int, height: int) -> svg.Safe:
    """The panel as one `<svg>` of that many picture units, with an aria-label that says what it shows."""
    frame = _frame(panel, width, height)
    parts = [
        *_bands(panel, frame),
        *_grid(panel, frame),
        *(_line(line, frame) for line in sorted(panel.lines, key=lambda line: line.slot is not None)),
        *(_end_labels(panel, frame) if panel.end_labels else ()),
    ]
    box = f"0 0 {width} {height}"
    return svg.element("svg", *parts, viewBox=box, role="img", aria_label=describe(panel), class_="plot")


def describe(panel: Panel) -> str:
    """The picture in words: what stands on the axes, and where each coloured line starts and ends."""
    coloured = [line for line in panel.lines if line.slot is not None]
    told = [f"{line.label} from {first} to {last}" for line in coloured for first, last in [_ends(line)] if first]
    lines = "; ".join(told) or "no finite values"
    return f"{panel.title}. {panel.y_label} against {panel.x_label}: {lines}."


def names_fit(panel: Panel, width: int) -> bool:
    """Whether every band is wide enough for its name at this width."""
    frame = _frame(panel, width, 200)
    return all(_shown(band, frame) == band.label for band in panel.bands)


def value_range(lines: tuple[Line, ...]) -> tuple[float, float]:
    """The y range that holds all lines and their intervals, with a small margin."""
    columns = [column for line in lines for column in (line.y, line.low, line.high) if column is not None]
    values = np.concatenate(columns) if columns else np.array([])
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    margin = 0.05 * (high - low) or max(abs(high), 1.0) * 0.1
    return (0.0 if 0 <= low < margin else low - margin), high + margin


def mark(slot: int | None, x: float, y: float, *children: svg.Safe) -> svg.Safe:
    """The arm's mark at a place: its shape tells arms apart where colour cannot."""
    shapes = (
        "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0Z",
        "M-3.2-3.2h6.4v6.4h-6.4Z",
        "M0-4.2L4 3H-4Z",
        "M0-4.4L4.4 0L0 4.4L-4.4 0Z",
        "M0 4.2L4-3H-4Z",
        "M-1.3-4h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7Z",
        "M-4.2-2h8.4v4h-8.4Z",
    )
    shape = shapes[(slot or 0) % len(shapes)]
    place = f"translate({x:.1f} {y:.1f})"
    return svg.element("path", *children, d=shape, transform=place, class_="mark")


def key(slot: int | None) -> svg.Safe:
    """A legend key: a short stroke with the arm's mark."""
    stroke = svg.element("path", d="M1 7H25", class_="stroke")
    parts = [stroke] if slot is None else [stroke, mark(slot, 13, 7)]
    return svg.element(
        "svg", *parts, viewBox="0 0 26 14", width=26, height=14, aria_hidden="true", class_=f"key {line_class(slot)}"
    )


def line_class(slot: int | None) -> str:
    """The CSS class that gives an arm its colour."""
    return "line-muted" if slot is None else f"line-{slot}"


def text_width(text: str) -> float:
    """A generous estimate of the width of a label in picture units."""
    return 0.58 * FONT * len(text)


def clip(text: str, width: float) -> str:
    """The text, cut with an ellipsis where it is wider than `width`."""
    room = int(width / (0.58 * FONT))
    return text if len(text) <= room else text[: room - 1] + "…" if room > 3 else ""


def _frame(panel: Panel, width: float, height: float) -> _Frame:
    low, high = panel.y_range or value_range(panel.lines)
    labels = [svg.tick_label(value) for value in svg.ticks(low, high, 4)]
    left = 10 + max((text_width(label) for label in labels), default=20)
    names = [clip(line.label, 150) for line in panel.lines if line.slot is not None]
    right = 14 + (max((text_width(name) for name in names), default=0) if panel.end_labels else 6)
    top = 24 + (STRIP if panel.strip else 0)
    first, last = panel.x_range or _x_range(panel)
    x = svg.Scale(first, last, left, max(width - right, left + 10))
    return _Frame(width, height, x, svg.Scale(low, high, height - 36, top))


def _x_range(panel: Panel) -> tuple[float, float]:
    ends = [edge for band in panel.bands for edge in (band.start, band.end)]
    for line in panel.lines:
        known = line.x[np.isfinite(line.x)]
        ends += [float(known.min()), float(known.max())] if len(known) else []
    return (min(ends), max(ends)) if ends else (0.0, 1.0)


def _bands(panel: Panel, frame: _Frame) -> list[svg.Safe]:
    top = frame.y.stop - (STRIP if panel.strip else 0)
    parts = []
    for band in panel.bands:
        start, end = float(frame.x(band.start)), float(frame.x(band.end))
        box = {"x": start, "width": end - start}
        tip = svg.element("title", f"{band.label}: steps {band.start:,.0f} to {band.end:,.0f}")
        tint = f"band-{band.slot}"
        parts.append(
            svg.element("rect", tip, y=frame.y.stop, height=frame.y.start - frame.y.stop, class_=f"band {tint}", **box)
        )
        if panel.strip:
            parts.append(svg.element("rect", tip, y=top, height=STRIP - 1.0, class_=f"strip {tint}", **box))
            shown = _shown(band, frame)
            middle = (start + end) / 2
            parts.append(svg.element("text", shown, x=middle, y=top + 13.0, text_anchor="middle", class_="name"))
    return parts


def _shown(band: Band, frame: _Frame) -> str:
    return clip(band.label, float(frame.x(band.end) - frame.x(band.start)) - 6)


def _grid(panel: Panel, frame: _Frame) -> list[svg.Safe]:
    left, right, bottom = frame.x.start, frame.x.stop, frame.y.start
    parts = [svg.element("text", panel.y_label, x=1.0, y=12.0, class_="axis")]
    for value in svg.ticks(frame.y.low, frame.y.high, 4):
        height = float(frame.y(value))
        parts.append(svg.element("path", d=f"M{left:.1f} {height:.1f}H{right:.1f}", class_="grid"))
        label = svg.tick_label(value)
        parts.append(svg.element("text", label, x=left - 6, y=height + 4, text_anchor="end", class_="tick"))
    for value in svg.ticks(frame.x.low, frame.x.high, max(2, int((right - left) / 75))):
        place = float(frame.x(value))
        parts.append(svg.element("path", d=f"M{place:.1f} {bottom:.1f}v4", class_="rule"))
        label = svg.tick_label(value)
        parts.append(svg.element("text", label, x=place, y=bottom + 16, text_anchor="middle", class_="tick"))
    parts.append(svg.element("path", d=f"M{left:.1f} {bottom:.1f}H{right:.1f}", class_="rule"))
    if panel.origin_line:
        place = float(frame.x(0.0))
        parts.append(svg.element("path", d=f"M{place:.1f} {frame.y.stop:.1f}V{bottom:.1f}", class_="rule"))
    parts.append(svg.element("text", panel.x_label, x=right, y=bottom + 32, text_anchor="end", class_="axis"))
    return parts


def _line(line: Line, frame: _Frame) -> svg.Safe:
    x, y = frame.x(line.x), frame.y(line.y)
    parts = []
    if line.low is not None and line.high is not None and line.slot is not None:
        parts.append(svg.element("path", d=svg.ribbon_path(x, frame.y(line.low), frame.y(line.high)), class_="ribbon"))
    parts.append(svg.element("path", d=svg.line_path(x, y), class_="stroke"))
    if line.marks and line.slot is not None:
        for i in np.flatnonzero(np.isfinite(x) & np.isfinite(y)).tolist():
            parts.append(mark(line.slot, float(x[i]), float(y[i]), svg.element("title", _tip(line, i))))
    return svg.element("g", *parts, class_=line_class(line.slot))


def _tip(line: Line, i: int) -> str:
    told = f"{line.label} at {line.x[i]:,.0f}: {svg.number(float(line.y[i]))}"
    if line.low is None or line.high is None or not np.isfinite(line.low[i]):
        return told
    return f"{told} ({svg.number(float(line.low[i]))} to {svg.number(float(line.high[i]))})"


def _end_labels(panel: Panel, frame: _Frame) -> list[svg.Safe]:
    ends = []
    for line in panel.lines:
        known = np.flatnonzero(np.isfinite(line.y))
        if line.slot is not None and len(known):
            ends.append((float(frame.y(line.y[known[-1]])), line))
    ends.sort(key=lambda end: end[0])
    heights = _spread([height for height, _ in ends], FONT + 3, frame.y.stop + 4, frame.y.start)
    return [
        svg.element(
            "text", clip(line.label, 150), x=frame.x.stop + 7, y=height + 4, class_=f"end {line_class(line.slot)}"
        )
        for height, (_, line) in zip(heights, ends, strict=True)
    ]


def _spread(heights: list[float], gap: float, low: float, high: float) -> list[float]:
    """The heights, moved apart to `gap` where they crowd, inside [low, high] where there is room."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap if placed else low))
    over = placed[-1] - high if placed else 0.0
    if over > 0:
        limit = high
        for i in reversed(range(len(placed))):
            placed[i] = min(placed[i], limit)
            limit = placed[i] - gap
    return placed


def _ends(line: Line) -> tuple[str, str]:
    known = line.y[np.isfinite(line.y)]
    return (svg.number(float(known[0])), svg.number(float(known[-1]))) if len(known) else ("", "")
