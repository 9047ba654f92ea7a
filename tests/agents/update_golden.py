"""Two seconds of every agent as a few numbers; run as a script, it writes golden.json anew.

    python tests/agents/update_golden.py

A change of numerics moves these numbers: run it then, and say why in the commit that has the new file.
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from perdure.agents.apo import APO
from perdure.agents.asac import ASAC
from perdure.agents.avg import AVG
from perdure.agents.dqn import DQN
from perdure.agents.ppo import PPO
from perdure.agents.pqn import PQN
from perdure.agents.redq import REDQ
from perdure.agents.sac import SAC
from perdure.agents.td3 import TD3
from perdure.core.records import RegimeSchedule, Segment
from perdure.rl import learner
from perdure.rl.feeds import Epochs, Replay
from perdure.worlds.pure.cartpole import CartPole
from perdure.worlds.pure.pendulum import Pendulum

FILE = Path(__file__).with_name("golden.json")
REPLAY = Replay(capacity=400, batch_size=16, learning_starts=50)
EPOCHS = Epochs(epochs=2, minibatches=4)
CASES = {
    "ppo": (PPO(feed=EPOCHS, hidden=(16, 16)), CartPole(), 4, 256),
    "ppo_continuous": (PPO(feed=EPOCHS, hidden=(16, 16)), Pendulum(), 4, 256),
    "dqn": (DQN(feed=REPLAY, hidden=(16, 16)), CartPole(), 1, 200),
    "sac": (SAC(feed=REPLAY, hidden=(16, 16)), Pendulum(), 1, 200),
    "td3": (TD3(feed=REPLAY, hidden=(16, 16)), Pendulum(), 1, 200),
    "redq": (REDQ(feed=REPLAY, hidden=(16, 16), critics=3, critic_updates=2), Pendulum(), 1, 200),
    "pqn": (PQN(feed=EPOCHS, hidden=(16, 16)), CartPole(), 4, 256),
    "apo": (APO(feed=EPOCHS, hidden=(16, 16)), CartPole(), 4, 256),
    "apo_continuous": (APO(feed=EPOCHS, hidden=(16, 16)), Pendulum(), 4, 256),
    "asac": (ASAC(feed=REPLAY, hidden=(16, 16)), Pendulum(), 1, 200),
    "avg": (AVG(hidden=(16, 16)), Pendulum(), 1, 200),
}


def measured(name: str) -> dict[str, float]:
    """Numbers that say where one seed of an agent stands after a short run."""
    agent, world, n_envs, steps = CASES[name]
    made = learner.JaxLearner(
        learner.trainer(agent, world, n_envs=n_envs, window_steps=32, total_steps=steps), seeds=(7,)
    )
    plan = RegimeSchedule((Segment("only", "only", 0, steps, {}),))
    state, rewards, actions, last = made.init((7,)), [], [], {}
    while made.step(state) < steps:
        state, window, metrics = made.advance(state, plan, steps - made.step(state))
        rewards.append(window.columns["reward"])
        actions.append(window.columns["action"])
        last = {key: float(value[-1, 0]) for key, value in metrics.items() if key != "step"}
    params = state.train.seeds.agent.params
    norms = {
        f"norm/{key}": float(np.sqrt(sum(np.square(leaf).sum(dtype=np.float64) for leaf in jax.tree.leaves(part))))
        for key, part in params.items()
    }
    return {"reward": root_mean_square(rewards), "action": root_mean_square(actions), **last, **norms}


def root_mean_square(parts: list[np.ndarray]) -> float:
    """A size, not a mean: where actions of both signs cancel, rounding alone moves the mean by any share of itself."""
    return float(np.sqrt(np.square(np.concatenate(parts), dtype=np.float64).mean()))


def golden() -> dict[str, Any]:
    """What the file should hold."""
    return {"jax": jax.__version__, "cases": {name: measured(name) for name in CASES}}


if __name__ == "__main__":
    FILE.write_text(json.dumps(golden(), indent=1) + "\n", encoding="utf-8")
    print(f"wrote {FILE}")
