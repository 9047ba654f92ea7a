import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core import component as components
from perdure.core.errors import ConfigError
from perdure.core.extension import NotWired, Run
from perdure.core.records import Spec
from perdure.extensions import adversarial
from perdure.extensions.adversarial import AdversarialReward, Discriminator, Judge
from perdure.rl.dataset import TransitionDataset
from perdure.rl.phases import Batch, Clock, Context

BOX = Spec((1,), 2, False, (-1.0,) * 2, (1.0,) * 2)


def demonstrations(rows=20, seed=0, discrete=False):
    """Two episodes in the clockwork's shape of observations, all of whose actions are alike."""
    random = np.random.default_rng(seed)
    obs = random.normal(size=(rows, 2)).astype(np.float32)
    following = np.concatenate([obs[1:], obs[:1]])
    ends = np.arange(rows) % 10 == 9
    action = np.full(rows, 1, np.int32) if discrete else np.full((rows, 1), 0.9)
    return TransitionDataset(obs, action, np.ones(rows), ends, np.zeros(rows, bool), following)


def linear(weights, bias):
    """A discriminator's parameters whose logit is the weighted sum, where that is positive before the bias."""
    weights = jnp.array(weights, jnp.float32)[:, None]
    return [
        {"w": jnp.concatenate([weights, -weights], 1), "b": jnp.zeros(2)},
        {"w": jnp.array([[1.0], [-1.0]]), "b": jnp.array([bias], jnp.float32)},
    ]


def judging(params, demos, spec=BOX, **fields):
    extension = AdversarialReward(demonstrations(), hidden=(2,), **fields)
    ctx = Context(spec, {}, 1, Clock(*[jnp.int32(0)] * 3), jax.random.key(4), data=demos)
    return extension, Judge(params, extension._optimiser.init(params)), ctx


def test_rewards_are_of_the_discriminator_before_it_learns():
    params = linear([1.0, 0.0, 2.0], 0.5)
    extension, state, ctx = judging(params, {"obs": jnp.ones((3, 1)), "action": jnp.zeros((3, 2))})
    raw = jnp.array([[[1.0], [2.0]], [[0.0], [-1.0]], [[3.0], [1.0]]])
    action = jnp.zeros((3, 2, 2)).at[0, 0, 1].set(7.0)  # Cut to 1 before it is judged.
    batch = Batch(100.0 * raw, action, jnp.full((3, 2), 9.0), *[None] * 3, raw_obs=raw)
    reward, after, told = extension.reward(None, state, batch, batch.reward, ctx)
    logits = np.array([[1.0 + 2.0 + 0.5, 2.5], [0.5, -0.5], [3.5, 1.5]])
    probability = 1.0 / (1.0 + np.exp(-logits))
    np.testing.assert_allclose(reward, -np.log(1.0 - probability), rtol=1e-5)
    assert float(told["gail/reward"]) == pytest.approx(-np.log(1.0 - probability).mean(), rel=1e-5)
    assert set(told) == {"gail/reward", "gail/disc_loss", "gail/expert_acc", "gail/policy_acc"}
    assert int(after.opt.count) == 2
    assert float(jnp.abs(after.params[0]["w"] - params[0]["w"]).max()) > 0


def test_the_loss_is_the_cross_entropy_of_both_kinds():
    judge = Discriminator(2, (2,))
    expert, policy = jnp.array([[1.0, 0.0], [-3.0, 0.0]]), jnp.array([[-2.0, 0.0]])
    value, told = judge.loss(linear([1.0, 0.0], 0.0), expert, policy)
    likely = lambda x: 1.0 / (1.0 + math.exp(-x))
    wanted = 0.5 * (-(math.log(likely(1.0)) + math.log(likely(-3.0))) / 2 - math.log(1.0 - likely(-2.0)))
    assert float(value) == pytest.approx(wanted, rel=1e-5)
    assert (float(told["expert_acc"]), float(told["policy_acc"])) == (0.5, 1.0)


