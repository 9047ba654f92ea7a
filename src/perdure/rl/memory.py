"""Recurrent cells that read the window of an episode's last observations before a perceptron does.

Suffixes: W steps of a window, oldest first, B rows, D numbers of an observation, H numbers of the state, G gates.
"""

import math
from typing import Literal

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.rl import ranges
from perdure.rl.ops import products
from perdure.rl.ops.matrices import orthogonal

Layer = dict[str, jax.Array]
"""{"w": [D, G * H], "u": [H, G * H], "b": [G * H]}, with a leading [N] for an ensemble."""


@component
class Memory:
    """What a network remembers of an episode: the state of a recurrent cell after the last `window` observations.

    The cell begins every window at zero, so a replayed row warms up on the window's earlier part, and gradients go
    back through the whole of it and no further. What lies more than `window` steps back is forgotten.
    """

    kind: Literal["gru", "lstm"] = "gru"
    """Gated recurrent unit (Cho et al., 2014, arXiv:1406.1078, eq. 5 to 8, here with biases) or long short-term memory
    (Hochreiter and Schmidhuber, 1997), with the forget gate of Gers et al., 2000, whose bias starts at 1."""
    size: int = 64
    """H."""
    window: int = 16
    """W, the present observation among them. Stored rows hold that many observations."""
    appends: bool = True
    """Whether the perceptron reads the present observation beside the state; else the state alone."""

    def __post_init__(self):
        ranges.check(self, size=ranges.COUNT, window=ranges.COUNT)

    @property
    def gates(self) -> int:
        """G, matrices of the cell that read an observation."""
        return 4 if self.kind == "lstm" else 3

    def init(self, key: jax.Array, frame: int) -> Layer:
        """Fresh weights for observations of `frame` numbers: Glorot uniform on these, orthogonal on the state."""
        own, back = jax.random.split(key)
        limit = math.sqrt(6.0 / (frame + self.size))
        square = jax.vmap(lambda key: orthogonal(key, self.size, self.size, 1.0))
        biases = jnp.zeros((self.gates, self.size))
        if self.kind == "lstm":
            biases = biases.at[1].set(1.0)
        return {
            "w": jax.random.uniform(own, (frame, self.gates * self.size), minval=-limit, maxval=limit),
            "u": jnp.concatenate(square(jax.random.split(back, self.gates)), axis=1),
            "b": biases.reshape(-1),
        }

    def latent(self, layer: Layer, frames: jax.Array, precision: str = "float32") -> jax.Array:
        """The state [..., H] after windows [..., W, D + 1], the last number of each step saying whether it is there.

        A step that is not there (0) leaves the state as it is.
        """
        lead, (steps, width) = frames.shape[:-2], frames.shape[-2:]
        frames_WBD = jnp.moveaxis(frames.reshape(-1, steps, width), 1, 0)
        input_WBG = _given(layer, frames_WBD[..., :-1], precision)
        there_WB1 = frames_WBD[..., -1:] > 0.5
        cell = _lstm if self.kind == "lstm" else _gru

        def step(state, now):
            given, there = now
            after = cell(state, given, layer["u"], precision)
            return jax.tree.map(lambda new, old: jnp.where(there, new, old), after, state), None

        zeros = jnp.zeros((frames_WBD.shape[1], self.size))
        start = (zeros, zeros) if self.kind == "lstm" else (zeros,)
        state, _ = jax.lax.scan(step, start, (input_WBG, there_WB1))
        return state[0].reshape(*lead, self.size)


def _given(layer, seen_WBD, precision):
    """What all observations give every gate, in one product: [W, B, G * H]."""
    flat = seen_WBD.reshape(-1, seen_WBD.shape[-1])
    return (products.dense(flat, layer["w"], precision) + layer["b"]).reshape(*seen_WBD.shape[:-1], -1)


def _gru(state, given, u, precision):
    """(h,) after one step; gates stand in the order reset, update, candidate."""
    (h,), size = state, u.shape[0]
    both = jax.nn.sigmoid(products.dense(h, u[:, : 2 * size], precision) + given[..., : 2 * size])
    reset, update = both[..., :size], both[..., size:]
    candidate = jnp.tanh(products.dense(reset * h, u[:, 2 * size :], precision) + given[..., 2 * size :])
    return (update * h + (1.0 - update) * candidate,)


def _lstm(state, given, u, precision):
    """(h, c) after one step; gates stand in the order input, forget, output, candidate."""
    h, c = state
    enter, forget, leave, candidate = jnp.split(products.dense(h, u, precision) + given, 4, axis=-1)
    c = jax.nn.sigmoid(forget) * c + jax.nn.sigmoid(enter) * jnp.tanh(candidate)
    return jax.nn.sigmoid(leave) * jnp.tanh(c), c
