import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.component import component
from perdure.core.errors import ConfigError, Refused
from perdure.core.extension import Extension
from perdure.core.records import Shift
from perdure.extensions.injection import Injected, PlasticityInjection
from perdure.extensions.resets import ReDo
from perdure.rl import fit
from perdure.rl.nets import Network
from perdure.rl.optim import Adam, OptState
from perdure.rl.phases import Clock, Context

X = jnp.array([[1.0, -2.0], [0.5, 3.0]])
NETWORKS = {
    "plain": Network(2, (5, 10), 2),
    "ensemble": Network(2, (5, 10), 2, members=3),
    "crelu": Network(2, (5, 10), 2, activation="crelu", initialiser="torch"),
    "deep": Network(2, (5, 10, 7), 2, activation="tanh", bounded=True, dueling=True),
    "no encoder": Network(2, (10,), 2, initialiser="torch"),
}
HEADS = {"deep": 3}


def context(network, before=0, now=0, shift=False, seed=3):
    clock = lambda updates: Clock(jnp.int32(0), jnp.int32(updates), jnp.int32(1_000))
    nets = {"critic": network}
    return Context(None, nets, 1, clock(now), jax.random.key(seed), shift=jnp.array(shift), previous=clock(before))


def begun(extension, network):
    """The state of an agent of one network and a slow copy, and of the extension, before the first update."""
    params = {"critic": network.init(jax.random.key(0))}
    ones = jax.tree.map(jnp.ones_like, params)
    agent = fit.AgentState(params, {"critic": OptState(jnp.int32(5), ones, ones)}, dict(params))
    ctx = context(network)
    return extension.pretrain(agent, extension.init_state(agent, jax.random.key(1), ctx), ctx)


def injected(extension, network, agent, state, number=1):
    return extension.post_update(agent, state, context(network, 10 * number - 1, 10 * number, seed=number))


def relu(x):
    return np.maximum(x, 0.0)


def numbers(layers):
    return [{kind: np.asarray(value, np.float64) for kind, value in layer.items()} for layer in layers]


@pytest.mark.parametrize("name", NETWORKS)
def test_it_begins_as_the_network_of_the_first_head_alone(name):
    network, extension = NETWORKS[name], PlasticityInjection(interval=10, head=HEADS.get(name, 2))
    agent, _ = begun(extension, network)
    # Of 10 units each fresh head and each copy has 3, the first head 4; of 7 they have 2, 2 and 3.
    hidden = {10: 4, 7: 3}
    small = dataclasses.replace(network, hidden=tuple(hidden.get(width, width) for width in network.hidden))
    alone = small.init(jax.random.fold_in(context(network).key, 0))
    np.testing.assert_allclose(network.apply(agent.params["critic"], X), small.apply(alone, X), rtol=1e-6)
    np.testing.assert_array_equal(agent.slow["critic"][0]["w"], agent.params["critic"][0]["w"])


@pytest.mark.parametrize("name", NETWORKS)
def test_no_prediction_changes_at_any_injection(name):
    network, extension = NETWORKS[name], PlasticityInjection(interval=10, injections=2, head=HEADS.get(name, 2))
    agent, state = begun(extension, network)
    # The slow copy lags: it must stay where it is, and not where the network is.
    slow = jax.tree.map(lambda x: 0.5 * x, agent.slow)
    agent = agent._replace(slow=slow)
    for number in (1, 2):
        after, state = injected(extension, network, agent, state, number)
        for old, new in ((agent.params, after.params), (agent.slow, after.slow)):
            np.testing.assert_allclose(network.apply(new["critic"], X), network.apply(old["critic"], X), atol=2e-6)
            assert any((x != y).any() for x, y in zip(*map(jax.tree.leaves, (old, new)), strict=True))
        agent = after
    assert int(state.number) == 2
    last, state = injected(extension, network, agent, state, 3)
    assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), last, agent))
    assert int(state.number) == 2


