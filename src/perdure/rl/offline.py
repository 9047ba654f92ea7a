"""Training on a dataset alone, before the world is touched."""

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from perdure.rl import learning, prior
from perdure.rl.phases import Metrics

if TYPE_CHECKING:
    from perdure.rl.loop import Seed, Trainer, TrainState


def train(
    trainer: "Trainer", state: "TrainState", columns: Any, count: jax.Array, total: jax.Array, data: Any
) -> "tuple[TrainState, Metrics]":
    """`count` more updates of every seed on batches drawn from a dataset alone, and their mean metrics [S].

    `columns` are the dataset's arrays, `total` the updates that schedules over the run are laid out for.
    The normaliser takes the dataset in with the first update. Every phase of an update is folded.
    """
    rows_R = prior.rows(trainer, prior.Prior(columns))
    clock = state.clock._replace(data=data, total=total)
    run = lambda seed: _train_one(trainer, seed, clock, rows_R, count)
    seeds, sums = jax.vmap(run)(state.seeds)
    ended = state.clock._replace(updates=state.clock.updates + count)
    return state._replace(clock=ended, seeds=seeds), jax.vmap(lambda each: learning.averaged(each, count))(sums)


def _train_one(trainer, seed, clock, rows_R, count):
    begun = seed.normaliser.absorb_prior(trainer, rows_R)
    pick = lambda new, old: jnp.where(clock.updates == 0, new, old)
    seed = seed._replace(normaliser=jax.tree.map(pick, begun, seed.normaliser))
    one = partial(_update, trainer, clock, rows_R)
    blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(one, seed, clock.updates)[1])

    def step(number, carry):
        seed, sums = carry
        seed, metrics = one(seed, clock.updates + number)
        return seed, jax.tree.map(jnp.add, sums, metrics)

    return jax.lax.fori_loop(0, count, step, (seed, blank))


@partial(jax.jit, static_argnums=0)
def _update(trainer: "Trainer", clock: Any, rows_R: Any, seed: "Seed", number: jax.Array):
    """One update on rows drawn uniformly; time passes in updates, as if each were a step of the environment."""
    now = clock._replace(t=number // trainer.n_envs, updates=number)
    index = jax.random.randint(
        jax.random.fold_in(seed.keys.replay, number), (trainer.agent.feed.batch_size,), 0, rows_R.reward.shape[0]
    )
    rows_B = jax.tree.map(lambda x: x[index], rows_R)
    return learning.update_on(trainer, seed, rows_B, now, now._replace(updates=number + 1))
