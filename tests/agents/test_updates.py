"""Two updates of each agent, equal to the paper's equations written out in NumPy with gradients by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from perdure.agents.dqn import DQN
from perdure.agents.ppo import PPO
from perdure.agents.sac import SAC
from perdure.core.records import Spec
from perdure.rl import clipped
from perdure.rl.optim import Adam, RMSProp
from perdure.rl.phases import Batch, Clock, Context, Extensions

ROWS, SEES, ACTIONS = 32, 3, 4
HIDDEN = (6, 5)
# A generous epsilon, so that a gradient of rounding noise moves nothing.
ADAM = Adam(learning_rate=1e-2, epsilon=1e-3, clip_norm=0.5)
FREE = Adam(learning_rate=1e-2, epsilon=1e-3)


def spec(discrete):
    return Spec((SEES,), ACTIONS if discrete else 2, discrete, *(() if discrete else ((-1.0,) * 2, (1.0,) * 2)))


def context(agent, discrete, updates=0):
    clock = Clock(jnp.int32(7), jnp.int32(updates), jnp.int32(1_000))
    key = jax.random.key(100 + updates)
    return Context(spec(discrete), agent.networks(spec(discrete)), 1, clock, key)


def rows(discrete, seed):
    random = np.random.default_rng(seed)
    action = random.integers(ACTIONS, size=ROWS) if discrete else random.uniform(-1, 1, size=(ROWS, 2))
    single = lambda x: jnp.asarray(x, jnp.float32)
    return Batch(
        single(random.normal(size=(ROWS, SEES))),
        jnp.asarray(action, jnp.int32 if discrete else jnp.float32),
        single(random.normal(size=ROWS)),
        jnp.asarray(random.random(ROWS) < 0.2),
        jnp.asarray(random.random(ROWS) < 0.2),
        single(random.normal(size=(ROWS, SEES))),
        discount=0.9,
    )


def begun(agent, discrete):
    """A fresh state whose parameters, the slow ones too, are all moved off their symmetric start."""
    state = agent.init(jax.random.key(0), context(agent, discrete))
    noise = np.random.default_rng(5)
    shaken = lambda tree: jax.tree.map(lambda x: x + jnp.asarray(0.1 * noise.normal(size=x.shape), x.dtype), tree)
    return state._replace(params=shaken(state.params), slow=shaken(state.slow))


def updated(agent, discrete, state, batches):
    update = jax.jit(
        lambda state, batch, ctx_key, updates: agent.update(
            state, batch, _moment(agent, discrete, ctx_key, updates), Extensions()
        )
    )
    metrics = []
    for number, batch in enumerate(batches):
        ctx = context(agent, discrete, number)
        state, told = update(state, batch._replace(discount=None), ctx.key, ctx.clock.updates)
        metrics.append({name: float(value) for name, value in told.items()})
    return state, metrics


def _moment(agent, discrete, key, updates):
    ctx = context(agent, discrete)
    return ctx._replace(key=key, clock=ctx.clock._replace(updates=updates))


def close(found, wanted):
    assert found.keys() == wanted.keys()
    for path, leaf in wanted.items():
        np.testing.assert_allclose(found[path], leaf, rtol=1e-5, atol=1e-5, err_msg=path)


def labelled(discrete, seed):
    random = np.random.default_rng(seed + 50)
    single = lambda x: jnp.asarray(x, jnp.float32)
    # Close enough to the present policy that some ratios are clipped, above and below, and some are not.
    then = np.log(1 / ACTIONS) if discrete else -2.5
    labels = clipped.Labels(single(then + 0.4 * random.normal(size=ROWS)), single(random.normal(size=ROWS)))
    return rows(discrete, seed)._replace(aux=labels, target=single(random.normal(size=ROWS)))


def ppo_slopes(agent, params, batch, written):
    """Gradients of PPO's loss, and the share of ratios that the clip holds back."""
    discrete = "log_std" not in params
    then, advantage = (np.asarray(x, np.float64) for x in batch.aux)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    obs, action = np.asarray(batch.obs, np.float64), np.asarray(batch.action)
    output, kept = written.forward(params["actor"], obs, "tanh")
    if discrete:
        log_all = output - special.logsumexp(output, axis=-1, keepdims=True)
        chance = np.exp(log_all)
        log_prob = log_all[np.arange(ROWS), action]
        d_log_prob = np.eye(ACTIONS)[action] - chance
        entropy = -(chance * log_all).sum(-1)
        d_entropy = -chance * (log_all + entropy[:, None])
    else:
        std = np.exp(params["log_std"])
        log_prob = stats.norm.logpdf(action, output, std).sum(-1)
        d_log_prob = (action - output) / std**2
        d_log_std = (action - output) ** 2 / std**2 - 1
    ratio = np.exp(log_prob - then)
    held = ((ratio > 1 + agent.clip) & (advantage > 0)) | ((ratio < 1 - agent.clip) & (advantage < 0))
    push = np.where(held, 0.0, -ratio * advantage) / ROWS
    slope = push[:, None] * d_log_prob
    if discrete:
        slope = slope - agent.entropy_weight * d_entropy / ROWS
    value, value_kept = written.forward(params["critic"], obs, "tanh")
    error = (value[:, 0] - np.asarray(batch.target)) / ROWS
    gradients = {
        "actor": written.backward(params["actor"], kept, slope, "tanh")[0],
        "critic": written.backward(params["critic"], value_kept, agent.value_weight * error[:, None], "tanh")[0],
    }
    if not discrete:
        gradients["log_std"] = (push[:, None] * d_log_std).sum(0) - agent.entropy_weight * np.ones(2)
    return gradients, held.mean()


