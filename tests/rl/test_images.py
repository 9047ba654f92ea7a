"""Worlds that show images, through the whole loop: the convolutions decide."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perdure.agents.dqn import DQN
from perdure.agents.ppo import PPO
from perdure.agents.sac import SAC
from perdure.core.component import component
from perdure.core.errors import Refused
from perdure.core.records import Spec
from perdure.rl import learner
from perdure.rl.feeds import Epochs, Replay
from perdure.rl.greedy import Epsilon
from perdure.rl.optim import Adam

SIDE = 6


@component
class Lamp:
    """One bright pixel of a square; the action must say whether it is in the left half. Episodes are one step."""

    continuous: bool = False

    @property
    def spec(self) -> Spec:
        if self.continuous:
            return Spec((SIDE, SIDE, 1), 1, discrete=False, low=(-1.0,), high=(1.0,), horizon=1)
        return Spec((SIDE, SIDE, 1), 2, discrete=True, horizon=1)

    def task(self):
        return ()

    def reset(self, key, task):
        place = jax.random.randint(key, (2,), 0, SIDE)
        return place, self._seen(place)

    def step(self, key, place, action, task):
        left = place[1] < SIDE // 2
        said = action[0] > 0 if self.continuous else action == 1
        reward, yes, no = jnp.where(said == left, 1.0, 0.0), jnp.ones((), bool), jnp.zeros((), bool)
        return place, self._seen(place), reward, yes, no

    def _seen(self, place):
        return jnp.zeros((SIDE, SIDE, 1)).at[place[0], place[1], 0].set(1.0)


SHAPE = {"hidden": (16,), "convolutions": ((8, 3, 1),), "activation": "relu"}
REPLAY = Replay(capacity=2_000, batch_size=32, learning_starts=100)
AGENTS = {
    "ppo": (PPO(feed=Epochs(4, 4), optimiser=Adam(3e-3), **SHAPE), 2_048, 16),
    "dqn": (DQN(feed=REPLAY, optimiser=Adam(1e-3), epsilon=Epsilon(end=0.1, share=0.3), **SHAPE), 1_200, 4),
    "sac": (SAC(feed=REPLAY, actor_optimiser=Adam(3e-3), critic_optimiser=Adam(3e-3), **SHAPE), 600, 4),
}


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_with_convolutions_learns_from_images(name, tiny):
    agent, steps, copies = AGENTS[name]
    world = Lamp(continuous=name == "sac")
    trainer = learner.trainer(agent, world, n_envs=copies, window_steps=32, total_steps=steps)
    assert trainer.context(None).nets["critic"].image == (SIDE, SIDE, 1)
    made = learner.JaxLearner(trainer, (0,))
    plan = tiny.RegimeSchedule((tiny.Segment("lamp", "lamp", 0, steps),))
    state, _, _ = tiny.train(made, steps, plan)
    assert made.evaluate(state, {}, 64).returns.mean() >= 0.9


def test_the_policy_acts_on_single_images():
    trainer = learner.trainer(PPO(feed=Epochs(1, 1), **SHAPE), Lamp(), n_envs=2, window_steps=8, total_steps=100)
    made = learner.JaxLearner(trainer, (0,))
    assert made.policy(made.init((0,)), 0)(np.zeros((SIDE, SIDE, 1))) in (0, 1)


def test_other_shapes_are_refused():
    @component
    class Plane(Lamp):
        @property
        def spec(self):
            return Spec((4, 4), 2, discrete=True)

    with pytest.raises(Refused, match=r"images \[height, width, channels\]; .* gives shape \[4, 4\]"):
        learner.trainer(PPO(), Plane())