def test_the_output_is_the_old_head_and_the_fresh_one_less_its_copy():
    network, extension = Network(2, (2, 3), 1), PlasticityInjection(interval=10)
    agent, state = begun(extension, network)
    encoder = {"w": jnp.array([[1.0, 0.0], [0.0, -1.0]]), "b": jnp.zeros(2)}
    first = agent.params["critic"]
    hidden = {"w": first[1]["w"].at[:, 0].set(jnp.array([2.0, 1.0])), "b": jnp.array([0.5, 0.0, 0.0])}
    last = {"w": jnp.array([[3.0], [0.0], [0.0]]), "b": jnp.array([0.25])}
    agent = agent._replace(params={"critic": [encoder, hidden, last]})
    # e(x) of (1, -2) is (1, 2): the unit is 2 * 1 + 1 * 2 + 0.5 = 4.5, the output 3 * 4.5 + 0.25.
    assert float(network.apply(agent.params["critic"], X[:1])[0, 0]) == 13.75
    agent, state = injected(extension, network, agent, state)
    layers = numbers(agent.params["critic"])
    np.testing.assert_array_equal(layers[1]["w"][:, 1], layers[1]["w"][:, 2])
    np.testing.assert_array_equal(layers[2]["w"][1], -layers[2]["w"][2])
    assert abs(layers[2]["w"][1]) > 0
    np.testing.assert_allclose(network.apply(agent.params["critic"], X[:1])[0, 0], 13.75, rtol=1e-6)
    # One step of the fresh head alone: its weight to the output grows by 1.
    moved = [encoder, agent.params["critic"][1], {"w": agent.params["critic"][2]["w"].at[1].add(1.0), "b": last["b"]}]
    unit = relu(np.array([1.0, 2.0]) @ layers[1]["w"][:, 1] + layers[1]["b"][1])
    np.testing.assert_allclose(network.apply(moved, X[:1])[0, 0], 13.75 + unit, rtol=1e-6)


@pytest.mark.parametrize(("number", "live"), [(0, slice(0, 4)), (1, slice(4, 7))])
@pytest.mark.parametrize("phase", ["gradient", "step"])
def test_one_head_learns_with_the_encoder(phase, number, live):
    network = Network(2, (5, 10), 2, members=2)
    extension = PlasticityInjection()
    ones = jax.tree.map(jnp.ones_like, network.init(jax.random.key(0)))
    tree = {"critic": ones, "log_std": jnp.ones(1)}
    found = getattr(extension, phase)(None, Injected(jnp.int32(number)), tree, None, context(network))
    learns = np.zeros(10)
    learns[live] = 1.0
    np.testing.assert_array_equal(found["critic"][0]["w"], 1.0)
    np.testing.assert_array_equal(found["critic"][1]["w"], np.broadcast_to(learns, (2, 5, 10)))
    np.testing.assert_array_equal(found["critic"][1]["b"], np.broadcast_to(learns, (2, 10)))
    np.testing.assert_array_equal(found["critic"][2]["w"], np.broadcast_to(learns[:, None], (2, 10, 2)))
    np.testing.assert_array_equal(found["critic"][2]["b"], 1.0)
    np.testing.assert_array_equal(found["log_std"], 1.0)


def test_heads_never_lead_into_each_other():
    network = Network(2, (5, 10, 7), 2, activation="crelu")
    extension = PlasticityInjection(head=3)
    ones = {"critic": jax.tree.map(jnp.ones_like, network.init(jax.random.key(0)))}
    found = extension.gradient(None, Injected(jnp.int32(1)), ones, None, context(network))["critic"]
    # After crelu the next layer reads all positive parts and then all negative ones.
    rows = np.concatenate([np.arange(4, 7), 10 + np.arange(4, 7)])
    expected = np.zeros((20, 7))
    expected[rows[:, None], np.arange(3, 5)] = 1.0
    np.testing.assert_array_equal(found[2]["w"], expected)