@pytest.mark.parametrize("discrete", [True, False])
def test_ppo_follows_its_equations(discrete, written):
    agent = PPO(hidden=HIDDEN, optimiser=ADAM, entropy_weight=0.02, value_weight=0.7)
    state = begun(agent, discrete)
    params = {
        name: written.copied(part) if isinstance(part, list) else np.array(part, np.float64)
        for name, part in state.params.items()
    }
    batches = [labelled(discrete, seed) for seed in (1, 2)]
    optimiser = written.Adam(1e-2, 1e-3, 0.5)
    for batch in batches:
        gradients, held = ppo_slopes(agent, params, batch, written)
        assert 0.05 < held < 0.9
        params = written.put(optimiser.step(params, gradients), params)
    found, _ = updated(agent, discrete, state, batches)
    close(written.flat(found.params), written.flat(params))
    close(written.flat(found.opt["policy"].mean), optimiser.first)


def test_ppo_labels_a_window_with_its_own_policy_and_values(written):
    agent = PPO(hidden=HIDDEN)
    state, batch = begun(agent, True), rows(True, 3)
    window = jax.tree.map(lambda x: x.reshape(8, 4, *x.shape[1:]), batch._replace(discount=None))
    _, labels, _ = agent.prepare(state, window, context(agent, True), Extensions())
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
def test_dqn_follows_its_equations(double, optimiser, written):
    agent = DQN(hidden=HIDDEN, optimiser=optimiser, discount=0.9, double=double, target_period=2)
    state = begun(agent, True)
    critic, slow = written.copied(state.params["critic"]), written.copied(state.slow["critic"])
    own = written.Adam(1e-2, 1e-3) if optimiser is FREE else written.CentredRMSProp(1e-2, 0.9, 1e-3)
    batches = [rows(True, seed) for seed in (1, 2)]
    at = np.arange(ROWS)
    for batch in batches:
        ahead, _ = written.forward(slow, np.asarray(batch.next_obs, np.float64), "relu")
        chooser = written.forward(critic, np.asarray(batch.next_obs, np.float64), "relu")[0] if double else ahead
        future = np.where(batch.terminated, 0.0, ahead[at, chooser.argmax(-1)])
        target = 5 * np.asarray(batch.reward) + 0.9 * future
        q, kept = written.forward(critic, np.asarray(batch.obs, np.float64), "relu")
        error = q[at, np.asarray(batch.action)] - target
        assert 0.1 < (np.abs(error) > 1).mean() < 0.9  # Both halves of the Huber loss are met.
        slope = np.zeros((ROWS, ACTIONS))
        slope[at, np.asarray(batch.action)] = np.clip(error, -1, 1) / ROWS
        gradients = {"critic": written.backward(critic, kept, slope, "relu")[0]}
        critic = written.put(own.step({"critic": critic}, gradients), {"critic": critic})["critic"]
    found, _ = updated(agent, True, state, [batch._replace(reward=5 * batch.reward) for batch in batches])
    close(written.flat(found.params["critic"]), written.flat(critic))
    close(written.flat(found.slow["critic"]), written.flat(critic))  # The second update renews it.


def test_dqn_keeps_its_slow_copy_between_renewals(written):
    agent = DQN(hidden=HIDDEN, target_period=3)
    state = begun(agent, True)
    found, _ = updated(agent, True, state, [rows(True, 1), rows(True, 2)])
    close(written.flat(found.slow), written.flat(state.slow))


def squashed(layers, obs, noise, written):
    """Actions, their log-probabilities and what the gradient needs."""
    packed, kept = written.forward(layers, obs, "relu")
    mean, raw_log_std = packed[:, :2], packed[:, 2:]
    log_std = np.clip(raw_log_std, -20, 2)
    raw = mean + np.exp(log_std) * noise
    action = np.tanh(raw)
    log_prob = (stats.norm.logpdf(raw, mean, np.exp(log_std)) - np.log1p(-(action**2))).sum(-1)
    return action, log_prob, (kept, log_std, noise, action, raw_log_std == log_std)


