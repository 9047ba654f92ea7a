import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.errors import ConfigError
from perdure.core.extension import MissingCapability
from perdure.extensions import ensemble
from perdure.extensions.ensemble import KernelRepulsion
from perdure.rl.nets import Network
from perdure.rl.phases import Batch, Clock, Context


def lines(*slopes):
    """One critic of a single rectified unit for each slope: its value of (s, a) is slope * s for s >= 0."""
    weight = jnp.stack([jnp.array([[1.0], [0.0]]) for _ in slopes])
    head = jnp.array(slopes)[:, None, None]
    zeros = jnp.zeros((len(slopes), 1))
    return [{"w": weight, "b": zeros}, {"w": head, "b": zeros}]


def term(extension, params, obs):
    network = Network(2, (1,), 1, members=params[0]["w"].shape[0], reads="obs_action")
    ctx = Context(None, {"critic": network}, 1, Clock(*[jnp.int32(0)] * 3))
    batch = Batch(obs, jnp.zeros((len(obs), 1)), *[None] * 4, params={"critic": params})
    return extension.critic_loss(None, (), batch, ctx)


def test_the_term_is_the_mean_kernel_at_the_median_bandwidth():
    # Values (1, 2), (3, 6), (0, 0): squared distances 20, 5 and 45, each twice, and three zeros; their median is 5.
    found, told = jax.jit(term, static_argnums=0)(
        KernelRepulsion(coef=0.2), lines(1.0, 3.0, 0.0), jnp.array([[1.0], [2.0]])
    )
    bandwidth = 5.0 / math.log(3)
    kernel = (3 + 2 * sum(math.exp(-apart / bandwidth) for apart in (20, 5, 45))) / 9
    assert float(found) == pytest.approx(0.2 * kernel, rel=1e-5)
    assert {name: float(value) for name, value in told.items()} == pytest.approx(
        {
            "kernel_repulsion/term": 0.2 * kernel,
            "kernel_repulsion/kernel": kernel,
            "kernel_repulsion/bandwidth": bandwidth,
        },
        rel=1e-5,
    )


def test_two_critics_are_driven_apart_with_the_bandwidth_held():
    obs = jnp.array([[1.0]])
    slope = jax.jit(jax.grad(lambda head: term(KernelRepulsion(coef=1.0), lines(head, 0.5), obs)[0]))(1.5)
    # D = x^2 with x = 1; the four distances 0, 0, 1, 1 have the median 1/2. d/dx (1 + exp(-x^2 / h)) / 2 = -x / h exp.
    bandwidth = 0.5 / math.log(2)
    assert float(slope) == pytest.approx(-1.0 / bandwidth * math.exp(-1.0 / bandwidth), rel=1e-4)
    # Were the bandwidth not held, its growth with D would cancel the repulsion.
    assert float(slope) < -0.1


def test_critics_that_are_alike_and_a_single_one_stay_finite():
    kernel, bandwidth = ensemble.q_kernel_repulsion(jnp.ones((3, 4)))
    assert (float(kernel), float(bandwidth)) == (1.0, pytest.approx(1e-8))
    grads = jax.grad(lambda q: ensemble.q_kernel_repulsion(q)[0])(jnp.ones((2, 4)))
    assert np.isfinite(grads).all()


def test_repulsion_spreads_the_critics_of_a_run(tiny):
    made = tiny.made("td3", (KernelRepulsion(20.0),), critic_optimiser=tiny.Adam(learning_rate=1e-2))
    _, _, told = tiny.train(made, 192)
    metrics = {name: np.concatenate([each[name] for each in told]) for name in told[0]}
    width = metrics["kernel_repulsion/bandwidth"]
    seen = width[~np.isnan(width).any(-1)]
    # Both critics regress on one target, which by itself would draw them together.
    assert (seen[-1] > 2 * seen[0]).all()
    np.testing.assert_allclose(
        metrics["kernel_repulsion/term"][-1], 20 * metrics["kernel_repulsion/kernel"][-1], rtol=1e-5
    )


def test_one_critic_has_none_to_be_apart_from(tiny):
    for name in ("avg", "dqn", "ppo"):
        with pytest.raises(MissingCapability, match=r"KernelRepulsion.*needs critic_ensemble"):
            tiny.made(name, (KernelRepulsion(),))
    tiny.made("avg", (KernelRepulsion(),), critics=2)
    with pytest.raises(ConfigError, match="coef is -1"):
        KernelRepulsion(-1.0)
