"""Advantages: worked numbers, an independent writing of each estimator, and laws."""

import hypothesis
import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest

from perdure.core.errors import ConfigError, RunFailed
from perdure.lm.objectives import advantages
from perdure.lm.trajectory import Sampled, Stop, Trajectory

GROUPED = {
    "grpo": advantages.grpo,
    "dr_grpo": advantages.dr_grpo,
    "rloo": advantages.rloo,
    "reinforce++": advantages.reinforce_plus_plus,
    "maxrl": advantages.maxrl,
}
GROUPS = [0, 0, 0, 1, 1, 1]
RETURNS = [1.0, 0.0, 0.0, 2.0, 4.0, 6.0]


def trajectory(turns, rewards, *, terminated=False, tail=0):
    """Two prompt tokens, then turns of the given lengths with one token of the environment after each."""
    made = Trajectory(terminated=terminated, truncated=not terminated)
    made.observe([7, 7])
    for number, (length, reward) in enumerate(zip(turns, rewards, strict=True)):
        made.answer(Sampled([1] * length, [-0.5] * length, Stop.END)).reward = reward
        if number < len(turns) - 1 or tail:
            made.observe([8] * (1 if number < len(turns) - 1 else tail))
    return made


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Deviations (unbiased) are sqrt(1/3) and 2.
        ("grpo", [(2 / 3) / (3**-0.5 + 1e-4), *[(-1 / 3) / (3**-0.5 + 1e-4)] * 2, -2 / 2.0001, 0, 2 / 2.0001]),
        ("dr_grpo", [2 / 3, -1 / 3, -1 / 3, -2, 0, 2]),
        ("rloo", [1 - 0, 0 - 0.5, 0 - 0.5, 2 - 5, 4 - 4, 6 - 3]),
        ("maxrl", [2, -1, -1, -0.5, 0, 0.5]),
        # Mean 13/6; variance 57/6 - (13/6)^2 = 173/36.
        ("reinforce++", [(r - 13 / 6) / ((173 / 36) ** 0.5) for r in RETURNS]),
    ],
)
def test_worked_numbers(name, expected):
    found = GROUPED[name](RETURNS, GROUPS)
    np.testing.assert_allclose(found.advantages, expected, atol=1e-7)
    assert found.metrics == {"advantage/missing": 0.0, "advantage/constant_groups": 0.0}


def test_grpo_by_the_deviation_of_the_batch():
    found = advantages.grpo(RETURNS, GROUPS, scale="batch").advantages
    deviation = (173 / 36 * 6 / 5) ** 0.5
    np.testing.assert_allclose(found, np.array([2 / 3, -1 / 3, -1 / 3, -2, 0, 2]) / (deviation + 1e-4), rtol=1e-12)


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("noise", [0.0, 1e-8, 1e-16])
def test_a_constant_group_gets_exactly_nothing(name, noise):
    returns = 0.3 + noise * np.array([1.0, -1.0, 0.5, 0.0])
    found = GROUPED[name](returns, [5, 5, 5, 5])
    assert found.advantages.tolist() == [0, 0, 0, 0]
    assert found.metrics["advantage/constant_groups"] == 1.0


def test_sums_in_another_order_are_a_constant_group():
    returns = [0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1, np.float32(0.6)]
    assert len(set(returns)) > 1
    assert not advantages.grpo(returns, [0, 0, 0]).advantages.any()


def test_a_zero_mean_group_of_maxrl_gets_nothing():
    assert advantages.maxrl([0.0, 0.0, 1.0, 0.0], [0, 0, 1, 1]).advantages.tolist() == [0, 0, 1, -1]


@pytest.mark.parametrize("name", GROUPED)
def test_a_missing_return_counts_nowhere(name):
    returns, groups = [*RETURNS, np.nan], [*GROUPS, 1]
    found = GROUPED[name](returns, groups)
    np.testing.assert_array_equal(found.advantages[:6], GROUPED[name](RETURNS, GROUPS).advantages)
    assert found.advantages[6] == 0
    assert found.metrics["advantage/missing"] == pytest.approx(1 / 7)


@pytest.mark.parametrize("name", GROUPED)
def test_a_group_with_one_return_left_gets_nothing(name):
    found = GROUPED[name]([3.0, np.nan, np.nan], [0, 0, 0])
    assert found.advantages.tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "maxrl"])
