import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.core.records import Spec
from perdure.extensions import expert
from perdure.extensions.expert import ExpertValueMetrics, ImitationLoss, JSRLCurriculum, OnlineBC, ResidualPolicy
from perdure.rl import fit, phi
from perdure.rl.nets import Network
from perdure.rl.ops import gates
from perdure.rl.phases import Batch, Clock, Context, Scene

OBS = jnp.array([[1.0], [2.0]])
SLOPE = jnp.array([[0.1, -0.2]])
"""The actor: mu = obs * SLOPE = (.1, -.2) and (.2, -.4)."""
EXPERT = jnp.array([[0.5, 0.2], [-0.8, 0.6]])
"""Errors mean_A((mu - a_E)^2): (.16 + .16) / 2 = .16, (1 + 1) / 2 = 1."""
NETWORK = Network(inputs=3, hidden=(3,), outputs=1, members=2, activation="crelu", reads="obs_action")


def critics(*weights):
    """Critics that are linear in (obs, action): a number is its positive part less its negative part."""
    w, count = jnp.array(weights)[..., None], len(weights)
    same = jnp.broadcast_to(jnp.eye(3), (count, 3, 3))
    return [
        {"w": same, "b": jnp.zeros((count, 3))},
        {"w": jnp.concatenate([w, -w], axis=1), "b": jnp.zeros((count, 1))},
    ]


CRITICS = critics([0.0, 1.0, 0.0], [0.0, 0.0, 1.0])
"""Q_1 is the first number of the action, Q_2 the second."""
PHI = phi.PhiStar(critics([1.0, 0.0, 0.0], [1.0, -1.0, 0.0]), jnp.float32(0.0), jnp.float32(2.0))


class Straight:
    """An agent whose mean action is proportional to the observation."""

    def act_greedy(self, state, obs, ctx):
        return obs @ state.params["actor"]


def context(step=0, spec=None, **known):
    spec = spec or Spec((1,), 2, False, (-1.0, -1.0), (1.0, 1.0))
    clock = Clock(jnp.int32(step), jnp.int32(0), jnp.int32(100))
    return Context(spec, {"critic": NETWORK}, 1, clock, jax.random.key(0), agent=Straight(), **known)


def begun():
    return fit.AgentState({"actor": SLOPE, "critic": CRITICS}, {})


def rows(**known):
    none = jnp.zeros(2)
    given = {"params": {"actor": SLOPE}, "expert_action": EXPERT, "raw_obs": OBS, "discount": 0.9} | known
    return Batch(OBS, jnp.zeros((2, 2)), none, none > 0, none > 0, OBS)._replace(**given)


def imitate(extension, ctx=None, batch=None):
    term, metrics = extension.actor_loss(begun(), (), batch or rows(), ctx or context())
    assert metrics["imitation/term"] == term
    return float(term), float(metrics["imitation/mse"])


@component
class Steady:
    """An expert that does the same always, whatever the observation: in agent units."""

    at: tuple[float, ...] = (0.5, 0.0)

    def __call__(self, obs):
        return jnp.broadcast_to(jnp.array(self.at), (*obs.shape[:-1], len(self.at)))


def test_imitation_is_a_quarter_of_the_mean_squared_error_and_fades():
    np.testing.assert_allclose(imitate(ImitationLoss(coef=2.0)), (2 * 0.58 / 4, 0.58), rtol=1e-6)
    fading = ImitationLoss(coef=2.0, anneal_frac=0.5)
    np.testing.assert_allclose(imitate(fading, context(20)), (0.6 * 2 * 0.58 / 4, 0.58), rtol=1e-6)
    np.testing.assert_allclose(imitate(fading, context(50)), (0.0, 0.58), rtol=1e-6)
    np.testing.assert_allclose(imitate(fading, context(80)), (0.0, 0.58), rtol=1e-6)


def test_the_goal_is_the_agents_expert_or_another_or_the_row():
    mine = Steady((0.1, -0.2))
    mse = lambda extension: imitate(extension, context(expert=Steady()))[1]
    np.testing.assert_allclose(mse(ImitationLoss()), 0.58, rtol=1e-6)
    np.testing.assert_allclose(mse(ImitationLoss(expert_policy=Steady())), 0.58, rtol=1e-6)  # As stored.
    np.testing.assert_allclose(mse(ImitationLoss(expert_policy=mine)), (0.01 + 0.04) / 4, rtol=1e-5)
    np.testing.assert_allclose(mse(ImitationLoss(target="replay")), (0.05 + 0.2) / 4, rtol=1e-5)
    assert expert.reads_stored_expert_actions(ImitationLoss(), Steady())
    assert expert.reads_stored_expert_actions(ImitationLoss(expert_policy=Steady()), Steady())
    assert not expert.reads_stored_expert_actions(ImitationLoss(expert_policy=mine), Steady())
    assert not expert.reads_stored_expert_actions(ImitationLoss(target="replay"), Steady())


