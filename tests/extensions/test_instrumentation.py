import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.agents.asac import ASAC
from perdure.core.errors import ConfigError
from perdure.core.records import Spec
from perdure.extensions import instrumentation
from perdure.extensions.instrumentation import BiasVoreDecomposition, BiasVorePenalty, ConditioningMetrics
from perdure.metrics import plasticity
from perdure.rl import fit
from perdure.rl.nets import Network
from perdure.rl.phases import Batch, Clock, Context

SPEC = Spec((1,), 2, discrete=True)
STILL = Clock(*[jnp.int32(0)] * 3)


@pytest.fixture
def single(load_module):
    return load_module(Path(__file__).parents[1] / "agents" / "single.py")


def line(slopes, biases):
    """Outputs slope * x + bias for x at least 0."""
    layer = lambda weights, biases: {"w": jnp.array([weights], jnp.float32), "b": jnp.array(biases, jnp.float32)}
    return [layer([1.0], [0.0]), layer(slopes, biases)]


def context(outputs, discount=None, reward_scale=1.0, rows=None):
    offers = frozenset({"critic", *(["discounted"] if discount else [])})
    agent = types.SimpleNamespace(offers=offers, discount=discount, reward_scale=reward_scale)
    network = Network(1, (1,), outputs)
    return Context(SPEC, {"critic": network}, 1, STILL, jax.random.key(0), agent=agent, recent=rows)


def rows(obs, action, reward, terminated, next_obs):
    column = lambda xs: jnp.array(xs, jnp.float32)[:, None]
    return Batch(
        column(obs),
        jnp.array(action, jnp.int32),
        jnp.array(reward, jnp.float32),
        jnp.array(terminated),
        jnp.array([False, True]),
        column(next_obs),
    )


ROWS = rows([1.0, 2.0], [0, 1], [1.0, 3.0], [False, True], [2.0, 5.0])
VALUES = fit.AgentState({"critic": line([2.0], [1.0])}, {})


def decomposed(found):
    return [float(found[f"EVarEst/{name}"]) for name in ("bias_sq", "var_resid", "mse", "abs_bias")]


def wanted(rho):
    rho = np.array(rho)
    return pytest.approx([rho.mean() ** 2, rho.var(), (rho**2).mean(), abs(rho.mean())], rel=1e-5)


def test_residuals_use_the_agents_own_discount_and_reward_scale():
    found = BiasVoreDecomposition().eval_metrics(VALUES, (), context(1, 0.5, 10.0, ROWS))
    # Predictions 3 and 5; targets 10 + .5 * 5, and 30 as the second row terminates.
    assert decomposed(found) == wanted([3 - 12.5, 5 - 30])


def test_the_largest_action_value_counts_where_a_network_has_many():
    state = fit.AgentState({"critic": line([2.0, -1.0], [0.0, 3.0])}, {})
    alive = ROWS._replace(terminated=jnp.array([False, False]))
    found = BiasVoreDecomposition().eval_metrics(state, (), context(2, 0.5, rows=alive))
    # At x = 2 the values are 4 and 1, at 5 they are 10 and -2.
    assert decomposed(found) == wanted([2 - (1 + 0.5 * 4), 1 - (3 + 0.5 * 10)])


def test_an_average_reward_agent_is_measured_against_the_mean_reward():
    alive = ROWS._replace(terminated=jnp.array([False, False]))
    found = BiasVoreDecomposition().eval_metrics(VALUES, (), context(1, rows=alive))
    assert decomposed(found) == wanted([3 - (1 - 2 + 5), 5 - (3 - 2 + 11)])


def test_a_target_of_ones_own_and_fewer_rows():
    extension = BiasVoreDecomposition(1, lambda agent_state, rows, ctx: 2.0 * rows.reward)
    found = extension.eval_metrics(VALUES, (), context(1, 0.5, rows=ROWS))
    assert decomposed(found) == wanted([3 - 2.0])


def test_the_soft_average_reward_target_goes_on_from_where_the_world_begins_anew(single):
    agent = ASAC(hidden=(4,), temperature=0.3, reward_scale=2.0)
    state, batch = single.begun(agent, False), single.rows(False, 0)
    ctx = single.context(agent, False)._replace(agent=agent)
    target = jax.jit(lambda state, batch: instrumentation.one_step_target(state, batch, ctx))
    found = target(state, batch._replace(discount=None))
    here, there = jax.random.split(ctx.key)
    _, log_prob = agent.sample(state, batch.obs, here, ctx)
    next_obs = np.where(np.asarray(batch.terminated)[:, None], batch.reset_obs, batch.next_obs)
    action, next_log_prob = agent.sample(state, jnp.asarray(next_obs), there, ctx)
    q = ctx.nets["critic"].apply(state.params["critic"], jnp.concatenate([next_obs, action], -1))[..., 0]
    temperature = np.exp(float(state.params["log_temperature"]))
    rate = (2.0 * batch.reward - temperature * log_prob).mean()
    np.testing.assert_allclose(
        found, 2.0 * batch.reward - rate + q.min(0) - temperature * next_log_prob, rtol=1e-4, atol=1e-4
    )