def test_a_group_of_one_is_refused(name):
    with pytest.raises(ConfigError, match="group 4 has one episode"):
        GROUPED[name]([1.0, 2.0, 3.0], [2, 2, 4])


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize(
    ("returns", "groups", "complaint"),
    [
        ([1.0, np.inf], [0, 0], "row 1 is infinite"),
        ([], [], "shape"),
    ],
)
def test_unusable_returns_are_refused(name, returns, groups, complaint):
    with pytest.raises(ConfigError, match=complaint):
        GROUPED[name](returns, groups)


def test_refusals():
    with pytest.raises(ConfigError, match="shape"):
        advantages.grpo([1.0, 2.0], [0, 0, 0])
    with pytest.raises(ConfigError, match="scale is 'rows'"):
        advantages.grpo([1.0, 2.0], [0, 0], scale="rows")
    with pytest.raises(ConfigError, match="row 0 is -1"):
        advantages.maxrl([-1.0, 2.0], [0, 0])


SIZES = st.tuples(st.integers(1, 4), st.integers(2, 5))


@hypothesis.given(st.data(), SIZES)
def test_laws_of_groups(data, sizes):
    groups, size = sizes
    returns = data.draw(arrays.arrays(np.float64, groups * size, elements=st.floats(0, 10, width=32)))
    labels = np.repeat(np.arange(groups), size)
    order = data.draw(st.permutations(range(groups * size)))
    for name, function in GROUPED.items():
        found = function(returns, labels).advantages
        np.testing.assert_allclose(function(returns[order], labels[order]).advantages, found[order], atol=1e-9)
        if name != "reinforce++":
            np.testing.assert_allclose(found.reshape(groups, size).sum(1), 0, atol=1e-6)
    np.testing.assert_allclose(
        advantages.rloo(returns, labels).advantages,
        advantages.dr_grpo(returns, labels).advantages * size / (size - 1),
        atol=1e-9,
    )


def naive_gae(values, rewards, discounts, lam, bootstrap):
    """The definition: a sum over all later errors, each with the product of what lies between."""
    following = [*values[1:], bootstrap]
    errors = [r + d * v_next - v for r, d, v_next, v in zip(rewards, discounts, following, values, strict=True)]
    found = []
    for t in range(len(values)):
        weight, total = 1.0, 0.0
        for k in range(t, len(values)):
            total += weight * errors[k]
            weight *= discounts[k] * lam
        found.append(total)
    return found


def test_gae_by_hand():
    # One turn of two tokens, then one of one; gamma acts between the turns alone.
    found = advantages.gae([0.5, 0.4, 0.3], [0, 1, 2], [False, True, True], gamma=0.9, lam=0.5, bootstrap=1.0)
    errors = [0 + 0.4 - 0.5, 1 + 0.9 * 0.3 - 0.4, 2 + 0.9 * 1.0 - 0.3]
    last, middle = errors[2], errors[1] + 0.45 * errors[2]
    np.testing.assert_allclose(found.advantages, [errors[0] + 0.5 * middle, middle, last], rtol=1e-12)
    np.testing.assert_allclose(found.returns - found.advantages, [0.5, 0.4, 0.3], rtol=1e-12)


NUMBERS = st.floats(-5, 5, width=32)


@hypothesis.given(st.lists(st.tuples(NUMBERS, NUMBERS, st.booleans()), min_size=1, max_size=12), NUMBERS, st.data())
def test_gae_equals_its_definition(tokens, bootstrap, data):
    gamma, lam = data.draw(st.floats(0, 1)), data.draw(st.floats(0, 1))
    values, rewards, ends = map(list, zip(*tokens, strict=True))
    found = advantages.gae(values, rewards, ends, gamma=gamma, lam=lam, bootstrap=bootstrap)
    discounts = [gamma if end else 1.0 for end in ends]
    expected = naive_gae(values, rewards, discounts, lam, bootstrap)
    np.testing.assert_allclose(found.advantages, expected, atol=1e-8)


def test_gae_with_one_turn_a_token_is_the_harness_gae():
    from perdure.metrics.advantages import compute_gae

    rewards, values = [1.0, 0.0, 2.0], [0.5, 0.4, 0.3]
    expected, returns = compute_gae(rewards, values, [3], 0.99, 0.95)
    found = advantages.gae(values, rewards, [True] * 3, gamma=0.99, lam=0.95)
    np.testing.assert_allclose(found.advantages, expected, rtol=1e-12)
    np.testing.assert_allclose(found.returns, returns, rtol=1e-12)


