import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.core.extension import Extension, MissingCapability, NotWired
from perdure.core.records import Spec
from perdure.extensions import exploration
from perdure.extensions.exploration import EDGEExploration
from perdure.rl import fit, phi
from perdure.rl.nets import Network
from perdure.rl.ops import gates
from perdure.rl.phases import Clock, Context, Scene

COPIES = 20_000
KEY = jax.random.key(4)
NETWORK = Network(inputs=2, hidden=(2,), outputs=1, members=3, activation="crelu", reads="obs_action")


def critics(*weights):
    """Critics that are linear in (obs, action): a number is its positive part less its negative part."""
    w, count = jnp.array(weights)[..., None], len(weights)
    same = jnp.broadcast_to(jnp.eye(2), (count, 2, 2))
    return [
        {"w": same, "b": jnp.zeros((count, 2))},
        {"w": jnp.concatenate([w, -w], axis=1), "b": jnp.zeros((count, 1))},
    ]


CRITICS = critics([0.0, 1.0], [1.0, 2.0], [0.0, 3.0])
"""Of an observation s and an action a: a, s + 2a, 3a."""


def context(step=0, **known):
    clock = Clock(jnp.int32(step), jnp.int32(0), jnp.int32(100))
    return Context(Spec((1,), 1, False, (-1.0,), (1.0,)), {"critic": NETWORK}, 1, clock, KEY, **known)


def opened(extension, expert, policy, step=0, obs=1.0, raw_obs=None, **known):
    """(the mask, the running share's value) for copies that all see and do the same."""
    same = lambda value: jnp.full((COPIES, 1), value)
    ctx = context(step, scene=Scene(same(obs if raw_obs is None else raw_obs), same(expert), same(policy)), **known)
    state = extension.init_state(None, KEY, ctx)
    agent_state = fit.AgentState({"critic": CRITICS}, {})
    proposal, state = extension.action(agent_state, state, same(obs), ctx)
    np.testing.assert_array_equal(proposal.action, same(expert))
    assert proposal.mask.shape == (COPIES,)
    np.testing.assert_allclose(state.value, proposal.mask.mean(), rtol=1e-4)
    return np.asarray(proposal.mask)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def close(mask, probability):
    """Assert a frequency to four deviations."""
    assert abs(mask.mean() - probability) < 4 * math.sqrt(0.25 / COPIES)


@pytest.mark.parametrize(("step", "probability"), [(0, 0.6), (10, 0.6 * 2 / 3), (30, 0.0), (90, 0.0)])
def test_a_fixed_gate_opens_for_each_copy_by_itself(step, probability):
    mask = opened(EDGEExploration(gate="fixed", fixed_prob=0.6, decay_frac=0.3), 0.1, 0.2, step)
    close(mask, probability)
    if probability:
        assert 0 < mask.sum() < COPIES  # One draw for all would give all or none.


def test_a_decay_over_no_share_never_ends():
    mask = opened(EDGEExploration(gate="fixed", fixed_prob=0.6, decay_frac=0.0), 0.1, 0.2, 99)
    close(mask, 0.6)
    assert exploration.edge_compute_decay(jnp.int32(99), 100, 0.0) == 1.0
    np.testing.assert_allclose(exploration.edge_compute_decay(jnp.int32(10), 100, 0.4), 0.75, rtol=1e-6)


def test_the_gap_is_between_the_least_values():
    # Expert -.5: -.5, 0, -1.5. Policy .5: .5, 2, 1.5.
    both = (jnp.array([[1.0]]), jnp.array([[0.5]]), jnp.array([[-0.5]]), context(), CRITICS)
    gap, q_policy = exploration.edge_compute_value_gap(*both)
    np.testing.assert_allclose([gap, q_policy], [[-2.0], [0.5]])
    scores = exploration.edge_lcb_scores(*both, 0.5)
    np.testing.assert_allclose(scores, [[-1.5 - 0.5 * 1.5], [0.5 - 0.5 * 1.5]])
    _, upper = exploration.edge_lcb_scores(*both, 0.5, asymmetric=True)
    np.testing.assert_allclose(upper, [2.0 + 0.5 * 1.5])
    stats = exploration.edge_compute_thompson_stats(*both)
    expert, policy = np.array([-0.5, 0.0, -1.5]), np.array([0.5, 2.0, 1.5])
    np.testing.assert_allclose(np.ravel(stats), [expert.mean(), expert.std(), policy.mean(), policy.std()], rtol=1e-6)