def test_the_fresh_head_has_no_moments_and_the_rest_keeps_its_own():
    network, extension = NETWORKS["plain"], PlasticityInjection(interval=10)
    agent, state = begun(extension, network)
    agent, _ = injected(extension, network, agent, state)
    moments = agent.opt["critic"].square["critic"]
    fresh = np.ones(10)
    fresh[4:7] = 0.0
    np.testing.assert_array_equal(moments[0]["w"], 1.0)
    np.testing.assert_array_equal(moments[1]["w"], np.broadcast_to(fresh, (5, 10)))
    np.testing.assert_array_equal(moments[2]["w"], np.broadcast_to(fresh[:, None], (10, 2)))
    np.testing.assert_array_equal(moments[2]["b"], 0.0)


def test_a_head_that_has_died_learns_again_after_the_injection():
    network, extension = Network(2, (6, 12), 1), PlasticityInjection(interval=10)
    agent, state = begun(extension, network)
    layers = agent.params["critic"]
    dead = [layers[0], layers[1] | {"b": layers[1]["b"].at[:4].set(-100.0)}, layers[2]]
    agent = agent._replace(params={"critic": dead})
    goal = jnp.array([[1.0], [-1.0]])

    def loss(params):
        return jnp.square(network.apply(params["critic"], X) - goal).mean()

    def learned(agent, state, updates=300):
        optimiser, ctx = Adam(learning_rate=1e-2), context(network)
        params, opt = {"critic": agent.params["critic"]}, optimiser.init({"critic": agent.params["critic"]})
        frozen = params["critic"][1]["w"]

        @jax.jit
        def update(params, opt):
            grads = extension.gradient(agent, state, jax.grad(loss)(params), None, ctx)
            new, opt = optimiser.step(params, opt, grads)
            change = extension.step(agent, state, jax.tree.map(jnp.subtract, new, params), None, ctx)
            return jax.tree.map(jnp.add, params, change), opt

        for _ in range(updates):
            params, opt = update(params, opt)
        return float(loss(params)), frozen, params["critic"][1]["w"]

    # Dead units leave the constant 0, the best of which is an error of 1.
    worn, _, _ = learned(agent, state)
    assert worn == pytest.approx(1.0, abs=1e-3)
    agent, state = injected(extension, network, agent, state)
    fresh, before, after = learned(agent, state)
    assert fresh < 0.01
    np.testing.assert_array_equal(after[:, :4], before[:, :4])
    np.testing.assert_array_equal(after[:, 8:], before[:, 8:])
    assert (after[:, 4:8] != before[:, 4:8]).any()


