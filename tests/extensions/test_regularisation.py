import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.errors import ConfigError
from perdure.extensions.regularisation import L2Init, ParsevalPenalty, SpectralPenalty, WassersteinInit
from perdure.rl import fit
from perdure.rl.nets import Network
from perdure.rl.optim import Adam
from perdure.rl.phases import Batch, Clock, Context

NOTHING = Batch(*[None] * 6)


def layers(*numbers):
    return [{"w": jnp.full((1, 1), number), "b": jnp.full(1, number / 2)} for number in numbers]


def begun(extension, params):
    ctx = Context(None, {"actor": None, "critic": None}, 1, Clock(*[jnp.int32(0)] * 3))
    state = fit.AgentState(params, {})
    return extension.init_state(state, jax.random.key(0), ctx), ctx


def test_the_penalty_is_the_squared_distance_from_the_start():
    start = {"actor": layers(1.0), "critic": layers(2.0, 0.0), "log_std": jnp.zeros(1)}
    extension = L2Init(strength=0.1)
    state, ctx = begun(extension, start)
    moved = {"actor": layers(3.0), "critic": layers(2.0, 4.0), "log_std": jnp.full(1, 9.0)}
    batch = NOTHING._replace(params=moved)
    # Weights move by 2 and biases by 1; 4 and 2. What is no network (log_std) is free.
    assert float(extension.actor_loss(None, state, batch, ctx)) == pytest.approx(0.1 * (4 + 1))
    assert float(extension.critic_loss(None, state, batch, ctx)) == pytest.approx(0.1 * (16 + 4))


def test_the_penalty_is_zero_at_the_start_and_pulls_back_from_elsewhere():
    start = {"critic": layers(1.0)}
    extension = L2Init(strength=0.5)
    ctx = Context(None, {"critic": None}, 1, Clock(*[jnp.int32(0)] * 3))
    state = extension.init_state(fit.AgentState(start, {}), jax.random.key(0), ctx)
    slope = jax.grad(lambda params: extension.critic_loss(None, state, NOTHING._replace(params=params), ctx))
    np.testing.assert_allclose(slope(start)["critic"][0]["w"], 0.0)
    np.testing.assert_allclose(slope({"critic": layers(4.0)})["critic"][0]["w"], 0.5 * 2 * 3.0)


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac"])
def test_a_strong_pull_keeps_a_trained_network_near_its_start(name, tiny):
    def distance(extensions):
        made = tiny.made(name, extensions)
        start = tiny.host(made.init(tiny.SEEDS).train.seeds.agent.params)
        end = tiny.host(tiny.train(made, 192)[0].train.seeds.agent.params)
        return sum(np.square(start[path] - end[path]).sum() for path in start if "/" in path)

    assert distance((L2Init(strength=30.0),)) < 0.5 * distance(())


def of(network, start, extension):
    """(penalty as a function of the critic's parameters, state, context) where `start` are the first ones."""
    ctx = Context(None, {"critic": network}, 1, Clock(*[jnp.int32(0)] * 3))
    begins = "init_state" in extension.implemented_phases()
    first = fit.AgentState({"critic": start}, {})
    state = extension.init_state(first, jax.random.key(0), ctx) if begins else ()
    loss = lambda params: extension.critic_loss(None, state, NOTHING._replace(params={"critic": params}), ctx)
    assert float(extension.actor_loss(None, state, NOTHING._replace(params={"critic": start}), ctx)) == 0
    return jax.jit(loss), state, ctx


def layer(weights, biases):
    return {"w": jnp.array(weights, jnp.float32), "b": jnp.array(biases, jnp.float32)}


def test_the_distance_of_distributions_does_not_mind_which_weight_is_which():
    start = [layer([[1.0, 3.0]], [0.0, 0.0]), layer([[2.0], [5.0]], [0.0])]
    loss, _, _ = of(Network(1, (2,), 1), start, WassersteinInit(strength=2.0))
    swapped = [layer([[3.0, 1.0]], [0.0, 0.0]), layer([[5.0], [2.0]], [0.0])]
    assert float(loss(swapped)) == 0
    # Sorted: (1, 4) against (1, 3), (2, 5) against itself, biases (-2, 1) against zeros. Layers are not mixed.
    moved = [layer([[4.0, 1.0]], [1.0, -2.0]), layer([[5.0], [2.0]], [0.0])]
    assert float(loss(moved)) == pytest.approx(2 * (1 + 1 + 4))
    # 4 is the larger one and goes back towards 3, the larger one of the start.
    np.testing.assert_allclose(jax.grad(loss)(moved)[0]["w"], [[2 * 2 * 1.0, 0.0]])


def test_the_members_of_an_ensemble_have_distributions_of_their_own():
    both = lambda a, b: [layer([[[a]], [[b]]], [[0.0], [0.0]]), layer([[[1.0]], [[1.0]]], [[0.0], [0.0]])]
    loss, _, _ = of(Network(1, (1,), 1, members=2), both(1.0, 3.0), WassersteinInit(strength=1.0))
    assert float(loss(both(3.0, 1.0))) == pytest.approx(4 + 4)