def test_updates_learn_from_the_given_demonstrations_by_adam():
    # A single demonstrated row makes the draw certain: one step of Adam moves each parameter by the rate.
    params = linear([1.0, 0.0, 2.0], 0.5)
    demos = {"obs": jnp.full((1, 1), 2.0), "action": jnp.full((1, 2), -0.5)}
    extension, state, ctx = judging(params, demos, n_updates=1, learning_rate=0.01)
    batch = Batch(None, jnp.full((4, 2), 0.5), jnp.zeros(4), *[None] * 3, raw_obs=jnp.ones((4, 1)))
    _, after, told = extension.reward(None, state, batch, batch.reward, ctx)
    moved = float(after.params[1]["b"][0] - params[1]["b"][0])
    # Logits 1.5 of the demonstration and 2.5 of the rest: raising the bias costs more than it gains.
    assert moved == pytest.approx(-0.01, rel=1e-3)
    wanted = 0.5 * (math.log1p(math.exp(-1.5)) + math.log1p(math.exp(2.5)))
    assert float(told["gail/disc_loss"]) == pytest.approx(wanted, rel=1e-5)


def test_choices_are_judged_one_hot():
    spec = Spec((1,), 3, True)
    extension, state, ctx = judging(
        linear([0.0, 0.0, 1.0, 3.0], 0.0), {"obs": jnp.ones((1, 1)), "action": jnp.array([2])}, spec
    )
    batch = Batch(None, jnp.array([0, 1, 2]), jnp.zeros(3), *[None] * 3, raw_obs=jnp.ones((3, 1)))
    reward, _, _ = extension.reward(None, state, batch, batch.reward, ctx)
    np.testing.assert_allclose(reward, np.log1p(np.exp([0.0, 1.0, 3.0])), rtol=1e-5)
    rows = adversarial.discriminator_rows(ctx, batch.raw_obs, batch.action, (3,))
    np.testing.assert_array_equal(rows, [[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]])


def test_demonstrations_reach_the_program_as_arguments():
    extension = AdversarialReward(demonstrations())
    data = extension.data(Run(BOX, None, (extension,)))
    assert {name: array.shape for name, array in data.items()} == {"obs": (20, 2), "action": (20, 1)}
    # Equal demonstrations make an equal part of a program, whichever object holds them.
    assert extension == AdversarialReward(demonstrations())
    assert hash(extension) == hash(AdversarialReward(demonstrations()))
    assert extension != AdversarialReward(demonstrations(seed=1))


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_in_a_run_the_judge_learns_and_the_worlds_reward_counts_for_nothing(name, tiny):
    part = AdversarialReward(demonstrations(discrete=name == "dqn"), learning_rate=0.02)
    made = tiny.made(name, (part,), world=tiny.Clockwork(continuous=name == "ppo"))

    def trained(level):
        plan = tiny.schedule((998, level), (2, level))
        state, trace, told = tiny.train(made, 192, plan)
        np.testing.assert_allclose(trace["reward"], level)
        return state, np.concatenate([each["gail/disc_loss"] for each in told]), told

    state, loss, told = trained(1.0)
    seen = loss[~np.isnan(loss).any(-1)]
    assert (seen[-1] < 0.8 * seen[0]).all()
    assert (seen[-1] < math.log(2)).all()
    assert (told[-1]["gail/reward"][-1] > 0).all()
    other, _, _ = trained(-5.0)
    assert tiny.same(state.train.seeds.agent, other.train.seeds.agent)


def test_demonstrations_of_another_world_are_refused(tiny):
    with pytest.raises(NotWired, match=r"AdversarialReward\) cannot learn from its demonstrations: the dataset has"):
        tiny.made("dqn", (AdversarialReward(demonstrations()),))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"n_updates": 0}, "n_updates is 0"),
        ({"learning_rate": 0.0}, r"learning_rate is 0\.0"),
        ({"hidden": ()}, r"hidden is \[\]"),
        ({"activation": "rule"}, "activation is 'rule'; known: crelu"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, says):
    with pytest.raises(ConfigError, match=says):
        AdversarialReward(demonstrations(), **wrong)


def test_a_document_names_a_saved_dataset(tmp_path):
    demonstrations().save(tmp_path / "demos.npz")
    made = components.make(AdversarialReward, {"demonstrations": str(tmp_path / "demos.npz"), "hidden": [8]}, "gail")
    assert made == AdversarialReward(demonstrations(), hidden=(8,))
