import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.rl import fit, units
from perdure.rl.nets import Network
from perdure.rl.optim import OptState
from perdure.rl.phases import Batch

NETWORK = Network(2, (3, 2), 1)
OBS = jnp.array([[1.0, 2.0], [3.0, -1.0]])


def layer(weights, biases):
    return {"w": jnp.array(weights, jnp.float32), "b": jnp.array(biases, jnp.float32)}


def params():
    """Hidden activations on OBS: layer 1 has (1, 3), (0, 0), (.02, .06); layer 2 has unit 1 dead."""
    return [
        layer([[1.0, -1.0, 0.02], [0.0, -1.0, 0.0]], [0.0, -5.0, 0.0]),
        layer([[1.0, -1.0], [1.0, 1.0], [1.0, 0.0]], [0.0, -1.0]),
        layer([[1.0], [1.0]], [0.5]),
    ]


def rows(obs=OBS):
    return Batch(obs, jnp.zeros((len(obs), 1)), None, None, None, None)


def agent_state():
    ones = jax.tree.map(jnp.ones_like, {"critic": params()})
    return fit.AgentState({"critic": params()}, {"critic": OptState(jnp.int32(5), ones, ones)})


def test_dormant_units_are_those_far_below_their_layers_mean():
    # Means of layer 1: 2, 0, 0.04; their mean is 0.68.
    masks = units.dormant_units(NETWORK, params(), rows(), 0.025)
    np.testing.assert_array_equal(masks[0], [False, True, False])
    np.testing.assert_array_equal(masks[1], [False, True])
    masks = units.dormant_units(NETWORK, params(), rows(), 0.1)  # 0.04 <= 0.068
    np.testing.assert_array_equal(masks[0], [False, True, True])
    masks = units.dormant_units(NETWORK, params(), rows(), 0.0)
    np.testing.assert_array_equal(masks[0], [False, True, False])


def test_a_wholly_dead_layer_is_dormant():
    dead = params()
    dead[0] = layer(-jnp.ones((2, 3)), [-9.0] * 3)
    assert units.dormant_units(NETWORK, dead, rows(), 0.025)[0].all()


def test_recycling_renews_what_enters_silences_what_leaves_and_forgets_both():
    masks = [jnp.array([False, True, False]), jnp.array([False, True])]
    fresh = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 7.0), params())
    after = units.recycle(NETWORK, agent_state(), "critic", masks, fresh)
    first, second, head = after.params["critic"]
    old = params()
    np.testing.assert_allclose(first["w"], [[1.0, 7.0, 0.02], [0.0, 7.0, 0.0]])
    np.testing.assert_allclose(first["b"], [0.0, 7.0, 0.0])
    # Row 1 leaves the recycled unit of layer 1 and is silent, where it enters a recycled unit too.
    np.testing.assert_allclose(second["w"], [[1.0, 7.0], [0.0, 0.0], [1.0, 7.0]])
    np.testing.assert_allclose(second["b"], [0.0, 7.0])
    np.testing.assert_allclose(head["w"], [[1.0], [0.0]])
    np.testing.assert_allclose(head["b"], old[2]["b"])
    moments = after.opt["critic"]
    for tree in (moments.mean, moments.square):
        np.testing.assert_allclose(tree["critic"][0]["w"], [[1, 0, 1], [1, 0, 1]])
        np.testing.assert_allclose(tree["critic"][0]["b"], [1, 0, 1])
        np.testing.assert_allclose(tree["critic"][1]["w"], [[1, 0], [0, 0], [1, 0]])
        np.testing.assert_allclose(tree["critic"][1]["b"], [1, 0])
        np.testing.assert_allclose(tree["critic"][2]["w"], [[1], [0]])
        np.testing.assert_allclose(tree["critic"][2]["b"], [1])
    assert int(moments.count) == 5


def test_only_the_dead_member_of_an_ensemble_is_recycled():
    network = Network(2, (3, 2), 1, members=2)
    healthy = [layer(jnp.ones((2, 3)), [5.0] * 3), layer(jnp.ones((3, 2)), [1.0] * 2), layer(jnp.ones((2, 1)), [0.0])]
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), params(), healthy)
    masks = units.dormant_units(network, both, rows(), 0.025)
    np.testing.assert_array_equal(masks[0], [[False, True, False], [False] * 3])
    fresh = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 7.0), both)
    after = units.recycle(network, fit.AgentState({"critic": both}, {}), "critic", masks, fresh).params["critic"]
    np.testing.assert_allclose(after[0]["w"][0, :, 1], 7.0)
    for new, old in zip(after, both, strict=True):
        np.testing.assert_array_equal(new["w"][1], old["w"][1])