def test_an_argmax_gate_opens_while_the_expert_is_better_and_the_share_lasts():
    extension = EDGEExploration(gate="argmax", decay_frac=0.3)
    assert opened(extension, 0.2, 0.1).all()
    assert not opened(extension, 0.1, 0.2).any()
    assert opened(extension, 0.2, 0.1, step=29).all()
    assert not opened(extension, 0.2, 0.1, step=30).any()


def test_a_boltzmann_gate_weighs_the_gap_by_the_policys_own_value():
    # Least values .3 and .2, at the share .1 of a decay over .4.
    mask = opened(EDGEExploration(gate="boltzmann", tau=0.5, decay_frac=0.4), 0.3, 0.2, step=10)
    close(mask, 0.75 * sigmoid(0.1 / (0.5 * 0.2)))


def test_bound_gates_fear_disagreement_less_as_the_run_goes_on():
    # Expert .5: from .5 to 2. Policy -.1: from -.3 to .8. After half of the run b is 1: -1 against -1.4, or 1.9.
    extension = partial(EDGEExploration, lcb_beta_init=2.0, lcb_beta_decay_k=1.0)
    close(opened(extension("lcb", lcb_temperature=2.0), 0.5, -0.1, step=50), sigmoid((-1.0 + 1.4) / 2))
    upper = extension("lcb", lcb_temperature=10.0, lcb_asymmetric=True)
    close(opened(upper, 0.5, -0.1, step=50), sigmoid((-1.0 - 1.9) / 10))
    assert opened(extension("lcb", lcb_temperature=0.0), 0.5, -0.1, step=50).all()
    assert opened(extension("argmax_lcb"), 0.5, -0.1, step=50).all()
    assert not opened(extension("argmax_lcb", lcb_asymmetric=True), 0.5, -0.1, step=50).any()
    # Policy 0: from 0 to 1. At first -2.5 against -2, with b .4 later -.1 against -.4.
    assert not opened(extension("argmax_lcb"), 0.5, 0.0).any()
    assert opened(extension("argmax_lcb"), 0.5, 0.0, step=80).all()


def test_a_thompson_gate_compares_draws_and_keeps_a_floor_for_the_policy():
    expert, policy = np.array([0.3, 1.6, 0.9]), np.array([0.2, 1.4, 0.6])  # Actions .3 and .2.
    spread = 1.5 * math.sqrt(expert.var() + policy.var())
    wins = 0.5 * (1 + math.erf((expert.mean() - policy.mean()) / spread / math.sqrt(2)))
    close(opened(EDGEExploration(gate="thompson", lcb_temperature=1.5), 0.3, 0.2, step=99), wins)
    floored = EDGEExploration(gate="thompson", lcb_temperature=1.5, epsilon_floor=0.4)
    close(opened(floored, 0.3, 0.2), 0.6 * wins)
    assert opened(EDGEExploration(gate="thompson", lcb_temperature=0.0), 0.3, 0.2).all()


def test_gates_hand_on_another_key_where_they_drew():
    one, gap = jnp.ones(()), jnp.zeros(3)
    for mask, key in (
        exploration.edge_fixed_gate(gap, one, KEY, 0.5),
        exploration.edge_boltzmann_gate(gap, one, KEY, gap, 1.0),
        exploration.edge_lcb_gate(gap, gap, KEY, 1.0),
        exploration.edge_thompson_gate(gap, gap, gap, gap, KEY),
    ):
        assert mask.shape == (3,)
        assert (jax.random.key_data(key) != jax.random.key_data(KEY)).any()
    assert exploration.edge_argmax_gate(gap, one, KEY)[1] is KEY
    assert exploration.edge_lcb_argmax_gate(gap, gap, KEY)[1] is KEY


