from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.errors import ConfigError
from perdure.core.records import Spec
from perdure.rl import nets
from perdure.rl.memory import Memory
from perdure.rl.nets import Network

KEY = jax.random.key(0)


def test_outputs_are_those_of_the_written_out_layers():
    network = Network(3, (5, 4), 2, activation="tanh")
    params = network.init(KEY)
    x = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    hidden = x
    for layer in params[:-1]:
        hidden = np.tanh(hidden @ np.asarray(layer["w"]) + np.asarray(layer["b"]))
    wanted = hidden @ np.asarray(params[-1]["w"]) + np.asarray(params[-1]["b"])
    np.testing.assert_allclose(network.apply(params, x), wanted, rtol=1e-4, atol=1e-5)


def test_layer_norm_standardises_before_the_activation():
    network = Network(3, (16,), 1, activation="leaky_relu", layer_norm=True)
    params = network.init(KEY)
    x = jnp.array([[1.0, -2.0, 3.0]])
    before = np.asarray(x @ params[0]["w"] + params[0]["b"])
    standard = (before - before.mean()) / np.sqrt(before.var() + 1e-6)
    wanted = np.where(standard > 0, standard, 0.01 * standard)
    np.testing.assert_allclose(network.trace(params, x)[0], wanted, rtol=1e-4, atol=1e-5)


def test_members_of_an_ensemble_are_different_networks():
    network = Network(3, (4,), 1, members=3)
    params, x = network.init(KEY), jnp.ones((5, 3))
    outputs = network.apply(params, x)
    assert outputs.shape == (3, 5, 1)
    single = Network(3, (4,), 1)
    for member in range(3):
        own = jax.tree.map(lambda leaf, n=member: leaf[n], params)
        np.testing.assert_allclose(outputs[member], single.apply(own, x), rtol=1e-5)
    assert len(np.unique(np.asarray(outputs[:, 0, 0]))) == 3


@pytest.mark.parametrize(("fan_in", "fan_out"), [(3, 8), (8, 3), (5, 5)])
def test_orthogonal_matrices_are(fan_in, fan_out):
    matrix = np.asarray(nets.orthogonal(KEY, fan_in, fan_out, 2.0))
    small = matrix @ matrix.T if fan_in <= fan_out else matrix.T @ matrix
    np.testing.assert_allclose(small, 4.0 * np.eye(min(fan_in, fan_out)), atol=1e-5)


@pytest.mark.parametrize(
    ("initialiser", "limit", "bias"), [("glorot", np.sqrt(6 / 300), False), ("torch", np.sqrt(1 / 100), True)]
)
def test_uniform_initialisers_fill_their_range(initialiser, limit, bias):
    layer = Network(100, (200,), 1, initialiser=initialiser).init(KEY)[0]
    extent = float(jnp.abs(layer["w"]).max())
    assert 0.98 * limit < extent <= limit
    assert (float(jnp.abs(layer["b"]).max()) > 0.9 * limit) == bias


def test_a_small_head_starts_small():
    params = Network(3, (8,), 2, head_scale=0.01).init(KEY)
    assert float(jnp.linalg.norm(params[-1]["w"], 2)) == pytest.approx(0.01, rel=1e-4)


def test_bfloat16_products_round_and_give_single_precision():
    exact, rounded = Network(32, (64,), 8), Network(32, (64,), 8, precision="bfloat16")
    params, x = exact.init(KEY), jax.random.normal(KEY, (16, 32))
    a, b = exact.apply(params, x), rounded.apply(params, x)
    assert b.dtype == jnp.float32
    assert 0 < float(jnp.abs(a - b).max()) < 0.1


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"activation": "rleu"}, "did you mean 'relu'"),
        ({"initialiser": "orthogonl"}, "did you mean 'orthogonal'"),
        ({"head_initialiser": "lecum"}, "did you mean 'lecun'"),
        ({"precision": "float16"}, "did you mean"),
        ({"hidden": ()}, "at least one layer"),
        ({"hidden": (4, 0)}, "at least one unit"),
    ],
)
def test_what_a_network_cannot_be_is_refused(wrong, hint):
    with pytest.raises(ConfigError, match=hint):
        Network(**({"inputs": 2, "hidden": (4,), "outputs": 1} | wrong))


