"""Convolutions without padding, as products of an image's patches with a matrix.

Written so, a layer keeps to batched products where seeds and ensemble members are mapped over; a mapped
`lax.conv_general_dilated` becomes a grouped convolution, which took twice as long on images of ten by ten pixels.
Suffixes: H height, W width, C channels, K kernel, P the K * K * C numbers of a patch, F features.
"""

from typing import Any

import jax
import jax.numpy as jnp

from perdure.core.errors import ConfigError
from perdure.rl.ops import products

Shape = tuple[int, int, int]
"""Height, width, channels."""


def shapes(image: Shape, convolutions: tuple[Shape, ...], copies: int = 1) -> tuple[Shape, ...]:
    """The shape of an image, and of what each (features, kernel, stride) makes of it in turn.

    `copies` is how many channels a feature becomes in the activation. Raises ConfigError for a layer that cannot be.
    """
    found = [image]
    for number, (features, kernel, stride) in enumerate(convolutions):
        height, width, _ = found[-1]
        if min(features, kernel, stride) < 1:
            raise ConfigError(
                f"convolutions[{number}] is {[features, kernel, stride]}; features, kernel and stride are at least 1"
            )
        if kernel > min(height, width):
            raise ConfigError(
                f"convolutions[{number}] has a kernel of {kernel} on {height} x {width} pixels; "
                "make it, or the kernels and strides before it, smaller"
            )
        found.append(((height - kernel) // stride + 1, (width - kernel) // stride + 1, features * copies))
    return tuple(found)


def patches(x_HWC: jax.Array, kernel: int, stride: int) -> jax.Array:
    """Every square of `kernel` pixels that lies inside an image [..., H, W, C], `stride` apart: [..., H', W', P]."""
    height, width = (size - kernel + 1 for size in x_HWC.shape[-3:-1])
    places = [(row, column) for row in range(kernel) for column in range(kernel)]
    cut = lambda row, column: x_HWC[..., row : row + height : stride, column : column + width : stride, :]
    return jnp.concatenate([cut(*place) for place in places], axis=-1)


def convolve(x_HWC: jax.Array, w_KKCF: jax.Array, stride: int, precision: str) -> jax.Array:
    """The image [..., H, W, C] correlated with kernels [K, K, C, F] where they fit: [..., H', W', F]."""
    found = patches(x_HWC, w_KKCF.shape[0], stride)
    product: Any = products.dense(found.reshape(-1, found.shape[-1]), w_KKCF.reshape(-1, w_KKCF.shape[-1]), precision)
    return product.reshape(*found.shape[:-1], w_KKCF.shape[-1])