def test_the_filter_counts_rows_whose_goal_the_least_critic_prefers():
    # Row 1: min(.5, .2) > min(.1, -.2). Row 2: min(-.8, .6) < min(.2, -.4), though the greatest critic prefers it.
    weight = expert.q_filter_weight(OBS, OBS @ SLOPE, EXPERT, context(), CRITICS)
    np.testing.assert_array_equal(weight, [[1.0], [0.0]])
    np.testing.assert_allclose(imitate(ImitationLoss(q_filter=True)), (0.16 / 2 / 4, 0.58), rtol=1e-6)
    told = ImitationLoss(q_filter=True).eval_metrics(begun(), (), context(recent=rows()))
    assert {name: float(value) for name, value in told.items()} == {"imitation/q_filter_frac": 0.5}
    assert ImitationLoss().eval_metrics(begun(), (), context(recent=rows())) == {}


def test_with_alpha_the_own_loss_is_scaled_and_the_error_is_in_world_units():
    """lambda = .3 / mean(.1, .2) = 2; half ranges are 4 and, of the number without an end, 1."""
    spec = Spec((1,), 2, False, (-2.0, 0.0), (6.0, float("inf")))
    extension, coef = ImitationLoss(alpha=0.3, coef=3.0, q_filter=True, anneal_frac=0.5), 3.0 * 0.6

    def total(slope):
        own = -(OBS @ slope)[:, 0].mean()
        batch = rows(params={"actor": slope}, agent_loss=own)
        return own + extension.actor_loss(begun(), (), batch, context(20, spec))[0]

    value, slope_gradient = jax.value_and_grad(total)(SLOPE)
    half, error = np.array([4.0, 1.0]), np.array([0.1, -0.2]) - np.array([0.5, 0.2])
    np.testing.assert_allclose(value, 2 * -0.15 + coef * (half**2 * error**2).mean() / 2, rtol=1e-5)
    cloning = coef * 2 * half**2 * error * 1.0 / (2 * 2)  # Row 1 alone passes, and its obs is 1.
    np.testing.assert_allclose(slope_gradient, [2 * np.array([-1.5, 0.0]) + cloning], rtol=1e-5)
    assert np.isfinite(expert.td3bc_lambda(jnp.zeros(3), 1.0))
    np.testing.assert_allclose(expert.td3bc_lambda(jnp.array([-1.0, 3.0]), 5.0), 2.5)


def test_online_cloning_weighs_rows_by_the_place_of_the_experts_value():
    # phi* is min(s, s - a_0) at raw observations s of 1 and .6: .5 and .6, a quarter and .3 of its range.
    batch, extension = rows(raw_obs=jnp.array([[1.0], [0.6]])), OnlineBC(bc_coef=2.0, critic_warmup_frac=0.5)
    term, told = extension.actor_loss(begun(), (), batch, context(10, provided={"phi_star": PHI}))
    distance = np.array([0.32, 2.0])  # Summed over the action's numbers.
    np.testing.assert_allclose(term, 2.0 * 0.8 * (np.array([0.0625, 0.09]) * distance).mean(), rtol=1e-4)
    assert told.keys() == {"online_bc/term", "online_bc/weight"}
    np.testing.assert_allclose(told["online_bc/weight"], 0.8, rtol=1e-6)
    beyond = rows(raw_obs=jnp.array([[9.0], [-9.0]]))  # Values outside the fitted range count 1 and 0.
    term, _ = extension.actor_loss(begun(), (), beyond, context(provided={"phi_star": PHI}))
    np.testing.assert_allclose(term, 2.0 * 0.32 / 2, rtol=1e-5)


@pytest.mark.parametrize(("frac", "step", "weight"), [(0.5, 0, 1.0), (0.5, 50, 0.0), (0.5, 90, 0.0), (0.0, 0, 0.0)])
def test_online_cloning_ends_with_the_warm_up_of_the_critic(frac, step, weight):
    extension = OnlineBC(critic_warmup_frac=frac)
    term, told = extension.actor_loss(begun(), (), rows(), context(step, provided={"phi_star": PHI}))
    assert float(told["online_bc/weight"]) == weight
    assert bool(term > 0) == (weight > 0)
    assert extension.actor_loss(begun(), (), rows(), context(step))[0] == 0  # There is no phi* yet.


