import pytest

from perdure.agents.dqn import DQN
from perdure.agents.ppo import PPO
from perdure.agents.sac import SAC
from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.rl import learner, ranges
from perdure.worlds.pure.cartpole import CartPole


@component
class Part:
    share: float = 0.5
    count: int = 1


def test_numbers_within_their_ranges_pass_ends_included():
    for share in (0.0, 1.0):
        ranges.check(Part(share, 1), share=ranges.SHARE, count=ranges.COUNT)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (Part(share=1.5), r"share is 1\.5; it lies in \[0, 1\]"),
        (Part(share=float("nan")), "share is nan"),
        (Part(count=0), "count is 0; it must be at least 1"),
    ],
)
def test_the_first_number_that_leaves_its_range_is_named(part, says):
    with pytest.raises(ConfigError, match=says):
        ranges.check(part, share=ranges.SHARE, count=ranges.COUNT)


@pytest.mark.parametrize(
    ("agent", "field", "value"),
    [
        (PPO, "discount", 7.0),
        (PPO, "gae_lambda", -0.1),
        (PPO, "clip", -1.0),
        (SAC, "slow_rate", 2.0),
        (SAC, "temperature", 0.0),
        (DQN, "target_period", 0),
        (DQN, "discount", float("nan")),
    ],
)
def test_the_first_agents_refuse_numbers_out_of_range(agent, field, value):
    with pytest.raises(ConfigError, match=f"{field} is"):
        agent(**{field: value})


def test_a_window_longer_than_the_run_is_refused():
    with pytest.raises(ConfigError, match="a window has window_steps \\* n_envs = 512 steps, the run 256"):
        learner.trainer(PPO(), CartPole(), n_envs=4, window_steps=128, total_steps=256)
