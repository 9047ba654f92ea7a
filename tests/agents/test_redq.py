"""REDQ: its equations, and an actor that moves once in as many critic updates as are asked for."""

import jax
import numpy as np
import pytest

from perdure.agents.redq import REDQ
from perdure.core.component import make
from perdure.core.errors import ConfigError


def numpy_update(agent, params, slow, own, batch, key, moves_actor, goal, written):
    """One update in double precision: parameters and slow critics after it."""
    rows = len(batch.reward)
    next_key, subset_key, actor_key, temperature_key = jax.random.split(key, 4)
    noise = lambda key: np.asarray(jax.random.normal(key, batch.action.shape), np.float64)
    obs, next_obs = np.asarray(batch.obs, np.float64), np.asarray(batch.next_obs, np.float64)
    few = np.argsort(-np.asarray(jax.random.uniform(subset_key, (3,))))[:2]
    after, log_prob, _ = written.squashed(params["actor"], next_obs, noise(next_key))
    ahead = written.q_values(slow, next_obs, after)[0][few].min(0) - np.exp(params["log_temperature"]) * log_prob
    target = np.asarray(batch.reward) + 0.9 * np.where(batch.terminated, 0.0, ahead)

    q, kept = written.q_values(params["critic"], obs, np.asarray(batch.action, np.float64))
    gradient = written.q_slopes(params["critic"], kept, 2 * (q - target) / rows)[0]
    before = params["critic"]
    params = {**params, "critic": written.moved(own["critic"], {"c": before}, {"c": gradient})["c"]}
    if moves_actor:
        climbed = params["critic"] if agent.actor_reads == "updated" else before
        temperature, average = np.exp(params["log_temperature"]), lambda q_NB: np.full(q_NB.shape, 1 / len(q_NB))
        gradient, _ = written.climb_slopes(params["actor"], climbed, obs, noise(actor_key), temperature, average)
        params["actor"] = written.moved(own["actor"], {"a": params["actor"]}, {"a": gradient})["a"]
        _, log_prob, _ = written.squashed(params["actor"], obs, noise(temperature_key))
        slope = {"t": -log_prob.mean() - goal}
        params["log_temperature"] = own["temperature"].step({"t": params["log_temperature"]}, slope)["t/"]
    return params, written.followed(slow, params["critic"], agent.slow_rate)


@pytest.mark.parametrize(("reads", "entropy", "goal"), [("updated", "ant", -4.0), ("previous", -0.7, -0.7)])
def test_three_updates_follow_the_equations(reads, entropy, goal, written, single):
    agent = REDQ(
        hidden=single.HIDDEN, actor_optimiser=single.FREE, critic_optimiser=single.FREE,
        temperature_optimiser=single.FREE, temperature=0.3, discount=0.9, slow_rate=0.1,
        critics=3, subset=2, critic_updates=2, actor_reads=reads, target_entropy=entropy,
    )  # fmt: skip
    state = single.begun(agent, False)
    params, slow = written.precise(state.params), written.copied(state.slow["critic"])
    own = {name: written.Adam(1e-2, 1e-3) for name in ("actor", "critic", "temperature")}
    batches = [single.rows(False, seed) for seed in range(3)]
    for number, batch in enumerate(batches):
        key = single.context(agent, False, number).key
        params, slow = numpy_update(agent, params, slow, own, batch, key, number == 1, goal, written)
    found, metrics = single.updated(agent, False, state, batches)
    single.close(written.flat(found.params), written.flat(params))
    single.close(written.flat(found.slow["critic"]), written.flat(slow))
    assert [told["temperature/value"] is None for told in metrics] == [True, False, True]


def test_the_subset_changes_from_update_to_update(single):
    drawn = {
        tuple(
            np.argsort(-np.asarray(jax.random.uniform(jax.random.split(jax.random.key(n), 4)[1], (10,))))[:2].tolist()
        )
        for n in range(40)
    }
    assert len({number for pair in drawn for number in pair}) == 10


def test_a_step_brings_twenty_critic_updates_and_one_of_the_actor(tiny):
    made = tiny.made("redq", rollout={"n_envs": 1}, feed_ratio=20.0, critic_updates=20, feed_learning_starts=30)
    state, _, _ = tiny.train(made, 32)
    agent = state.train.seeds.agent
    assert int(state.train.clock.updates) == 40
    np.testing.assert_array_equal(agent.opt["critic"].count, [40, 40])
    np.testing.assert_array_equal(agent.opt["actor"].count, [2, 2])
    np.testing.assert_array_equal(agent.opt["temperature"].count, [2, 2])


@pytest.mark.parametrize("wrong", [{"subset": 11}, {"subset": 0}, {"critics": 0}, {"critic_updates": 0}])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        REDQ(**wrong)


def test_a_body_that_is_not_in_the_table_is_refused():
    with pytest.raises(ConfigError, match=r"target_entropy"):
        make(REDQ, {"target_entropy": "hoper"}, "algorithm.kwargs")