def test_the_penalty_is_the_variance_of_the_residuals():
    batch = ROWS._replace(params=VALUES.params, target=jnp.array([1.0, 7.0]))
    for extension, coefficient in (
        (BiasVorePenalty(), 0.0),
        (BiasVorePenalty(alpha=0.2, loss_scale=0.5), 0.5 * 3.0),
        (BiasVorePenalty(alpha=1.0), -1.0),
        (BiasVorePenalty(alpha=0.2, coeff_override=7.0), 7.0),
    ):
        found, told = extension.critic_loss(VALUES, (), batch, context(1, 0.5))
        # Residuals 3 - 1 and 5 - 7: variance 4 about their mean 0.
        assert float(found) == pytest.approx(coefficient * 4.0)
        assert {name: float(value) for name, value in told.items()} == pytest.approx(
            {"bias_vore/penalty": coefficient * 4.0, "bias_vore/residual_var": 4.0}
        )


def test_a_shift_of_all_residuals_costs_nothing_and_members_count_each_for_itself():
    extension = BiasVorePenalty(coeff_override=1.0)
    batch = ROWS._replace(params=VALUES.params, target=jnp.array([1.0, 7.0]) + 100.0)
    assert float(extension.critic_loss(VALUES, (), batch, context(1, 0.5))[0]) == pytest.approx(4.0)
    both = jax.tree.map(lambda *x: jnp.stack(x), line([2.0], [1.0]), line([4.0], [50.0]))
    ctx = context(1, 0.5)._replace(nets={"critic": Network(1, (1,), 1, members=2)})
    found, _ = extension.critic_loss(None, (), batch._replace(params={"critic": both}), ctx)
    # Residuals of the second member, but for a constant, 4 - 1 and 8 - 7: variance 1; not of all four numbers at once.
    assert float(found) == pytest.approx((4.0 + 1.0) / 2)


def test_conditioning_is_that_of_the_last_hidden_layer():
    network = Network(3, (8, 6), 1)
    params = network.init(jax.random.key(1))
    params[1]["w"] = params[1]["w"].at[:, 2].set(-5.0)
    obs = np.random.default_rng(0).uniform(0, 1, size=(20, 3)).astype(np.float32)
    recent = ROWS._replace(obs=jnp.asarray(obs), reward=jnp.zeros(20), action=jnp.zeros(20, jnp.int32))
    recent = recent._replace(terminated=jnp.zeros(20, bool), truncated=jnp.zeros(20, bool), next_obs=jnp.asarray(obs))

    @jax.jit
    def measured(params, recent):
        ctx = context(1, 0.5)._replace(nets={"critic": network}, recent=recent)
        return ConditioningMetrics(on_policy_batch=12).eval_metrics(fit.AgentState({"critic": params}, {}), (), ctx)

    found = measured(params, recent)
    hidden = obs[:12]
    for layer in params[:-1]:
        hidden = np.maximum(hidden @ np.asarray(layer["w"]) + np.asarray(layer["b"]), 0)
    assert {name.removeprefix("Cond/critic_"): float(value) for name, value in found.items()} == pytest.approx(
        {
            "srank": plasticity.threshold_rank(hidden),
            "dormant_frac": plasticity.dormant_fraction(hidden),
            "feat_norm": np.linalg.norm(hidden, axis=1).mean(),
            "weight_norm": np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(params))),
        },
        rel=1e-5,
    )


def test_every_measurement_is_reported_by_a_trained_agent(tiny):
    made = tiny.made("sac", (ConditioningMetrics(), BiasVoreDecomposition(), BiasVorePenalty(alpha=0.1)))
    state, _, metrics = tiny.train(made, 96)
    told = made.evaluate(state, {"level": 1.0}, 1).metrics
    assert set(told) == {
        *(f"Cond/critic_{name}" for name in ("srank", "dormant_frac", "feat_norm", "weight_norm")),
        *(f"EVarEst/{name}" for name in ("bias_sq", "var_resid", "mse", "abs_bias")),
    }
    assert all(np.isfinite(value).all() for value in told.values())
    assert ((told["Cond/critic_srank"] >= 1) & (told["Cond/critic_srank"] <= 8)).all()
    np.testing.assert_allclose(told["EVarEst/bias_sq"] + told["EVarEst/var_resid"], told["EVarEst/mse"], rtol=1e-4)
    last = metrics[-1]
    np.testing.assert_allclose(last["bias_vore/penalty"], 8.0 * last["bias_vore/residual_var"], rtol=1e-4)


@pytest.mark.parametrize("kind", [ConditioningMetrics, BiasVoreDecomposition])
def test_a_buffer_is_taken_with_a_warning_and_dropped(kind):
    with pytest.warns(UserWarning, match="buffer is not used"):
        made = kind(buffer=["unhashable"])
    assert made == kind()
    assert hash(made) == hash(kind())


@pytest.mark.parametrize(
    ("kind", "wrong", "says"),
    [
        (ConditioningMetrics, {"on_policy_batch": 0}, "on_policy_batch is 0"),
        (BiasVoreDecomposition, {"on_policy_batch": 0}, "on_policy_batch is 0"),
        (BiasVorePenalty, {"alpha": 0.0}, "alpha is 0"),
        (BiasVorePenalty, {"coeff_override": -2.0}, "coeff_override is -2"),
        (BiasVorePenalty, {"loss_scale": -1.0}, "loss_scale is -1"),
    ],
)
def test_settings_out_of_range_are_refused(kind, wrong, says):
    with pytest.raises(ConfigError, match=says):
        kind(**wrong)
