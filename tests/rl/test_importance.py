import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.records import Spec
from perdure.rl import importance
from perdure.rl.nets import Network
from perdure.rl.phases import Batch, Clock, Context

MANY = 6_000


def layer(weights, biases):
    return {"w": jnp.array(weights, jnp.float32), "b": jnp.array(biases, jnp.float32)}


def line(*head_biases):
    """h = 2 x, and outputs 3 h + bias."""
    return [layer([[2.0]], [0.0]), layer([[3.0] * len(head_biases)], head_biases)]


def rows(*xs):
    column = jnp.array(xs, jnp.float32)[:, None]
    return Batch(column, jnp.zeros_like(column), column[:, 0], None, None, None)


def context(nets, discrete=False, actions=1):
    spec = Spec((1,), actions, discrete, *(() if discrete else ((-1.0,) * actions, (1.0,) * actions)))
    return Context(spec, nets, 1, Clock(*[jnp.int32(0)] * 3))


def fisher(ctx, params, rows, seed=0):
    return jax.jit(lambda *given: importance.fisher(ctx, *given))(params, rows, jax.random.key(seed))


def network(outputs, **others):
    return Network(1, (1,), outputs, **others)


def test_a_values_information_is_its_mean_squared_gradient():
    ctx = context({"critic": network(1)})
    found = fisher(ctx, {"critic": line(1.0)}, rows(1.0, 2.0))["critic"]
    # Slopes at x = 1 and 2: of the head's weight h = 2 and 4, of the first weight 3 x, of the first bias 3.
    assert float(found[1]["w"][0, 0]) == pytest.approx((4 + 16) / 2)
    assert float(found[1]["b"][0]) == pytest.approx(1)
    assert float(found[0]["w"][0, 0]) == pytest.approx((9 + 36) / 2)
    assert float(found[0]["b"][0]) == pytest.approx(9)


def test_members_of_an_ensemble_and_actions_not_taken_are_kept_apart():
    both = jax.tree.map(lambda *x: jnp.stack(x), line(1.0), [layer([[1.0]], [0.0]), layer([[0.5]], [0.0])])
    ctx = context({"critic": network(1, members=2)})
    found = fisher(ctx, {"critic": both}, rows(1.0, 2.0))["critic"]
    np.testing.assert_allclose(found[1]["w"][:, 0, 0], [(4 + 16) / 2, (1 + 4) / 2])
    ctx = context({"critic": network(2)}, discrete=True, actions=2)
    taken = rows(1.0, 2.0)._replace(action=jnp.array([1, 1], jnp.int32))
    found = fisher(ctx, {"critic": line(0.0, 0.0)}, taken)["critic"]
    np.testing.assert_allclose(found[1]["w"], [[0.0, (4 + 16) / 2]])


@pytest.mark.parametrize(
    ("outputs", "discrete", "more", "wanted"),
    [
        # Logits log 3 and 0: probabilities 3/4 and 1/4, variance of each indicator 3/16.
        ([np.log(3.0), 0.0], True, {}, {"actor": [3 / 16, 3 / 16]}),
        # A Normal of deviation 1/2: information 4 of the mean, 2 of the log deviation.
        ([0.3, np.log(0.5)], False, {}, {"actor": [4.0, 2.0]}),
        ([0.3], False, {"log_std": jnp.log(jnp.array([0.5]))}, {"actor": [4.0], "log_std": [2.0]}),
        # A deterministic action counts as the mean of a Normal of deviation 1.
        ([0.3], False, {}, {"actor": [1.0]}),
        # A deviation outside of its range has no slope.
        ([0.3, 5.0], False, {}, {"actor": [np.exp(-4.0), 0.0]}),
    ],
)
def test_a_policys_information_is_that_of_its_distribution(outputs, discrete, more, wanted):
    ctx = context({"actor": network(len(outputs))}, discrete, 2 if discrete else 1)
    many = jax.tree.map(lambda x: jnp.zeros((MANY, *x.shape[1:]), x.dtype), rows(0.0))
    found = fisher(ctx, {"actor": line(*outputs)} | more, many)
    np.testing.assert_allclose(found["actor"][1]["b"], wanted["actor"], rtol=0.12)
    if more:
        np.testing.assert_allclose(found["log_std"], wanted["log_std"], rtol=0.12)


def test_sensitivity_is_the_slope_of_the_squared_outputs():
    ctx = context({"actor": network(1)})
    params = {"actor": line(-8.0), "log_std": jnp.ones(1)}
    found = jax.jit(lambda *given: importance.sensitivity(ctx, *given))(params, rows(1.0, 2.0))
    # Outputs -2 and 4. A mean of slopes before their size is taken would be (-8 + 32) / 2 for the head's weight.
    assert float(found["actor"][1]["w"][0, 0]) == pytest.approx((2 * 2 * 2 + 2 * 4 * 4) / 2)
    assert float(found["actor"][1]["b"][0]) == pytest.approx((4 + 8) / 2)
    assert float(found["actor"][0]["w"][0, 0]) == pytest.approx((2 * 2 * 3 + 2 * 4 * 6) / 2)
    np.testing.assert_array_equal(found["log_std"], 0.0)


def test_what_is_held_is_the_policy_and_only_on_demand_the_values():
    params = {"actor": 1, "critic": 2, "log_std": 3, "log_temperature": 4}
    ctx = context({"actor": None, "critic": None})
    assert importance.held(ctx, params, critic=False) == {"actor": 1, "log_std": 3}
    assert importance.held(ctx, params, critic=True) == {"actor": 1, "log_std": 3, "critic": 2}
    assert importance.held(context({"critic": None}), {"critic": 2}, critic=False) == {"critic": 2}


def test_few_rows_are_spread_over_all():
    np.testing.assert_array_equal(importance.few(rows(*range(8)), 4).reward, [0, 2, 4, 6])
    np.testing.assert_array_equal(importance.few(rows(*range(3)), 4).reward, [0, 1, 2])
