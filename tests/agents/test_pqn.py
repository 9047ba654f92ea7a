"""PQN: Q(lambda) returns of a window, and steps towards them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.agents.pqn import PQN
from perdure.core.errors import ConfigError
from perdure.rl.fold import Extensions
from perdure.rl.optim import RAdam


def numpy_returns(rows, next_value, discount, decay):
    """The recursion of the paper, backwards, from the value at the window's end."""
    reward, terminated, truncated = (np.asarray(x) for x in (rows.reward, rows.terminated, rows.truncated))
    following, result = next_value[-1], np.zeros(reward.shape)
    for t in reversed(range(len(reward))):
        value = np.where(terminated[t], 0.0, next_value[t])
        following = np.where(terminated[t] | truncated[t], value, following)
        following = result[t] = reward[t] + discount * ((1 - decay) * value + decay * following)
    return result


def test_targets_are_the_q_lambda_returns_of_the_window(written, single):
    agent = PQN(hidden=single.HIDDEN, discount=0.9, trace_decay=0.6, reward_scale=3.0)
    state, batch = single.begun(agent, True), single.rows(True, 3)
    window = jax.tree.map(lambda x: x.reshape(8, 4, *x.shape[1:]), batch._replace(discount=None))
    critic, next_obs = written.copied(state.params["critic"]), np.asarray(window.next_obs, np.float64)
    next_value = written.forward(critic, next_obs, "relu", layer_norm=True)[0].max(-1)
    wanted = numpy_returns(window._replace(reward=3 * window.reward), next_value, 0.9, 0.6)
    _, labelled, _ = agent.prepare(state, window, single.context(agent, True), Extensions())
    np.testing.assert_allclose(labelled.target, wanted, rtol=1e-5, atol=1e-5)


def test_eight_updates_follow_the_equations(written, single):
    agent = PQN(hidden=single.HIDDEN, optimiser=RAdam(learning_rate=1e-2, epsilon=1e-3))
    state = single.begun(agent, True)
    assert state.slow == {}
    critic, own = written.copied(state.params["critic"]), written.RAdam(1e-2, 1e-3)
    # Its adaptive steps begin with the fifth.
    batches = [single.labelled(True, seed) for seed in range(8)]
    at = np.arange(single.ROWS)
    for batch in batches:
        q, kept = written.forward(critic, np.asarray(batch.obs, np.float64), "relu", layer_norm=True)
        slope = np.zeros((single.ROWS, single.ACTIONS))
        slope[at, np.asarray(batch.action)] = (q[at, np.asarray(batch.action)] - np.asarray(batch.target)) / single.ROWS
        critic = written.moved(own, {"critic": critic}, {"critic": written.backward(critic, kept, slope)[0]})["critic"]
    found, _ = single.updated(agent, True, state, batches)
    single.close(written.flat(found.params["critic"]), written.flat(critic))


def test_exploration_fades_over_the_share_of_the_run(single):
    agent = PQN(hidden=single.HIDDEN)
    state, obs = single.begun(agent, True), single.rows(True, 1).obs
    best = agent.act_greedy(state, obs, single.context(agent, True))
    ctx = single.context(agent, True)._replace(noise=agent.noise(jax.random.key(2), single.ROWS, single.spec(True)))
    explored = []
    for t in (0, 8, 16):  # Of 1,000 steps with 32 copies: none, a quarter, half of the run.
        action, _ = agent.act(state, obs, ctx._replace(clock=ctx.clock._replace(t=t)))
        explored.append(float((action != best).mean()))
    assert explored[0] > 0.6 > explored[1] > 0.2 > explored[2]


def test_layer_norm_is_on_by_default_and_shapes_what_is_read(single):
    agent, plain = PQN(hidden=single.HIDDEN), PQN(hidden=single.HIDDEN, layer_norm=False)
    state, obs = single.begun(agent, True), jnp.ones((4, single.SEES))
    scaled = lambda agent: agent.networks(single.spec(True))["critic"].trace(state.params["critic"], 50.0 * obs)[0]
    assert float(scaled(agent).max()) < 5.0 < float(scaled(plain).max())


@pytest.mark.parametrize("wrong", [{"trace_decay": 1.1}, {"discount": -0.1}, {"reward_scale": 0.0}])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        PQN(**wrong)
