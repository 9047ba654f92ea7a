"""Training state as named host arrays and back, and the numbers that seed it."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perdure.core import arrays, seeds
from perdure.rl import collect
from perdure.rl.ops import prng


def numbers(run_seeds: tuple[int, ...], n_envs: int) -> collect.SeedNumbers:
    """The 32-bit numbers of every stream: [S] each, `world` [S, N]."""
    of = lambda name: np.array([seeds.stream(seed, name) for seed in run_seeds], np.uint32)
    world = [[seeds.stream(seed, "world", lane) for lane in range(n_envs)] for seed in run_seeds]
    return collect.SeedNumbers(np.array(world, np.uint32), *(of(name) for name in collect.SeedNumbers._fields[1:]))


def leaves(tree: Any) -> dict[str, np.ndarray]:
    """Path -> host array for every leaf; PRNG keys as their data."""
    return {path: np.asarray(leaf) for path, leaf in _plain(tree).items()}


def restored(like: Any, found: dict[str, np.ndarray], folder: Path) -> Any:
    """`found` in the shape of `like` (arrays or their shapes); raises DataError where they differ."""
    arrays.match(found, _plain(jax.eval_shape(lambda: like) if _concrete(like) else like), folder)

    def restore(path, leaf):
        array = jnp.asarray(found[_name(path)])
        return prng.wrapped(array) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else array

    return jax.tree_util.tree_map_with_path(restore, like)


def _plain(tree):
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {_name(path): _data(leaf) for path, leaf in flat}


def _data(leaf):
    if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    return (
        jax.eval_shape(jax.random.key_data, leaf)
        if isinstance(leaf, jax.ShapeDtypeStruct)
        else jax.random.key_data(leaf)
    )


def _concrete(tree):
    return all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(tree))


def _name(path):
    return jax.tree_util.keystr(path, simple=True, separator="/")