def test_the_frozen_value_judges_where_there_is_one_at_raw_observations():
    # One critic of phi* prefers small actions, the other large ones, from where the observation is large.
    judge = phi.PhiStar(critics([0.0, -1.0], [2.0, 1.0]), jnp.zeros(()), jnp.ones(()))
    extension = EDGEExploration(gate="argmax")
    assert not opened(extension, -0.3, 0.2).any()
    given = {"phi_star": judge}
    assert opened(extension, -0.3, 0.2, obs=-4.0, raw_obs=4.0, provided=given).all()
    assert not opened(extension, -0.3, 0.2, obs=4.0, raw_obs=-4.0, provided=given).any()


@pytest.mark.parametrize(
    ("gate", "told"),
    [
        ("fixed", {"edge/decay": 1 / 3}),
        ("argmax", {"edge/decay": 1 / 3}),
        ("boltzmann", {"edge/decay": 1 / 3}),
        ("lcb", {"edge/beta": 0.64}),
        ("argmax_lcb", {"edge/beta": 0.64}),
        ("thompson", {}),
    ],
)
def test_each_gate_reports_its_own_weight(gate, told):
    found = EDGEExploration(gate=gate).eval_metrics(None, gates.Share.begin().seen(jnp.array([True])), context(20))
    found = {name: float(value) for name, value in found.items()}
    assert found == pytest.approx({"edge/live_expert_frac": 1.0} | told, rel=1e-5)


@component
class Last:
    """An expert that takes the last of three actions."""

    def __call__(self, obs):
        return jnp.full(obs.shape[:-1], 2, jnp.int32)


@component
class Marks(Extension):
    """Has the rows say which actions were proposed."""

    reads = frozenset({"is_expert"})


def test_experts_act_in_training_in_copies_of_their_own_and_while_the_agent_warms_up(tiny):
    # So warm that values, of indices here, matter little: the gate is open half of the time.
    extension = EDGEExploration(gate="boltzmann", tau=1e6, decay_frac=0.0)
    made = tiny.made("dqn", (extension, Marks()), rollout={"expert": Last()})
    state, _, _ = tiny.train(made, 192)
    stored = state.train.seeds.store.rows
    cut = lambda x: np.asarray(x)[:, :192].reshape(2, 96, 2)
    proposed, action = cut(stored.is_expert), cut(stored.action)
    assert (action[proposed] == 2).all()
    assert (action[~proposed] != 2).any()
    assert abs(proposed.mean() - 0.5) < 0.1
    assert 0.2 < (proposed[..., 0] != proposed[..., 1]).mean() < 0.8
    assert abs(proposed[:, :10].mean() - 0.5) < 0.3  # 20 steps of warm-up.
    share = state.train.seeds.extensions.states[0].value
    np.testing.assert_allclose(share, proposed.mean((1, 2)), atol=0.1)


@pytest.mark.parametrize(
    ("name", "gate", "error", "says"),
    [
        ("dqn", "fixed", NotWired, r"EDGEExploration\) needs agent_expert; give algorithm.expert"),
        ("ppo", "fixed", MissingCapability, "needs off_policy"),
        ("dqn", "lcb", MissingCapability, "needs critic_ensemble"),
        ("avg", "argmax_lcb", MissingCapability, "needs critic_ensemble"),
        ("pqn", "thompson", MissingCapability, "needs critic_ensemble"),
    ],
)
def test_what_is_lacking_is_refused_by_name(name, gate, error, says, tiny):
    with pytest.raises(error, match=says):
        tiny.made(name, (EDGEExploration(gate=gate),))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"gate": "argmix"}, "gate is 'argmix'; did you mean 'argmax'"),
        ({"decay_frac": 1.5}, r"decay_frac is 1\.5"),
        ({"tau": 0.0}, r"tau is 0\.0"),
        ({"fixed_prob": -0.1}, r"fixed_prob is -0\.1"),
        ({"lcb_beta_init": -1.0}, "lcb_beta_init is -1"),
        ({"lcb_beta_decay_k": -1.0}, "lcb_beta_decay_k is -1"),
        ({"lcb_temperature": float("nan")}, "lcb_temperature is nan"),
        ({"epsilon_floor": 2.0}, "epsilon_floor is 2"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, says):
    with pytest.raises(ConfigError, match=says):
        EDGEExploration(**wrong)