def test_online_cloning_holds_the_value_constant_and_moves_the_mean_alone():
    def term(goal):
        return expert.compute_online_bc_loss(OBS @ SLOPE, goal, context(), PHI, OBS, jnp.ones(()), 1.0)

    value = np.square(np.array([0.5, 2.0]) / 2)
    gradient = value[:, None] * -2 * (np.asarray(OBS @ SLOPE) - np.asarray(EXPERT)) / 2
    np.testing.assert_allclose(jax.grad(term)(EXPERT), gradient, rtol=1e-4)


def test_a_residual_corrects_the_expert_within_the_box():
    scene = Scene(expert_action=EXPERT)
    found = ResidualPolicy(scale=0.5).transform_action(
        begun(), (), jnp.array([[1.0, -1.0], [-1.0, 0.2]]), context(scene=scene)
    )
    np.testing.assert_allclose(found, [[1.0, -0.3], [-1.0, 0.7]], rtol=1e-6)
    np.testing.assert_allclose(expert.residual_action_transform(jnp.array([0.3]), jnp.array([0.2])), [0.5])
    for build in (ResidualPolicy(scale=2.0).build_policy_transform, ResidualPolicy(scale=2.0).build_eval_transform):
        np.testing.assert_allclose(build()(jnp.array([0.2]), jnp.array([-0.3])), [0.1], rtol=1e-6)


def test_the_expert_opens_episodes_for_ever_fewer_steps():
    extension = JSRLCurriculum(episode_length=10, decay_frac=0.5)
    scene = Scene(expert_action=EXPERT[:, 0], age=jnp.array([5, 6]))
    opened = lambda step: extension.action(begun(), gates.Share.begin(), OBS, context(step, scene=scene))
    for step, mask in ((0, [True, True]), (20, [True, False]), (25, [False, False]), (99, [False, False])):
        proposal, state = opened(step)  # Horizons 10, 6, 5 and 0.
        np.testing.assert_array_equal(proposal.mask, mask)
        np.testing.assert_array_equal(proposal.action, EXPERT[:, 0])
        np.testing.assert_allclose(state.value, np.mean(mask), rtol=1e-5)
    told = extension.eval_metrics(begun(), opened(20)[1], context(20))
    np.testing.assert_allclose([told["jsrl/horizon"], told["jsrl/expert_frac"]], [6.0, 0.5], rtol=1e-5)


def test_the_critics_opinion_of_the_expert_is_reported():
    # min_k Q: .2 and -.8 of the expert, 0 of the rows' actions; phi* .5 and 2 (its critics give 1, .5 and 2, 2.8).
    told = ExpertValueMetrics().eval_metrics(begun(), (), context(recent=rows(), provided={"phi_star": PHI}))
    assert told == pytest.approx(
        {"value/q_expert_mean": -0.3, "value/q_gap": -0.3, "value/phi_star_q_gap_ood": (0.3 + 2.8) / 2}, rel=1e-5
    )
    taken = rows(action=jnp.array([[-1.0, 1.0], [0.4, 0.9]]))  # -1 and .4.
    told = ExpertValueMetrics().eval_metrics(begun(), (), context(recent=taken))
    np.testing.assert_allclose(told["value/q_gap"], (1.2 - 1.2) / 2, atol=1e-6)
    assert told.keys() == {"value/q_expert_mean", "value/q_gap"}


@pytest.mark.parametrize(
    ("kind", "wrong", "says"),
    [
        (OnlineBC, {"bc_coef": -1.0}, "bc_coef is -1"),
        (OnlineBC, {"critic_warmup_frac": 1.5}, r"critic_warmup_frac is 1\.5"),
        (ImitationLoss, {"coef": -1.0}, "coef is -1"),
        (ImitationLoss, {"target": "experts"}, "target is 'experts'"),
        (ImitationLoss, {"target": "replay", "expert_policy": Steady()}, "expert_policy is given"),
        (ImitationLoss, {"anneal_frac": 0.0}, r"anneal_frac is 0\.0"),
        (ImitationLoss, {"anneal_frac": 1.1}, r"anneal_frac is 1\.1"),
        (ImitationLoss, {"alpha": 0.0}, r"alpha is 0\.0"),
        (ImitationLoss, {"alpha": float("nan")}, "alpha is nan"),
        (ResidualPolicy, {"scale": -0.5}, r"scale is -0\.5"),
        (JSRLCurriculum, {"episode_length": 0}, "episode_length is 0"),
        (JSRLCurriculum, {"decay_frac": 0.0}, r"decay_frac is 0\.0"),
    ],
)
def test_settings_out_of_range_are_refused(kind, wrong, says):
    with pytest.raises(ConfigError, match=says):
        kind(**wrong)
