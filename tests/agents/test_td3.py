"""TD3: its equations, its delay, and what is logged of an actor that moves at every second update."""

import jax
import numpy as np
import pytest

from perdure.agents.td3 import TD3
from perdure.core.errors import ConfigError


def numpy_update(agent, params, slow, own, batch, key, moves_actor, written):
    """One update in double precision: parameters and slow parameters after it."""
    rows = len(batch.reward)
    obs, next_obs = np.asarray(batch.obs, np.float64), np.asarray(batch.next_obs, np.float64)
    noise = np.asarray(jax.random.normal(key, batch.action.shape), np.float64)
    mean = np.tanh(written.forward(slow["actor"], next_obs, "relu")[0])
    after = np.clip(mean + np.clip(1.5 * noise, -2, 2), -1, 1)
    ahead = written.q_values(slow["critic"], next_obs, after)[0].min(0)
    target = 2.0 * np.asarray(batch.reward) + 0.9 * np.where(batch.terminated, 0.0, ahead)
    q, kept = written.q_values(params["critic"], obs, np.asarray(batch.action, np.float64))
    gradient = written.q_slopes(params["critic"], kept, 2 * (q - target) / rows)[0]
    critic = written.moved(own["critic"], {"c": params["critic"]}, {"c": gradient})["c"]
    params = {**params, "critic": critic}
    if not moves_actor:
        return params, slow
    output, actor_kept = written.forward(params["actor"], obs, "relu")
    action = np.tanh(output)
    q, kept = written.q_values(critic, obs, action)
    first_only = np.array([[-1.0 / rows], [0.0]]) * np.ones_like(q)
    d_action = written.q_slopes(critic, kept, first_only)[1][:, obs.shape[1] :]
    gradient = written.backward(params["actor"], actor_kept, d_action * (1 - action**2))[0]
    params["actor"] = written.moved(own["actor"], {"a": params["actor"]}, {"a": gradient})["a"]
    return params, written.followed(slow, params, agent.slow_rate)


def test_four_updates_follow_the_equations(written, single):
    agent = TD3(
        hidden=single.HIDDEN, actor_optimiser=single.FREE, critic_optimiser=single.FREE,
        discount=0.9, slow_rate=0.1, target_noise=1.5, target_noise_clip=2.0, reward_scale=2.0,
    )  # fmt: skip
    state = single.begun(agent, False)
    params, slow = written.precise(state.params), written.precise(state.slow)
    own = {name: written.Adam(1e-2, 1e-3) for name in ("actor", "critic")}
    batches = [single.rows(False, seed) for seed in range(4)]
    for number, batch in enumerate(batches):
        key = single.context(agent, False, number).key
        params, slow = numpy_update(agent, params, slow, own, batch, key, number % 2 == 1, written)
    found, metrics = single.updated(agent, False, state, batches)
    single.close(written.flat(found.params), written.flat(params))
    single.close(written.flat(found.slow), written.flat(slow))
    assert [told["loss/actor"] is None for told in metrics] == [True, False, True, False]


def test_a_window_without_an_actor_step_logs_no_loss(tiny):
    made = tiny.made("td3", policy_delay=10_000)
    state, _, metrics = tiny.train(made, 64)
    assert np.isnan(metrics[-1]["loss/actor"]).all()
    assert np.isfinite(metrics[-1]["loss/critic"]).all()
    start = tiny.host(made.init(tiny.SEEDS).train.seeds.agent.params["actor"])
    assert all((start[path] == leaf).all() for path, leaf in tiny.host(state.train.seeds.agent.params["actor"]).items())


def test_exploration_stays_within_the_bounds(single):
    agent = TD3(hidden=single.HIDDEN, exploration_noise=5.0)
    state = single.begun(agent, False)
    ctx = single.context(agent, False)._replace(noise=jax.random.normal(jax.random.key(1), (32, 2)))
    action, _ = agent.act(state, single.rows(False, 1).obs, ctx)
    assert float(np.abs(action).max()) == 1.0
    quiet, _ = TD3(hidden=single.HIDDEN, exploration_noise=0.0).act(state, single.rows(False, 1).obs, ctx)
    np.testing.assert_array_equal(quiet, agent.act_greedy(state, single.rows(False, 1).obs, ctx))


@pytest.mark.parametrize(
    "wrong", [{"policy_delay": 0}, {"target_noise": -0.1}, {"discount": 1.5}, {"slow_rate": float("nan")}]
)
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TD3(**wrong)
