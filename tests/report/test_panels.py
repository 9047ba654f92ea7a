"""perdure.report.panels."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from perdure.report import panels
from perdure.report.panels import Band, Line, Panel


def _line(label="ppo", slot=0, y=(1.0, 2.0, 3.0), **fields) -> Line:
    values = np.array(y)
    return Line(label, slot, np.arange(len(values), dtype=float), values, **fields)


def _panel(*lines, **fields) -> Panel:
    return Panel("Score", "steps", "return", lines or (_line(),), **fields)


def _texts(drawing: str) -> list[str]:
    return [found.text for found in ET.fromstring(drawing).iter("text")]


def test_a_drawing_is_one_labelled_picture():
    root = ET.fromstring(panels.draw(_panel(), 360, 230))
    assert root.tag == "svg"
    assert root.get("role") == "img"
    assert root.get("aria-label") == "Score. return against steps: ppo from 1.00 to 3.00."


def test_axes_are_named():
    assert {"return", "steps"} <= set(_texts(panels.draw(_panel(), 360, 230)))


def test_higher_values_stand_higher():
    drawing = panels.draw(_panel(_line(y=(1.0, 5.0))), 360, 230)
    first, last = re.search(r'd="M[\d.]+ ([\d.]+)L[\d.]+ ([\d.]+)" class="stroke"', drawing).groups()
    assert float(first) > float(last)


def test_a_line_stays_inside_its_plot():
    drawing = panels.draw(_panel(_line(y=(-1e6, 1e6, 3.0))), 360, 230)
    stroke = re.search(r'd="([^"]+)" class="stroke"', drawing).group(1)
    numbers = np.array([float(value) for value in re.findall(r"-?[\d.]+", stroke)]).reshape(-1, 2)
    assert (numbers >= 0).all()
    assert (numbers <= [360, 230]).all()


def test_an_interval_is_drawn_only_where_there_is_one():
    low, high = np.array([0.0, 1.0, 2.0]), np.array([2.0, 3.0, 4.0])
    assert 'class="ribbon"' in panels.draw(_panel(_line(low=low, high=high)), 360, 230)
    assert 'class="ribbon"' not in panels.draw(_panel(_line()), 360, 230)


def test_bands_are_named_and_tinted():
    bands = (Band("earth", 0, 0, 1), Band("reversed", 1, 1, 2))
    drawing = panels.draw(_panel(bands=bands, strip=True), 360, 230)
    assert {"earth", "reversed"} <= set(_texts(drawing))
    assert "band band-1" in drawing


def test_a_name_that_does_not_fit_is_cut_and_said_not_to_fit():
    bands = (Band("a regime with a long name", 0, 0, 0.4), Band("b", 1, 0.4, 2))
    panel = _panel(bands=bands, strip=True)
    assert not panels.names_fit(panel, 360)
    assert panels.names_fit(panel, 1600)
    assert "a regime with a long name" not in _texts(panels.draw(panel, 360, 230))


def test_end_labels_do_not_overlap():
    lines = [_line(f"arm {i}", i, (1.0, 1.0 + i * 1e-3)) for i in range(5)]
    drawing = panels.draw(_panel(*lines, end_labels=True), 960, 300)
    heights = sorted(float(y) for y in re.findall(r'y="([\d.]+)" class="end', drawing))
    assert len(heights) == 5
    assert min(np.diff(heights)) >= panels.FONT


def test_a_grey_line_gets_no_label_interval_or_mark():
    band = np.array([0.0, 1.0, 2.0])
    drawing = panels.draw(_panel(_line("x", None, low=band, high=band + 2, marks=True), end_labels=True), 360, 230)
    assert "line-muted" in drawing
    assert not re.search('class="(ribbon|mark|end)', drawing)


def test_marks_tell_their_value():
    drawing = panels.draw(_panel(_line(marks=True)), 360, 230)
    assert "<title>ppo at 2: 3.00</title>" in drawing


@pytest.mark.parametrize("y", [(), (np.nan, np.nan), (2.0,), (0.0, 0.0)])
def test_degenerate_lines_draw_a_whole_picture(y):
    root = ET.fromstring(panels.draw(_panel(_line(y=y, marks=True)), 360, 230))
    assert not re.search("nan|inf", ET.tostring(root, encoding="unicode").replace("finite", ""))


def test_labels_cannot_break_out_of_the_picture():
    drawing = panels.draw(
        _panel(_line('"><script>'), bands=(Band("</svg>", 0, 0, 2),), strip=True, end_labels=True), 900, 300
    )
    assert "<script>" not in drawing
    assert drawing.count("</svg>") == 1


def test_the_range_starts_at_zero_only_near_zero():
    assert panels.value_range((_line(y=(0.01, 10.0)),))[0] == 0.0
    assert panels.value_range((_line(y=(90.0, 100.0)),))[0] > 80


def test_arms_have_different_marks():
    shapes = {re.search(r' d="([^"]+)"', panels.mark(slot, 0, 0)).group(1) for slot in range(7)}
    assert len(shapes) == 7
