import gymnasium
import numpy as np
import pytest

from perdure.core.capabilities import capability
from perdure.core.errors import ConfigError
from perdure.rewards.spec import RewardSpec
from perdure.rewards.wrapper import RewardWrapper, probe


class Shop(gymnasium.Env):
    """Earns 10 a step, shows its ledger only after a step, ends after four steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, labels=None):
        self.labels = labels

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        info = {"ledger": {"net": 10.0 * self.steps}, "served": action}
        if self.labels:
            info["regime"] = self.labels[self.steps - 1]
        return np.zeros(2, np.float32), 7.0, self.steps == 4, False, info


SPEC = RewardSpec.from_document(
    {
        "components": [
            {"name": "ledger_delta", "params": {"scale": 20}},
            {"name": "throughput", "weight": 2.0, "params": {"key": "served"}},
            {"name": "episode_completion", "weight": 5.0},
        ],
        "regime_overrides": {"calm": {"throughput": 0.0}},
    }
)


def run(env, steps=4):
    env.reset(seed=0)
    return [env.step(1) for _ in range(steps)]


def test_the_reward_is_the_specifications_and_the_old_one_is_kept():
    rows = run(RewardWrapper(Shop(), SPEC))
    assert [reward for _, reward, *_ in rows] == [2.0, 2.5, 2.5, 7.5]
    assert all(info["env_reward"] == 7.0 for *_, info in rows)


def test_info_tells_contributions_raw_values_and_bounds():
    *_, info = run(RewardWrapper(Shop(), SPEC))[3]
    assert info["reward_components"] == {"ledger_delta": 0.5, "throughput": 2.0, "episode_completion": 5.0}
    assert info["reward_raw"] == {"ledger_delta": 0.5, "throughput": 1.0, "episode_completion": 1.0}
    assert info["reward_bounds"] == {"lb": -1.0, "ub": 3.0}
    assert info["ledger"] == {"net": 40.0}


def test_a_reset_forgets_the_episode_before():
    env = RewardWrapper(Shop(), SPEC)
    run(env)
    assert [reward for _, reward, *_ in run(env)] == [2.0, 2.5, 2.5, 7.5]


def test_weights_follow_the_label_of_the_environment():
    labels = ["busy", {"id": "calm"}, {"id": "calm_again", "origin": "calm"}, "busy"]
    rows = run(RewardWrapper(Shop(labels), SPEC))
    assert [reward for _, reward, *_ in rows] == [2.0, 0.5, 0.5, 7.5]
    assert rows[1][-1]["reward_bounds"] == {"lb": -1.0, "ub": 1.0}


def test_weights_follow_what_the_harness_says_where_the_environment_is_silent():
    env = gymnasium.Wrapper(RewardWrapper(Shop(), SPEC))
    env.reset(seed=0)
    capability(env, "use_regime")("calm")
    assert env.step(1)[1] == 0.0
    capability(env, "use_regime")("later", "calm")
    assert env.step(1)[1] == 0.5
    capability(env, "use_regime")(None)
    assert env.step(1)[1] == 2.5


def test_a_key_that_the_environment_never_gives_ends_the_first_step():
    spec = RewardSpec.from_document({"components": [{"name": "cost"}]})
    env = RewardWrapper(Shop(), spec, "reward.spec")
    env.reset(seed=0)
    with pytest.raises(ConfigError, match=r"reward\.spec: component cost \(Cost\) reads info key 'cost'.*ledger\.net"):
        env.step(0)


def test_a_probe_finds_a_missing_key_before_the_run():
    probe(Shop(), SPEC)
    spec = RewardSpec.from_document({"components": [{"name": "cost"}]})
    with pytest.raises(ConfigError, match="component cost"):
        probe(Shop(), spec)


def test_a_component_that_never_changes_is_warned_of():
    env = RewardWrapper(Shop(), SPEC, watch_steps=3)
    rows = run(env)
    assert ["throughput" in str(info.get("reward_warnings")) for *_, info in rows] == [False, False, True, False]


def test_gymnasiums_own_worlds_work_with_their_own_reward():
    spec = RewardSpec.from_document(
        {"components": [{"name": "env_scalar"}, {"name": "expression", "params": {"text": "-0.5 * terminated"}}]}
    )
    env = RewardWrapper(gymnasium.make("CartPole-v1"), spec)
    env.reset(seed=0)
    rewards, terminated = [], False
    while not terminated:
        _, reward, terminated, _, _ = env.step(1)
        rewards.append(reward)
    assert set(rewards[:-1]) == {1.0}
    assert rewards[-1] == 0.5
    env.close()
