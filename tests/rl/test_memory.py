import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core import component
from perdure.core.errors import ConfigError
from perdure.rl import fit, units
from perdure.rl.memory import Memory
from perdure.rl.nets import Network
from perdure.rl.optim import OptState

KEY = jax.random.key(3)
FRAME, SIZE, WINDOW = 2, 3, 4


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def gru(cell, frames):
    """The state after one window, in double precision: Cho et al., 2014, eq. 5 to 8."""
    w_r, w_z, w = np.split(cell["w"], 3, axis=1)
    u_r, u_z, u = np.split(cell["u"], 3, axis=1)
    b_r, b_z, b = np.split(cell["b"], 3)
    h = np.zeros(SIZE)
    for x, there in zip(frames[:, :-1], frames[:, -1], strict=True):
        if there:
            reset, update = sigmoid(x @ w_r + h @ u_r + b_r), sigmoid(x @ w_z + h @ u_z + b_z)
            h = update * h + (1 - update) * np.tanh(x @ w + (reset * h) @ u + b)
    return h


def lstm(cell, frames):
    """The same of a long short-term memory with a forget gate."""
    h, c = np.zeros(SIZE), np.zeros(SIZE)
    for x, there in zip(frames[:, :-1], frames[:, -1], strict=True):
        if there:
            enter, forget, leave, candidate = np.split(x @ cell["w"] + h @ cell["u"] + cell["b"], 4)
            c = sigmoid(forget) * c + sigmoid(enter) * np.tanh(candidate)
            h = sigmoid(leave) * np.tanh(c)
    return h


def windows(rows):
    """Random windows of which the first rows lack the beginning."""
    random = np.random.default_rng(1)
    frames = random.normal(size=(rows, WINDOW, FRAME + 1)).astype(np.float32)
    frames[..., -1] = np.arange(WINDOW) >= np.arange(rows)[::-1, None] % WINDOW
    return frames


def shaken(memory):
    """A cell all of whose numbers, the biases too, are away from their start."""
    random = np.random.default_rng(2)
    cell = {name: np.asarray(x, np.float64) for name, x in memory.init(KEY, FRAME).items()}
    return {name: x + 0.3 * random.normal(size=x.shape) for name, x in cell.items()}


@pytest.mark.parametrize(("kind", "written"), [("gru", gru), ("lstm", lstm)])
def test_the_state_is_that_of_the_written_out_cell(kind, written):
    memory = Memory(kind, SIZE, WINDOW)
    cell, frames = shaken(memory), windows(5)
    single = jax.tree.map(jnp.float32, cell)
    wanted = [written(cell, each) for each in frames]
    np.testing.assert_allclose(memory.latent(single, frames), wanted, atol=1e-6)
    np.testing.assert_allclose(memory.latent(single, frames[3]), wanted[3], atol=1e-6)
    stacked = memory.latent(single, np.stack([frames, frames[::-1]]))
    np.testing.assert_allclose(stacked, [wanted, wanted[::-1]], atol=1e-6)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_steps_that_are_not_there_count_as_little_as_steps_before_the_window(kind):
    memory = Memory(kind, SIZE, WINDOW)
    cell = jax.tree.map(jnp.float32, shaken(memory))
    frames = windows(4)[:1]  # Only its last step is there.
    other = frames.copy()
    other[:, :-1, :-1] = 7.0
    assert frames[0, :, -1].tolist() == [0, 0, 0, 1]
    np.testing.assert_array_equal(memory.latent(cell, frames), memory.latent(cell, other))
    empty = np.zeros_like(frames)
    np.testing.assert_array_equal(memory.latent(cell, empty), np.zeros((1, SIZE)))


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_fresh_cell_has_orthogonal_recurrence_and_an_open_forget_gate(kind):
    memory = Memory(kind, 6)
    cell = memory.init(KEY, FRAME)
    gates = 4 if kind == "lstm" else 3
    assert jax.tree.map(np.shape, cell) == {"w": (FRAME, gates * 6), "u": (6, gates * 6), "b": (gates * 6,)}
    squares = np.split(np.asarray(cell["u"]), gates, axis=1)
    for square in squares:
        np.testing.assert_allclose(square @ square.T, np.eye(6), atol=1e-4)
    assert np.abs(squares[0] - squares[1]).max() > 0.1
    wanted = np.zeros(gates * 6)
    wanted[6:12] = kind == "lstm"
    np.testing.assert_array_equal(cell["b"], wanted)
    limit = np.sqrt(6 / (FRAME + 6))
    assert 0.8 * limit < np.abs(cell["w"]).max() <= limit


def test_every_part_of_the_window_that_is_there_has_a_slope():
    memory = Memory("gru", SIZE, WINDOW)
    cell, frames = memory.init(KEY, FRAME), jnp.asarray(windows(4)[1:2])  # Two of four steps.
    of_cell, of_frames = jax.grad(lambda *given: memory.latent(*given).sum(), (0, 1))(cell, frames)
    assert all(np.abs(leaf).max() > 1e-4 for leaf in jax.tree.leaves(of_cell))
    seen = np.abs(of_frames[0, :, :-1]).max(-1)
    assert (seen > 1e-4).tolist() == [False, False, True, True]


@pytest.mark.parametrize(("wrong", "told"), [({"size": 0}, "size is 0"), ({"window": 0}, "window is 0")])
def test_a_memory_of_nothing_is_refused(wrong, told):
    with pytest.raises(ConfigError, match=told):
        Memory(**wrong)
    with pytest.raises(ConfigError, match="kind is 'grw'"):
        component.make(Memory, {"kind": "grw"}, "memory")


def test_units_begun_anew_leave_the_memory_and_its_moments_alone():
    network = Network(WINDOW * (FRAME + 1), (4,), 1, memory=Memory("gru", SIZE, WINDOW), frame=FRAME)
    layers = network.init(KEY)
    moments = jax.tree.map(jnp.ones_like, {"critic": layers})
    state = fit.AgentState({"critic": layers}, {"critic": OptState(jnp.int32(1), moments, moments)})
    masks = [jnp.array([True, False, False, False])]
    after = units.recycle(network, state, "critic", masks, network.init(jax.random.key(4)))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for name, old in layers[0]["memory"].items():
        np.testing.assert_array_equal(after.params["critic"][0]["memory"][name], old)
        np.testing.assert_array_equal(after.opt["critic"].mean["critic"][0]["memory"][name], 1.0)
    changed = (after.params["critic"][0]["w"] != layers[0]["w"]).any(0)
    np.testing.assert_array_equal(changed, masks[0])
