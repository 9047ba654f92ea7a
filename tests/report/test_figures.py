"""perdure.report.figures."""

import numpy as np
import pytest

from perdure.core.records import Segment
from perdure.report import figures, sections


@pytest.fixture(scope="module")
def section(comparison):
    """The three arms, all in colour."""
    names = sections.arm_order([stream for run in comparison for stream in run.streams])
    return sections.sections(comparison, sections.colour_slots(names))[0]


def _mean_between(line, start, end):
    inside = (line.x >= start) & (line.x < end)
    return float(np.nanmean(line.y[inside]))


def test_the_score_figure_has_a_line_an_arm_and_a_band_a_segment(section):
    (panel,) = figures.score(section).panels
    assert [line.label for line in panel.lines] == ["ppo", "ppo_l2_init", "ppo_redo"]
    assert [band.label for band in panel.bands] == ["earth", "reversed", "heavy", "earth_again"]
    assert panel.bands[0].slot == panel.bands[3].slot != panel.bands[1].slot


def test_a_score_line_rises_as_the_agent_learns_and_breaks_at_shifts(section):
    line = figures.score(section).panels[0].lines[0]
    assert _mean_between(line, 2000, 3000) > 2 * _mean_between(line, 0, 300)
    assert np.isnan(line.x).sum() == 3


def test_many_segments_still_have_points_of_their_own(run_maker):
    segments = tuple(Segment(f"s{i % 3}", f"s{i % 3}", i * 60, i * 60 + 60) for i in range(100))
    run = run_maker(seeds=(0,), segments=segments, evaluated=False)
    (section,) = sections.sections([run], {("perdure/cartpole", "ppo"): 0})
    line = figures.score(section).panels[0].lines[0]
    assert len(line.x) > 5 * len(segments)


def test_each_configuration_has_an_evaluation_panel_shaded_where_it_is_trained(section):
    panels = figures.evaluations(section).panels
    assert [panel.title for panel in panels] == ["Evaluated in earth", "Evaluated in reversed", "Evaluated in heavy"]
    assert [(band.start, band.end) for band in panels[0].bands] == [(0, 3000), (9000, 12000)]
    assert {panel.x_range for panel in panels} == {(0, 12_000)}
    ((low, high),) = {panel.y_range for panel in panels}
    assert low < 30
    assert high > 450


def test_forgetting_shows_in_the_evaluation_curve(section):
    ppo = figures.evaluations(section).panels[0].lines[0]
    learned, lost = ppo.y[ppo.x == 3000], ppo.y[ppo.x == 9000]
    assert learned > 400
    assert lost < 100


def test_recovery_is_aligned_at_each_shift(section):
    panels = figures.recovery(section).panels
    assert [panel.title for panel in panels] == ["earth → reversed", "reversed → heavy", "heavy → earth_again"]
    line = panels[0].lines[0]
    assert np.nanmin(line.x) < 0 < np.nanmax(line.x)
    assert _mean_between(line, -600, 0) > 2 * _mean_between(line, 0, 300)


def test_no_shift_gives_no_recovery_figure(run_maker):
    run = run_maker(seeds=(0,), segments=(Segment("only", "only", 0, 3000),))
    assert figures.recovery(sections.sections([run], {})[0]) is None


def test_too_many_shifts_are_counted_in_the_caption(run_maker):
    segments = tuple(Segment(f"s{i % 3}", f"s{i % 3}", i * 600, i * 600 + 600) for i in range(20))
    (section,) = sections.sections([run_maker(seeds=(0,), segments=segments, evaluated=False)], {})
    figure = figures.recovery(section)
    assert len(figure.panels) == figures.MOST_SHIFTS
    assert "The first 12 of 19 shifts" in figure.caption


def test_rank_and_dormant_units_have_a_panel_a_network(section):
    panels = figures.plasticity(section).panels
    assert [panel.title for panel in panels] == [
        "Effective rank, actor",
        "Effective rank, critic",
        "Dormant units, actor",
        "Dormant units, critic",
    ]
    rank = panels[0].lines[0]
    assert rank.y[0] - rank.y[-1] > 5
    assert panels[2].y_range[0] == 0


def test_without_evaluations_there_is_nothing_frozen_to_draw(run_maker):
    (section,) = sections.sections([run_maker(evaluated=False)], {})
    assert figures.evaluations(section) is None
    assert figures.plasticity(section) is None


def test_captions_say_how_many_seeds_stand_behind_a_line(section, run_maker):
    assert "means over 4 seeds" in figures.score(section).caption
    (alone,) = sections.sections([run_maker(seeds=(0,))], {})
    assert "One seed, so no interval" in figures.score(alone).caption


def test_a_full_width_figure_comes_in_a_wide_and_a_narrow_form(section):
    html = figures.figure_html(figures.score(section), section)
    assert html.count("<svg") - html.count('class="key') == 2
    assert 'class="wide"' in html
    assert 'class="narrow"' in html


def test_grey_arms_are_counted_in_the_legend(section):
    grey = section._replace(arms=tuple(arm._replace(slot=None) for arm in section.arms[1:]) + section.arms[:1])
    legend = figures.arm_legend(grey)
    assert "2 other arms, in grey" in legend
    assert "ppo_redo" not in legend