def test_trajectory_gae_runs_on_trainable_tokens_alone():
    made = trajectory([2, 1], [1.0, 2.0], tail=3)
    values = np.full(len(made), np.nan)
    values[made.mask] = [0.5, 0.4, 0.3]
    found = advantages.trajectory_gae(made, values, gamma=0.9, lam=0.5, bootstrap=1.0)
    plain = advantages.gae([0.5, 0.4, 0.3], [0, 1, 2], [False, True, True], gamma=0.9, lam=0.5, bootstrap=1.0)
    assert found.advantages[~np.array(made.mask)].tolist() == [0] * 6
    np.testing.assert_allclose(found.advantages[made.mask], plain.advantages)
    np.testing.assert_allclose(found.returns[made.mask], plain.returns)


def test_a_last_reward_survives_later_observations_undiminished():
    made = trajectory([3], [1.0], terminated=True, tail=4)
    found = advantages.trajectory_gae(made, np.zeros(len(made)), gamma=0.5, lam=1.0)
    np.testing.assert_allclose(found.advantages[made.mask], [1, 1, 1])


def test_a_reward_is_discounted_once_a_turn():
    made = trajectory([2, 3], [0.0, 1.0], terminated=True)
    found = advantages.trajectory_gae(made, np.zeros(len(made)), gamma=0.5, lam=1.0)
    np.testing.assert_allclose(found.advantages[made.mask], [0.5, 0.5, 1, 1, 1])


def test_termination_drops_and_truncation_keeps_the_bootstrap():
    ended, cut = trajectory([2], [0.0], terminated=True), trajectory([2], [0.0])
    zeros = np.zeros(len(ended))
    assert not advantages.trajectory_gae(ended, zeros, lam=1.0, bootstrap=8.0).advantages.any()
    found = advantages.trajectory_gae(cut, zeros, gamma=0.5, lam=1.0, bootstrap=8.0)
    np.testing.assert_allclose(found.advantages[cut.mask], [4, 4])
    with pytest.raises(ConfigError, match="bootstrap is missing"):
        advantages.trajectory_gae(cut, zeros)


def test_extra_rewards_fall_on_their_tokens():
    made = trajectory([2], [1.0], terminated=True)
    extra = np.full(len(made), 100.0)
    extra[made.mask] = [-0.25, -0.5]
    found = advantages.trajectory_gae(made, np.zeros(len(made)), lam=1.0, extra_T=extra)
    np.testing.assert_allclose(found.advantages[made.mask], [0.25, 0.5])


def test_a_narrowed_mask_keeps_the_turns_reward():
    made = trajectory([3], [1.0], terminated=True)
    made.mask[-1] = False
    assert advantages.token_rewards(made).tolist() == [0, 0, 0, 1, 0]
    made.mask = [False] * 5
    with pytest.raises(ConfigError, match="turn 0 has a reward and no trainable token"):
        advantages.token_rewards(made)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda made, values: setattr(made.turns[0], "reward", np.nan), "a reward"),
        (lambda made, values: values.__setitem__(-1, np.inf), "a value"),
    ],
)
def test_what_is_not_finite_is_refused(change, complaint):
    made = trajectory([2], [1.0], terminated=True)
    values = np.zeros(len(made))
    change(made, values)
    with pytest.raises(RunFailed, match=complaint):
        advantages.trajectory_gae(made, values)


def test_gae_refusals():
    with pytest.raises(ConfigError, match=r"gamma is 1\.5"):
        advantages.gae([0.0], [0.0], [True], gamma=1.5)
    with pytest.raises(ConfigError, match="2 values, 1 rewards"):
        advantages.gae([0.0, 0.0], [0.0], [True])
    with pytest.raises(ConfigError, match="1 values for 4 tokens"):
        advantages.trajectory_gae(trajectory([2], [1.0]), [0.0], bootstrap=0.0)


def test_standardised_over_the_trainable_tokens_of_the_batch():
    rows = [np.array([9.0, 1.0, 2.0]), np.array([9.0, 6.0])]
    masks = [[False, True, True], [False, True]]
    found = advantages.standardised(rows, masks)
    deviation = (14 / 3) ** 0.5
    np.testing.assert_allclose(found[0], [0, -2 / deviation, -1 / deviation], rtol=1e-7)
    np.testing.assert_allclose(found[1], [0, 3 / deviation], rtol=1e-7)


def test_one_token_or_equal_advantages_are_not_scaled():
    assert advantages.standardised([np.array([5.0, 3.0])], [[False, True]])[0].tolist() == [0, 3]
    assert advantages.standardised([np.array([3.0, 3.0])], [[True, True]])[0].tolist() == [3, 3]