def member(ensemble, number):
    return [{name: leaf[number] for name, leaf in layer.items()} for layer in ensemble]


def sac_step(agent, params, slow, own, batch, key, written):
    noises = [np.asarray(jax.random.normal(each, (ROWS, 2)), np.float64) for each in jax.random.split(key, 3)]
    obs, next_obs = np.asarray(batch.obs, np.float64), np.asarray(batch.next_obs, np.float64)
    temperature = np.exp(params["log_temperature"])

    after, log_prob, _ = squashed(params["actor"], next_obs, noises[0], written)
    pair = np.concatenate([next_obs, after], -1)
    ahead = np.min([written.forward(member(slow, n), pair, "relu")[0][:, 0] for n in range(2)], axis=0)
    future = np.where(batch.terminated, 0.0, ahead - temperature * log_prob)
    target = np.asarray(batch.reward) + agent.discount * future

    pair, gradients = np.concatenate([obs, np.asarray(batch.action, np.float64)], -1), []
    for n in range(2):
        q, kept = written.forward(member(params["critic"], n), pair, "relu")
        gradients.append(written.backward(member(params["critic"], n), kept, (q - target[:, None]) / ROWS, "relu")[0])
    stacked = [{name: np.stack([g[i][name] for g in gradients]) for name in ("w", "b")} for i in range(3)]
    critic = written.put(own["critic"].step({"c": params["critic"]}, {"c": stacked}), {"c": params["critic"]})["c"]

    action, log_prob, (kept, log_std, noise, _, free) = squashed(params["actor"], obs, noises[1], written)
    pair = np.concatenate([obs, action], -1)
    values = [written.forward(member(critic, n), pair, "relu") for n in range(2)]
    lowest = np.argmin([q[:, 0] for q, _ in values], axis=0)
    d_action = np.zeros_like(action)
    for n in range(2):
        slope = np.where(lowest == n, -1.0 / ROWS, 0.0)[:, None]
        d_action += written.backward(member(critic, n), values[n][1], slope, "relu")[1][:, SEES:]
    d_raw = temperature * 2 * action / ROWS + d_action * (1 - action**2)
    d_log_std = np.where(free, d_raw * np.exp(log_std) * noise - temperature / ROWS, 0.0)
    slope = np.concatenate([d_raw, d_log_std], -1)
    gradient = written.backward(params["actor"], kept, slope, "relu")[0]
    actor = written.put(own["actor"].step({"a": params["actor"]}, {"a": gradient}), {"a": params["actor"]})["a"]

    _, log_prob, _ = squashed(actor, obs, noises[2], written)
    slope = -log_prob.mean() - agent.target_entropy_per_dim * 2
    log_temperature = own["temperature"].step({"t": params["log_temperature"]}, {"t": slope})["t/"]
    slow = written.put(
        {path: old + agent.slow_rate * (written.flat(critic)[path] - old) for path, old in written.flat(slow).items()},
        slow,
    )
    return {"actor": actor, "critic": critic, "log_temperature": log_temperature}, slow


def test_sac_follows_its_equations(written):
    agent = SAC(
        hidden=HIDDEN, actor_optimiser=FREE, critic_optimiser=FREE, temperature_optimiser=FREE,
        temperature=0.3, discount=0.9, slow_rate=0.1, target_entropy_per_dim=-0.7,
    )  # fmt: skip
    state = begun(agent, False)
    params = {
        "actor": written.copied(state.params["actor"]),
        "critic": written.copied(state.params["critic"]),
        "log_temperature": np.float64(state.params["log_temperature"]),
    }
    slow = written.copied(state.slow["critic"])
    own = {name: written.Adam(1e-2, 1e-3) for name in ("actor", "critic", "temperature")}
    batches = [rows(False, seed) for seed in (1, 2)]
    for number, batch in enumerate(batches):
        params, slow = sac_step(agent, params, slow, own, batch, context(agent, False, number).key, written)
    found, _ = updated(agent, False, state, batches)
    close(written.flat(found.params), written.flat(params))
    close(written.flat(found.slow["critic"]), written.flat(slow))


def test_sac_never_moves_its_critics_by_the_actor_loss(written):
    agent = SAC(hidden=HIDDEN, critic_optimiser=Adam(learning_rate=1e-12))
    state = begun(agent, False)
    found, _ = updated(agent, False, state, [rows(False, 1)])
    close(written.flat(found.params["critic"]), written.flat(state.params["critic"]))
    assert any(
        np.abs(a - b).max() > 1e-5
        for a, b in zip(jax.tree.leaves(found.params["actor"]), jax.tree.leaves(state.params["actor"]), strict=True)
    )
