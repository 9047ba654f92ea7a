"""Two updates of each agent, equal to the paper's equations written out in NumPy with gradients by hand."""

import jax
import numpy as np
import pytest
from scipy import special

from perdure.agents.dqn import DQN
from perdure.agents.ppo import PPO
from perdure.agents.sac import SAC
from perdure.rl.fold import Extensions
from perdure.rl.optim import Adam, RMSProp

# A generous epsilon, so that a gradient of rounding noise moves nothing.
ADAM = Adam(learning_rate=1e-2, epsilon=1e-3, clip_norm=0.5)
FREE = Adam(learning_rate=1e-2, epsilon=1e-3)


@pytest.mark.parametrize("discrete", [True, False])
def test_ppo_follows_its_equations(discrete, written, single):
    agent = PPO(hidden=single.HIDDEN, optimiser=ADAM, entropy_weight=0.02, value_weight=0.7)
    state = single.begun(agent, discrete)
    params = {
        name: written.copied(part) if isinstance(part, list) else np.array(part, np.float64)
        for name, part in state.params.items()
    }
    batches = [single.labelled(discrete, seed) for seed in (1, 2)]
    optimiser = written.Adam(1e-2, 1e-3, 0.5)
    for batch in batches:
        advantage = np.asarray(batch.aux.advantage, np.float64)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gradients, held = written.clipped_slopes(
            params, batch, advantage, clip=0.2, entropy_weight=0.02, value_weight=0.7
        )
        assert 0.05 < held < 0.9
        params = written.put(optimiser.step(params, gradients), params)
    found, _ = single.updated(agent, discrete, state, batches)
    single.close(written.flat(found.params), written.flat(params))
    single.close(written.flat(found.opt["policy"].mean), optimiser.first)


def test_ppo_labels_a_window_with_its_own_policy_and_values(written, single):
    agent = PPO(hidden=single.HIDDEN)
    state, batch = single.begun(agent, True), single.rows(True, 3)
    window = jax.tree.map(lambda x: x.reshape(8, 4, *x.shape[1:]), batch._replace(discount=None))
    _, labels, _ = agent.prepare(state, window, single.context(agent, True), Extensions())
    value = lambda obs: written.forward(written.copied(state.params["critic"]), np.asarray(obs, np.float64), "tanh")[0][
        ..., 0
    ]
    now, after = value(window.obs), value(window.next_obs)
    wanted, ahead = np.zeros((8, 4)), np.zeros(4)
    for t in reversed(range(8)):
        ends = np.asarray(window.terminated[t] | window.truncated[t])
        future = np.where(window.terminated[t], 0.0, 0.99 * after[t])
        ahead = np.asarray(window.reward[t]) + future - now[t] + np.where(ends, 0.0, 0.99 * 0.95 * ahead)
        wanted[t] = ahead
    np.testing.assert_allclose(labels.aux.advantage, wanted, atol=1e-5)
    np.testing.assert_allclose(labels.target, wanted + now, atol=1e-5)
    output = written.forward(written.copied(state.params["actor"]), np.asarray(window.obs, np.float64), "tanh")[0]
    log_all = output - special.logsumexp(output, axis=-1, keepdims=True)
    picked = np.take_along_axis(log_all, np.asarray(window.action)[..., None], -1)[..., 0]
    np.testing.assert_allclose(labels.aux.log_prob, picked, atol=1e-5)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("optimiser", [RMSProp(learning_rate=1e-2, decay=0.9, epsilon=1e-3), FREE])
def test_dqn_follows_its_equations(double, optimiser, written, single):
    agent = DQN(hidden=single.HIDDEN, optimiser=optimiser, discount=0.9, double=double, target_period=2)
    state = single.begun(agent, True)
    critic, slow = written.copied(state.params["critic"]), written.copied(state.slow["critic"])
    own = written.Adam(1e-2, 1e-3) if optimiser is FREE else written.CentredRMSProp(1e-2, 0.9, 1e-3)
    batches = [single.rows(True, seed) for seed in (1, 2)]
    at = np.arange(single.ROWS)
    for batch in batches:
        ahead, _ = written.forward(slow, np.asarray(batch.next_obs, np.float64), "relu")
        chooser = written.forward(critic, np.asarray(batch.next_obs, np.float64), "relu")[0] if double else ahead
        future = np.where(batch.terminated, 0.0, ahead[at, chooser.argmax(-1)])
        target = 5 * np.asarray(batch.reward) + 0.9 * future
        q, kept = written.forward(critic, np.asarray(batch.obs, np.float64), "relu")
        error = q[at, np.asarray(batch.action)] - target
        assert 0.1 < (np.abs(error) > 1).mean() < 0.9  # Both halves of the Huber loss are met.
        slope = np.zeros((single.ROWS, single.ACTIONS))
        slope[at, np.asarray(batch.action)] = np.clip(error, -1, 1) / single.ROWS
        gradients = {"critic": written.backward(critic, kept, slope)[0]}
        critic = written.put(own.step({"critic": critic}, gradients), {"critic": critic})["critic"]
    found, _ = single.updated(agent, True, state, [batch._replace(reward=5 * batch.reward) for batch in batches])
    single.close(written.flat(found.params["critic"]), written.flat(critic))
    single.close(written.flat(found.slow["critic"]), written.flat(critic))  # The second update renews it.


