import numpy as np
import pytest


@pytest.fixture(scope="module")
def endless(tiny):
    """A PPO learner on a world whose episodes never end."""
    made = tiny.made("ppo", world=tiny.Clockwork(episodic=False))
    return made, made.init(tiny.SEEDS)


def test_a_never_ending_world_is_scored_by_the_step(endless):
    made, state = endless
    found = made.evaluate(state, {"level": 3.0}, 2)
    np.testing.assert_allclose(found.returns, 3.0)
    np.testing.assert_array_equal(found.lengths, 20)


def test_the_configuration_evaluated_is_the_one_given(endless):
    made, state = endless
    assert made.evaluate(state, {"level": -1.0}, 1).returns.tolist() == [[-1.0], [-1.0]]
    assert made.evaluate(state, None, 1).returns.tolist() == [[1.0], [1.0]]


def test_a_truncated_episode_is_over(tiny):
    made = tiny.made("dqn", world=tiny.Clockwork(truncates=True))
    found = made.evaluate(made.init(tiny.SEEDS), {"level": 2.0}, 2)
    np.testing.assert_array_equal(found.lengths, 5)
    np.testing.assert_array_equal(found.returns, 10.0)


def test_features_are_those_of_every_network(tiny):
    made = tiny.made("sac")
    state, _, _ = tiny.train(made, 64)
    features = made.evaluate(state, {"level": 1.0}, 3).features
    assert {name: each.shape for name, each in features.items()} == {"actor": (2, 256, 8), "critic": (2, 256, 8)}
    assert all((each >= 0).all() and each.std() > 0 for each in features.values())
