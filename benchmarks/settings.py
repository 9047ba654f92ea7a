"""The settings that every library is measured in: one table, so that nobody gets a setting of his own."""

from typing import NamedTuple


class Setting(NamedTuple):
    """One training program: `steps` environment steps for each of `seeds` seeds."""

    algorithm: str
    world: str
    copies: int
    seeds: int
    steps: int
    hidden: tuple[int, ...]
    activation: str
    learning_rate: float
    batch: int = 0
    """Rows of an off-policy update."""
    warm_up: int = 0
    """Steps before the first off-policy update, an update a step from then on."""
    replay: int = 20_000
    window: int = 128
    epochs: int = 4
    minibatches: int = 4
    entropy: float = 0.01
    extension: str = ""
    """Added to the agent, where perdure and Ajax have it."""
    torch_steps: int = 0
    """Steps of a timed call for the libraries that step Python environments, which are far slower."""

    @property
    def updates(self) -> int:
        """Off-policy updates of one seed in `steps` steps."""
        return self.steps - self.warm_up if self.batch else 0


def _ppo(copies: int, seeds: int, torch_steps: int) -> Setting:
    return Setting("ppo", "CartPole-v1", copies, seeds, 500_000, (64, 64), "tanh", 2.5e-4, torch_steps=torch_steps)


def _replay(algorithm: str, steps: int) -> Setting:
    return Setting(algorithm, "Pendulum-v1", 1, 1, steps, (256, 256), "relu", 3e-4, batch=256, warm_up=1_000)


SETTINGS = {
    "ppo-4": _ppo(4, 1, 20_480),
    "ppo-64": _ppo(64, 1, 81_920),
    "ppo-64x8": _ppo(64, 8, 0),
    "dqn": Setting(
        "dqn", "CartPole-v1", 1, 1, 20_000, (128, 128), "relu", 1e-3, batch=64, warm_up=1_000, torch_steps=3_000
    ),
    "sac": Setting(
        "sac", "Pendulum-v1", 1, 1, 3_000, (256, 256), "relu", 3e-4, batch=256, warm_up=1_000, torch_steps=1_000
    ),
    "td3": _replay("td3", 3_000),
    "asac": _replay("asac", 3_000),
    "redq": _replay("redq", 1_100),
    "sac-cql": _replay("sac", 1_600)._replace(extension="conservative_q"),
    "avg": Setting("avg", "Pendulum-v1", 1, 1, 5_000, (256, 256), "leaky_relu", 1e-3),
    "pqn": Setting("pqn", "CartPole-v1", 8, 1, 300_000, (128, 128), "relu", 2.5e-4),
    "apo": Setting("apo", "CartPole-v1", 4, 1, 300_000, (64, 64), "tanh", 3e-4),
}

TARGET_EVERY = 500
"""DQN: updates between two copies of the target network."""
EXPLORATION = 0.2
"""DQN: part of the run over which epsilon falls from 1 to 0.05."""
