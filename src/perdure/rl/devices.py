"""Seeds spread over the local accelerators: each trains its share, and nothing is exchanged."""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

SEED = "seed"


def over_seeds(function: Callable, count: int, outputs: Any, state: Any = True) -> Callable:
    """`function(first, *shared)` with the seed axis of `first` split over devices.

    `state` and `outputs` are prefix trees of booleans: whether that part carries the seed axis. As
    many devices are used as divide `count` evenly; with one, `function` is returned as it is. A CPU
    counts as one device whatever JAX is told: XLA's compiler has crashed on a split program there
    (benchmarks/README.md).
    """
    devices = [device for device in jax.local_devices() if device.platform != "cpu"]
    used = math.gcd(count, len(devices))
    if used <= 1 or not devices:
        return function
    mesh = Mesh(devices[:used], (SEED,))
    spec = lambda tree: jax.tree.map(lambda split: PartitionSpec(SEED) if split else PartitionSpec(), tree)

    def run(first, *shared):
        specs = (spec(state), *[PartitionSpec()] * len(shared))
        split = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=spec(outputs), check_vma=False)
        return split(first, *shared)

    return run
