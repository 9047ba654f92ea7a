import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import PerdureError
from perdure.metrics.advantages import GAEMode, compute_gae, episode_lengths_from

R, V = [1.0, 0.0, 2.0], [0.5, 0.4, 0.3]


@pytest.mark.parametrize(
    ("lengths", "advantages", "returns"),
    [
        (None, [0.5, -0.4, 1.7], [1, 0, 2]),
        ([3], [2.302847, 1.49585, 1.7], [2.802847, 1.89585, 2]),
        ([2, 1], [0.5198, -0.4, 1.7], [1.0198, 0, 2]),
    ],
)
def test_golden_values(lengths, advantages, returns):
    found = compute_gae(R, V, lengths, 0.99, 0.95)
    assert found[0] == pytest.approx(advantages, abs=1e-6)
    assert found[1] == pytest.approx(returns, abs=1e-6)


def test_lengths_are_the_runs_between_ends_and_the_unfinished_tail():
    assert episode_lengths_from([False, True, True, False, False]) == [2, 1, 2]
    assert episode_lengths_from([False, True]) == [2]
    assert episode_lengths_from([]) == []


@pytest.mark.parametrize("lengths", [[2], [4], [], [4, -1], [3, 0]])
def test_lengths_that_do_not_fit_warn_and_make_every_step_an_episode(lengths):
    with pytest.warns(UserWarning, match="the window has 3 steps"):
        assert compute_gae(R, V, lengths, 0.99, 0.95) == compute_gae(R, V, None, 0.99, 0.95)


def test_missing_lengths_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compute_gae(R, V, None, 0.99, 0.95)


def test_truncation_adds_the_discounted_bootstrap():
    # The last error grows by .99 * 10, and reaches earlier steps through gamma * lam.
    plain, _ = compute_gae(R, V, [3], 0.99, 0.95)
    cut, _ = compute_gae(R, V, [3], 0.99, 0.95, bootstrap=[10.0])
    decay = 0.99 * 0.95
    assert [b - a for a, b in zip(plain, cut, strict=True)] == pytest.approx([9.9 * decay**2, 9.9 * decay, 9.9])


def test_a_bootstrap_stays_in_its_episode():
    plain, _ = compute_gae(R, V, [2, 1], 0.99, 0.95)
    cut, _ = compute_gae(R, V, [2, 1], 0.99, 0.95, bootstrap=[0.0, 1.0])
    assert cut[:2] == plain[:2]
    assert cut[2] == pytest.approx(plain[2] + 0.99)


def test_the_average_reward_takes_the_place_of_the_discount():
    # Errors 2 - 1 - .3 + .7 = 1.4; 0 - 1 + .3 - .4 = -1.1; 1 - 1 + .4 - .5 = -.1; decay 1 sums them.
    found, _ = compute_gae(R, V, [3], 0.5, 1.0, bootstrap=[0.7], average_reward=1.0)
    assert found == pytest.approx([0.2, 0.3, 1.4])


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=12), st.floats(0, 1))
def test_decay_zero_is_one_step_and_decay_one_is_monte_carlo(rewards, gamma):
    values = [0.5] * len(rewards)
    one_step, _ = compute_gae(rewards, values, [len(rewards)], gamma, 0.0)
    following = [*values[1:], 0.0]
    assert one_step == pytest.approx([r + gamma * n - v for r, n, v in zip(rewards, following, values, strict=True)])
    _, returns = compute_gae(rewards, values, [len(rewards)], gamma, 1.0)
    assert returns[0] == pytest.approx(sum(gamma**t * reward for t, reward in enumerate(rewards)), abs=1e-9)


def test_bad_input_is_refused():
    with pytest.raises(PerdureError, match="3 rewards and 1 values"):
        compute_gae(R, [0.0], None, 0.99, 0.95)
    with pytest.raises(PerdureError, match=r"gamma is 1\.5"):
        compute_gae(R, V, None, 1.5, 0.95)
    with pytest.raises(PerdureError, match="2 values for 1 episodes"):
        compute_gae(R, V, [3], 0.99, 0.95, bootstrap=[0.0, 0.0])


def test_a_document_value_selects_the_mode():
    assert GAEMode("degenerate") is GAEMode.DEGENERATE
    assert GAEMode("episodic") == "episodic"
