"""Experts in the compiled loop, and what is refused before it runs."""

import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.component import component
from perdure.core.extension import Extension, MissingCapability, NotWired
from perdure.extensions.expert import ExpertValueMetrics, ImitationLoss, JSRLCurriculum, OnlineBC, ResidualPolicy
from perdure.rl import phi
from perdure.rl.optim import Adam


@component
class Marked:
    """An expert of the clockwork that acts by the mark of the episode, as `marked` says, or takes the last index."""

    discrete: bool = False

    def __call__(self, obs):
        if self.discrete:
            return jnp.full(obs.shape[:-1], 2, jnp.int32)
        return 5.2 - 0.8 * obs[..., 1:]


@component
class GivesPhi(Extension):
    """A phi* that is the first critic, and a range in which every value counts 1."""

    provides = frozenset({"phi_star"})

    def init_state(self, agent_state, key, ctx):
        return phi.PhiStar(agent_state.params["critic"], jnp.float32(-200.0), jnp.float32(-100.0))

    def provided(self, state):
        return {"phi_star": state}


INDEX = Marked(discrete=True)
FAST = Adam(learning_rate=1e-2)


def kept(state):
    """(observations [S, T, N, D], actions [S, T, N]) of the rows stored in 96 vector steps."""
    stored = state.train.seeds.store.rows
    cut = lambda x: np.asarray(x)[:, :192].reshape(2, 96, 2, -1)
    return cut(stored.obs), cut(stored.action)[..., 0]


def marked(obs):
    """What the expert of the clockwork does, in agent units of its box from -2 to 6."""
    return 0.8 - 0.2 * obs[..., 1]


def course(metrics, name):
    """A metric of training, window by window: [windows, S]."""
    return np.concatenate([each[name] for each in metrics])


def test_the_expert_opens_episodes_in_training_while_the_agent_warms_up_too(tiny):
    parts = (GivesPhi(), OnlineBC(bc_coef=10.0, critic_warmup_frac=1.0), JSRLCurriculum(4, decay_frac=0.15))
    made = tiny.made("sac", parts, rollout={"expert": Marked()}, actor_optimiser=FAST)
    state, _, metrics = tiny.train(made, 192)
    obs, action = kept(state)
    horizon = 4 * np.clip(1 - np.arange(96) * 2 / 1_000 / 0.15, 0, 1)
    guided = obs[..., 0] < horizon[:, None]
    assert guided[:, :10].mean() > 0.5  # 20 steps of warm-up.
    np.testing.assert_array_equal(np.abs(action - marked(obs)) < 1e-5, guided)
    share = state.train.seeds.extensions.states[2].value
    assert ((share > 0) & (share < guided.mean((1, 2)))).all()  # It fell, and what is long past counts less.
    term = course(metrics, "online_bc/term")
    assert (term[-1] < 0.1 * term[0]).all()
    np.testing.assert_allclose(metrics[-1]["online_bc/weight"][-1], 1 - 176 / 1_000, atol=0.01)


def test_a_residual_is_executed_and_stored_while_imitation_moves_the_actor(tiny):
    parts = (ImitationLoss(coef=50.0), ResidualPolicy(scale=0.25))
    made = tiny.made("td3", parts, rollout={"expert": Marked()}, actor_optimiser=FAST)
    state, _, metrics = tiny.train(made, 192)
    obs, action = kept(state)
    correction = np.abs(action - marked(obs))
    assert correction.max() <= 0.25 + 1e-5
    assert correction[:, :10].mean() > 0.05  # Uniform ones while it warms up.
    error = course(metrics, "imitation/mse")
    assert (error[-1] < 0.1 * error[0]).all()


def test_an_expert_that_is_only_reported_neither_acts_nor_fills_the_replay(tiny):
    made = tiny.made("dqn", (ExpertValueMetrics(),), rollout={"expert": INDEX}, feed_learning_starts=100)
    obs, action = kept(tiny.train(made, 192)[0])
    np.testing.assert_array_equal(obs[..., 0], np.broadcast_to((np.arange(96) % 5)[:, None], (2, 96, 2)))
    assert abs((action[:, :50] == 2).mean() - 1 / 3) < 0.15  # Of three actions, while it warms up.


@pytest.mark.parametrize(
    ("name", "parts", "error", "says"),
    [
        ("sac", (ImitationLoss(),), NotWired, r"ImitationLoss\) needs agent_expert; give algorithm.expert"),
        ("dqn", (ImitationLoss(target="replay"),), MissingCapability, "needs actor, continuous_actions"),
        ("ppo", (ImitationLoss(INDEX, q_filter=True),), MissingCapability, "needs continuous_actions, q_critic"),
        ("apo", (ImitationLoss(INDEX, alpha=1.0),), MissingCapability, "needs continuous_actions, q_critic"),
        ("avg", (ImitationLoss(target="replay"),), MissingCapability, "needs replay"),
        ("td3", (OnlineBC(),), NotWired, "needs agent_expert.*needs phi_star; list mc_pretrain before it"),
        ("td3", (ResidualPolicy(),), NotWired, "needs agent_expert"),
        ("dqn", (ResidualPolicy(),), MissingCapability, "needs continuous_actions"),
        ("ppo", (JSRLCurriculum(),), MissingCapability, "needs off_policy"),
        ("dqn", (JSRLCurriculum(),), NotWired, "needs agent_expert"),
        ("ppo", (ExpertValueMetrics(),), MissingCapability, "needs q_critic"),
    ],
)
def test_what_is_lacking_is_refused_by_name(name, parts, error, says, tiny):
    with pytest.raises(error, match=says):
        tiny.made(name, parts)


def test_values_of_actions_that_are_not_executed_are_refused(tiny):
    for wrong in (ImitationLoss(q_filter=True), ImitationLoss(alpha=1.0)):
        with pytest.raises(NotWired, match=r"ImitationLoss\) values the actor's action, but ResidualPolicy"):
            tiny.made("sac", (wrong, ResidualPolicy()), rollout={"expert": Marked()})
    tiny.made("sac", (ImitationLoss(), ResidualPolicy()), rollout={"expert": Marked()})
    for name in ("sac", "td3", "redq", "asac"):
        tiny.made(name, (ImitationLoss(target="replay", alpha=2.5, q_filter=True),))
