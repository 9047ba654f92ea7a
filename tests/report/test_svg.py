"""perdure.report.svg."""

import numpy as np
import pytest

from perdure.report import svg


def test_text_and_attributes_are_escaped_and_markup_is_kept():
    made = svg.element("text", "<b>&", svg.element("i", "x"), class_='a"b', data_name="<")
    assert made == '<text class="a&quot;b" data-name="&lt;">&lt;b&gt;&amp;<i>x</i></text>'


def test_an_absent_attribute_is_left_out_and_floats_have_one_decimal():
    assert svg.element("p", x=1.26, y=2.0, z=None) == '<p x="1.3" y="2"></p>'


def test_a_line_breaks_where_a_value_is_missing():
    x = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    assert svg.line_path(x, np.array([0.0, 1.0, np.nan, 1.0, 2.0])) == "M0 0L1 1M3 1L4 2"


def test_a_lone_point_is_drawn_as_a_dot():
    x = np.array([0.0, 1.0, 2.0])
    assert svg.line_path(x, np.array([np.nan, 5.0, np.nan])) == "M1 5h0"


def test_a_ribbon_is_closed_once_for_each_stretch():
    x = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    low = np.array([0.0, 0.0, np.nan, 1.0, 1.0])
    path = svg.ribbon_path(x, low, low + 2)
    assert path == "M0 2L1 2L1 0L0 0ZM3 3L4 3L4 1L3 1Z"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.0, 400.0, [0, 100, 200, 300, 400]), (-0.3, 0.4, [-0.2, 0, 0.2, 0.4]), (3.0, 3.0, [3.0])],
)
def test_ticks_are_round_and_inside(low, high, expected):
    assert svg.ticks(low, high, 4) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0"),
        (0.94, "0.940"),
        (3.14159, "3.14"),
        (-12.34, "−12.3"),
        (312.4, "312"),
        (70_588.0, "70,600"),
        (2.5e7, "2.50e7"),
        (1.2e-5, "1.20e-5".replace("-", "−")),
        (float("nan"), "n/a"),
    ],
)
def test_numbers_have_three_significant_digits(value, expected):
    assert svg.number(value) == expected


@pytest.mark.parametrize(("value", "expected"), [(400_000, "400k"), (1_500_000, "1.5M"), (250, "250")])
def test_steps_are_abbreviated(value, expected):
    assert svg.steps(value) == expected


def test_a_scale_maps_its_ends_and_survives_an_empty_range():
    assert svg.Scale(0, 10, 100, 0)([0, 5, 10]).tolist() == [100, 50, 0]
    assert np.isfinite(svg.Scale(3, 3, 0, 10)(3.0))
