import numpy as np
import pytest

from perdure.rl.ops import values

REWARD = np.array([[1.0], [0.0], [2.0]], np.float32)
VALUE = np.array([[0.5], [0.4], [0.3]], np.float32)
NO, YES = np.zeros((3, 1), bool), np.ones((3, 1), bool)
NEXT = np.array([[0.4], [0.3], [9.0]], np.float32)
"""The last successor's value is large, so that an estimate that reads it by mistake is far off."""


def advantages(terminated, truncated=NO, next_value=NEXT, discount=0.99, decay=0.95, reward=REWARD, value=VALUE):
    return np.asarray(values.advantages(reward, terminated, truncated, value, next_value, discount, decay))


def flags(*rows):
    result = np.zeros((3, 1), bool)
    result[list(rows)] = True
    return result


def written_out(reward, terminated, truncated, value, next_value, discount, decay):
    """Equation 16, one step after another, in double precision."""
    result, ahead = np.zeros(reward.shape), np.zeros(reward.shape[1])
    for t in reversed(range(len(reward))):
        for n in range(reward.shape[1]):
            future = 0.0 if terminated[t, n] else discount * next_value[t, n]
            delta = reward[t, n] + future - value[t, n]
            goes_on = not (terminated[t, n] or truncated[t, n])
            ahead[n] = delta + (discount * decay * ahead[n] if goes_on else 0.0)
        result[t] = ahead
    return result


def drawn(length, lanes, seed=0):
    random = np.random.default_rng(seed)
    reward, value, next_value = random.normal(size=(3, length, lanes)).astype(np.float32)
    terminated, truncated = random.random((2, length, lanes)) < 0.1
    return reward, terminated, truncated, value, next_value


@pytest.mark.parametrize(
    ("ends", "wanted"),
    [
        ((0, 1, 2), [0.5, -0.4, 1.7]),
        ((2,), [2.302847, 1.49585, 1.7]),
        ((1, 2), [0.5198, -0.4, 1.7]),
    ],
)
def test_advantages_have_the_worked_values(ends, wanted):
    found = advantages(flags(*ends))
    np.testing.assert_allclose(found[:, 0], wanted, atol=1e-6)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 64, 129])
def test_advantages_equal_the_recursion_step_by_step(length):
    rows = drawn(length, 5, seed=length)
    found = values.advantages(*rows, 0.97, 0.9)
    np.testing.assert_allclose(found, written_out(*rows, 0.97, 0.9), rtol=1e-4, atol=1e-5)


def test_decay_zero_is_the_one_step_error():
    rows = drawn(20, 3)
    reward, terminated, _, value, next_value = rows
    found = values.advantages(*rows, 0.97, 0.0)
    np.testing.assert_allclose(found, reward + 0.97 * np.where(terminated, 0, next_value) - value, atol=1e-6)


def test_decay_one_is_the_discounted_return_less_the_value():
    reward, _, _, value, next_value = drawn(20, 3)
    next_value[:-1] = value[1:]
    ends = np.zeros_like(reward, bool)
    ends[-1] = True
    returns = np.zeros_like(reward)
    ahead = np.zeros(3)
    for t in reversed(range(20)):
        ahead = reward[t] + 0.97 * ahead
        returns[t] = ahead
    found = values.advantages(reward, ends, np.zeros_like(ends), value, next_value, 0.97, 1.0)
    np.testing.assert_allclose(found, returns - value, atol=1e-5)


def test_truncation_keeps_the_bootstrap():
    found = advantages(NO, truncated=flags(2))
    assert found[2, 0] == pytest.approx(2 + 0.99 * 9.0 - 0.3, abs=1e-5)


def test_truncation_ends_the_sum():
    found = advantages(flags(2), truncated=flags(0))
    assert found[0, 0] == pytest.approx(1 + 0.99 * 0.4 - 0.5, abs=1e-6)


def test_termination_drops_the_bootstrap():
    assert advantages(flags(2))[2, 0] == pytest.approx(2 - 0.3, abs=1e-6)


def test_a_step_that_terminates_and_is_truncated_has_terminated():
    assert advantages(flags(2), truncated=flags(2))[2, 0] == pytest.approx(1.7, abs=1e-6)


def test_the_edge_of_a_window_bootstraps():
    assert advantages(NO)[2, 0] == pytest.approx(2 + 0.99 * 9.0 - 0.3, abs=1e-5)


def test_bootstrap_never_reads_what_follows_a_termination():
    next_value = np.array([np.nan, 2.0], np.float32)
    found = values.bootstrap(np.ones(2, np.float32), np.array([True, False]), next_value, 0.5)
    np.testing.assert_allclose(found, [1.0, 2.0])


def test_soft_value_subtracts_the_price_of_certainty():
    assert float(values.soft_value(np.float32(3.0), np.float32(-2.0), np.float32(0.5))) == 4.0


def test_the_value_of_the_action_taken_is_picked():
    q = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_array_equal(values.taken(q, np.array([2, 0, 1, 2])), [2, 3, 7, 11])


def returns(terminated=NO, truncated=NO, discount=0.5, decay=0.5):
    return np.asarray(values.lambda_returns(REWARD, terminated, truncated, NEXT, discount, decay)).ravel()


def test_lambda_returns_on_a_worked_example():
    # From the end: 2 + .5 * 9 = 6.5; 0 + .5 (.5 * .3 + .5 * 6.5) = 1.7; 1 + .5 (.5 * .4 + .5 * 1.7) = 1.525.
    np.testing.assert_allclose(returns(), [1.525, 1.7, 6.5], rtol=1e-6)


def test_a_truncation_takes_the_successors_value_and_a_termination_nothing():
    np.testing.assert_allclose(returns(truncated=flags(1)), [1 + 0.5 * (0.2 + 0.5 * 0.15), 0.5 * 0.3, 6.5], rtol=1e-6)
    np.testing.assert_allclose(returns(terminated=flags(1)), [1 + 0.5 * 0.2, 0.0, 6.5], rtol=1e-6)


def test_a_decay_of_zero_gives_one_step_targets_and_of_one_the_windows_return():
    np.testing.assert_allclose(returns(decay=0.0), (REWARD + 0.5 * NEXT).ravel(), rtol=1e-6)
    np.testing.assert_allclose(returns(decay=1.0), [1 + 0.25 * 6.5, 0.5 * 6.5, 6.5], rtol=1e-6)
