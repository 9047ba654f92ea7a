"""perdure.report.tables."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from perdure.report import tables, theme
from perdure.report.tables import HeatMap


def _heat_map(values, slot=0, label="ppo") -> HeatMap:
    values = np.array(values, float)
    rows = tuple(f"after {i}" for i in range(len(values)))
    columns = tuple(f"z{j}" for j in range(values.shape[1]))
    trained = np.zeros(values.shape, bool)
    trained[0, 0] = True
    return HeatMap(label, slot, rows, columns, values, trained)


def test_a_text_table_heads_its_columns_and_rows():
    root = ET.fromstring(tables.text_table(["run", "steps"], [["a<b", ("10", "done")]], "Runs"))
    assert [found.text for found in root.iter("th")] == ["run", "steps", "a<b"]
    assert root.find(".//caption").text == "Runs"
    assert root.find(".//td/small").text == "done"


def test_a_table_scrolls_with_the_keyboard():
    assert '<div class="scroll" tabindex="0">' in tables.text_table(["a"], [["b"]])


def test_shades_run_from_lowest_to_highest():
    assert tables.shade(0, 0, 10) == 0
    assert tables.shade(10, 0, 10) == theme.HEAT_STEPS - 1
    assert tables.shade(5, 0, 10) == tables.shade(3, 3, 3) == (theme.HEAT_STEPS - 1) // 2


def test_cells_hold_numbers_shades_and_the_outline_of_what_was_trained():
    html = tables.heat_maps([_heat_map([[500, 20], [20, 260]])], "return")
    cells = re.findall(r'<td class="([^"]+)"[^>]*>([^<]+)</td>', html)
    assert cells == [("heat-10 trained", "500"), ("heat-0", "20.0"), ("heat-0", "20.0"), ("heat-5", "260")]


def test_all_arms_share_one_scale():
    html = tables.heat_maps([_heat_map([[0.0]]), _heat_map([[50.0]], 1), _heat_map([[100.0]], 2)], "return")
    assert re.findall(r'td class="heat-(\d+)', html) == ["0", "5", "10"]


def test_a_missing_evaluation_is_said():
    assert "not evaluated" in tables.heat_maps([_heat_map([[np.nan, 1.0]])], "return")


def test_matrices_of_grey_arms_are_folded():
    html = tables.heat_maps([_heat_map([[1.0]]), _heat_map([[2.0]], None, "grey one")], "return")
    assert "Matrices of the 1 arms drawn in grey" in html
    assert html.index("<details") < html.index("grey one")


@pytest.mark.parametrize("count", [tables.MOST_ROWS, 200])
def test_a_long_matrix_keeps_its_first_and_last_rows(count):
    html = tables.heat_maps([_heat_map(np.zeros((count, 1)))], "return")
    heads = re.findall(r'<th scope="row">after (\d+)</th>', html)
    assert len(heads) == tables.MOST_ROWS
    assert (heads[0], heads[-1]) == ("0", str(count - 1))
    assert ("rows are shown" in html) == (count > tables.MOST_ROWS)
