"""From trajectories to advantages a token."""

import numpy as np
import pytest

from perdure.core.errors import ConfigError
from perdure.lm.objectives.table import RECIPES, Objective
from perdure.lm.objectives.weigh import weigh
from perdure.lm.trajectory import Sampled, Stop, Trajectory


def trajectory(rewards, group=0):
    made = Trajectory(terminated=True, group=group)
    made.observe([7])
    for reward in rewards:
        made.answer(Sampled([1, 2], [-0.5, -0.5], Stop.END)).reward = reward
        made.observe([8])
    return made


def test_a_groups_advantage_stands_at_every_trainable_token_of_its_row():
    rows = [trajectory([1.0]), trajectory([0.0, 0.5]), trajectory([0.0])]
    found = weigh(Objective("dr_grpo"), rows)
    assert found.returns is None
    for row, made, advantage in zip(rows, found.advantages, [0.5, 0.0, -0.5], strict=True):
        assert made.tolist() == [advantage * chosen for chosen in row.mask]


def test_a_faulted_episode_gets_nothing():
    rows = [trajectory([1.0]), trajectory([0.0]), trajectory([float("nan")])]
    found = weigh(Objective("dr_grpo"), rows)
    assert not found.advantages[2].any()
    assert found.advantages[0].max() == 0.5
    assert found.metrics["advantage/missing"] == pytest.approx(1 / 3)


def test_a_divergence_in_the_reward_lowers_the_return_of_its_row():
    rows = [trajectory([1.0]), trajectory([1.0])]
    divergences = [[9.0, 0.5, 1.5, 9.0], [9.0, 0.0, 0.0, 9.0]]
    objective = Objective("dr_grpo", kl="reward", kl_coefficient=0.1)
    found = weigh(objective, rows, divergences=divergences, kl_coefficient=0.25)
    assert [made[1] for made in found.advantages] == pytest.approx([-0.25, 0.25])


def test_gae_with_a_divergence_in_the_reward():
    row = trajectory([1.0, 2.0])
    objective = Objective("gae", gamma=0.5, lam=1.0, kl="reward", kl_coefficient=0.1)
    values = [np.array([np.nan, 0.1, 0.2, np.nan, 0.3, 0.4, np.nan])]
    found = weigh(objective, [row], values=values, divergences=[np.full(7, 2.0)], kl_coefficient=0.1)
    # With lam 1 the advantage is the discounted return to come, less the value; each token loses 0.2.
    to_come = [0.8 - 0.2 + 0.5 * (1.8 - 0.2), 0.8 + 0.5 * (1.8 - 0.2), 1.8 - 0.2, 1.8]
    where = np.flatnonzero(row.mask)
    np.testing.assert_allclose(found.advantages[0][where], np.array(to_come) - [0.1, 0.2, 0.3, 0.4], rtol=1e-12)
    np.testing.assert_allclose(found.returns[0][where], to_come, rtol=1e-12)


def test_gae_is_bootstrapped_where_the_trajectory_was_cut_and_standardised_on_demand():
    row = trajectory([0.0])
    row.terminated, row.truncated = False, True
    found = weigh(Objective("gae", lam=1.0), [row], values=[np.zeros(4)], bootstraps=[3.0])
    assert found.advantages[0].tolist() == [0, 3, 3, 0]
    rows = [trajectory([0.0]), trajectory([1.0])]
    found = weigh(Objective("gae", lam=1.0, standardise=True), rows, values=[np.zeros(4)] * 2)
    np.testing.assert_allclose([made[1] for made in found.advantages], [-1, 1], rtol=1e-6)
    assert [made[1] for made in found.returns] == [0, 1]


def test_reinforce_plus_plus_needs_no_groups():
    rows = [trajectory([1.0], group=-1), trajectory([0.0], group=-1)]
    found = weigh(RECIPES["reinforce"], rows)
    np.testing.assert_allclose([made[1] for made in found.advantages], [1, -1], rtol=1e-6)


def test_refusals():
    with pytest.raises(ConfigError, match="trajectory 1 belongs to no group"):
        weigh(Objective(), [trajectory([1.0]), trajectory([1.0], group=-1)])
    with pytest.raises(ConfigError, match="values are missing"):
        weigh(Objective("gae"), [trajectory([1.0])])
    with pytest.raises(ConfigError, match="divergences are missing"):
        weigh(Objective(kl="reward", kl_coefficient=0.1), [trajectory([1.0])] * 2)
