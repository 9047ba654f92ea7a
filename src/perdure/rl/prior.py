"""Rows that updates see beside what the run collects: those of a dataset, shared by all seeds."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from perdure.rl import acting
from perdure.rl.ops import masks
from perdure.rl.phases import Batch

REQUIRED = ("obs", "action", "reward", "terminated", "truncated", "next_obs")


class Prior(NamedTuple):
    """What an extension's `prior` gives."""

    columns: dict[str, Any]
    """Column of a batch -> array [R, ...]; those of `REQUIRED` and any others."""
    share: float | None = None
    """Part of every batch that comes from them; None: as they are among all rows, collected ones included."""


def of(trainer: Any, data: Any) -> Prior | None:
    """The prior rows of a run, from the extensions' data; None without any."""
    for part, own in zip(trainer.extensions, data, strict=bool(data)):
        found = part.prior(own)
        if found is not None:
            return found
    return None


def rows(trainer: Any, prior: Prior) -> Batch:
    """The prior rows with just the columns that collected rows have."""
    kept = [*REQUIRED, *trainer.columns & {"is_expert", "return_to_go", "next_action"}]
    if acting.keeps_reset_obs(trainer.agent):
        kept.append("reset_obs")
    found: dict[str, Any] = {name: jnp.asarray(prior.columns[name]) for name in kept}
    return Batch(**found)


def mixed(trainer: Any, prior: Prior, batch: Batch, collected: jax.Array, key: jax.Array) -> Batch:
    """A batch drawn uniformly from `collected` rows, with some of its rows exchanged for prior ones."""
    store, size = rows(trainer, prior), batch.reward.shape[0]
    count = store.reward.shape[0]
    which, place = jax.random.split(key)
    if prior.share is None:
        taken = jax.random.uniform(which, (size,)) < count / (count + collected)
    else:
        taken = jnp.arange(size) < round(prior.share * size)
    index = jax.random.randint(place, (size,), 0, count)
    return jax.tree.map(lambda old, own: masks.where(taken, own[index], old), batch, store)
