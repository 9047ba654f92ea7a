import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.agents.redq import REDQ
from perdure.agents.sac import SAC
from perdure.agents.td3 import TD3
from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.core.extension import Extension, MissingCapability, NotWired
from perdure.extensions import offline
from perdure.extensions.offline import CalQL, ConservativeQ, TargetBC
from perdure.rl.phases import Proposal

HIDDEN = (6,)
SAMPLES = 4


@pytest.fixture(scope="module")
def single(load_module):
    """The module tests/agents/single.py."""
    return load_module(Path(__file__).parents[1] / "agents" / "single.py")


@component
class Halved(Extension):
    """Transforms actions."""

    def transform_action(self, agent_state, state, action, ctx):
        return 0.5 * action


@component
class Stubborn(Extension):
    """Has every copy always do the same."""

    def action(self, agent_state, state, obs, ctx):
        same = jnp.full_like(ctx.scene.policy_action, 0.8)
        return Proposal(same, jnp.ones(same.shape[:1], bool)), state


def q_values(params, obs, action):
    """[N, B] of an ensemble of rectified perceptrons with one hidden layer, in NumPy."""
    hidden, head = jax.tree.map(np.asarray, params)
    x = np.concatenate([obs, action], -1)
    inner = [np.maximum(x @ w + b, 0.0) for w, b in zip(hidden["w"], hidden["b"], strict=True)]
    return np.stack([(h @ w + b)[:, 0] for h, w, b in zip(inner, head["w"], head["b"], strict=True)])


def around(single, agent):
    state, ctx = single.begun(agent, False), single.context(agent, False)
    batch = single.rows(False, 1)._replace(params={"critic": state.params["critic"]})
    return state, batch, ctx._replace(agent=agent)


def folded(extension, state, batch, ctx):
    """The term and its metrics, compiled."""
    return jax.jit(lambda state: extension.critic_loss(state, (), batch, ctx))(state)


def samples(state, batch, ctx):
    """The actions and densities that the term draws, by the documented use of its key."""
    uniform_key, policy_key = jax.random.split(ctx.key)
    both = jnp.concatenate([batch.obs, batch.next_obs])
    own, log_prob = jax.jit(lambda key: offline.policy_samples(ctx, state, both, key, SAMPLES))(policy_key)
    rows = len(batch.obs)
    uniform = jax.random.uniform(uniform_key, (SAMPLES, rows, 2), minval=-1.0, maxval=1.0)
    return uniform, (own[:, :rows], log_prob[:, :rows]), (own[:, rows:], log_prob[:, rows:])


def gaps(state, batch, ctx, floor=-np.inf):
    """log sum exp of the corrected values less the value of the data, [N, B], in NumPy."""
    uniform, *own = samples(state, batch, ctx)
    critic = batch.params["critic"]
    scores = [q_values(critic, batch.obs, action) + 2 * math.log(2) for action in uniform]
    for actions, log_prob in own:
        pairs = zip(np.asarray(actions), np.asarray(log_prob)[..., 0], strict=True)
        scores += [np.maximum(q_values(critic, batch.obs, action), floor) - density for action, density in pairs]
    assert len(scores) == 3 * SAMPLES
    return np.log(np.exp(np.stack(scores)).sum(0)) - q_values(critic, batch.obs, batch.action)


@pytest.mark.parametrize("kind", [SAC, REDQ])
def test_the_term_weighs_sampled_values_against_the_datas(single, kind):
    state, batch, ctx = around(single, kind(hidden=HIDDEN))
    term, told = folded(ConservativeQ(alpha=3.0, n_actions=SAMPLES), state, batch, ctx)
    wanted = gaps(state, batch, ctx).mean()
    assert float(term) == pytest.approx(3.0 * wanted, rel=1e-4)
    assert {name: float(value) for name, value in told.items()} == pytest.approx(
        {"cql/term": 3.0 * wanted, "cql/gap": wanted}, rel=1e-4
    )


