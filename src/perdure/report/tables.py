"""Tables of a report as markup: plain text tables and the evaluation-matrix heat map."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from perdure.report import panels, svg, theme
from perdure.report.svg import Safe, element

MOST_ROWS = 26
"""A heat map with more rows shows this many, the first and last among them."""

Cell = str | tuple[str, str]
"""A text, or a text with a smaller line under it."""


class HeatMap(NamedTuple):
    """One arm's evaluation matrix, averaged over seeds."""

    label: str
    slot: int | None
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: np.ndarray
    """[rows, columns]; NaN where nothing was evaluated."""
    trained: np.ndarray
    """[rows, columns] true where the row's segment trained the column's configuration."""


def text_table(header: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str | None = None) -> Safe:
    """A table of texts, left-aligned, whose first column heads each row."""
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in header)))
    body = element(
        "tbody", *(element("tr", _row_head(row[0]), *(_text_cell(cell) for cell in row[1:])) for row in rows)
    )
    top = [element("caption", caption)] if caption else []
    return scroll(element("table", *top, head, body, class_="facts"))


def scroll(table: Safe) -> Safe:
    """A table that scrolls sideways where it does not fit, also with the keyboard."""
    return element("div", table, class_="scroll", tabindex=0)


def heat_maps(maps: Sequence[HeatMap], what: str) -> Safe:
    """All arms' matrices on one colour scale, side by side where they fit; those of grey arms are folded."""
    known = np.concatenate([heat_map.values[np.isfinite(heat_map.values)] for heat_map in maps])
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    coloured = [scroll(_heat_table(heat_map, low, high)) for heat_map in maps if heat_map.slot is not None]
    grey = [scroll(_heat_table(heat_map, low, high)) for heat_map in maps if heat_map.slot is None]
    parts = [_ramp(low, high, what), element("div", *coloured, class_="matrices")]
    if grey:
        name = f"Matrices of the {len(grey)} arms drawn in grey"
        parts.append(element("details", element("summary", name), element("div", *grey, class_="matrices")))
    return svg.join(parts)


def shade(value: float, low: float, high: float) -> int:
    """The step of the colour scale for a value between the lowest and the highest."""
    share = (value - low) / (high - low) if high > low else 0.5
    return round(min(max(share, 0.0), 1.0) * (theme.HEAT_STEPS - 1))


def _heat_table(heat_map: HeatMap, low: float, high: float) -> Safe:
    head = element("thead", element("tr", element("th", "policy frozen"), *_column_heads(heat_map.columns)))
    count = len(heat_map.rows)
    shown = list(range(count))
    if count > MOST_ROWS:
        shown = sorted({0, *np.linspace(1, count - 1, MOST_ROWS - 1).round().astype(int).tolist()})
    body = [
        element("tr", element("th", heat_map.rows[i], scope="row"), *_heat_cells(heat_map, i, low, high)) for i in shown
    ]
    caption = element("caption", panels.key(heat_map.slot), Safe("&nbsp;"), heat_map.label)
    table = element("table", caption, head, element("tbody", *body), class_="matrix")
    if count == len(shown):
        return table
    return svg.join([table, element("p", f"{len(shown)} of {count} rows are shown.", class_="note")])


def _column_heads(names: Sequence[str]) -> list[Safe]:
    return [element("th", name, scope="col") for name in names]


def _heat_cells(heat_map: HeatMap, row: int, low: float, high: float) -> list[Safe]:
    cells = []
    for value, trained in zip(heat_map.values[row].tolist(), heat_map.trained[row].tolist(), strict=True):
        if not np.isfinite(value):
            cells.append(element("td", "not evaluated", class_="missing"))
            continue
        classes = f"heat-{shade(value, low, high)}" + (" trained" if trained else "")
        tip = "just trained on this configuration" if trained else None
        cells.append(element("td", svg.number(value), class_=classes, title=tip))
    return cells


def _ramp(low: float, high: float, what: str) -> Safe:
    steps = [element("i", class_=f"heat-{i}") for i in range(theme.HEAT_STEPS)]
    bar = element("span", f"{svg.number(low)} ", *steps, f" {svg.number(high)}  {what}", class_="ramp")
    return element("p", bar)


def _row_head(cell: Cell) -> Safe:
    return element("th", *_stacked(cell), scope="row")


def _text_cell(cell: Cell) -> Safe:
    return element("td", *_stacked(cell))


def _stacked(cell: Cell) -> list[Any]:
    return [cell] if isinstance(cell, str) else [cell[0], element("small", cell[1])]
