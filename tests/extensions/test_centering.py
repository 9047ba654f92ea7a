import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.core.errors import ConfigError, Refused
from perdure.core.records import Spec
from perdure.extensions.centering import Mean, RewardCentering
from perdure.rl import fit
from perdure.rl.nets import Network
from perdure.rl.phases import Batch, Clock, Context

SPEC = Spec((1,), 2, discrete=True)
NETS = {"critic": Network(1, (1,), 2)}


class Greedy:
    """An agent that takes the best action, and counts rewards double."""

    reward_scale = 2.0

    def act_greedy(self, state, obs, ctx):
        return ctx.nets["critic"].apply(state.params["critic"], obs).argmax(-1)


def critic(*values):
    """Action values: a positive observation times each of `values`."""
    return [{"w": jnp.ones((1, 1)), "b": jnp.zeros(1)}, {"w": jnp.array([values], jnp.float32), "b": jnp.zeros(2)}]


STATE = fit.AgentState({"critic": critic(4.0, 6.0)}, {}, slow={"critic": critic(1.0, 2.0)})
CONTEXT = Context(SPEC, NETS, 1, Clock(*[jnp.int32(0)] * 3), agent=Greedy())


def rows(rewards):
    shape = np.shape(rewards)
    obs, no = jnp.ones((*shape, 1)), jnp.zeros(shape, bool)
    terminated = no.at[..., 0].set(True)
    action = jnp.zeros(shape, jnp.int32)
    return Batch(obs, action, jnp.array(rewards, jnp.float32), terminated, no, 3 * obs, discount=0.5)


def centred(extension, state, batch):
    return extension.reward(STATE, state, batch, batch.reward, CONTEXT)


def test_the_simple_mean_moves_towards_the_rewards_and_forgets_its_start():
    extension = RewardCentering(rate=0.5, estimate="simple")
    state = extension.init_state(STATE, jax.random.key(0), CONTEXT)
    reward, state, told = centred(extension, state, rows([2.0, 4.0]))
    np.testing.assert_allclose(reward, [2.0, 4.0])
    assert float(state.reward) == float(told["reward_centering/mean"]) == 3.0  # The first batch sets it.
    reward, state, _ = centred(extension, state, rows([9.0, 9.0]))
    np.testing.assert_allclose(reward, [6.0, 6.0])
    # Trust is .75: the step is .5 / .75 of the way from 3 to 9.
    assert float(state.reward) == pytest.approx(3 + 6 * 0.5 / 0.75)
    for _ in range(40):
        _, state, _ = centred(extension, state, rows([9.0, 9.0]))
    assert float(state.reward) == pytest.approx(9.0)


def test_the_mean_moves_by_the_temporal_difference_error():
    # Values of action 0: 4. Beyond, at 3: action 1 is best, worth 6 to the slow critic. Rewards count double inside.
    # Row 0 terminated: (5 - 1) - 4 / 2 = 2. Row 1: (7 - 1) + (.5 * 6 - 4) / 2 = 5.5.
    extension = RewardCentering(rate=0.1, estimate="td")
    reward, state, _ = centred(extension, Mean(jnp.float32(1.0), jnp.float32(1.0)), rows([5.0, 7.0]))
    np.testing.assert_allclose(reward, [4.0, 6.0])
    assert float(state.reward) == pytest.approx(1 + 0.1 * (2 + 5.5) / 2, rel=1e-5)


def test_a_window_counts_like_its_rows():
    extension, start = RewardCentering(rate=0.1), Mean(jnp.float32(1.0), jnp.float32(1.0))
    reward, state, _ = centred(extension, start, rows([[5.0, 7.0]] * 3))
    _, flat, _ = centred(extension, start, rows([5.0, 7.0]))
    assert reward.shape == (3, 2)
    assert float(state.reward) == pytest.approx(float(flat.reward), rel=1e-6)


def test_in_training_the_mean_finds_the_reward_and_values_lose_it(tiny):
    """Without ends and at level 100 every reward is 100: centred, values stay near 0."""
    world = tiny.world_for("dqn", episodic=False)
    plan = tiny.schedule((998, 100.0), (2, 100.0))
    made = tiny.made("dqn", (RewardCentering(rate=0.2, estimate="simple"),), world=world)
    _, columns, metrics = tiny.train(made, 192, plan)
    assert float(metrics[-1]["reward_centering/mean"][-1].min()) == pytest.approx(100.0, rel=1e-4)
    assert (columns["reward"] == 100.0).all()
    assert np.abs(metrics[-1]["loss/critic"][-1]).max() < 10.0


def test_average_reward_agents_count_from_the_mean_already(tiny):
    for name in ("apo", "asac"):
        with pytest.raises(Refused, match=r"RewardCentering\) needs discounted"):
            tiny.made(name, (RewardCentering(),))


@pytest.mark.parametrize(
    ("wrong", "says"), [({"rate": 0.0}, "rate is 0.0"), ({"rate": 2.0}, "rate is 2"), ({"estimate": "mc"}, "'mc'")]
)
def test_settings_out_of_range_are_refused(wrong, says):
    with pytest.raises(ConfigError, match=says):
        RewardCentering(**wrong)
