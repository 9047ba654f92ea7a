"""AVG: one look at each step, the executed action, errors in units of their scale, features of length 1."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.agents.avg import AVG
from perdure.core.errors import ConfigError
from perdure.rl.optim import Adam

NET = {"activation": "leaky_relu", "unit": True}
PLAIN = Adam(learning_rate=1e-2, epsilon=1e-3, beta1=0.0)


def small(single):
    return AVG(hidden=single.HIDDEN, actor_optimiser=PLAIN, critic_optimiser=PLAIN, temperature=0.3, discount=0.9)


def streamed(single, seed):
    """A batch with the noise of its actions."""
    noise = np.random.default_rng(seed + 9).normal(size=(single.ROWS, 2))
    return single.rows(False, seed)._replace(aux=jnp.asarray(noise, jnp.float32))


class Scale:
    """The scale of errors from everything seen, kept as plain lists."""

    def __init__(self, rows):
        self.rewards, self.discounts, self.returns, self.running = [], [], [], np.zeros(rows)

    def add(self, reward, batch, discount):
        self.rewards += reward.tolist()
        self.discounts += np.where(batch.terminated, 0.0, discount).tolist()
        self.running = self.running + reward
        ended = np.asarray(batch.terminated | batch.truncated)
        self.returns += self.running[ended].tolist()
        self.running = np.where(ended, 0.0, self.running)
        squared = np.square(self.returns).mean() if self.returns else 0.0
        variance = np.var(self.rewards) + squared * np.var(self.discounts)
        return 1.0 if variance <= 0.01 and not self.returns else np.sqrt(max(variance, 1e-4))


def numpy_update(params, scale, own, batch, key, written):
    """One update in double precision, both steps from the same parameters."""
    rows, temperature = len(batch.reward), np.exp(params["log_temperature"])
    obs, next_obs = np.asarray(batch.obs, np.float64), np.asarray(batch.next_obs, np.float64)
    taken_noise = np.asarray(batch.aux, np.float64)
    next_noise = np.asarray(jax.random.normal(key, batch.action.shape), np.float64)
    _, log_prob, _ = written.squashed(params["actor"], obs, taken_noise, **NET)
    sigma = scale.add(np.asarray(batch.reward) - temperature * log_prob, batch, 0.9)
    after, log_prob, _ = written.squashed(params["actor"], next_obs, next_noise, **NET)
    ahead = written.q_values(params["critic"], next_obs, after, **NET)[0].min(0) - temperature * log_prob
    target = np.asarray(batch.reward) + 0.9 * np.where(batch.terminated, 0.0, ahead)
    q, kept = written.q_values(params["critic"], obs, np.asarray(batch.action, np.float64), **NET)
    slopes = written.q_slopes(params["critic"], kept, 2 * (q - target) / sigma**2 / rows)[0]
    climb, _ = written.climb_slopes(
        params["actor"], params["critic"], obs, taken_noise, temperature, written.least, **NET
    )
    moved = {
        "critic": written.moved(own["critic"], params["critic"], slopes),
        "actor": written.moved(own["actor"], params["actor"], climb),
    }
    return {**params, **moved}, sigma


def test_three_updates_follow_the_equations(written, single):
    agent = small(single)
    state = single.begun(agent, False)
    assert state.slow == {}
    params, scale = written.precise(state.params), Scale(single.ROWS)
    own = {name: written.Adam(1e-2, 1e-3, beta1=0.0) for name in ("actor", "critic")}
    batches, sigmas = [streamed(single, seed) for seed in (1, 2, 3)], []
    for number, batch in enumerate(batches):
        params, sigma = numpy_update(params, scale, own, batch, single.context(agent, False, number).key, written)
        sigmas.append(sigma)
    found, metrics = single.updated(agent, False, state, batches)
    single.close(written.flat(found.params), written.flat(params))
    np.testing.assert_allclose([told["value/error_scale"] for told in metrics], sigmas, rtol=1e-5)


def test_the_scale_is_one_until_something_varies_or_ends(single):
    agent = AVG(hidden=single.HIDDEN, temperature=1e-9)
    none = jnp.zeros(single.ROWS, bool)
    batch = streamed(single, 1)._replace(reward=jnp.ones(single.ROWS), terminated=none, truncated=none)
    ends = batch._replace(truncated=~none)
    state = agent.init(jax.random.key(0), single.context(agent, False))
    _, metrics = single.updated(agent, False, state, [batch, ends, batch])
    np.testing.assert_allclose([told["value/error_scale"] for told in metrics], [1.0, 0.01, 0.01], rtol=1e-4)


def test_the_actor_climbs_through_the_action_that_was_executed(single):
    agent = small(single)
    state, batch = single.begun(agent, False), streamed(single, 1)
    ctx = single.context(agent, False)._replace(noise=batch.aux)
    action, kept = agent.act(state, batch.obs, ctx)
    np.testing.assert_array_equal(kept, batch.aux)
    entropy = single.updated(agent, False, state, [batch._replace(action=action)])[1][0]["policy/entropy"]
    other = single.updated(agent, False, state, [batch._replace(action=action, aux=-batch.aux)])[1][0]["policy/entropy"]
    assert entropy != pytest.approx(other, rel=1e-3)


def test_each_step_is_seen_once_by_all_copies(tiny):
    made = tiny.made("avg")
    state, _, _ = tiny.train(made, 96)
    assert int(state.train.clock.updates) == int(state.train.clock.t) == 48
    scale = state.train.seeds.agent.memory
    np.testing.assert_array_equal(scale.reward.count, [96, 96])
    np.testing.assert_array_equal(state.train.seeds.normaliser.obs.count, [96, 96])


def test_features_have_length_one(single):
    agent = AVG(hidden=single.HIDDEN)
    state, batch = single.begun(agent, False), single.rows(False, 1)
    features = agent.networks(single.spec(False))["actor"].trace(state.params["actor"], batch.obs)[-2]
    np.testing.assert_allclose(jnp.linalg.norm(features, axis=-1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"discount": 1.1}])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        AVG(**wrong)
