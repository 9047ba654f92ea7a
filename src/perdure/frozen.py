"""The policy of a finished run as an expert: what one run learnt can guide, or be recorded for, another."""

import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np

from perdure.core.component import component
from perdure.core.errors import Refused


@component
class FrozenPolicy:
    """The greedy policy in the newest checkpoint of a compiled run: observations [..., D] -> actions in world units."""

    folder: str
    """The run's folder."""
    seed: int | None = None
    """Which of its seeds; None: the first."""

    def __call__(self, obs: Any) -> jax.Array:
        from perdure.rl import acting

        trainer, seed, clock = _opened(str(Path(self.folder).resolve()), self.seed)
        flat = jax.numpy.reshape(obs, (-1, obs.shape[-1]))
        ctx = trainer.context(clock, key=seed.keys.policy)
        action, _ = acting.evaluated(trainer, seed, flat, acting.start_guide(trainer, len(flat)), ctx)
        return action.reshape(*obs.shape[:-1], *action.shape[1:])


@functools.lru_cache(maxsize=8)
def _opened(folder: str, seed: int | None) -> tuple[Any, Any, Any]:
    """The trainer of a run, and one seed of its newest checkpoint as host arrays."""
    from perdure import build
    from perdure.rl import acting
    from perdure.rl.learner import JaxLearner

    with jax.ensure_compile_time_eval():
        learner, state, position = build.opened(Path(folder), seed)
        if not isinstance(learner, JaxLearner):
            raise Refused(f"{folder} was not trained in one program; only a compiled agent's policy can be an expert")
        if jax.tree.leaves(acting.start_guide(learner.trainer, 1)):
            raise Refused(f"the policy of {folder} follows episodes with its own expert; give that of another run")
        if getattr(learner.trainer.agent, "memory", None) is not None:
            raise Refused(f"the policy of {folder} has a memory and follows episodes; give that of a run without one")
        one = jax.tree.map(lambda x: x[position] if _is_key(x) else np.asarray(x[position]), state.train.seeds)
    return learner.trainer, one, state.train.clock


def _is_key(x: Any) -> bool:
    return jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)
