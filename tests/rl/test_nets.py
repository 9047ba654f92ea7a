import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.errors import ConfigError
from perdure.rl import nets
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