def test_lecun_weights_have_variance_one_over_fan_in_and_no_tail():
    layer = Network(400, (300,), 1, initialiser="lecun").init(KEY)[0]
    assert float(layer["w"].std()) == pytest.approx(1 / 20, rel=0.01)
    assert float(jnp.abs(layer["w"]).max()) <= 2 / 20 / 0.8796 + 1e-6
    assert float(jnp.abs(layer["b"]).max()) == 0.0


def test_a_head_may_start_otherwise_than_the_hidden_layers():
    params = Network(9, (16,), 2, initialiser="torch", head_initialiser="lecun").init(KEY)
    assert float(jnp.abs(params[0]["b"]).max()) > 0.0
    assert float(jnp.abs(params[-1]["b"]).max()) == 0.0


def test_the_gain_is_that_of_orthogonal_layers():
    params = Network(3, (8,), 2, gain=1.0).init(KEY)
    for layer in params:
        assert float(jnp.linalg.norm(layer["w"], 2)) == pytest.approx(1.0, rel=1e-4)


def test_unit_features_have_length_one_and_finite_slopes():
    network = Network(3, (8, 6), 2, unit_features=True)
    params, x = network.init(KEY), jnp.array([[1.0, -2.0, 3.0], [0.0, 0.0, 0.0]])
    first, last, outputs = network.trace(params, x)
    np.testing.assert_allclose(jnp.linalg.norm(last, axis=-1), [1.0, 0.0], rtol=1e-5)
    assert float(jnp.linalg.norm(first[0])) > 1.1
    np.testing.assert_allclose(outputs, last @ params[-1]["w"] + params[-1]["b"], rtol=1e-4, atol=1e-5)
    slopes = jax.grad(lambda params: network.apply(params, x).sum())(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


def test_bounded_outputs_pass_through_tanh():
    plain, bounded = Network(3, (8,), 2), Network(3, (8,), 2, bounded=True)
    params, x = plain.init(KEY), jnp.array([[5.0, -2.0, 3.0]])
    np.testing.assert_allclose(bounded.apply(params, x), jnp.tanh(plain.apply(params, x)), rtol=1e-5)


def test_orthogonal_weights_need_no_decomposition():
    """LAPACK calls wait for the threads that run the program: several in one program can deadlock."""
    draw = jax.vmap(lambda key: nets.orthogonal(key, 8, 4, 1.0))
    program = jax.jit(draw).lower(jax.random.split(jax.random.key(0), 3)).as_text()
    assert "lapack" not in program
    weights = draw(jax.random.split(jax.random.key(0), 3))
    np.testing.assert_allclose(
        jnp.einsum("nij,nik->njk", weights, weights), jnp.broadcast_to(jnp.eye(4), (3, 4, 4)), atol=2e-5
    )


def test_crelu_gives_the_positive_and_then_the_negative_parts_of_each_layer():
    network = Network(3, (5, 4), 2, activation="crelu", layer_norm=True)
    params = network.init(KEY)
    assert [layer["w"].shape for layer in params] == [(3, 5), (10, 4), (8, 2)]
    x = np.random.default_rng(0).normal(size=(7, 3))
    trace, hidden = network.trace(params, jnp.float32(x)), x
    for layer, found in zip(params[:-1], trace, strict=False):
        before = hidden @ np.asarray(layer["w"]) + np.asarray(layer["b"])
        before = (before - before.mean(-1, keepdims=True)) / np.sqrt(before.var(-1, keepdims=True) + 1e-6)
        hidden = np.concatenate([np.maximum(before, 0), np.maximum(-before, 0)], -1)
        np.testing.assert_allclose(found, hidden, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(trace[-1], hidden @ np.asarray(params[-1]["w"]), rtol=1e-4, atol=1e-5)


def test_doubled_units_count_in_the_fan_in():
    params = Network(3, (50,), 400, activation="crelu", initialiser="torch").init(KEY)
    assert 0.098 < float(jnp.abs(params[-1]["w"]).max()) <= 0.1  # 1 / sqrt(2 * 50)


def test_a_dueling_head_adds_centred_advantages_to_a_value():
    network = Network(3, (5,), 3, dueling=True)
    params, x = network.init(KEY), np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    assert params[-1]["w"].shape == (5, 4)
    hidden = np.maximum(x @ np.asarray(params[0]["w"]), 0)
    value, *advantage = (hidden @ np.asarray(params[-1]["w"]) + [0.5, 1.0, 2.0, 6.0]).T
    params[-1]["b"] = jnp.array([0.5, 1.0, 2.0, 6.0])
    wanted = [value + each - sum(advantage) / 3 for each in advantage]
    np.testing.assert_allclose(network.apply(params, x), np.stack(wanted, -1), rtol=1e-4, atol=1e-5)


def test_what_all_advantages_share_changes_nothing():
    network = Network(3, (5,), 3, dueling=True, members=2)
    params, x = network.init(KEY), jnp.ones((4, 3))
    before = network.apply(params, x)
    params[-1]["b"] = params[-1]["b"].at[:, 1:].add(7.0)
    np.testing.assert_allclose(network.apply(params, x), before, rtol=1e-4, atol=1e-5)
    params[-1]["b"] = params[-1]["b"].at[:, 0].add(7.0)
    np.testing.assert_allclose(network.apply(params, x), before + 7.0, rtol=1e-4, atol=1e-5)


IMAGES = {"inputs": 98, "hidden": (7,), "outputs": 2, "image": (7, 7, 2), "convolutions": ((3, 3, 2), (4, 2, 1))}


def jax_convolution(x, w, stride):
    return jax.lax.conv_general_dilated(x, w, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@pytest.mark.parametrize("activation", ["relu", "crelu"])
def test_convolutions_come_before_the_hidden_layers(activation):
    network = Network(**IMAGES, activation=activation)
    params, x = network.init(KEY), jax.random.normal(jax.random.key(1), (5, 98))
    copies = 2 if activation == "crelu" else 1
    assert [layer["w"].shape for layer in params] == [
        (3, 3, 2, 3), (2, 2, 3 * copies, 4), (16 * copies, 7), (7 * copies, 2),
    ]  # fmt: skip
    assert [layer["b"].shape for layer in params] == [(3,), (4,), (7,), (2,)]
    active = nets.ACTIVATIONS[activation]
    hidden = x.reshape(5, 7, 7, 2)
    found = network.trace(params, x)
    for layer, stride, seen in zip(params[:2], (2, 1), found, strict=False):
        hidden = active(jax_convolution(hidden, layer["w"], stride) + layer["b"])
        np.testing.assert_allclose(seen, hidden, rtol=1e-4, atol=1e-5)
    last = active(hidden.reshape(5, -1) @ params[2]["w"] + params[2]["b"])
    np.testing.assert_allclose(found[2], last, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[3], last @ params[3]["w"] + params[3]["b"], rtol=1e-4, atol=1e-5)


def test_an_image_may_come_as_it_is():
    network = Network(**IMAGES)
    params, x = network.init(KEY), jax.random.normal(jax.random.key(1), (5, 98))
    np.testing.assert_array_equal(network.apply(params, x.reshape(5, 7, 7, 2)), network.apply(params, x))
    window = x[None].repeat(2, 0)
    assert (
        network.apply(params, window).shape == network.apply(params, window.reshape(2, 5, 7, 7, 2)).shape == (2, 5, 2)
    )


def test_an_image_without_convolutions_is_a_vector():
    flat, image = Network(12, (5,), 1), Network(12, (5,), 1, image=(2, 2, 3))
    params, x = flat.init(KEY), jax.random.normal(KEY, (4, 2, 2, 3))
    np.testing.assert_allclose(image.apply(params, x), flat.apply(params, x.reshape(4, 12)), rtol=1e-6)


def test_actions_pass_the_convolutions_by():
    network = Network(**IMAGES | {"inputs": 100, "reads": "obs_action"}, members=3)
    params, obs = network.init(KEY), jax.random.normal(jax.random.key(1), (5, 7, 7, 2))
    action = jax.random.normal(jax.random.key(2), (5, 2))
    assert params[2]["w"].shape == (3, 16 + 2, 7)
    x = nets.joined(network, obs, action)
    np.testing.assert_array_equal(x, jnp.concatenate([obs.reshape(5, -1), action], -1))
    first, second, last, outputs = network.trace(params, x)
    assert first.shape == (3, 5, 3, 3, 3)
    assert outputs.shape == (3, 5, 2)
    beside = jnp.concatenate([second.reshape(3, 5, -1), jnp.broadcast_to(action, (3, 5, 2))], -1)
    wanted = jax.nn.relu(beside @ params[2]["w"] + params[2]["b"][:, None])
    np.testing.assert_allclose(last, wanted, rtol=1e-4, atol=1e-5)


def test_layer_norm_of_a_convolution_is_over_all_its_units():
    network = Network(**IMAGES, activation="leaky_relu", layer_norm=True)
    params, x = network.init(KEY), jax.random.normal(jax.random.key(1), (5, 7, 7, 2))
    before = np.asarray(jax_convolution(x, params[0]["w"], 2)).reshape(5, -1)
    standard = (before - before.mean(-1, keepdims=True)) / np.sqrt(before.var(-1, keepdims=True) + 1e-6)
    wanted = np.where(standard > 0, standard, 0.01 * standard).reshape(5, 3, 3, 3)
    np.testing.assert_allclose(network.trace(params, x)[0], wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("initialiser", "limit"), [("torch", np.sqrt(1 / 36)), ("glorot", np.sqrt(6 / (9 * 4 + 9 * 64)))]
)
def test_kernels_start_by_their_fans(initialiser, limit):
    network = Network(400, (4,), 1, image=(10, 10, 4), convolutions=((64, 3, 1),), initialiser=initialiser)
    kernel = network.init(KEY)[0]["w"]
    assert 0.98 * limit < float(jnp.abs(kernel).max()) <= limit


@pytest.mark.parametrize("activation", ["tanh", "crelu"])
def test_tiled_units_lie_as_the_inputs_of_the_next_layer(activation):
    """What a unit fills is found by moving its bias and watching which inputs of the next layer move."""
    shape = IMAGES | {"inputs": 100, "reads": "obs_action", "activation": activation}
    network = Network(**shape)
    params, x = network.init(KEY), jax.random.normal(jax.random.key(1), (5, 100))
    trace = network.trace(params, x)
    for number, unit in [(0, 1), (1, 2), (2, 3)]:
        moved = [dict(layer) for layer in params]
        moved[number]["b"] = moved[number]["b"].at[unit].add(0.1)
        change = (network.trace(moved, x)[number] != trace[number]).any(0)
        flat = np.asarray(change if number == 0 else change.reshape(-1))
        mask = np.arange(params[number]["b"].size) == unit
        wanted = np.tile(mask, network.repeats[number])
        np.testing.assert_array_equal(flat.any((0, 1)) if number == 0 else flat, wanted)
        fan_in = params[number + 1]["w"].shape[-2]
        assert fan_in - wanted.size == (2 if number == 1 else 0)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"convolutions": ((4, 3, 1),)}, r"convolutions is \[\[4, 3, 1\]\], but what is seen is no image"),
        ({"image": (5, 5, 1)}, r"inputs is 2; an image of \[5, 5, 1\] has 25"),
        ({"inputs": 25, "image": (5, 5, 1), "convolutions": ((4, 6, 1),)}, r"kernel of 6 on 5 x 5 pixels"),
    ],
)
def test_convolutions_that_do_not_fit_are_refused(wrong, hint):
    with pytest.raises(ConfigError, match=hint):
        Network(**({"inputs": 2, "hidden": (4,), "outputs": 1} | wrong))


