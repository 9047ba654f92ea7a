"""The probe worlds, and one that is truncated at every step, as one world whose task says which."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
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
from perdure.core.component import component
from perdure.core.records import RegimeSchedule, Segment
from perdure.rl import learner
from perdure.rl.feeds import Epochs, Replay
from perdure.rl.nets import joined
from perdure.rl.optim import Adam
from perdure.worlds import probes
from perdure.worlds.pure import physics

DISCOUNT = 0.5
TRUNCATED = 5
"""The number of the world that pays 1 and is truncated at every step: worth 1 / (1 - discount)."""
NAMES = tuple(probes.ladder())


class Choice(NamedTuple):
    """Which world, by its place in the ladder."""

    which: Any = 0


@component
class Ladder:
    """Steps every probe and shows the one chosen."""

    continuous: bool = False

    @property
    def spec(self):
        return probes.ConstantValue(self.continuous).spec

    def task(self, **params):
        return Choice(jnp.float32(params.get("which", 0)))

    def reset(self, key, task):
        worlds = self._worlds()
        return _chosen([world.reset(key, world.task()) for world in worlds] + [self._still()], task)

    def step(self, key, state, action, task):
        steps = [world.step(key, state, action, world.task()) for world in self._worlds()]
        after, obs = self._still()
        yes, no = jnp.ones((), bool), jnp.zeros((), bool)
        return _chosen([*steps, (after, obs, jnp.ones(()), no, yes)], task)

    def _worlds(self):
        return list(probes.ladder(self.continuous).values())

    def _still(self):
        body = jnp.zeros(1, jnp.float32)
        return physics.begin(body), body


def agent(name: str) -> Any:
    """An agent that learns a probe in two thousand steps."""
    adam, few = Adam(learning_rate=1e-2), Epochs(epochs=4, minibatches=2)
    replay = Replay(capacity=2_000, batch_size=32, learning_starts=64, ratio=0.25)
    pair = {"hidden": (16,), "actor_optimiser": adam, "critic_optimiser": adam}
    discounted = pair | {"feed": replay, "slow_rate": 0.05, "discount": DISCOUNT}
    restless = Adam(learning_rate=1e-2, beta1=0.0)
    cool = {"temperature": 1e-3, "temperature_optimiser": Adam(learning_rate=1e-5)}
    return {
        "ppo": lambda: PPO(feed=few, hidden=(16,), optimiser=adam, discount=DISCOUNT),
        "dqn": lambda: DQN(feed=replay, hidden=(16,), optimiser=adam, target_period=20, discount=DISCOUNT),
        "sac": lambda: SAC(**discounted, **cool),
        "redq": lambda: REDQ(**discounted, **cool, critics=3, critic_updates=2),
        "td3": lambda: TD3(**discounted),
        "pqn": lambda: PQN(feed=few, hidden=(16,), optimiser=adam, discount=DISCOUNT),
        "avg": lambda: AVG(
            hidden=(16,), actor_optimiser=restless, critic_optimiser=restless, temperature=0.03, discount=DISCOUNT
        ),
        "apo": lambda: APO(feed=few, hidden=(16,), optimiser=adam),
        "asac": lambda: ASAC(**pair, feed=replay, slow_rate=0.05, temperature=1e-3),
    }[name.removesuffix("_continuous")]()


def trained(name: str, which: int, steps: int = 4_096) -> tuple[Any, Any]:
    """(trainer, its one seed) after `steps` on the chosen world."""
    trainer, (seed,) = trained_seeds(name, which, (0,), steps)
    return trainer, seed


def trained_seeds(name: str, which: int, seeds: tuple[int, ...], steps: int = 4_096) -> tuple[Any, list[Any]]:
    """(trainer, each of its seeds) after `steps` on the chosen world."""
    continuous = name in ("asac", "avg", "redq", "sac", "td3") or name.endswith("_continuous")
    # A streaming agent learns once for each step of all copies, so it gets fewer of them.
    copies = 2 if name == "avg" else 8
    trainer = learner.trainer(agent(name), Ladder(continuous), n_envs=copies, window_steps=8, total_steps=4_096)
    made = learner.JaxLearner(trainer, seeds)
    plan = RegimeSchedule((Segment("probe", "probe", 0, steps, {"which": float(which)}),))
    state = made.init(seeds)
    while made.step(state) < steps:
        state, _, _ = made.advance(state, plan, steps - made.step(state))
    return trainer, [jax.tree.map(lambda x, i=i: x[i], state.train.seeds) for i in range(len(seeds))]


def valued(trainer: Any, seed: Any, observations: Any, actions: Any) -> np.ndarray:
    """What the agent's critic says of the observations: of the best action, of those given, or of the state."""
    nets = trainer.context(None).nets
    obs = seed.normaliser.look(trainer, jnp.asarray(observations, jnp.float32)[:, None])
    action = jnp.asarray(actions or [0.0] * len(obs), jnp.float32)[:, None]
    output = nets["critic"].apply(seed.agent.params["critic"], joined(nets["critic"], obs, action))
    if nets["critic"].members:
        return np.asarray(output.min(0)[:, 0])
    return np.asarray(output.max(-1))


def chosen(trainer: Any, seed: Any, observations: Any) -> np.ndarray:
    """The greedy action at each observation."""
    obs = seed.normaliser.look(trainer, jnp.asarray(observations, jnp.float32)[:, None])
    return np.asarray(trainer.agent.act_greedy(seed.agent, obs, trainer.context(None))).reshape(len(obs))


def typical(name: str, which: int, observations: Any) -> np.ndarray:
    """The median over five seeds of the greedy action at each observation.

    A mean of actions that nothing bounds wanders: where one seed ends depends on the machine's rounding.
    """
    trainer, seeds = trained_seeds(name, which, tuple(range(5)))
    return np.median([chosen(trainer, seed, observations) for seed in seeds], axis=0)


def _chosen(outcomes, task):
    which = jnp.round(task.which).astype(jnp.int32)
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves])[which], *outcomes)
