"""Unit vectors of the formulas that are kept for comparison, and the faults they are known for."""

import pytest

from perdure.worlds.concierge import baselines, legacy
from perdure.worlds.concierge.legacy import Measures

OLD, SPACE = legacy.PROFILES["legacy-0.50"], legacy.PROFILES["space-0.40"]


@pytest.mark.parametrize(
    ("measures", "confidence", "reward"),
    [
        (Measures(1, 0.5, 1, 1, 0), 0.85, 0.831),
        (Measures(0, 1, 0.5, 1, 0), 0.6, 0.240),
        (Measures(0, 0, 0, 1, -1), 0.2, 0.300),
        (Measures(1, 1, 1, 1, 0), None, 0.95),
        (Measures(0, 0.5, 1, 1, 0), 1.0, 0.175),
    ],
)
def test_worked_values(measures, confidence, reward):
    assert legacy.combined(measures, confidence, OLD) == reward


def test_the_other_profile_has_its_own_weights_and_floor():
    assert legacy.combined(Measures(1, 1, 1, 1, 0), 1.0, SPACE) == 0.9
    assert legacy.combined(Measures(0, 0, 0, 0, 0), 0.1, SPACE) == 0.5


def test_the_floor_pays_for_giving_up_and_honesty_does_not_pay(data, pose):
    """Why it is not the default."""
    task = pose(1, stage=2)
    quitter = legacy.scored(data, baselines.play(data, task, baselines.instant_submit), "legacy-0.50")
    assert quitter == 0.3
    assert quitter > legacy.scored(data, baselines.play(data, task, baselines.instant_abort), "legacy-0.50")
    grid = [index / 100 for index in range(101)]

    def expected(p, c):
        won, lost = Measures(1, 0.5, 1, 1, 0), Measures(0, 0.5, 0, 1, 0)
        return p * legacy.combined(won, c, OLD) + (1 - p) * legacy.combined(lost, c, OLD)

    assert max(grid, key=lambda c: expected(0.5, c)) > 0.95


def test_measures_of_played_errands(data, pose):
    task = pose(2, stage=1)
    found = legacy.measured(data, baselines.play(data, task, baselines.oracle))
    assert found[:3] == (1.0, 0.5, 1.0)
    assert found.r4 == pytest.approx(1 - 0.05 * (task.oracle_turns - 1 - len(task.goal.withheld)))
    assert found.r5 == 0.0
    spam = legacy.measured(data, baselines.play(data, task, baselines.spammer))
    assert spam.r5 == -0.5
    assert legacy.measured(data, baselines.play(data, pose(2, stage=2, drift=1), baselines.drift_blind)).r1 == 0
