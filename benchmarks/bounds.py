"""Measure the score bounds that the classic-control worlds declare.

    python benchmarks/bounds.py [cartpole pendulum acrobot mountain_car mountain_car_continuous]

Low is the mean return of uniformly random actions. High is the mean return, in the world itself, of the
policy that is greedy on a value function found by value iteration on a grid of the body's
coordinates: attained by construction, if not the very best. Both over episodes from the world's own starts.
"""

import argparse
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.ndimage import map_coordinates

from perdure.worlds import catalogue, rollouts
from perdure.worlds.pure import physics

LANES = 256
KEY = jax.random.key(0)


class Grid(NamedTuple):
    """Coordinates on which values are kept, and how to read a body from an observation."""

    axes: tuple[tuple[float, float, int], ...]
    actions: Any
    sweeps: int
    body: Any
    discount: float = 1.0
    """Of the planning alone. Below 1 it outweighs the drift of interpolated values, by which waiting looks free."""

    def points(self) -> jax.Array:
        """Every node as a body: [nodes, coordinates]."""
        lines = [jnp.linspace(*axis) for axis in self.axes]
        return jnp.stack(jnp.meshgrid(*lines, indexing="ij"), -1).reshape(-1, len(self.axes))

    def place(self, body: jax.Array) -> jax.Array:
        """Fractional indices of bodies [..., coordinates], cut at the border."""
        low, high, size = (jnp.array(column, jnp.float32) for column in zip(*self.axes, strict=True))
        return jnp.clip((body - low) / (high - low), 0.0, 1.0) * (size - 1)


def _as_seen(observation):
    return observation


def _pendulum_body(observation):
    return jnp.stack([jnp.arctan2(observation[1], observation[0]), observation[2]])


def _acrobot_body(observation):
    angles = jnp.arctan2(observation[jnp.array([1, 3])], observation[jnp.array([0, 2])])
    return jnp.concatenate([angles, observation[4:]])


def _vector(low, high, size):
    return jnp.linspace(low, high, size)[:, None]


PI = float(np.pi)
GRIDS = {
    "pendulum": Grid(((-PI, PI, 201), (-8.0, 8.0, 161)), _vector(-2.0, 2.0, 33), 250, _pendulum_body),
    "mountain_car": Grid(((-1.2, 0.6, 301), (-0.07, 0.07, 301)), jnp.arange(3), 250, _as_seen),
    "mountain_car_continuous": Grid(
        ((-1.2, 0.6, 301), (-0.07, 0.07, 301)), _vector(-1.0, 1.0, 41), 999, _as_seen, 0.996
    ),
    "acrobot": Grid(
        ((-PI, PI, 25), (-PI, PI, 25), (-6.0, 6.0, 25), (-10.0, 10.0, 25)), jnp.arange(3), 120, _acrobot_body
    ),
}


def main() -> None:
    """Print a line a world."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("worlds", nargs="*", default=["cartpole", *GRIDS])
    for name in parser.parse_args().worlds:
        world = catalogue.pure(f"perdure/{name}")
        low = _returns(world, rollouts.random_act(world.spec))
        line = (
            f"{name}: random {low.mean():.1f} (standard error {low.std() / len(low) ** 0.5:.2f}, {len(low)} episodes)"
        )
        if name in GRIDS:
            high = _returns(world, _planner(world, GRIDS[name]))
            line += f"; planned {high.mean():.1f} ({high.min():.1f} to {high.max():.1f}, {len(high)} episodes)"
        print(line, flush=True)


def _returns(world, act):
    """Of whole episodes only; four times the horizon of each copy keeps the short ones from being favoured."""
    return rollouts.returns(rollouts.run(world, world.task(), act, KEY, 4 * world.spec.horizon, LANES))


def _planner(world, grid):
    task, sizes = world.task(), tuple(size for *_, size in grid.axes)

    def outcomes(body):
        """Of every action: reward, next place on the grid, whether it goes on."""

        def outcome(action):
            state, _, reward, terminated, _ = world.step(KEY, physics.begin(body), action, task)
            return reward, grid.place(state.body), 1.0 - terminated

        return jax.vmap(outcome)(grid.actions)

    def worth(value, reward, place, alive):
        following = map_coordinates(value, list(jnp.moveaxis(place, -1, 0)), order=1, mode="nearest")
        return reward + grid.discount * alive * following

    @jax.jit
    def iterate():
        rewards = jax.lax.map(outcomes, grid.points(), batch_size=4096)
        sweep = lambda _, value: worth(value, *rewards).max(-1).reshape(sizes)
        return jax.lax.fori_loop(0, grid.sweeps, sweep, jnp.zeros(sizes))

    return functools.partial(_greedy, grid, outcomes, worth, iterate())


def _greedy(grid, outcomes, worth, value, key, observation):
    return grid.actions[jnp.argmax(worth(value, *outcomes(grid.body(observation))))]


if __name__ == "__main__":
    main()
