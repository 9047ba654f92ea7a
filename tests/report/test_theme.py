"""perdure.report.theme."""

import itertools
import re

import numpy as np
import pytest

from perdure.report import theme

THEMES = pytest.mark.parametrize("colours", [theme.LIGHT, theme.DARK], ids=["light", "dark"])

# Viénot, Brettel and Mollon 1999 style projections in linear RGB, and no deficiency at all.
SIMULATIONS = {
    "none": np.eye(3),
    "protan": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "deutan": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
}


def test_contrast_is_that_of_the_standard():
    assert theme.contrast("#000000", "#FFFFFF") == pytest.approx(21.0)
    assert theme.contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)


@THEMES
def test_text_reads_on_the_page_and_in_boxes(colours):
    for background in (colours.page, colours.panel):
        assert theme.contrast(colours.text, background) >= 7
        assert theme.contrast(colours.quiet, background) >= 4.5
    assert theme.contrast(colours.accent, colours.page) >= 4.5


@THEMES
def test_regime_names_read_on_their_tints(colours):
    assert min(theme.contrast(colours.text, tint) for tint in colours.bands) >= 7


@THEMES
def test_lines_stand_out_from_the_page(colours):
    assert min(theme.contrast(line, colours.page) for line in colours.lines) >= 3


@THEMES
def test_numbers_read_on_every_shade_of_the_heat_map(colours):
    shades = theme.heat_colours(colours)
    assert len(shades) == theme.HEAT_STEPS
    assert min(theme.contrast(text, background) for background, text in shades) >= 4.5


@THEMES
@pytest.mark.parametrize("simulation", SIMULATIONS)
def test_lines_differ_for_the_colour_blind(colours, simulation):
    seen = [_lab(SIMULATIONS[simulation] @ _linear(line)) for line in colours.lines]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 0.09


def test_both_themes_define_every_variable_that_is_used():
    sheet = theme.style_sheet()
    light, dark = (
        set(re.findall(r"--([a-z0-9-]+):", block)) for block in re.findall(r":root \{\n(.*?)\}", sheet, re.S)[:2]
    )
    assert light == dark
    set_by_classes = {"ink", "tint", "sans", "serif", "mono"}
    assert set(re.findall(r"var\(--([a-z0-9-]+)\)", sheet)) <= light | set_by_classes


def test_the_style_sheet_loads_nothing():
    assert not re.search(r"url\(|@import|https?:", theme.style_sheet())


def _linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def _lab(linear: np.ndarray) -> np.ndarray:
    """Oklab of linear RGB (Ottosson 2020); a distance of 0.02 is just noticeable."""
    cones = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]])
    lab = np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])
    return lab @ np.cbrt(cones @ np.clip(linear, 0, 1))
