"""A compiled world of one's own: a cliff to stop before, whose friction a regime changes without recompiling.

python examples/06_own_world.py
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.core.component import component
from perdure.core.records import Spec


class Task(NamedTuple):
    """What a regime may change."""

    friction: float = 0.1
    """Share of the speed that is lost in a step."""


class State(NamedTuple):
    """Where the sledge is, how fast it goes and how long it has been going."""

    position: jax.Array
    speed: jax.Array
    t: jax.Array


@component
class Cliff:
    """Slide as far as possible and stop before 1: the reward is the way made, and -10 for falling."""

    horizon: int = 100

    @property
    def spec(self) -> Spec:
        """Position and speed; one push in [-1, 1]."""
        return Spec(obs_shape=(2,), action_dim=1, discrete=False, low=(-1.0,), high=(1.0,), horizon=self.horizon)

    def task(self, **params: float) -> Task:
        """A task; unknown names raise."""
        return Task(**params)

    def reset(self, key: Any, task: Task) -> tuple[State, jax.Array]:
        """At rest, somewhere near the start."""
        state = State(jax.random.uniform(key, maxval=0.1), jnp.zeros(()), jnp.zeros((), jnp.int32))
        return state, jnp.stack([state.position, state.speed])

    def step(self, key: Any, state: State, action: jax.Array, task: Task) -> tuple:
        """One push."""
        speed = (1.0 - task.friction) * state.speed + 0.01 * action[0]
        after = State(state.position + speed, speed, state.t + 1)
        fallen = after.position > 1.0
        reward = jnp.where(fallen, -10.0, speed)
        return after, jnp.stack([after.position, speed]), reward, fallen, after.t >= self.horizon


def main() -> None:
    """Push for a hundred steps on ice and on gravel: one program for both."""
    world, traced = Cliff(), []

    @jax.jit
    def step(*arguments):
        traced.append("once a compilation")
        return world.step(*arguments)

    for name, task in {"ice": world.task(friction=0.0), "gravel": world.task(friction=0.5)}.items():
        state, _ = world.reset(jax.random.key(0), task)
        total, ended = 0.0, False
        while not ended:
            state, _, reward, terminated, truncated = step(jax.random.key(0), state, jnp.ones(1), task)
            total, ended = total + float(reward), bool(terminated | truncated)
        print(f"{name}: {int(state.t)} steps, return {total:.2f}")
    print(f"programs compiled: {len(traced)}")


if __name__ == "__main__":
    main()
