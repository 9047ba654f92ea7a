"""perdure.report.told, .conversations and .training: what worlds and learners say besides the score."""

import pytest

from perdure.core.records import Said
from perdure.report import conversations, page, sections, told, training

LANGUAGES = ("hi", "en")


def with_facts(run, samples=()):
    """Two episodes a row: one in each language; the second succeeds from the middle of the run on."""
    half = run.meta["total_steps"] / 2
    rows = [
        row._replace(
            facts={
                "success": (False, row.step >= half),
                "turns": (4, None),
                "noticed": (0.5, 1.0),
                "language": LANGUAGES,
                "drift": (["fee", "date"], []),
            },
            returns=(0.0, 1.0),
            lengths=(2, 30),
            samples=samples,
        )
        for row in run.evaluations
    ]
    return run._replace(evaluations=rows)


def section_of(run):
    slots = sections.colour_slots(sections.arm_order(run.streams))
    return sections.sections([run], slots)[0]


@pytest.fixture(scope="module")
def facts(run_maker):
    return with_facts(run_maker(seeds=(0, 1)))


def test_shares_and_means_over_time_are_those_of_the_episodes(facts):
    figure = told.figure(section_of(facts))
    success, turns, noticed = figure.panels
    assert (success.title, success.y_label, success.y_range) == ("success", "share of episodes", (0.0, 1.0))
    assert success.lines[0].y[0] == 0.0
    assert success.lines[0].y[-1] == 0.5
    assert turns.y_label == "mean over episodes"
    assert (noticed.y_label, noticed.y_range) == ("mean over episodes", (0.0, 1.0)), "no share, but within it"
    assert set(turns.lines[0].y.tolist()) == {4.0}


def test_a_breakdown_counts_an_episode_under_each_of_its_labels(facts):
    language, drift = told.breakdowns(section_of(facts))
    assert "by language" in language
    assert "0 → 1.00" in language.replace("0.000", "0")
    for name in ("fee", "date", "none"):
        assert f">{name}<" in drift


def test_nothing_is_drawn_where_the_world_says_nothing(run_maker):
    section = section_of(run_maker(seeds=(0,)))
    assert told.figure(section) is None
    assert told.breakdowns(section) == []
    assert conversations.conversations(section) == []
    assert training.training(section) is None


def test_conversations_show_first_and_last_mark_escaped_and_shortened(run_maker):
    said = Said("<b>?</b>" + "\n" * 50, "x" * 5000, 0.25)
    run = with_facts(run_maker(seeds=(0, 1)), samples=((said,), (said, said)))
    parts = "".join(conversations.conversations(section_of(run)))
    assert "<b>" not in parts
    assert "&lt;b&gt;" in parts
    assert "[50 line breaks]" in parts
    assert "(3000 more characters)" in parts
    assert "after 0 steps" in parts
    assert f"after {run.meta['total_steps']:,} steps" in parts
    assert "no success; turns 4.00; noticed 0.500; language hi; drift fee, date" in parts
    assert "1 further turn not shown." in parts
    assert "28 further turns not shown." in parts


def test_training_curves_are_means_within_stretches_and_leave_out_what_never_varies(run_maker):
    run = run_maker(seeds=(0, 1))
    windows = [
        {"step": step, "seed": seed, "metrics": {"loss/policy": float(step + seed), "constant": 1.0, "late": None}}
        for step in range(1, 1001)
        for seed in (0, 1)
    ]
    windows[-1]["metrics"]["late"] = 3.0
    figure = training.training(section_of(run._replace(windows=windows)))
    (panel,) = figure.panels
    (line,) = panel.lines
    assert panel.title == "loss/policy"
    assert len(line.x) == training.POINTS
    assert line.y[0] == pytest.approx(4.5 + 0.5)  # the first of 120 stretches holds steps 1 to 8
    assert line.y[-1] == pytest.approx(996.0 + 0.5)  # the last 992 to 1000


def test_the_page_has_a_block_for_each(run_maker):
    said = Said("What is 1 + 2?", "3", 1.0)
    run = with_facts(run_maker(seeds=(0,)), samples=((said,),))
    run = run._replace(windows=[{"step": s, "seed": 0, "metrics": {"loss": float(s)}} for s in range(3)])
    text = page.render([run])
    for title in ("What the world says of the episodes", "What the policy said", "What the learners measured"):
        assert title in text