def test_the_gradient_of_the_fresh_head_is_that_of_a_new_network():
    network, extension = Network(2, (6, 12), 1), PlasticityInjection(interval=10)
    agent, state = begun(extension, network)
    agent, state = injected(extension, network, agent, state)
    slope = jax.grad(lambda params: network.apply(params, X).sum())(agent.params["critic"])
    small, layers = Network(2, (6, 4), 1), agent.params["critic"]
    fresh = [
        layers[0],
        {"w": layers[1]["w"][:, 4:8], "b": layers[1]["b"][4:8]},
        {"w": layers[2]["w"][4:8], "b": jnp.zeros(1)},
    ]
    expected = jax.grad(lambda params: small.apply(params, X).sum())(fresh)
    np.testing.assert_allclose(slope[1]["w"][:, 4:8], expected[1]["w"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slope[2]["w"][4:8], expected[2]["w"], rtol=1e-5, atol=1e-6)
    # Drawn as such a network is: an orthogonal matrix of 6 by 4, times the square root of 2.
    product = np.asarray(fresh[1]["w"]).T @ np.asarray(fresh[1]["w"])
    np.testing.assert_allclose(product, 2.0 * np.eye(4), atol=1e-5)


@pytest.mark.parametrize(("before", "now", "due"), [(0, 9, False), (9, 10, True), (4, 44, True), (10, 19, False)])
def test_it_acts_when_its_interval_is_crossed(before, now, due):
    network, extension = NETWORKS["plain"], PlasticityInjection(interval=10)
    agent, state = begun(extension, network)
    _, state = extension.post_update(agent, state, context(network, before, now))
    assert int(state.number) == due
    metrics = extension.eval_metrics(agent, state, context(network))
    assert {name: float(value) for name, value in metrics.items()} == {"plasticity_injection/injections": float(due)}


@pytest.mark.parametrize(
    ("networks", "held"), [("all", {"actor", "critic"}), ("actor", {"actor"}), ("critic", {"critic"})]
)
def test_the_networks_that_are_injected(networks, held):
    network = Network(2, (2, 3), 1)
    ctx = context(network)._replace(nets={"actor": network, "critic": network})
    ones = jax.tree.map(jnp.ones_like, {name: network.init(jax.random.key(0)) for name in ctx.nets})
    found = PlasticityInjection(networks=networks).gradient(None, Injected(jnp.int32(0)), ones, None, ctx)
    assert {name for name in ones if float(found[name][1]["w"].sum()) == 2.0} == held
    assert {name for name in ones if float(found[name][1]["w"].sum()) == 6.0} == ones.keys() - held


def test_the_head_of_before_a_told_shift_stays_in_training(tiny):
    extension = PlasticityInjection(trigger="shift", networks="actor")
    made = tiny.made("ppo", (extension,), rollout={"boundary_source": "oracle"}, hidden=(8, 12))
    plan = tiny.schedule((96, 1.0), (904, 1.0), source="oracle")
    held = lambda state, name: np.asarray(state.train.seeds.agent.params[name][1]["w"])
    state, _, _ = tiny.train(made, 96, plan)
    assert (held(state, "actor")[:, :, 4:] == 0).all()
    assert (held(state, "critic")[:, :, 4:] != 0).all()
    state = made.on_regime_shift(state, Shift("s0", "s0", "s1", "s1", 96, "oracle"))
    state, _, _ = tiny.train(made, 32, plan, state)
    before = held(state, "actor")
    state, _, _ = tiny.train(made, 32, plan, state)
    after = held(state, "actor")
    np.testing.assert_array_equal(after[:, :, :4], before[:, :, :4])
    np.testing.assert_array_equal(after[:, :, 8:], before[:, :, 8:])
    assert (after[:, :, 4:8] != before[:, :, 4:8]).any()
    assert (np.asarray(state.train.seeds.extensions.states[0].number) == 1).all()


@component
class Kicks(Extension):
    """Moves every weight."""

    def step(self, agent_state, state, change, batch, ctx):
        return change


@component
class Taught(Extension):
    """Trains before the run."""

    def pretrain(self, agent_state, state, ctx):
        return agent_state, state


@pytest.mark.parametrize(
    ("agent", "extensions", "kwargs", "says"),
    [
        ("pqn", (PlasticityInjection(),), {}, "layer_norm standardises its units together; set layer_norm: false"),
        ("avg", (PlasticityInjection(),), {}, "its features are scaled to length 1"),
        ("sac", (PlasticityInjection(head=4),), {}, "head 4, but the actor has 3 dense layers"),
        ("sac", (PlasticityInjection(injections=4),), {}, "lays 9 heads side by side, .* a layer of 8 units"),
        ("dqn", (PlasticityInjection(networks="actor"),), {}, "needs actor"),
        ("ppo", (PlasticityInjection(trigger="shift"),), {}, "needs boundary"),
        ("ppo", (PlasticityInjection(), ReDo()), {}, "freezes weights that ReDo writes"),
        ("ppo", (PlasticityInjection(), Taught()), {}, "when Taught trains them too"),
        ("ppo", (PlasticityInjection(), Kicks()), {}, "list it after Kicks"),
    ],
)
def test_what_it_cannot_work_with_is_refused_with_the_reason(agent, extensions, kwargs, says, tiny):
    with pytest.raises(Refused, match=rf"extensions\[0\] \(PlasticityInjection\) .*{says}"):
        tiny.made(agent, extensions, **kwargs)


def test_one_that_moves_weights_may_come_first(tiny):
    assert tiny.made("ppo", (Kicks(), PlasticityInjection()))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"trigger": "never"}, "trigger is 'never'"),
        ({"interval": 0}, "interval is 0"),
        ({"injections": 0}, "injections is 0"),
        ({"head": 1}, "head is 1; give at least 2 layers"),
        ({"networks": "both"}, "networks is 'both'"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, says):
    with pytest.raises(ConfigError, match=says):
        PlasticityInjection(**wrong)
