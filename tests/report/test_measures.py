"""perdure.report.measures and perdure.report.forest."""

import re
import xml.etree.ElementTree as ET

from perdure.report import forest, measures

CLOSE = {"ppo": [90.0, 100.0, 110.0, 95.0], "redo": [1.0, 5.0, 3.0, 4.0], "l2": [2.0, 3.0, 5.0, 4.0]}


def _table(summary, names=measures.SIX):
    return measures.metric_table(summary, "task", names, {("task", "ppo"): 0}, "Metrics")


def _cells(html):
    return [ET.tostring(cell, encoding="unicode", method="text") for cell in ET.fromstring(f"<x>{html}</x>").iter("td")]


def test_the_best_value_is_bold_and_what_overlaps_it_is_marked(summary_maker):
    html = _table(summary_maker(CLOSE))
    assert re.findall("<strong>([^<]+)</strong>", html) == ["3.25"]
    cells = _cells(html)
    assert cells[0].startswith("98.8[")
    assert cells[2].startswith("≈ 3.50[")


def test_the_best_follows_the_direction_of_the_metric(summary_maker):
    html = _table(summary_maker(CLOSE, "reward", higher_is_better=True))
    assert re.findall("<strong>([^<]+)</strong>", html) == ["98.8"]
    assert "Reward\u00a0↑" in html


def test_a_single_arm_has_no_best(summary_maker):
    assert "<strong>" not in _table(summary_maker({"ppo": [1.0, 2.0]}))


def test_a_reason_stands_in_a_footnote_once(summary_maker):
    html = _table(summary_maker({"ppo": [None], "l2": [None]}, reason="no configuration <comes> back"))
    assert _cells(html) == ["undefined1", "undefined1"]
    assert html.count("no configuration &lt;comes&gt; back") == 1


def test_censoring_and_missing_seeds_are_counted(summary_maker):
    html = _table(summary_maker({"ppo": [5.0, None, 7.0]}, "recovery_time", censored=1, n=3))
    assert "3 of 9 censored" in html
    assert "defined for 2 of 3 seeds" in html


def test_the_note_says_which_statistic_and_which_marks(summary_maker):
    note = measures.reading_note(summary_maker(CLOSE))
    assert "means over seeds" in note
    assert "≈: not separable" in note
    assert "Bold" not in measures.reading_note(summary_maker({"ppo": [1.0, 2.0]}))


def test_the_forest_has_a_row_an_arm_with_its_interval(summary_maker):
    html = forest.forest(summary_maker(CLOSE), "task", measures.SIX, {("task", "ppo"): 0})
    drawing = ET.fromstring(re.search("<svg.*?</svg>", html).group(0))
    assert {found.text for found in drawing.iter("text")} >= {"ppo", "redo", "l2"}
    assert html.count('class="whisker"') == 3
    assert "ppo 98.8 (" in drawing.get("aria-label")


def test_the_forest_puts_higher_values_to_the_right(summary_maker):
    html = forest.forest(summary_maker({"a": [1.0, 2.0], "b": [8.0, 9.0]}), "task", measures.SIX, {})
    places = [float(x) for x in re.findall(r'transform="translate\(([\d.]+) ', html)]
    assert places[0] < places[1]


def test_one_arm_or_too_many_have_no_forest(summary_maker):
    crowd = {f"arm{i}": [float(i), i + 1.0] for i in range(forest.MOST_ARMS + 1)}
    for values in ({"ppo": [1.0, 2.0]}, crowd):
        assert forest.forest(summary_maker(values), "task", measures.SIX, {}) == ""