def test_samples_are_the_policys_with_their_densities(single):
    state, batch, ctx = around(single, SAC(hidden=HIDDEN))
    actions, log_prob = offline.policy_samples(ctx, state, batch.obs, jax.random.key(1), 200)
    assert (actions.shape, log_prob.shape) == ((200, single.ROWS, 2), (200, single.ROWS, 1))
    hidden, head = state.params["actor"]
    packed = np.maximum(batch.obs @ hidden["w"] + hidden["b"], 0.0) @ head["w"] + head["b"]
    mean, deviation = np.asarray(packed)[:, :2], np.exp(np.asarray(packed)[:, 2:])
    raw = np.arctanh(np.clip(np.asarray(actions, np.float64), -1 + 1e-7, 1 - 1e-7))
    density = -0.5 * ((raw - mean) / deviation) ** 2 - np.log(deviation * math.sqrt(2 * math.pi))
    wanted = (density - np.log1p(-(np.tanh(raw) ** 2))).sum(-1)
    inner = np.abs(actions).max(-1) < 0.99
    np.testing.assert_allclose(np.asarray(log_prob)[..., 0][inner], wanted[inner], atol=2e-2)
    np.testing.assert_allclose(raw.mean(0), mean, atol=0.6)
    assert (np.asarray(actions).std(0) > 0.05).all()  # Every row has draws of its own.


@pytest.mark.parametrize("count", [2, 4, 5])
def test_values_in_slices_are_values_at_once_and_so_are_their_slopes(single, count):
    """Two samples of 32 rows go in one piece, four in a whole slice, five in slices of the batch's size."""
    state, batch, ctx = around(single, SAC(hidden=HIDDEN))
    actions = jax.random.uniform(jax.random.key(2), (count, single.ROWS, 2), minval=-1.0)
    assert (count * single.ROWS > offline.SLICE) == (count == 5)
    critic = state.params["critic"]
    found = jax.jit(lambda critic: offline.sampled_q(ctx, critic, batch.obs, actions))(critic)
    assert found.shape == (2, count, single.ROWS, 1)
    for number, action in enumerate(actions):
        np.testing.assert_allclose(found[:, number, :, 0], q_values(critic, batch.obs, action), rtol=1e-4, atol=1e-5)

    def apart(critic):
        each = [ctx.nets["critic"].apply(critic, jnp.concatenate([batch.obs, a], -1)) for a in actions]
        return jnp.square(jnp.stack(each)).sum()

    joined = lambda critic: jnp.square(offline.sampled_q(ctx, critic, batch.obs, actions)).sum()
    ours, theirs = jax.jit(lambda critic: (jax.grad(joined)(critic), jax.grad(apart)(critic)))(critic)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)


def test_nothing_flows_into_the_policy_and_draws_follow_the_key(single):
    state, batch, ctx = around(single, SAC(hidden=HIDDEN))
    extension = ConservativeQ(n_actions=SAMPLES)

    @jax.jit
    def term(actor, key):
        moved = state._replace(params=state.params | {"actor": actor})
        return extension.critic_loss(moved, (), batch, ctx._replace(key=key))[0]

    slopes = jax.jit(jax.grad(term))(state.params["actor"], ctx.key)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(slopes))
    assert float(term(state.params["actor"], ctx.key)) != float(term(state.params["actor"], jax.random.key(9)))


def test_known_returns_are_a_floor_for_the_policys_values_alone(single):
    state, batch, ctx = around(single, SAC(hidden=HIDDEN, reward_scale=2.0))
    known = jnp.where(jnp.arange(single.ROWS) % 2 == 0, jnp.linspace(-1.0, 1.0, single.ROWS), -jnp.inf)
    batch = batch._replace(return_to_go=known)
    extension = CalQL(n_actions=SAMPLES)
    term, told = folded(extension, state, batch, ctx)
    floor = 2.0 * np.asarray(known)
    assert float(term) == pytest.approx(5.0 * gaps(state, batch, ctx, floor).mean(), rel=1e-4)
    _, *own = samples(state, batch, ctx)
    values = [q_values(state.params["critic"], batch.obs, action) for actions, _ in own for action in actions]
    bound = np.mean(np.stack(values) < floor)
    assert 0.05 < bound < 0.5
    assert float(told["calql/bound_frac"]) == pytest.approx(bound)
    # Where every return is unknown it is ConservativeQ, and slopes are finite.
    unknown = batch._replace(return_to_go=jnp.full(single.ROWS, -jnp.inf))
    plain, _ = folded(ConservativeQ(n_actions=SAMPLES), state, unknown, ctx)
    loss = lambda critic: extension.critic_loss(state, (), unknown._replace(params={"critic": critic}), ctx)[0]
    value, slopes = jax.jit(jax.value_and_grad(loss))(state.params["critic"])
    assert float(value) == pytest.approx(float(plain), rel=1e-6)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


