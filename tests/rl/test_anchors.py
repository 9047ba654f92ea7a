import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.rl import anchors
from perdure.rl.optim import Adam, RAdam, RMSProp


def tree(*numbers):
    return {"actor": [{"w": jnp.array([numbers], jnp.float32)}]}


def test_parabolas_add_up_exactly():
    random = np.random.default_rng(0)
    precisions = [*random.uniform(0, 3, (3, 4)), np.array([0.0, 0.0, 2.0, 0.0])]
    places = random.normal(size=(4, 4))
    anchor = anchors.unanchored(tree(0.0, 0.0, 0.0, 0.0))
    for precision, place in zip(precisions, places, strict=True):
        anchor = anchors.joined(anchor, tree(*precision), tree(*place))
    assert float(anchor.number) == 4
    for point in random.normal(size=(3, 4)):
        wanted = sum((f * (point - p) ** 2).sum() for f, p in zip(precisions, places, strict=True))
        assert float(anchors.pull(anchor, tree(*point)) + anchor.residual) == pytest.approx(wanted, rel=1e-5)


def test_what_never_mattered_pulls_at_nothing_and_stays_finite():
    anchor = anchors.joined(anchors.unanchored(tree(1.0, 1.0)), tree(0.0, 2.0), tree(5.0, 5.0))
    slope = jax.grad(lambda params: anchors.pull(anchor, params))(tree(3.0, 3.0))
    np.testing.assert_allclose(slope["actor"][0]["w"], [[0.0, 2 * 2.0 * (3.0 - 5.0)]])
    assert float(anchor.residual) == 0


def test_only_the_parameters_that_are_given_are_pulled_at():
    anchor = anchors.moved(anchors.unanchored({"actor": jnp.zeros(1), "critic": jnp.zeros(1)}), None, None)
    anchor = anchor._replace(precision={"actor": jnp.ones(1), "critic": jnp.ones(1)}, centre={"actor": jnp.zeros(1)})
    anchor = anchor._replace(centre={"actor": jnp.zeros(1), "critic": jnp.zeros(1)})
    assert float(anchors.pull(anchor, {"critic": jnp.full(1, 3.0), "log_temperature": jnp.full(1, 50.0)})) == 9.0


@pytest.mark.parametrize("optimiser", [Adam(), Adam(beta1=0.0), RAdam(beta1=0.8), RMSProp(decay=0.7)])
def test_the_last_gradient_is_read_off_the_mean(optimiser):
    params, gradients = tree(1.0, -2.0), [tree(0.5, 3.0), tree(-4.0, 0.1)]
    states = [optimiser.init(params)]
    for gradient in gradients:
        params, opt = optimiser.step(params, states[-1], gradient)
        states.append(opt)
    found = anchors.mean_gradient(optimiser, states[1], states[2])
    np.testing.assert_allclose(found["actor"][0]["w"], [[-4.0, 0.1]], rtol=1e-5, atol=1e-5)
    still = anchors.mean_gradient(optimiser, states[1], states[1])
    np.testing.assert_allclose(still["actor"][0]["w"], 0.0, atol=1e-6)


def test_several_gradients_are_averaged_the_later_weighing_more():
    optimiser, params = Adam(beta1=0.5), tree(0.0)
    before = optimiser.init(params)._replace(mean=tree(7.0))
    after = before
    for number in (3.0, 9.0):
        params, after = optimiser.step(params, after, tree(number))
    # Weights 1/2 and 1 of 3 and 9, over their sum.
    found = anchors.mean_gradient(optimiser, before, after)
    assert float(found["actor"][0]["w"][0, 0]) == pytest.approx((0.5 * 3 + 9) / 1.5, rel=1e-5)
