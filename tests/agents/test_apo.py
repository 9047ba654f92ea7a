"""APO: differential advantages, targets held down, and a surrogate like PPO's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.agents.apo import APO
from perdure.core.errors import ConfigError
from perdure.rl.fold import Extensions
from perdure.rl.optim import Adam


def windows(single, number):
    batch = single.rows(True, number)._replace(discount=None)
    return jax.tree.map(lambda x: x.reshape(8, 4, *x.shape[1:]), batch)


def test_the_first_window_sets_the_averages_and_later_ones_move_them(written, single):
    agent = APO(hidden=single.HIDDEN, average_rate=0.3)
    state = single.begun(agent, True)
    one, two = windows(single, 1), windows(single, 2)
    value = lambda rows: written.forward(written.copied(state.params["critic"]), np.asarray(rows.obs), "tanh")[0].mean()
    state, _, _ = agent.prepare(state, one, single.context(agent, True), Extensions())
    np.testing.assert_allclose(state.memory, [one.reward.mean(), value(one)], rtol=1e-5)
    first = state.memory
    state, _, told = agent.prepare(state, two, single.context(agent, True, 320), Extensions())
    wanted = [0.7 * first.reward + 0.3 * two.reward.mean(), 0.7 * first.value + 0.3 * value(two)]
    np.testing.assert_allclose(state.memory, wanted, rtol=1e-5)
    np.testing.assert_allclose([told["average/reward"], told["average/value"]], wanted, rtol=1e-5)


def test_labels_are_differential_advantages_and_lowered_targets(written, single):
    agent = APO(hidden=single.HIDDEN, gae_lambda=0.8, value_pull=0.4)
    state, rows = single.begun(agent, True), windows(single, 3)
    critic = written.copied(state.params["critic"])
    value = lambda obs: written.forward(critic, np.asarray(obs, np.float64), "tanh")[0][..., 0]
    now, after, reward = value(rows.obs), value(rows.next_obs), np.asarray(rows.reward, np.float64)
    advantage, ahead = np.zeros((8, 4)), np.zeros(4)
    for t in reversed(range(8)):
        ends = np.asarray(rows.terminated[t] | rows.truncated[t])
        future = np.where(rows.terminated[t], 0.0, after[t])
        ahead = reward[t] - reward.mean() + future - now[t] + np.where(ends, 0.0, 0.8 * ahead)
        advantage[t] = ahead
    _, labels, _ = agent.prepare(state, rows, single.context(agent, True), Extensions())
    np.testing.assert_allclose(labels.target, advantage + now - 0.4 * now.mean(), atol=1e-5)
    np.testing.assert_allclose(labels.aux.advantage, (advantage - advantage.mean()) / advantage.std(), atol=1e-5)


@pytest.mark.parametrize("discrete", [True, False])
def test_two_updates_follow_the_equations(discrete, written, single):
    optimiser = Adam(learning_rate=1e-2, epsilon=1e-3, clip_norm=0.5)
    agent = APO(hidden=single.HIDDEN, optimiser=optimiser, entropy_weight=0.02, value_weight=0.7)
    state = single.begun(agent, discrete)
    params, own = written.precise(state.params), written.Adam(1e-2, 1e-3, 0.5)
    batches = [single.labelled(discrete, seed) for seed in (1, 2)]
    for batch in batches:
        # Advantages are taken as they are: they were standardised with the whole window.
        advantage, weights = np.asarray(batch.aux.advantage, np.float64), {"entropy_weight": 0.02, "value_weight": 0.7}
        slopes, held = written.clipped_slopes(params, batch, advantage, clip=0.2, bounded=not discrete, **weights)
        assert 0.05 < held < 0.9
        params = written.moved(own, params, slopes)
    found, _ = single.updated(agent, discrete, state, batches)
    single.close(written.flat(found.params), written.flat(params))


@pytest.mark.parametrize("continuous", [False, True])
def test_the_ladder_is_climbed_by_differences(continuous, ladder):
    name = "apo_continuous" if continuous else "apo"
    # Every episode is worth its reward less the mean reward: 0 in all, a sign apart by observation.
    trainer, seed = ladder.trained(name, 1)
    low, high = ladder.valued(trainer, seed, [-1.0, 1.0], None)
    assert high - low == pytest.approx(2.0, abs=0.3)
    # Half a reward a step: nothing is lost by waiting for it, and nothing is discounted.
    trainer, seed = ladder.trained(name, 2)
    early, late = ladder.valued(trainer, seed, [0.0, 1.0], None)
    assert float(seed.agent.memory.reward) == pytest.approx(0.5, abs=0.1)
    assert late - early == pytest.approx(0.5, abs=0.2)
    wanted = [-0.5, 0.5] if continuous else [0, 1]
    np.testing.assert_allclose(ladder.typical(name, 4, [-1.0, 1.0]), wanted, atol=0.25)


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_truncation_keeps_the_bootstrap_and_termination_drops_it(ends, single):
    agent = APO(hidden=single.HIDDEN, gae_lambda=0.0, value_pull=0.0)
    state, rows = single.begun(agent, True), windows(single, 3)
    none = jnp.zeros((8, 4), bool)
    rows = rows._replace(reward=jnp.zeros((8, 4)), terminated=none, truncated=none)
    target = lambda rows: agent.prepare(state, rows, single.context(agent, True), Extensions())[1].target
    open_end, cut = target(rows), target(rows._replace(**{ends: ~none}))
    assert np.allclose(cut, open_end) == (ends == "truncated")
    assert np.allclose(cut, 0.0, atol=1e-6) == (ends == "terminated")


@pytest.mark.parametrize("wrong", [{"average_rate": 1.5}, {"value_pull": -0.1}, {"clip": -0.2}])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        APO(**wrong)
