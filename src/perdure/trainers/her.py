"""Proximal policy optimisation with hindsight replay, registered as lm/her.

Corrected by default: relabelled answers are learned from by a V-trace loss of their own, weighted for how far the
policy has moved since, and goals take part where `goal_reward` and `goal_prompt` are named (Andrychowicz et al.,
2017, arXiv:1707.01495). `preset="reference"` clamps the reward at an episode's end and mixes as many old rows as
fresh ones into the batch, unweighted and without the structure of episodes; no goal takes part in it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from perdure.core.component import make
from perdure.core.errors import Refused
from perdure.lm import preset as presets
from perdure.lm.backend import Backend
from perdure.lm.extensions.base import refuse_unknown
from perdure.lm.extensions.hindsight import Hindsight
from perdure.lm.hindsight import GoalRelabeler, GoalStrategy, HERBuffer, RelabelStrategy, relabel_episode
from perdure.lm.hooks import Hooks
from perdure.lm.settings import Settings
from perdure.lm.step import Optimisation

__all__ = ["GoalRelabeler", "GoalStrategy", "HERBackend", "HERBuffer", "RelabelStrategy", "relabel_episode"]

PRESET: Mapping[str, tuple[Any, Any]] = {"correction": ("vtrace", "none")}
"""Key of Hindsight -> (corrected, reference)."""

REPLAY_SIZE = 512


class HERBackend(Backend):
    """Proximal policy optimisation with replay of answers as if they had succeeded.

    `replay_size` is its capacity and `replay_seed` (by default `seed`) its seed. With correction none the backend's own
    replay does it, as the published code: the store is filled first, sampled after the first update.
    """

    keys_of: ClassVar[tuple[type, ...]] = (Hindsight, Settings, Optimisation)

    def __init__(
        self,
        policy: Any,
        optimizer: Any = None,
        replay_size: int = REPLAY_SIZE,
        *,
        hooks: Sequence[Hooks] = (),
        **options: Any,
    ):
        refuse_unknown(options, Hindsight, Settings, Optimisation)
        names = {each.name for each in dataclasses.fields(Hindsight)} - {"capacity", "seed"}
        given = {name: options.pop(name) for name in list(options) if name in names}
        chosen = presets.resolve(options.get("preset", "corrected"), PRESET, given)
        seed = options.setdefault("replay_seed", options.get("seed", 0))
        config = make(Hindsight, {**given, **chosen, "capacity": replay_size, "seed": seed}, "algorithm.kwargs")
        own: tuple[Hooks, ...] = (config.build(),) if config.correction == "vtrace" else ()
        if not own and config.goal_reward:
            raise Refused("goal_reward needs correction vtrace; the published replay knows no goals")
        super().__init__(policy, optimizer, hooks=(*own, *hooks), **options)
        if not own:
            self.replay = HERBuffer(
                replay_size, config.admission_threshold, config.success_reward, config.strategy, seed=seed
            )