def test_the_spectral_penalty_is_that_of_the_largest_singular_value_and_of_the_biases():
    random = np.random.default_rng(0)
    weights = [random.normal(size=(3, 4)), random.normal(size=(4, 1))]
    params = [layer(weights[0], [3.0, 0.0, 4.0, 0.0]), layer(weights[1], [0.5])]
    loss, state, ctx = of(Network(3, (4,), 1), params, SpectralPenalty(strength=0.1, power=2))
    u, s, v = np.linalg.svd(weights[0])
    wanted = 0.1 * ((s[0] ** 2 - 1) ** 2 + 25.0**2 + ((weights[1] ** 2).sum() - 1) ** 2 + 0.25**2)
    assert float(loss(params)) == pytest.approx(wanted, rel=1e-3)
    slope = 0.1 * 2 * (s[0] ** 2 - 1) * 2 * s[0] * np.outer(u[:, 0], v[0])
    np.testing.assert_allclose(jax.grad(loss)(params)[0]["w"], slope, rtol=2e-2, atol=2e-2 * np.abs(slope).max())
    # The vectors turn after the weights.
    turned = [layer(weights[0][:, ::-1], [0.0] * 4), params[1]]
    for _ in range(12):
        _, state = SpectralPenalty().post_update(fit.AgentState({"critic": turned}, {}), state, ctx)
    np.testing.assert_allclose(np.abs(state["critic"][0]), np.abs(v[0][::-1]), atol=1e-3)


def test_spectra_and_grams_are_taken_member_by_member():
    network = Network(2, (2,), 1, members=2)
    first = [[[3.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 2.0]]]
    params = [layer(first, np.zeros((2, 2))), layer([[[1.0], [0.0]], [[0.0], [1.0]]], np.zeros((2, 1)))]
    loss, _, _ = of(network, params, SpectralPenalty(strength=1.0, power=1))
    assert float(loss(params)) == pytest.approx(2.0**2 + 1.0**2, rel=1e-3)
    loss, _, _ = of(network, params, ParsevalPenalty(strength=1.0, scale=1.0))
    assert float(loss(params)) == pytest.approx(8.0**2 + 3.0**2)


def test_the_parseval_penalty_is_of_the_units_of_hidden_layers():
    params = [layer([[1.0, 2.0]], [9.0, 9.0]), layer([[50.0], [60.0]], [9.0])]
    loss, _, _ = of(Network(1, (2,), 1), params, ParsevalPenalty(strength=0.5, scale=2.0))
    # Units by units: [[1, 2], [2, 4]] - 2 I. Inputs by inputs it would be 5 - 2.
    assert float(loss(params)) == pytest.approx(0.5 * (1 + 4 + 4 + 4))
    image = Network(9, (2,), 1, convolutions=((3, 2, 1),), image=(3, 3, 1))
    params = image.init(jax.random.key(0))
    matrices = [np.asarray(params[0]["w"]).reshape(4, 3), np.asarray(params[1]["w"])]
    loss, _, _ = of(image, params, ParsevalPenalty(strength=1.0, scale=2.0))
    wanted = sum(np.square(m.T @ m - 2 * np.eye(m.shape[1])).sum() for m in matrices)
    assert float(loss(params)) == pytest.approx(wanted, rel=1e-4)


def test_the_penalties_shape_a_network_in_training(tiny):
    stack = (SpectralPenalty(strength=3.0), ParsevalPenalty(strength=3.0, scale=0.5), WassersteinInit(strength=1e-6))

    def trained(extensions):
        made = tiny.made("dqn", extensions, optimiser=Adam(learning_rate=1e-2))
        return jax.tree.map(np.asarray, tiny.train(made, 192)[0].train.seeds.agent.params["critic"])

    def apart(layers):
        grams = [np.swapaxes(each["w"], -1, -2) @ each["w"] for each in layers[1:-1]]
        return sum(np.square(gram - 0.5 * np.eye(gram.shape[-1])).sum() for gram in grams)

    shaped, free = trained(stack), trained(())
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(shaped))
    assert apart(shaped) < 0.5 * apart(free)
    norm = lambda layers: sum(np.square(each["b"]).sum() for each in layers)
    assert norm(shaped) < norm(free)


@pytest.mark.parametrize(
    ("kind", "wrong", "says"),
    [
        (L2Init, {"strength": -0.1}, r"strength is -0\.1"),
        (WassersteinInit, {"strength": -0.1}, r"strength is -0\.1"),
        (SpectralPenalty, {"power": 0}, "power is 0"),
        (SpectralPenalty, {"iterations": 0}, "iterations is 0"),
        (ParsevalPenalty, {"scale": 0.0}, "scale is 0"),
    ],
)
def test_settings_out_of_range_are_refused(kind, wrong, says):
    with pytest.raises(ConfigError, match=says):
        kind(**wrong)