def test_dqn_keeps_its_slow_copy_between_renewals(written, single):
    agent = DQN(hidden=single.HIDDEN, target_period=3)
    state = single.begun(agent, True)
    found, _ = single.updated(agent, True, state, [single.rows(True, 1), single.rows(True, 2)])
    single.close(written.flat(found.slow), written.flat(state.slow))


def sac_step(agent, params, slow, own, batch, key, written, single):
    noises = [np.asarray(jax.random.normal(each, (single.ROWS, 2)), np.float64) for each in jax.random.split(key, 3)]
    obs, next_obs = np.asarray(batch.obs, np.float64), np.asarray(batch.next_obs, np.float64)
    temperature = np.exp(params["log_temperature"])

    after, log_prob, _ = written.squashed(params["actor"], next_obs, noises[0])
    ahead = written.q_values(slow, next_obs, after)[0].min(0) - temperature * log_prob
    target = np.asarray(batch.reward) + agent.discount * np.where(batch.terminated, 0.0, ahead)

    q, kept = written.q_values(params["critic"], obs, np.asarray(batch.action, np.float64))
    gradient = written.q_slopes(params["critic"], kept, (q - target) / single.ROWS)[0]
    critic = written.moved(own["critic"], {"c": params["critic"]}, {"c": gradient})["c"]

    gradient, _ = written.climb_slopes(params["actor"], critic, obs, noises[1], temperature, written.least)
    actor = written.moved(own["actor"], {"a": params["actor"]}, {"a": gradient})["a"]

    _, log_prob, _ = written.squashed(actor, obs, noises[2])
    slope = -log_prob.mean() - agent.target_entropy_per_dim * 2
    log_temperature = own["temperature"].step({"t": params["log_temperature"]}, {"t": slope})["t/"]
    slow = written.followed(slow, critic, agent.slow_rate)
    return {"actor": actor, "critic": critic, "log_temperature": log_temperature}, slow


def test_sac_follows_its_equations(written, single):
    agent = SAC(
        hidden=single.HIDDEN, actor_optimiser=FREE, critic_optimiser=FREE, temperature_optimiser=FREE,
        temperature=0.3, discount=0.9, slow_rate=0.1, target_entropy_per_dim=-0.7,
    )  # fmt: skip
    state = single.begun(agent, False)
    params = {
        "actor": written.copied(state.params["actor"]),
        "critic": written.copied(state.params["critic"]),
        "log_temperature": np.float64(state.params["log_temperature"]),
    }
    slow = written.copied(state.slow["critic"])
    own = {name: written.Adam(1e-2, 1e-3) for name in ("actor", "critic", "temperature")}
    batches = [single.rows(False, seed) for seed in (1, 2)]
    for number, batch in enumerate(batches):
        params, slow = sac_step(
            agent, params, slow, own, batch, single.context(agent, False, number).key, written, single
        )
    found, _ = single.updated(agent, False, state, batches)
    single.close(written.flat(found.params), written.flat(params))
    single.close(written.flat(found.slow["critic"]), written.flat(slow))


def test_sac_never_moves_its_critics_by_the_actor_loss(written, single):
    agent = SAC(hidden=single.HIDDEN, critic_optimiser=Adam(learning_rate=1e-12))
    state = single.begun(agent, False)
    found, _ = single.updated(agent, False, state, [single.rows(False, 1)])
    single.close(written.flat(found.params["critic"]), written.flat(state.params["critic"]))
    assert any(
        np.abs(a - b).max() > 1e-5
        for a, b in zip(jax.tree.leaves(found.params["actor"]), jax.tree.leaves(state.params["actor"]), strict=True)
    )
