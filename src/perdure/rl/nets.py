"""Perceptrons, after convolutions over images or a memory of what was seen; their parameters are plain lists.

Suffixes: B batch, D features, N ensemble members.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.errors import ConfigError, nearest
from perdure.core.records import Spec
from perdure.rl.convolutions import Shape, convolve, shapes
from perdure.rl.memory import Memory
from perdure.rl.ops import products
from perdure.rl.ops.matrices import orthogonal


def crelu(x: jax.Array) -> jax.Array:
    """Each number's positive part and, after all of these, each one's negative part: twice the units.

    Concatenated rectifiers (Shang et al., 2016), which keep networks plastic (Abbas et al., 2023, arXiv:2303.07507).
    """
    return jnp.concatenate([jax.nn.relu(x), jax.nn.relu(-x)], axis=-1)


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "leaky_relu": jax.nn.leaky_relu,
    "silu": jax.nn.silu,
    "crelu": crelu,
}
INITIALISERS = ("orthogonal", "glorot", "torch", "lecun")
PRECISIONS = ("float32", "bfloat16")
SHAPE = ("hidden", "activation", "layer_norm", "precision", "convolutions")
"""What every agent says of its networks."""


@component
class Network:
    """A perceptron, or an ensemble of `members` alike ones whose parameters carry a leading axis N.

    With an `image`, convolutions come before the hidden layers; what stands beside the image, an
    action, joins their flattened result. With a `memory`, the input begins with a window of observations
    (rl.windows); what stands beside it joins the state of the cell that has read it.
    """

    inputs: int
    """Numbers it reads, those of an image included."""
    hidden: tuple[int, ...]
    outputs: int
    activation: str = "relu"
    """One of `ACTIVATIONS`; after crelu the next layer reads two numbers for each unit."""
    layer_norm: bool = False
    """Whether each hidden layer is standardised, over all of its units, before the activation (Ba et al., 2016)."""
    initialiser: str = "orthogonal"
    """Of the hidden layers: orthogonal (times `gain`), glorot (uniform), torch (uniform in +-1/sqrt(fan in), biases
    too) or lecun (Normal of variance 1/fan in, cut at two deviations)."""
    gain: float = math.sqrt(2.0)
    """Of orthogonal hidden layers."""
    head_scale: float | None = None
    """Gain of an orthogonal head; None: the head starts as `head_initialiser` says."""
    head_initialiser: str | None = None
    """Of the last layer; None: as the hidden layers."""
    unit_features: bool = False
    """Whether the last hidden layer's activations are scaled to length 1."""
    bounded: bool = False
    """Whether outputs pass through tanh."""
    members: int | None = None
    reads: str = "obs"
    """What its input is made of: "obs" or "obs_action" (the two concatenated)."""
    precision: str = "float32"
    """Of the products; parameters, sums and results stay in single precision."""
    dueling: bool = False
    """Whether the head gives a state's value and each output's advantage (Wang et al., 2016, arXiv:1511.06581, eq. 9).

    Its first column is the value; all hidden layers are shared, where the paper splits the last one too."""
    convolutions: tuple[tuple[int, int, int], ...] = ()
    """(features, kernel, stride) of each layer before the hidden ones; nothing is padded."""
    image: tuple[int, int, int] | None = None
    """Height, width and channels of the image that the input begins with; None: there is none."""
    memory: Memory | None = None
    frame: int = 0
    """Numbers of one observation, where a memory reads several."""

    def __post_init__(self):
        if self.activation not in ACTIVATIONS:
            raise ConfigError(f"activation is {self.activation!r}; {nearest(self.activation, ACTIVATIONS)}")
        for initialiser in (self.initialiser, self.head_initialiser or self.initialiser):
            if initialiser not in INITIALISERS:
                raise ConfigError(f"initialiser is {initialiser!r}; {nearest(initialiser, INITIALISERS)}")
        if self.precision not in PRECISIONS:
            raise ConfigError(f"precision is {self.precision!r}; {nearest(self.precision, PRECISIONS)}")
        if not self.hidden or min(self.hidden) < 1:
            raise ConfigError(f"hidden is {list(self.hidden)}; give at least one layer of at least one unit")
        if self.convolutions and self.image is None:
            raise ConfigError(
                f"convolutions is {[list(layer) for layer in self.convolutions]}, but what is seen is no image; "
                "leave it empty, or choose a world whose observations have height, width and channels"
            )
        if self.image is not None and self.inputs < math.prod(self.image):
            raise ConfigError(f"inputs is {self.inputs}; an image of {list(self.image)} has {math.prod(self.image)}")
        if self.memory is not None and (self.image is not None or self.frame < 1):
            raise ConfigError(
                "memory is given, but it reads observations that are vectors of at least one number, not images; "
                "leave it out, or choose a world with such"
            )
        _ = self.images

    @property
    def copies(self) -> int:
        """How many numbers the activation makes of a unit."""
        return 2 if self.activation == "crelu" else 1

    @property
    def plain(self) -> bool:
        """Whether the first layer reads the input as it is."""
        return not self.convolutions and self.memory is None

    @property
    def windowed(self) -> int:
        """How many of the inputs are a window of observations; 0 without a memory."""
        return 0 if self.memory is None else self.memory.window * (self.frame + 1)

    @property
    def images(self) -> tuple[Shape, ...]:
        """The shape of the image and of every convolutional layer's activations; () without an image."""
        return () if self.image is None else shapes(self.image, self.convolutions, self.copies)

    @property
    def fans(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of each layer's matrix, those of convolutions flattened: [K * K * C, F]."""
        kernels = [
            (kernel * kernel * shape[2], features)
            for (features, kernel, _), shape in zip(self.convolutions, self.images, strict=False)
        ]
        first = self.inputs if self.image is None else self.inputs - math.prod(self.image) + math.prod(self.images[-1])
        if self.memory is not None:
            first += self.memory.size + self.memory.appends * self.frame - self.windowed
        inputs = [first, *(units * self.copies for units in self.hidden)]
        return [*kernels, *zip(inputs, (*self.hidden, self.outputs + self.dueling), strict=True)]

    @property
    def repeats(self) -> tuple[int, ...]:
        """How many inputs of the next layer a unit of each hidden layer fills.

        One value for each unit, tiled that often and padded at the end, lies as the next layer's inputs do.
        """
        found = [self.copies] * (len(self.convolutions) + len(self.hidden))
        if self.convolutions:
            height, width, _ = self.images[-1]
            found[len(self.convolutions) - 1] *= height * width
        return tuple(found)

    def init(self, key: jax.Array) -> list[dict[str, jax.Array]]:
        """Fresh parameters: a list of {"w": [in, out], "b": [out]}, with a leading [N] for an ensemble.

        Convolutions stand first in it, their "w" of shape [kernel, kernel, channels, features]. The cell of a memory
        stands in the first layer as "memory", so that what knows dense layers alone finds those it knows.
        """
        if self.members is None:
            return self._init_one(key)
        return jax.vmap(self._init_one)(jax.random.split(key, self.members))

    def apply(self, params: Any, x: jax.Array) -> jax.Array:
        """Outputs [B, outputs], or [N, B, outputs] for an ensemble, of [B, inputs]; images may come as they are."""
        return self.trace(params, x)[-1]

    def trace(self, params: Any, x: jax.Array) -> list[jax.Array]:
        """Activations of every hidden layer and, last, the outputs; of convolutions as [B, height, width, channels]."""
        if self.members is None:
            return self._trace_one(params, x)
        return jax.vmap(self._trace_one, (0, None))(params, x)

    def _init_one(self, key):
        fans = self.fans
        keys = jax.random.split(key, len(fans) + (self.memory is not None))
        layers = []
        for number, (own, (fan_in, fan_out)) in enumerate(zip(keys, fans, strict=False)):
            kernel = self.convolutions[number][1] if number < len(self.convolutions) else 1
            layer = self._layer(own, fan_in, fan_out, last=number == len(fans) - 1, reach=kernel * kernel)
            if number < len(self.convolutions):
                layer["w"] = layer["w"].reshape(kernel, kernel, -1, fan_out)
            layers.append(layer)
        if self.memory is not None:
            layers[0]["memory"] = self.memory.init(keys[-1], self.frame)
        return layers

    def _layer(self, key, fan_in, fan_out, *, last, reach):
        """The matrix of a layer, each of whose inputs goes to `reach` places of every output."""
        if last and self.head_scale is not None:
            return {"w": orthogonal(key, fan_in, fan_out, self.head_scale), "b": jnp.zeros(fan_out)}
        initialiser = (last and self.head_initialiser) or self.initialiser
        if initialiser == "orthogonal":
            return {"w": orthogonal(key, fan_in, fan_out, self.gain), "b": jnp.zeros(fan_out)}
        if initialiser == "lecun":
            # Cutting at two deviations leaves a Normal with .8796 of its spread.
            spread = 1.0 / (math.sqrt(fan_in) * 0.87962566103423978)
            cut = jax.random.truncated_normal(key, -2.0, 2.0, (fan_in, fan_out))
            return {"w": spread * cut, "b": jnp.zeros(fan_out)}
        if initialiser == "glorot":
            limit = math.sqrt(6.0 / (fan_in + fan_out * reach))
            return {
                "w": jax.random.uniform(key, (fan_in, fan_out), minval=-limit, maxval=limit),
                "b": jnp.zeros(fan_out),
            }
        limit = 1.0 / math.sqrt(fan_in)
        values = jax.random.uniform(key, (fan_in + 1, fan_out), minval=-limit, maxval=limit)
        return {"w": values[:-1], "b": values[-1]}

    def _trace_one(self, params, x):
        outputs = []
        if self.memory is not None:
            x = self._recalled(self.memory, params[0]["memory"], x)
        kernels, dense = params[: len(self.convolutions)], params[len(self.convolutions) :]
        if self.image is not None:
            x, beside = self._parts(x)
            for layer, (_, _, stride) in zip(kernels, self.convolutions, strict=True):
                x = convolve(x, layer["w"], stride, self.precision) + layer["b"]
                outputs.append(x := self._active(x, 3))
            x = jnp.concatenate([x.reshape(*x.shape[:-3], -1), beside], axis=-1)
        for layer in dense[:-1]:
            x = products.dense(x, layer["w"], self.precision) + layer["b"]
            outputs.append(x := self._active(x, 1))
        if self.unit_features:
            # The small number keeps the slope finite where every unit is silent.
            outputs[-1] = x = x * jax.lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-12)
        x = products.dense(x, dense[-1]["w"], self.precision) + dense[-1]["b"]
        if self.dueling:
            value, advantage = x[..., :1], x[..., 1:]
            x = value + advantage - advantage.mean(-1, keepdims=True)
        return [*outputs, jnp.tanh(x) if self.bounded else x]

    def _recalled(self, memory, cell, x):
        """What the first layer reads: the state after the window, the present observation, what stands beside it."""
        frames = x[..., : self.windowed].reshape(*x.shape[:-1], memory.window, self.frame + 1)
        present = [frames[..., -1, :-1]] if memory.appends else []
        latent = memory.latent(cell, frames, self.precision)
        return jnp.concatenate([latent, *present, x[..., self.windowed :]], axis=-1)

    def _parts(self, x):
        """The image [..., H, W, C] that an input begins with, and what stands beside it."""
        pixels = math.prod(self.image or ())
        flat = x if x.shape[-1] == self.inputs else x.reshape(*x.shape[:-3], pixels)
        return flat[..., :pixels].reshape(*flat.shape[:-1], *(self.image or ())), flat[..., pixels:]

    def _active(self, x, axes):
        """The activations of a layer whose units lie along the last `axes` axes."""
        return ACTIVATIONS[self.activation](_standardise(x, axes) if self.layer_norm else x)