class Shape(NamedTuple):
    """What an agent says of its networks."""

    hidden: tuple = (4,)
    activation: str = "tanh"
    layer_norm: bool = True
    precision: str = "float32"
    convolutions: tuple = ()


def test_a_perceptron_takes_its_shape_from_agent_and_world():
    flat = Spec((3,), 2, discrete=False)
    assert nets.perceptron(Shape(), flat, outputs=1, reads="obs_action", members=2, activation="elu") == Network(
        5, (4,), 1, activation="elu", layer_norm=True, members=2, reads="obs_action"
    )
    image, layers = Spec((5, 5, 2), 3, discrete=True), ((4, 3, 1),)
    assert nets.perceptron(Shape(convolutions=layers), image, outputs=3, dueling=True) == Network(
        50, (4,), 3, activation="tanh", layer_norm=True, dueling=True, convolutions=layers, image=(5, 5, 2)
    )


@pytest.mark.parametrize("appends", [False, True])
def test_a_memory_gives_the_perceptron_its_state_and_what_stands_beside_the_window(appends):
    memory = Memory(size=3, window=2, appends=appends)
    network = Network(8, (4,), 1, activation="tanh", reads="obs_action", memory=memory, frame=2)
    params = network.init(KEY)
    # Two steps of two numbers and a flag, and an action of two.
    x = jnp.array([[0.5, -1.0, 1.0, 2.0, 0.3, 1.0, 0.7, -0.2]])
    state = memory.latent(params[0]["memory"], x[:, :6].reshape(1, 2, 3))
    read = np.concatenate([state, *([[[2.0, 0.3]]] if appends else []), [[0.7, -0.2]]], axis=1)
    assert params[0]["w"].shape == (read.shape[1], 4)
    wanted = np.tanh(read @ np.asarray(params[0]["w"]) + np.asarray(params[0]["b"]))
    np.testing.assert_allclose(network.trace(params, x)[0], wanted, rtol=1e-4, atol=1e-5)
    assert [layer.shape for layer in network.trace(params, jnp.tile(x, (5, 1)))] == [(5, 4), (5, 1)]


