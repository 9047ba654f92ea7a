"""perdure.report.sections."""

from pathlib import Path

import pytest

from perdure.core.errors import DataError
from perdure.core.records import Segment
from perdure.report import sections, theme


def test_runs_of_one_task_and_schedule_are_arms_of_one_section(comparison):
    (section,) = sections.sections(comparison, {})
    assert [arm.label for arm in section.arms] == ["ppo", "ppo_l2_init", "ppo_redo"]
    assert [len(arm.streams) for arm in section.arms] == [4, 4, 4]
    assert section.schedule == "earth → reversed → heavy → earth_again"


def test_equal_origins_share_a_tint(comparison):
    (section,) = sections.sections(comparison, {})
    assert section.origins == {"earth": 0, "reversed": 1, "heavy": 2}


def test_seeds_in_two_folders_join_one_arm(run_maker):
    (section,) = sections.sections([run_maker(seeds=(0,)), run_maker(seeds=(1,))], {})
    assert [stream.seed for stream in section.arms[0].streams] == [0, 1]
    assert {row.seed for row in section.arms[0].evaluations} == {0, 1}


def test_other_tasks_and_schedules_get_sections_of_their_own(run_maker):
    short = (Segment("earth", "earth", 0, 3000),)
    runs = [run_maker(), run_maker(task="other"), run_maker("ppo_redo", segments=short)]
    assert len(sections.sections(runs, {})) == 3


def test_a_long_schedule_is_shortened_with_its_count(run_maker):
    segments = tuple(Segment(f"s{i}", f"s{i}", i * 100, i * 100 + 100) for i in range(20))
    (section,) = sections.sections([run_maker(seeds=(0,), segments=segments, evaluated=False)], {})
    assert section.schedule == "s0 → s1 → s2 → s3 → s4 → s5 → … 13 more … → s19"


def test_an_algorithm_keeps_its_colour_across_tasks():
    slots = sections.colour_slots([("a", "ppo"), ("a", "sac"), ("b", "sac"), ("b", "ppo"), ("b", "dqn")])
    assert slots == {("a", "ppo"): 0, ("a", "sac"): 1, ("b", "sac"): 1, ("b", "ppo"): 0, ("b", "dqn"): 2}


def test_colours_of_one_task_never_repeat():
    arms = [("a", f"x{i}") for i in range(5)] + [("b", f"y{i}") for i in range(20)] + [("b", "x0")]
    slots = sections.colour_slots(arms)
    assert sorted(slot for (task, _), slot in slots.items() if task == "b") == list(range(theme.LINES))


def test_a_taken_colour_is_given_to_nobody_else():
    first = [("a", f"x{i}") for i in range(theme.LINES)]
    slots = sections.colour_slots([*first, ("b", "new"), ("b", "x0")])
    assert slots["b", "new"] == slots["a", "x0"] == 0
    assert slots["b", "x0"] == 1


def test_two_runs_with_one_identity_are_refused_naming_both(run_maker):
    first, second = run_maker(seeds=(3,)), run_maker(seeds=(3,))._replace(path=Path("elsewhere"))
    with pytest.raises(DataError, match=r"runs/cartpole-ppo-1a2b3c and elsewhere both hold ppo .* seed 3"):
        sections.check_distinct([first, second])
