"""A world that pays for remembering: what is to be done now was shown two steps ago."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.records import Spec


class Shown(NamedTuple):
    """Where an episode stands."""

    t: jax.Array
    signs: jax.Array
    """The last three, the present one last."""


class Pay(NamedTuple):
    """What a task changes."""

    level: Any = 1.0


@component
class Recall:
    """Shows a random sign at each of 8 steps; from the third on, pays 1 for what was shown two steps before.

    Discrete: -1 for the other action, so that 6 is the best return and 0 what no memory can better. Continuous:
    1 - (action - sign / 2)^2, with 6 and 4.5 (at action 0) in their place.
    """

    continuous: bool = False

    @property
    def spec(self):
        if self.continuous:
            return Spec((1,), 1, discrete=False, low=(-1.0,), high=(1.0,), horizon=8)
        return Spec((1,), 2, discrete=True, horizon=8)

    def task(self, **params):
        return Pay(**{name: jnp.float32(value) for name, value in ({"level": 1.0} | params).items()})

    def reset(self, key, task):
        return self._observed(Shown(jnp.zeros((), jnp.int32), jnp.concatenate([jnp.zeros(2), _sign(key)])))

    def step(self, key, state, action, task):
        wanted = state.signs[0]
        paid = (
            1.0 - jnp.square(action[0] - 0.5 * wanted) if self.continuous else jnp.where(action == 1, wanted, -wanted)
        )
        state = Shown(state.t + 1, jnp.concatenate([state.signs[1:], _sign(key)]))
        reward = jnp.where(wanted == 0.0, 0.0, task.level * paid)
        return *self._observed(state), reward, state.t >= 8, jnp.zeros((), bool)

    def _observed(self, state):
        return state, state.signs[-1:]


def _sign(key):
    return jnp.where(jax.random.bernoulli(key, shape=(1,)), 1.0, -1.0)