SHAPES = {
    "crelu": Network(2, (3, 4), 2, activation="crelu"),
    "image": Network(60, (4, 3), 3, activation="crelu", convolutions=((3, 2, 1), (2, 2, 2)), image=(5, 6, 2)),
    "image and action": Network(61, (4,), 1, reads="obs_action", members=2, convolutions=((3, 2, 1),), image=(5, 6, 2)),
}


def drawn(network, spread=0.5):
    """Parameters of a network, drawn without it."""
    random = np.random.default_rng(4)
    shapes = jax.eval_shape(network.init, jax.random.key(0))
    return jax.tree.map(lambda x: jnp.asarray(spread * random.normal(size=x.shape), jnp.float32), shapes)


def silenced(layers, number, unit):
    """The layers with a unit that gives zeros: its incoming weights and its bias are zero."""
    gone = {name: layers[number][name].at[..., unit].set(0.0) for name in ("w", "b")}
    return [gone if place == number else layer for place, layer in enumerate(layers)]


def only(layers, number, unit):
    """Masks that name one unit."""
    return [
        jnp.zeros(layer["b"].shape, bool).at[..., unit].set(place == number) for place, layer in enumerate(layers[:-1])
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_what_leaves_a_unit_is_found_in_every_shape_of_network(shape):
    network = SHAPES[shape]
    x = jnp.asarray(np.random.default_rng(3).normal(size=(5, network.inputs)), jnp.float32)

    @jax.jit
    def compared(layers):
        """For each layer: outputs with its unit 1 begun anew, and with that unit silent; and those of all."""
        pairs, state = [], fit.AgentState({"critic": layers}, {})
        fresh = jax.tree.map(lambda leaf: leaf + 7.0, layers)
        for number in range(len(layers) - 1):
            after = units.recycle(network, state, "critic", only(layers, number, 1), fresh).params["critic"]
            pairs.append((network.apply(after, x), network.apply(silenced(layers, number, 1), x), after[number]["b"]))
        return pairs, network.apply(layers, x)

    layers = drawn(network)
    pairs, whole = compared(layers)
    for number, (found, wanted, biases) in enumerate(pairs):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        assert float(np.abs(found - whole).max()) > 1e-3
        np.testing.assert_allclose(biases[..., 1], layers[number]["b"][..., 1] + 7.0, rtol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_unit_that_never_fires_is_dormant_in_every_shape_of_network(shape):
    network = SHAPES[shape]
    layers = jax.tree.map(jnp.abs, drawn(network))
    for number in range(len(layers) - 1):
        layers = silenced(layers, number, 1)
    obs = jnp.abs(jnp.asarray(np.random.default_rng(3).normal(size=(5, 60 if network.image else 2)), jnp.float32))
    batch = Batch(obs, jnp.ones((5, 1)), None, None, None, None)
    found = jax.jit(lambda layers: units.dormant_units(network, layers, batch, 0.0))(layers)
    for mask, layer in zip(found, layers[:-1], strict=True):
        assert mask.shape == layer["b"].shape
        np.testing.assert_array_equal(mask, np.broadcast_to(np.arange(mask.shape[-1]) == 1, mask.shape))


def test_contributions_are_activities_times_outgoing_sums():
    # Layer 1 is active by (2, 0, .04) in the mean and leaves by sums (2, 2, 1); layer 2 by (2.04, 0) and (1, 1).
    sizes, sums = units.activity(NETWORK, params(), rows()), units.outgoing(NETWORK, params())
    np.testing.assert_allclose(sizes[0], [2.0, 0.0, 0.04], rtol=1e-6)
    np.testing.assert_allclose(sizes[1], [2.04, 0.0], rtol=1e-6)
    np.testing.assert_allclose(sums[0], [2.0, 2.0, 1.0])
    np.testing.assert_allclose(sums[1], [1.0, 1.0])


def test_a_unit_of_an_image_leaves_through_every_place_and_both_halves():
    network = SHAPES["image"]
    layers = drawn(network)
    sums = units.outgoing(network, layers)
    # 3 features twice as channels; 2 features twice at 2 x 2 places; 4 and 3 units twice.
    assert [len(each) for each in sums] == [6, 16, 8, 6]
    kernels, dense = np.abs(layers[1]["w"]), np.abs(layers[2]["w"])
    np.testing.assert_allclose(units.by_unit(sums[0], 3)[2], kernels[:, :, [2, 5]].sum(), rtol=1e-5)
    rows_of_unit = [place * 4 + half * 2 + 1 for place in range(4) for half in range(2)]
    np.testing.assert_allclose(units.by_unit(sums[1], 2)[1], dense[rows_of_unit].sum(), rtol=1e-5)