def perceptron(agent: Any, spec: Spec, *, outputs: int, reads: str = "obs", **others: Any) -> Network:
    """A network over the world's observations, joined by its actions where it `reads` both, in the agent's shape.

    That of an agent with a memory reads windows of them.
    `others` are further fields of `Network`, and take precedence over the agent's.
    """
    shape: dict[str, Any] = {name: getattr(agent, name) for name in SHAPE}
    if len(spec.obs_shape) == 3:
        shape["image"] = spec.obs_shape
    beside = spec.action_dim if reads == "obs_action" else 0
    inputs = math.prod(spec.obs_shape)
    memory = getattr(agent, "memory", None)
    if memory is not None:
        shape |= {"memory": memory, "frame": inputs}
        inputs = memory.window * (inputs + 1)
    return Network(**{**shape, "inputs": inputs + beside, "outputs": outputs, "reads": reads, **others})


def joined(network: Network, obs: jax.Array, action: jax.Array) -> jax.Array:
    """The input of a network that reads `obs` [B, ...] or both `obs` and `action` [B, A]."""
    if network.reads == "obs":
        return obs
    if network.image is not None and obs.shape[-3:] == network.image:
        obs = obs.reshape(*obs.shape[:-3], -1)
    return jnp.concatenate([obs, action], axis=-1)


def _standardise(x, axes):
    units = tuple(range(-axes, 0))
    centred = x - x.mean(units, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(units, keepdims=True) + 1e-6)
