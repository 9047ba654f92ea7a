import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.errors import ConfigError
from perdure.rl import convolutions


def correlated(x, w, stride):
    """Sums over kernel and channels, place by place."""
    kernel, features = w.shape[0], w.shape[-1]
    height, width = ((size - kernel) // stride + 1 for size in x.shape[1:3])
    result = np.zeros((len(x), height, width, features))
    for row in range(height):
        for column in range(width):
            cut = x[:, row * stride : row * stride + kernel, column * stride : column * stride + kernel]
            result[:, row, column] = np.einsum("bijc,ijcf->bf", cut, w)
    return result


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 1), (2, 2), (3, 2)])
def test_a_convolution_is_the_written_out_sum(kernel, stride):
    random = np.random.default_rng(kernel)
    x = random.normal(size=(3, 7, 6, 2))
    w = random.normal(size=(kernel, kernel, 2, 5))
    found = convolutions.convolve(jnp.float32(x), jnp.float32(w), stride, "float32")
    wanted = correlated(x, w, stride)
    assert found.shape == wanted.shape == (3, *convolutions.shapes((7, 6, 2), ((5, kernel, stride),))[-1])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_slopes_are_those_of_jax_own_convolution():
    x, w = (jax.random.normal(jax.random.key(n), shape) for n, shape in enumerate([(4, 8, 8, 2), (3, 3, 2, 6)]))
    weight = jax.random.normal(jax.random.key(2), (4, 3, 3, 6))
    ours = lambda x, w: (weight * convolutions.convolve(x, w, 2, "float32")).sum()
    theirs = lambda x, w: (
        weight * jax.lax.conv_general_dilated(x, w, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    ).sum()
    for a, b in zip(jax.grad(ours, (0, 1))(x, w), jax.grad(theirs, (0, 1))(x, w), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_leading_axes_are_kept():
    x = jax.random.normal(jax.random.key(0), (2, 3, 5, 5, 1))
    w = jax.random.normal(jax.random.key(1), (2, 2, 1, 4))
    found = convolutions.convolve(x, w, 1, "float32")
    assert found.shape == (2, 3, 4, 4, 4)
    np.testing.assert_allclose(found[1], convolutions.convolve(x[1], w, 1, "float32"), atol=1e-5)
    assert convolutions.convolve(x[0, 0], w, 1, "float32").shape == (4, 4, 4)


def test_shapes_follow_kernels_strides_and_doubled_channels():
    found = convolutions.shapes((84, 84, 4), ((32, 8, 4), (64, 4, 2), (64, 3, 1)))
    assert found == ((84, 84, 4), (20, 20, 32), (9, 9, 64), (7, 7, 64))
    assert convolutions.shapes((10, 9, 4), ((16, 3, 1),), copies=2) == ((10, 9, 4), (8, 7, 32))


@pytest.mark.parametrize(
    ("layers", "hint"),
    [
        (((16, 0, 1),), r"convolutions\[0\] is \[16, 0, 1\]"),
        (((16, 3, 2), (8, 5, 1)), r"convolutions\[1\] has a kernel of 5 on 4 x 4 pixels"),
    ],
)
def test_layers_that_cannot_be_are_refused(layers, hint):
    with pytest.raises(ConfigError, match=hint):
        convolutions.shapes((10, 10, 4), layers)
