"""ASAC: differential soft targets that are never cut, a price on terminations, and the running rate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.agents.asac import ASAC, Running
from perdure.core import registry
from perdure.core.errors import ConfigError
from perdure.rl import acting
from perdure.rl.optim import Adam

LIMIT = 0.3


def small(single, learnt=None):
    return ASAC(
        hidden=single.HIDDEN, actor_optimiser=single.FREE, temperature_optimiser=learnt, temperature=0.3,
        critic_optimiser=Adam(learning_rate=1e-2, epsilon=1e-3, clip_norm=LIMIT, clip_scope="member"),
        slow_rate=0.1, average_rate=0.1, penalty_scale=5.0, reward_scale=2.0,
    )  # fmt: skip


def numpy_update(agent, params, slow, memory, own, batch, key, written):
    """One update in double precision: parameters, slow critics and (rate, penalty) after it."""
    rows = len(batch.reward)
    next_key, actor_key, temperature_key, rate_key = jax.random.split(key, 4)
    noise = lambda key: np.asarray(jax.random.normal(key, batch.action.shape), np.float64)
    obs, terminated = np.asarray(batch.obs, np.float64), np.asarray(batch.terminated)
    action, reward = np.asarray(batch.action, np.float64), np.asarray(batch.reward, np.float64)
    (rate, penalty), temperature = memory, np.exp(params["log_temperature"])

    penalty = 0.9 * penalty + 0.1 * 5.0 * (reward * (1 - terminated)).mean()
    paid = 2.0 * (reward - penalty * terminated)
    next_obs = np.where(terminated[:, None], batch.reset_obs, batch.next_obs).astype(np.float64)
    after, log_prob, _ = written.squashed(params["actor"], next_obs, noise(next_key))
    anchor = written.q_values(slow, 0 * obs[:1], 0 * action[:1])[0].mean()
    ahead = written.q_values(slow, next_obs, after)[0].min(0) - temperature * log_prob
    target = paid - rate + ahead - anchor

    q, kept = written.q_values(params["critic"], obs, action)
    gradient = written.q_slopes(params["critic"], kept, (q - target) / rows)[0]
    lengths = np.sqrt(sum((leaf**2).sum(tuple(range(1, leaf.ndim))) for leaf in written.flat(gradient).values()))
    assert (lengths > LIMIT).all()
    gradient = {
        path: leaf * (LIMIT / lengths).reshape(-1, *[1] * (leaf.ndim - 1))
        for path, leaf in written.flat(gradient).items()
    }
    critic = written.put(
        own["critic"].step(params["critic"], written.put(gradient, params["critic"])), params["critic"]
    )
    gradient, _ = written.climb_slopes(params["actor"], critic, obs, noise(actor_key), temperature, written.least)
    actor = written.moved(own["actor"], params["actor"], gradient)
    params = {**params, "actor": actor, "critic": critic}
    if agent.temperature_optimiser is not None:
        _, log_prob, _ = written.squashed(actor, obs, noise(temperature_key))
        slope = {"t": -log_prob.mean() + 2.0}
        params["log_temperature"] = own["temperature"].step({"t": params["log_temperature"]}, slope)["t/"]
    _, log_prob, _ = written.squashed(actor, obs, noise(rate_key))
    rate = 0.9 * rate + 0.1 * (paid - np.exp(params["log_temperature"]) * log_prob).mean()
    return params, written.followed(slow, critic, agent.slow_rate), (rate, penalty)


@pytest.mark.parametrize("learnt", [None, Adam(learning_rate=1e-2, epsilon=1e-3)])
def test_two_updates_follow_the_equations(learnt, written, single):
    agent = small(single, learnt)
    state = single.begun(agent, False)._replace(memory=Running(jnp.float32(0.4), jnp.float32(1.5)))
    params, slow, memory = written.precise(state.params), written.copied(state.slow["critic"]), (0.4, 1.5)
    own = {name: written.Adam(1e-2, 1e-3) for name in ("actor", "critic", "temperature")}
    batches = [single.rows(False, seed) for seed in (1, 2)]
    for number, batch in enumerate(batches):
        key = single.context(agent, False, number).key
        params, slow, memory = numpy_update(agent, params, slow, memory, own, batch, key, written)
    found, metrics = single.updated(agent, False, state, batches)
    single.close(written.flat(found.params), written.flat(params))
    single.close(written.flat(found.slow["critic"]), written.flat(slow))
    np.testing.assert_allclose(found.memory, memory, rtol=1e-5)
    assert metrics[-1]["average/soft_reward"] == pytest.approx(memory[0], rel=1e-5)


def test_a_termination_is_not_cut_but_goes_on_from_the_reset(single):
    agent = small(single)
    state, batch = single.begun(agent, False), single.rows(False, 1)
    # Without a reward there is no penalty either.
    batch = batch._replace(reset_obs=10 * batch.reset_obs, reward=jnp.zeros(single.ROWS))
    loss = lambda batch: single.updated(agent, False, state, [batch])[1][0]["loss/critic"]
    ended = batch._replace(terminated=jnp.ones(single.ROWS, bool), truncated=jnp.zeros(single.ROWS, bool))
    onward = ended._replace(terminated=jnp.zeros(single.ROWS, bool), next_obs=batch.reset_obs)
    assert loss(ended) == pytest.approx(loss(onward), rel=1e-6)
    assert loss(ended) != pytest.approx(loss(onward._replace(next_obs=batch.next_obs)), rel=1e-3)


def test_a_truncation_changes_nothing(single):
    agent = small(single)
    state, batch = single.begun(agent, False), single.rows(False, 1)
    either = (batch, batch._replace(truncated=~batch.truncated))
    told = [single.updated(agent, False, state, [each])[1] for each in either]
    assert told[0] == told[1]


def test_the_rows_hold_what_each_copy_begins_anew_with(tiny):
    made = tiny.made("asac", world=tiny.Clockwork(length=3, continuous=True))
    state, _, _ = tiny.train(made, 64)
    rows = tiny.host(state.train.seeds.store.rows)
    written = 64
    # The clockwork sees (steps since the reset, mark): a reset is step 0 with another mark.
    assert (rows["reset_obs"][:, :written, 0] == 0).all()
    ended = rows["terminated"][:, :written]
    assert 0.2 < ended.mean() < 0.5
    assert (rows["next_obs"][:, :written, 0][ended] == 3).all()
    following = rows["obs"][:, 2:written][ended[:, :-2]]
    np.testing.assert_array_equal(following, rows["reset_obs"][:, : written - 2][ended[:, :-2]])


def test_no_other_agent_keeps_the_column():
    keeps = [name for name in registry.names("agents") if acting.keeps_reset_obs(registry.resolve("agents", name)())]
    assert keeps == ["asac"]


def test_the_ladder_is_climbed_by_differences(ladder):
    trainer, seed = ladder.trained("asac", 1)
    low, high = ladder.valued(trainer, seed, [-1.0, 1.0], None)
    assert high - low == pytest.approx(2.0, abs=0.3)
    trainer, seed = ladder.trained("asac", 4)
    np.testing.assert_allclose(ladder.chosen(trainer, seed, [-1.0, 1.0]), [-0.5, 0.5], atol=0.25)
    # Reward 1 for ever: that is the rate, and the anchored value settles instead of growing.
    trainer, seed = ladder.trained("asac", ladder.TRUNCATED)
    assert float(seed.agent.memory.rate) == pytest.approx(1.0, abs=0.1)
    assert abs(float(ladder.valued(trainer, seed, [0.0], None)[0])) < 2.0


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"penalty_scale": -1.0}, {"average_rate": 2.0}])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ASAC(**wrong)
