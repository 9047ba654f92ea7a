import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.records import Spec
from perdure.rl import heads, views
from perdure.rl.nets import Network
from perdure.rl.phases import Clock, Context

OBS = jnp.array([[1.0], [2.0]])
BOX = Spec((1,), 2, discrete=False, low=(-1.0,) * 2, high=(1.0,) * 2)
CHOICE = Spec((1,), 2, discrete=True)


def actor(weights):
    return [
        {"w": jnp.ones((1, 1)), "b": jnp.zeros(1)},
        {"w": jnp.array([weights], jnp.float32), "b": jnp.zeros(len(weights))},
    ]


KINDS = {
    "choice": (CHOICE, {}, (1.0, -1.0), (0.5, 2.0)),
    "normal": (BOX, {"log_std": jnp.array([0.1, -0.4])}, (1.0, -1.0), (0.5, 2.0)),
    "squashed": (BOX, {}, (1.0, -1.0, 0.2, -0.3), (0.5, 2.0, 0.0, 1.5)),
    "deterministic": (BOX, {}, (1.0, -1.0), (0.5, 2.0)),
}


def both(kind):
    spec, others, one, other = KINDS[kind]
    ctx = Context(spec, {"actor": Network(1, (1,), len(one))}, 1, Clock(*[jnp.int32(0)] * 3))
    moved = {name: x + 0.3 for name, x in others.items()}
    return ctx, {"actor": actor(one), **others}, {"actor": actor(other), **moved}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kept_policy_diverges_as_its_parameters_do(kind):
    ctx, one, other = both(kind)
    said = [heads.said(ctx, params, OBS) for params in (one, other)]
    assert said[0].shape == (2, heads.size(ctx, one))
    found = heads.divergence(ctx, *said)
    np.testing.assert_array_equal(found, views.divergence(ctx, one, other, OBS))
    assert (found > 0.01).all()
    np.testing.assert_allclose(heads.divergence(ctx, said[0], said[0]), 0.0, atol=1e-6)


def test_the_divergence_of_normals_is_that_of_the_textbook():
    # KL(N(1, 1) || N(3, 2)) = log 2 + (1 + 4) / 8 - 1 / 2, in each of two dimensions.
    ctx, *_ = both("normal")
    one = jnp.array([[1.0, 1.0, 0.0, 0.0]])
    other = jnp.array([[3.0, 3.0, np.log(2.0), np.log(2.0)]])
    np.testing.assert_allclose(heads.divergence(ctx, one, other), 2 * (np.log(2) + 5 / 8 - 1 / 2), rtol=1e-6)


def test_policies_of_values_diverge_as_their_softmaxes():
    ctx = Context(CHOICE, {"critic": Network(1, (1,), 2)}, 1, Clock(*[jnp.int32(0)] * 3))
    one, other = ({"critic": actor(weights)} for weights in ((1.0, -1.0), (0.5, 2.0)))
    p, q = (
        np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (OBS * np.array([1.0, -1.0]), OBS * np.array([0.5, 2.0]))
    )
    np.testing.assert_allclose(views.divergence(ctx, one, other, OBS), (p * np.log(p / q)).sum(-1), rtol=1e-5)


def test_probabilities_of_actions():
    ctx, *_ = both("choice")
    said = jnp.log(jnp.array([[0.25, 0.75]]))
    np.testing.assert_allclose(heads.log_prob(ctx, said, jnp.array([1])), np.log(0.75), rtol=1e-6)
    ctx, *_ = both("normal")
    said = jnp.array([[1.0, 0.0, np.log(2.0), 0.0]])
    wanted = -0.5 * (0.5**2 + 1) - np.log(2) - np.log(2 * np.pi)
    np.testing.assert_allclose(heads.log_prob(ctx, said, jnp.array([[2.0, 1.0]])), wanted, rtol=1e-6)


def test_an_agent_without_an_actor_says_nothing():
    ctx = Context(CHOICE, {}, 1, Clock(*[jnp.int32(0)] * 3))
    assert heads.size(ctx, {}) == 0
    assert heads.said(ctx, {}, OBS).shape == (2, 0)
