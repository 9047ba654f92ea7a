"""Train DQN on a Gymnasium environment of one's own, whose physics a regime changes through `set_regime`.

python examples/03_own_environment.py runs/examples
"""

import sys
from pathlib import Path

import gymnasium
import numpy as np

from perdure import build
from perdure.harness import config


class Thermostat(gymnasium.Env):
    """Keep a room at 20 degrees; `leak` is how fast it loses its heat."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, leak: float = 0.1):
        self.leak = self.default_leak = leak
        self.heat, self.count = 20.0, 0

    def reset(self, *, seed=None, options=None):
        """Anywhere between 10 and 30 degrees."""
        super().reset(seed=seed)
        self.heat, self.count = self.np_random.uniform(10.0, 30.0), 0
        return self._observation(), {}

    def step(self, action):
        """Heat or do not; the penalty is the distance from 20 degrees."""
        self.heat += 2.0 * action - self.leak * self.heat / 2.0
        self.count += 1
        return self._observation(), -abs(self.heat - 20.0) / 20.0, False, self.count >= 50, {}

    def set_regime(self, params):
        """Called at the start of every segment, also in the middle of an episode."""
        self.leak = params.get("leak", self.default_leak)

    def _observation(self):
        return np.array([np.clip((self.heat - 20.0) / 20.0, -1.0, 1.0)], np.float32)


def main(output_dir: str) -> None:
    """Name the class as "module:factory" and train on it, driven step by step."""
    sys.path.insert(0, str(Path(__file__).parent))
    document = {
        "environment": {"id": f"{Path(__file__).stem}:Thermostat", "kwargs": {"leak": 0.1}},
        "algorithm": {
            "name": "dqn",
            "kwargs": {"feed": {"capacity": 1_000, "batch_size": 32, "learning_starts": 100}, "hidden": [32, 32]},
        },
        "rollout": {"total_steps": 1_000, "window_steps": 100},
        "regime": {
            "provider": "schedule",
            "segments": [
                {"id": "summer", "steps": 500},
                {"id": "winter", "steps": 500, "params": {"leak": 0.2}},
            ],
        },
        "run": {"seed": 0, "output_dir": output_dir},
    }
    result = build.run_experiment(config.ExperimentConfig.from_document(document))
    print(f"{result.counts['rows']} rows in {result.trace_path}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/examples")
