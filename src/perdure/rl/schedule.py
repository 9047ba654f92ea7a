"""The regime schedule as traced arrays: any sequence of regimes runs through one program."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from perdure.core.records import RegimeSchedule
from perdure.rl.ops import masks

NEVER = np.iinfo(np.int32).max


class TracedSchedule(NamedTuple):
    """Segments [K], padded to a power of two so that near lengths share a program."""

    start: Any
    end: Any
    first: Any
    """The task at each segment's start: a pytree of arrays [K]."""
    last: Any
    """The task at its end; equal to `first` except in a drift."""
    weights: Any
    """Reward component weights [K, components]."""
    total: Any


def traced(schedule: RegimeSchedule, world: Any, weights: Any = None) -> TracedSchedule:
    """Lay a schedule out as arrays; `weights(id, origin)` gives a regime's reward weights."""
    segments = schedule.segments
    size = 1 << (len(segments) - 1).bit_length()
    padded = [*segments, *[segments[-1]] * (size - len(segments))]
    first = [world.task(**(segment.params or {})) for segment in padded]
    last = [
        task if segment.params_end is None else world.task(**segment.params_end)
        for task, segment in zip(first, padded, strict=True)
    ]
    stack = lambda tasks: jax.tree.map(
        lambda *leaves: np.stack([np.asarray(leaf, np.float32) for leaf in leaves]), *tasks
    )
    ends = [segment.end for segment in segments[:-1]] + [NEVER] * (size - len(segments) + 1)
    rows = [weights(segment.id, segment.origin) if weights else () for segment in padded]
    return TracedSchedule(
        np.array([segment.start for segment in padded], np.int32),
        np.array(ends, np.int32),
        stack(first),
        stack(last),
        np.array(rows, np.float32).reshape(size, -1),
        np.int32(schedule.total_steps),
    )


def at(schedule: TracedSchedule, step_T: jax.Array) -> tuple[Any, jax.Array]:
    """The task (pytree of [T]) and reward weights [T, components] in force at each step."""
    index_T = (step_T[:, None] >= schedule.end[None]).sum(-1)
    last_end = jnp.minimum(schedule.end, schedule.total)
    length_K = jnp.maximum(last_end - schedule.start, 1)
    share_T = (step_T - schedule.start[index_T]) / length_K[index_T]

    def mixed(a_K, b_K):
        a_T, b_T = a_K[index_T], b_K[index_T]
        return a_T + (b_T - a_T) * masks.widened(share_T, a_T)

    return jax.tree.map(mixed, schedule.first, schedule.last), schedule.weights[index_T]
