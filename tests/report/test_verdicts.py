"""perdure.report.verdicts."""

import pytest

from perdure.metrics.summary import Comparison
from perdure.report import verdicts

FAR = {"ppo": [90.0, 100.0, 110.0, 95.0], "redo": [40.0, 50.0, 45.0, 55.0], "l2": [1.0, 2.0, 3.0, 4.0]}
CLOSE = {"ppo": [90.0, 100.0, 110.0, 95.0], "redo": [1.0, 5.0, 3.0, 4.0], "l2": [2.0, 3.0, 5.0, 4.0]}


def _first(summary):
    return verdicts.verdicts(summary, ["task"])[0]


def test_the_arm_with_the_lowest_forgetting_is_named_first(summary_maker):
    verdict = _first(summary_maker(FAR))
    assert verdict.question.startswith("Which arm forgot least")
    assert verdict.answer == "<b>l2</b> with a loss of 2.50, against 47.5 for redo and 98.8 for ppo."
    assert "Every seed of l2 beats every seed of redo." in verdict.detail


def test_the_arm_with_the_highest_reward_is_named_first(summary_maker):
    verdict = _first(summary_maker(FAR, "reward", higher_is_better=True))
    assert verdict.answer.startswith("<b>ppo</b> with a reward of 98.8")


def test_arms_that_overlap_are_said_not_to_be_separable(summary_maker):
    verdict = _first(summary_maker(CLOSE))
    assert verdict.answer.startswith("<b>Not separable</b> by loss: 3.25 for redo and 3.50 for l2.")
    assert verdict.answer.endswith("Behind them: 98.8 for ppo.")
    assert "A seed of redo beats one of l2 with probability 0.5" in verdict.detail


def test_the_order_of_the_arms_does_not_matter(summary_maker):
    backwards = dict(reversed(FAR.items()))
    assert _first(summary_maker(backwards)) == _first(summary_maker(FAR))


def test_intervals_are_told(summary_maker):
    detail = _first(summary_maker(FAR)).detail
    assert detail.startswith("95 % intervals: l2 ")
    assert detail.count(" to ") == 3


@pytest.mark.parametrize(
    ("low", "high", "apart"), [(0.45, 0.9, False), (0.55, 1.0, True), (0.1, 0.55, False), (0.0, 0.45, True)]
)
def test_arms_are_separable_where_the_interval_excludes_one_half(low, high, apart):
    compared = [Comparison("task", "reward", "a", "b", 0.5, low, high)]
    assert verdicts.separable("a", "b", "task", "reward", compared) is apart
    assert verdicts.separable("b", "a", "task", "reward", compared) is apart


def test_single_seeds_are_never_separable(summary_maker):
    verdict = _first(summary_maker({"ppo": [90.0], "l2": [1.0]}))
    assert verdict.answer.startswith("<b>Not separable</b>")
    assert "may be chance" in verdict.detail


def test_an_undefined_metric_gives_its_reason(summary_maker):
    verdict = _first(summary_maker({"ppo": [None], "l2": [None]}, reason="no <configuration> comes back"))
    assert verdict.answer == "It cannot be said."
    assert verdict.detail == "The reason: no <configuration> comes back."


def test_an_arm_without_a_value_is_named(summary_maker):
    verdict = _first(summary_maker({"ppo": [None], "l2": [1.0, 2.0]}))
    assert "Undefined for ppo." in verdict.detail


def test_one_arm_is_asked_another_question(summary_maker):
    verdict = _first(summary_maker({"ppo": [90.0, 100.0]}))
    assert verdict.question.startswith("How much had it forgotten")
    assert verdict.answer == "<b>ppo: a loss of 95.0.</b>"


def test_censored_recoveries_are_counted(summary_maker):
    fields = {"name": "recovery_time", "unit": "steps", "censored": 1, "n": 3}
    verdict = _first(summary_maker(FAR, **fields))
    assert "of 2.50 steps" in verdict.answer
    assert "4 of 12 for l2, 4 of 12 for redo, 4 of 12 for ppo" in verdict.detail


def test_many_arms_are_shortened(summary_maker):
    summary = summary_maker({f"arm{i:02d}": [float(i), i + 0.4, i + 0.2, i + 0.3] for i in range(30)})
    verdict = _first(summary)
    assert verdict.answer.startswith("<b>arm00</b>")
    assert "and 25 more" in verdict.answer


def test_hostile_names_are_escaped(summary_maker):
    verdict = _first(summary_maker({"<b>x": [1.0, 2.0], "y&": [50.0, 60.0]}))
    assert "<b>x" not in verdict.answer.replace("<b>&lt;b&gt;x</b>", "")
    assert "y&amp;" in verdict.answer


def test_several_tasks_are_told_apart_and_limited(summary_maker):
    one = summary_maker(FAR)
    groups = [group._replace(task=f"t{i}") for i in range(6) for group in one.groups]
    compared = [found._replace(task=f"t{i}") for i in range(6) for found in one.comparisons]
    summary = one._replace(groups=tuple(groups), comparisons=tuple(compared))
    found = verdicts.verdicts(summary, [f"t{i}" for i in range(6)])
    assert [verdict.question.partition(":")[0] for verdict in found] == ["t0", "t1", "t2", "t3"]
