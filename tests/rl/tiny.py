"""Small agents, a world of one counter, and schedules: what the tests of the compiled loop share.

Equal trainers share one compiled program in a process, so tests that can use the same sizes do.
"""

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
from perdure.core.extension import Extension
from perdure.core.records import RegimeSchedule, Segment, Spec
from perdure.rl import learner
from perdure.rl.feeds import Epochs, Replay
from perdure.rl.optim import Adam

WINDOW = 16
HIDDEN = (8, 8)
SEEDS = (0, 1)
STILL_ADAM = Adam(learning_rate=1e-12)
"""Moves nothing."""
ON_POLICY = {"apo": APO, "ppo": PPO, "pqn": PQN}
OFF_POLICY = {"asac": ASAC, "dqn": DQN, "redq": REDQ, "sac": SAC, "td3": TD3}
CONTINUOUS = {"asac", "avg", "redq", "sac", "td3"}


class Level(NamedTuple):
    """What a regime changes."""

    level: Any = 1.0


class Place(NamedTuple):
    """Where an episode stands."""

    t: jax.Array
    mark: jax.Array


@component
class Clockwork:
    """Sees (steps since the reset, a mark drawn at the reset); is paid the task's level at every step.

    An episode lasts `length` steps and then terminates, or is truncated.
    """

    length: int = 5
    truncates: bool = False
    continuous: bool = False
    episodic: bool = True

    @property
    def spec(self) -> Spec:
        if self.continuous:
            return Spec((2,), 1, discrete=False, low=(-2.0,), high=(6.0,), horizon=20, episodic=self.episodic)
        return Spec((2,), 3, discrete=True, horizon=20, episodic=self.episodic)

    def task(self, **params):
        return Level(**{name: jnp.float32(value) for name, value in ({"level": 1.0} | params).items()})

    def reset(self, key, task):
        place = Place(jnp.zeros((), jnp.int32), jax.random.uniform(key))
        return place, self._observed(place)

    def step(self, key, place, action, task):
        place = Place(place.t + 1, place.mark)
        over, no = place.t >= self.length, jnp.zeros((), bool)
        number = action.astype(jnp.float32) if self.spec.discrete else action[0]
        if not self.episodic:
            over = no
        ends = (no, over) if self.truncates else (over, no)
        return place, self._observed(place), jnp.asarray(task.level, jnp.float32), *ends, {"pushed": number}

    def _observed(self, place):
        return jnp.stack([place.t.astype(jnp.float32), place.mark])


class Seen(NamedTuple):
    """What a witness has seen."""

    shifts: Any
    calls: Any
    draws: Any


@component
class Witness(Extension):
    """Changes nothing and remembers: shifts, calls of post_update, and a sum of what its key drew."""

    def init_state(self, agent_state, key, ctx):
        return Seen(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), jax.random.uniform(key))

    def post_update(self, agent_state, state, ctx):
        return agent_state, Seen(state.shifts + ctx.shift, state.calls + 1, state.draws + jax.random.uniform(ctx.key))

    def eval_metrics(self, agent_state, state, ctx):
        return {"witness/calls": state.calls.astype(jnp.float32)}


@component
class Bystander(Extension):
    """Another that draws in the same phase."""

    def init_state(self, agent_state, key, ctx):
        return jax.random.uniform(key)

    def post_update(self, agent_state, state, ctx):
        return agent_state, state + jax.random.uniform(ctx.key)


@component
class Idle(Extension):
    """Overrides nothing."""


def agent(name: str, **kwargs: Any) -> Any:
    """A small agent; `feed_...` arguments go to its feed."""
    feed = {key.removeprefix("feed_"): kwargs.pop(key) for key in list(kwargs) if key.startswith("feed_")}
    if name == "avg":
        return AVG(**{"hidden": HIDDEN} | kwargs)
    if name in ON_POLICY:
        return ON_POLICY[name](**{"feed": Epochs(**{"epochs": 2, "minibatches": 2} | feed), "hidden": HIDDEN} | kwargs)
    replay = Replay(**{"capacity": 1_000, "batch_size": 16, "learning_starts": 20} | feed)
    few = {"critics": 3, "critic_updates": 2} if name == "redq" else {}
    return OFF_POLICY[name](**{"feed": replay, "hidden": HIDDEN} | few | kwargs)


def world_for(name: str, **kwargs: Any) -> Clockwork:
    """The clockwork in the form that an agent acts in."""
    return Clockwork(continuous=name in CONTINUOUS, **kwargs)


def made(
    name: str, extensions: tuple = (), *, world=None, seeds=SEEDS, start=None, weights=None, rollout=None, **kwargs
):
    """A learner of a small agent; `rollout` goes to `learner.trainer`."""
    sizes = {"n_envs": 2, "window_steps": WINDOW, "total_steps": 1_000} | (rollout or {})
    trainer = learner.trainer(agent(name, **kwargs), world or world_for(name), extensions, **sizes)
    return learner.JaxLearner(trainer, seeds, start, weights)


def schedule(*segments: Any, source: str = "none") -> RegimeSchedule:
    """Segments from (steps, level) or (steps, level, level at the end)."""
    laid, start = [], 0
    for number, (steps, level, *last) in enumerate(segments):
        drift = {"level": last[0]} if last else None
        laid.append(Segment(f"s{number}", f"s{number}", start, start + steps, {"level": level}, drift))
        start += steps
    return RegimeSchedule(tuple(laid), source)


STILL = schedule((998, 1.0), (2, 1.0))
"""Nothing changes; two segments, so that other schedules of two run through the same program."""


def train(made_learner: Any, steps: int, plan: RegimeSchedule = STILL, state: Any = None, chunk: int | None = None):
    """(state, columns of all windows joined, [metrics]) after `steps` steps in calls of at most `chunk`."""
    state = made_learner.init(made_learner.seeds) if state is None else state
    goal, windows, metrics = made_learner.step(state) + steps, [], []
    while made_learner.step(state) < goal:
        room = goal - made_learner.step(state)
        state, window, told = made_learner.advance(state, plan, min(room, chunk or room))
        if not len(window):
            break
        windows.append(window.columns)
        metrics.append(told)
    joined = {name: np.concatenate([each[name] for each in windows]) for name in windows[0]} if windows else {}
    if windows:
        order = np.lexsort((joined["step"], joined["seed"]))
        joined = {name: column[order] for name, column in joined.items()}
    return state, joined, metrics


def host(tree: Any) -> dict[str, np.ndarray]:
    """Every leaf as a host array by its path, keys as their data."""
    from perdure.rl import state

    return {path: np.array(leaf) for path, leaf in state.leaves(tree).items()}


def same(one: Any, other: Any) -> bool:
    """Whether two trees have equal leaves, bit for bit."""
    a, b = host(one), host(other)
    return a.keys() == b.keys() and all(a[path].tobytes() == b[path].tobytes() for path in a)
