"""The critic's warm start: targets, frozen policy, states."""

import numpy as np
import pytest
import torch

from perdure.core.errors import DataError
from perdure.lm import forward, packing
from perdure.lm.objectives.advantages import trajectory_gae
from perdure.lm.policy import LanguagePolicy
from perdure.lm.stages import collecting, fitting, value
from perdure.lm.stages.collecting import Regime
from perdure.lm.stages.sections import ValueConfig
from perdure.lm.stages.trajectories import Record
from perdure.lm.trajectory import Sampled, Stop, Trajectory

TWO = [Regime("low", "low", {"bias": 0.0}), Regime("high", "high", {"bias": 1.0})]


@pytest.fixture
def policy(letters):
    return letters.policy()


@pytest.fixture
def records(letters, policy):
    made = collecting.rollouts(lambda _: letters.Letters(), policy, TWO, runs=2, episodes=12, turns=2, seed=0)
    assert len(made) == 48
    return made


def episode(truncated=False):
    made = Trajectory(terminated=not truncated, truncated=truncated)
    made.observe([10, 11])
    made.answer(Sampled([12, 13], [0.0, 0.0], Stop.END)).reward = 1.0
    made.observe([14])
    made.answer(Sampled([15], [0.0], Stop.END)).reward = 2.0
    return Record([], made)


def critic(policy, records, **changes):
    settings = ValueConfig.model_validate({"holdout": 0.0, **changes})
    return value.Critic(policy, records, settings, gamma=0.5)


def test_monte_carlo_targets_are_the_discounted_rewards_to_come(policy):
    found = critic(policy, [episode()]).targets(0)
    assert found.tolist() == [1 + 0.5 * 2, 1 + 0.5 * 2, 2.0]


def test_what_follows_a_truncation_counts(policy):
    torch.nn.init.constant_(policy.value_head.summary.bias, 4.0)
    found = critic(policy, [episode(truncated=True)]).targets(0)
    assert found.tolist() == [1 + 0.5 * (2 + 0.5 * 4)] * 2 + [2 + 0.5 * 4]


def test_below_one_lam_mixes_in_the_critic(policy):
    torch.nn.init.normal_(policy.value_head.summary.weight, generator=torch.Generator().manual_seed(0))
    record = episode()
    packed = packing.pack([record.trajectory], 0)
    with torch.no_grad():
        scores = forward.score(policy.model, packed.ids_BT, packed.lengths_B, value_head=policy.value_head)
    expected = trajectory_gae(record.trajectory, scores.values_BT[0].double().numpy(), gamma=0.5, lam=0.7).returns
    found = critic(policy, [record], lam=0.7).targets(0).numpy()
    np.testing.assert_allclose(found, expected[np.array(record.trajectory.mask)], atol=1e-5)


def test_states_are_those_that_values_are_read_from(policy, records):
    torch.nn.init.normal_(policy.value_head.summary.weight, generator=torch.Generator().manual_seed(0))
    rows = [record.trajectory for record in records[:5]]
    packed = packing.pack(rows, policy.chat.pad_id)
    with torch.no_grad():
        scores = forward.score(policy.model, packed.ids_BT, packed.lengths_B, value_head=policy.value_head)
        for number, found in enumerate(value.states(policy, rows, tokens=150)):
            wanted = scores.values_BT[number][packed.mask_BT[number]]
            torch.testing.assert_close(policy.value_head(found.before_ND), wanted, atol=1e-5, rtol=0)
            torch.testing.assert_close(
                policy.value_head(found.final_D), scores.final_values_B[number], atol=1e-5, rtol=0
            )


def test_the_critic_learns_and_the_policy_stays(policy, records, tmp_path):
    before = {name: each.clone() for name, each in policy.model.state_dict().items()}
    settings = ValueConfig(steps=150, evaluate_every=50, learning_rate=3e-2)
    fitted = value.run(policy, lambda _: records, settings, 0.99, tmp_path, lambda text: None)
    assert fitted.best["loss"] < 0.6 * fitted.first["loss"]
    assert all(each.equal(before[name]) for name, each in policy.model.state_dict().items())
    loaded = LanguagePolicy.from_checkpoint(tmp_path)
    assert loaded.loaded_value_head
    assert loaded.value_head.summary.weight.equal(policy.value_head.summary.weight)
    assert loaded.value_head.summary.weight.any()


def test_no_episode_to_learn_from_is_refused(policy):
    with pytest.raises(DataError, match="none is left to learn values from"):
        critic(policy, [])
    with pytest.raises(DataError, match="of 1 episodes 1 are held out"):
        critic(policy, [episode()], holdout=0.5)


def test_the_loop_sees_the_head_alone(policy, records, tmp_path):
    task = critic(policy, records)
    loop = fitting._Loop(task, ValueConfig(), tmp_path, lambda text: None)
    assert sorted(loop.stepper.named) == ["value_head.summary.bias", "value_head.summary.weight"]
    loop.lines.close()
