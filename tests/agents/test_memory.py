"""Agents that remember: what they learn that others cannot, alone and with extensions, experts and datasets."""

from pathlib import Path

import numpy as np
import pytest

from perdure.agents.dqn import DQN
from perdure.agents.ppo import PPO
from perdure.agents.sac import SAC
from perdure.agents.td3 import TD3
from perdure.core.component import component
from perdure.extensions.expert import ImitationLoss
from perdure.extensions.prior_data import PriorData
from perdure.extensions.regularisation import L2Init
from perdure.extensions.resets import ReDo
from perdure.rl import learner, windows
from perdure.rl.dataset import TransitionDataset
from perdure.rl.feeds import Epochs, Replay
from perdure.rl.memory import Memory
from perdure.rl.optim import Adam

MEMORY = Memory(size=8, window=3)
QUICK = Adam(learning_rate=5e-3)
REPLAY = Replay(capacity=4_096, batch_size=64, learning_starts=256, ratio=0.25)


@pytest.fixture(scope="module")
def recall(load_module):
    """The module tests/rl/recall.py: a world that pays for remembering."""
    return load_module(Path(__file__).parents[1] / "rl" / "recall.py")


def agent(name, **kwargs):
    pair = {"hidden": (16,), "discount": 0.5, "feed": REPLAY} | kwargs
    actor = {"actor_optimiser": QUICK, "critic_optimiser": QUICK, "slow_rate": 0.05}
    cold = {"temperature": 1e-2, "temperature_optimiser": Adam(learning_rate=1e-5)}
    return {
        "ppo": lambda: PPO(**pair | {"feed": Epochs(4, 4), "optimiser": Adam(learning_rate=1e-2, clip_norm=0.5)}),
        "dqn": lambda: DQN(**pair, optimiser=QUICK, target_period=20),
        "sac": lambda: SAC(**pair, **actor, **cold),
        "td3": lambda: TD3(**pair, **actor, exploration_noise=0.2),
    }[name]()


def trained(tiny, made_agent, world, steps, copies):
    """(learner, state, returns [S, 64]) after `steps`."""
    trainer = learner.trainer(made_agent, world, n_envs=copies, window_steps=16, total_steps=steps)
    made = learner.JaxLearner(trainer, tiny.SEEDS)
    state, _, _ = tiny.train(made, steps, tiny.schedule((steps - 2, 1.0), (2, 1.0)))
    return made, state, made.evaluate(state, {"level": 1.0}, 64).returns


@pytest.fixture(scope="module")
def remembering(tiny, recall):
    """PPO with a memory, trained to remember."""
    return trained(tiny, agent("ppo", memory=MEMORY), recall.Recall(), 4_096, 16)


def test_an_agent_with_a_memory_does_what_was_shown_two_steps_ago(remembering):
    *_, returns = remembering
    assert returns.mean(1).min() > 5.5


@pytest.mark.slow
def test_an_agent_without_one_cannot(tiny, recall):
    *_, returns = trained(tiny, agent("ppo"), recall.Recall(), 4_096, 16)
    assert returns.mean(1).max() < 1.5


@pytest.mark.slow
@pytest.mark.parametrize(("name", "chance"), [("dqn", 0.0), ("sac", 4.5), ("td3", 4.5)])
def test_replay_agents_remember_too(name, chance, tiny, recall):
    world = recall.Recall(continuous=name != "dqn")
    *_, returns = trained(tiny, agent(name, memory=MEMORY), world, 4_096, 4)
    assert returns.mean(1).min() > chance + 0.8 * (6.0 - chance)


def test_a_policy_follows_an_episode_and_begins_another_where_it_is_reset(remembering):
    made, state, _ = remembering
    act, random = made.policy(state, 0), np.random.default_rng(0)
    for _ in range(2):
        shown = random.choice([-1.0, 1.0], size=8)
        done = [act([sign]) for sign in shown]
        np.testing.assert_array_equal(done[2:], shown[:-2] > 0)
        act.reset()


@component
class Knows:
    """An expert of single observations: does half of what it sees first, in world units."""

    def __call__(self, obs):
        assert obs.shape[-1] == 2
        return obs[..., :1] / 2.0


def prior(spec):
    """Two episodes of the clockwork, of single observations."""
    obs = np.tile(np.arange(6.0)[:, None], (1, 2))
    ends = np.arange(10) % 5 == 4
    return TransitionDataset(
        obs=np.concatenate([obs[:-1]] * 2),
        action=np.zeros((10, spec.action_dim)),
        reward=np.ones(10),
        terminated=ends,
        truncated=np.zeros(10, bool),
        next_obs=np.concatenate([obs[1:]] * 2),
    )


def test_extensions_experts_and_datasets_work_with_a_memory(tiny, tmp_path):
    world = tiny.world_for("sac")
    parts = (L2Init(), ReDo(interval=7), ImitationLoss(), PriorData(prior(world.spec)))
    made = tiny.made("sac", parts, memory=Memory("lstm", 4, 3), seeds=(0,), rollout={"expert": Knows()}, hidden=(8,))
    assert isinstance(made.trainer.world, windows.Windowed)
    begun = made.init((0,))
    state, _, metrics = tiny.train(made, 96)
    before, after = tiny.host(begun.train.seeds.agent.params), tiny.host(state.train.seeds.agent.params)
    cells = [path for path in before if "memory" in path]
    assert len(cells) == 2 * 3
    for path in cells:
        assert np.isfinite(after[path]).all()
        assert np.abs(after[path] - before[path]).max() > 1e-4, path
    assert np.isfinite(metrics[-1]["imitation/term"]).any()
    found = made.evaluate(state, {"level": 1.0}, 1)
    assert found.returns.tolist() == [[5.0]]
    assert found.features["critic"].shape == (1, 256, 8)
    made.save(state, tmp_path)
    assert tiny.same(made.load(tmp_path).train, state.train)
