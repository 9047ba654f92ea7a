"""A world that pays what is done in it, experts for it, and contexts as before a run: for tests of what plays them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.records import Spec
from perdure.rl.ops import prng
from perdure.rl.phases import Clock, Context


class Rate(NamedTuple):
    """What a task changes."""

    level: Any = 1.0


@component
class Payer:
    """Sees (step, a mark drawn at the reset), or the mark alone; pays the task's level times the action.

    Actions lie in [-2, 6], so that 0 of an agent's units is 2. Episodes last `length` steps.
    """

    length: int = 3
    truncates: bool = False
    discrete: bool = False
    blind: bool = False
    """Whether the step cannot be seen."""

    @property
    def spec(self) -> Spec:
        if self.discrete:
            return Spec((2,), 3, discrete=True, horizon=20)
        return Spec((2,), 1, discrete=False, low=(-2.0,), high=(6.0,), horizon=20)

    def task(self, **params):
        return Rate(**{name: jnp.float32(value) for name, value in ({"level": 1.0} | params).items()})

    def reset(self, key, task):
        place = jnp.stack([jnp.zeros(()), jax.random.uniform(key)])
        return place, self._observed(place)

    def step(self, key, place, action, task):
        place = place + jnp.array([1.0, 0.0])
        over, no = place[0] >= self.length, jnp.zeros((), bool)
        paid = task.level * (action if self.discrete else action[0]).astype(jnp.float32)
        return place, self._observed(place), paid, *((no, over) if self.truncates else (over, no))

    def _observed(self, place):
        return place * jnp.array([0.0, 1.0]) if self.blind else place


@component
class Counts:
    """Does what the step's number is, in world units."""

    discrete: bool = False

    def __call__(self, obs):
        return obs[..., 0].astype(jnp.int32) if self.discrete else obs[..., :1]


@component
class Ones:
    """Does 1 in world units, always."""

    def __call__(self, obs):
        return jnp.ones_like(obs[..., :1])


@component
class Remembers:
    """Does how many steps of the episode it remembers, in world units."""

    def init_state(self, n):
        return jnp.zeros(n)

    def __call__(self, state, obs):
        return state[:, None], state + 1.0


def context(agent: Any, world: Any, expert: Any = None, **known: Any) -> Context:
    """What surrounds a pretrain phase of one seed with two copies."""
    clock = Clock(jnp.int32(0), jnp.int32(0), jnp.int32(1_000))
    known = {"key": prng.key(7), "task": world.task()} | known
    return Context(world.spec, agent.networks(world.spec), 2, clock, agent=agent, expert=expert, world=world, **known)