def test_a_high_floor_silences_the_push_on_the_policys_actions(single):
    _, batch, ctx = around(single, SAC(hidden=HIDDEN))
    extension, values = CalQL(), jnp.array([[[[1.0], [3.0]]]])
    rows = batch._replace(return_to_go=jnp.array([2.0, 2.0]))
    slopes = jax.grad(lambda q: extension.floor(q, rows, ctx)[0].sum())(values)
    np.testing.assert_array_equal(slopes[0, 0, :, 0], [0.0, 1.0])
    np.testing.assert_array_equal(extension.floor(values, rows, ctx)[0][0, 0, :, 0], [2.0, 3.0])


def test_targets_are_charged_for_the_distance_from_the_datas_next_action(single):
    state, batch, ctx = around(single, TD3(hidden=HIDDEN))
    scored = single.rows(False, 2).action
    data = np.array(single.rows(False, 3).action)
    data[::4] = np.nan
    batch = batch._replace(scored_action=scored, next_action=jnp.asarray(data))
    target = jnp.linspace(-1.0, 1.0, single.ROWS)
    found, told = TargetBC(beta=0.5).on_target(state, (), batch, target, ctx)
    square = np.square(np.asarray(scored) - data).sum(-1)
    charge = np.where(np.isnan(square) | np.asarray(batch.terminated), 0.0, 0.9 * 0.5 * square)
    np.testing.assert_allclose(found, np.asarray(target) - charge, rtol=1e-5, atol=1e-6)
    assert float(told["target_bc/penalty"]) == pytest.approx(charge.mean(), rel=1e-5)
    assert float(told["target_bc/known_frac"]) == pytest.approx(0.75)


def test_in_a_run_the_gap_closes_while_collected_rows_have_no_floor(tiny):
    fast = {"critic_optimiser": tiny.Adam(learning_rate=1e-2)}
    made = tiny.made("sac", (Stubborn(), CalQL(n_actions=3), TargetBC()), **fast)
    state, _, told = tiny.train(made, 224)
    metrics = {name: np.concatenate([each[name] for each in told]) for name in told[0]}
    seen = ~np.isnan(metrics["cql/gap"]).any(-1)
    gap = metrics["cql/gap"][seen]
    assert (gap[-1] < gap[0] - 0.3).all()
    assert (metrics["calql/bound_frac"][seen] == 0.0).all()
    assert (metrics["target_bc/known_frac"][seen] == 0.0).all()
    assert (metrics["target_bc/penalty"][seen] == 0.0).all()
    assert all(np.isfinite(leaf).all() for leaf in tiny.host(state.train.seeds.agent.params).values())


@pytest.mark.parametrize(
    ("name", "part", "error", "says"),
    [
        ("td3", ConservativeQ(), MissingCapability, r"ConservativeQ\) needs policy_density"),
        ("dqn", ConservativeQ(), MissingCapability, r"ConservativeQ\) needs actor, continuous_actions, policy_density"),
        ("asac", CalQL(), MissingCapability, r"CalQL\) needs discounted"),
        ("avg", CalQL(), MissingCapability, r"CalQL\) needs replay"),
        ("avg", TargetBC(), MissingCapability, r"TargetBC\) needs replay"),
        ("ppo", TargetBC(), MissingCapability, r"TargetBC\) needs continuous_actions, q_critic, replay"),
    ],
)
def test_agents_that_cannot_are_refused_by_name(name, part, error, says, tiny):
    with pytest.raises(error, match=says):
        tiny.made(name, (part,))


def test_terms_that_exclude_each_other_are_refused(tiny):
    with pytest.raises(NotWired, match=r"keep one of ConservativeQ and CalQL"):
        tiny.made("sac", (ConservativeQ(), CalQL()))
    with pytest.raises(NotWired, match="another extension transforms"):
        tiny.made("sac", (Halved(), ConservativeQ()))
    with pytest.raises(NotWired, match=r"CalQL.*set algorithm\.normalize_rewards to false"):
        tiny.made("sac", (CalQL(),), normalize_rewards=True)


@pytest.mark.parametrize("name", ["sac", "redq", "asac", "avg"])
def test_agents_with_densities_are_accepted(name, tiny):
    tiny.made(name, (ConservativeQ(),))


@pytest.mark.parametrize(
    ("kind", "wrong", "says"),
    [
        (ConservativeQ, {"alpha": -1.0}, "alpha is -1"),
        (CalQL, {"n_actions": 0}, "n_actions is 0"),
        (TargetBC, {"beta": -0.5}, r"beta is -0\.5"),
    ],
)
def test_settings_out_of_range_are_refused(kind, wrong, says):
    with pytest.raises(ConfigError, match=says):
        kind(**wrong)