def test_members_of_an_ensemble_remember_apart():
    memory = Memory(size=3, window=2)
    network = Network(6, (4,), 1, members=2, memory=memory, frame=2)
    params, x = network.init(KEY), jnp.ones((5, 6))
    single = Network(6, (4,), 1, memory=memory, frame=2)
    for member in range(2):
        own = jax.tree.map(lambda leaf, n=member: leaf[n], params)
        np.testing.assert_allclose(network.apply(params, x)[member], single.apply(own, x), rtol=1e-5)
    assert np.abs(params[0]["memory"]["u"][0] - params[0]["memory"]["u"][1]).max() > 0.1


def test_the_network_of_an_agent_with_a_memory_reads_windows():
    class Recurrent(NamedTuple):
        hidden: tuple = (4,)
        activation: str = "tanh"
        layer_norm: bool = False
        precision: str = "float32"
        convolutions: tuple = ()
        memory: Memory = Memory(size=3, window=5)

    network = nets.perceptron(Recurrent(), Spec((3,), 2, discrete=False), outputs=1, reads="obs_action")
    assert (network.inputs, network.frame, network.plain) == (5 * 4 + 2, 3, False)
    with pytest.raises(ConfigError, match="memory is given, but it reads observations that are vectors"):
        nets.perceptron(Recurrent(), Spec((4, 4, 1), 2, discrete=True), outputs=2)
