"""CLEAR for language policies: old answers are learned from off-policy, and what was said of them is held to."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.lm import off_policy
from perdure.lm.batch import TokenBatch
from perdure.lm.conversation import REPLAYED, Recorded, plain, restored
from perdure.lm.extensions.base import at_least, refuse_without_critic
from perdure.lm.hooks import Hooks
from perdure.lm.replay import Reservoir


@component
class CLEAR:
    """Replay of the whole past with V-trace, and cloning of what was said then (Rolnick et al., 2019).

    arXiv:1811.11682, section 3. Added to each optimiser step, on `rows` conversations of a uniform sample of the
    past: `replay` times the V-trace losses, `policy_cloning` times KL(mu || pi), whose gradient is that of
    -log pi of the tokens mu chose, and `value_cloning` times the squared distance from the values then.

    Departures: the conversations just collected are learned from by the algorithm's own objective; lam decays a token.
    """

    capacity: int = 256
    """Conversations remembered."""
    rows: int = 8
    """Remembered conversations that an optimiser step sees."""
    replay: float = 1.0
    policy_cloning: float = 0.01
    value_cloning: float = 0.005
    value_coef: float = 0.5
    """Weight of the critic within the replay's losses."""
    gamma: float = 0.99
    """Discount of a turn."""
    lam: float = 0.95
    """Decay of a token."""
    seed: int = 0

    def __post_init__(self):
        at_least(self, capacity=1, rows=1, replay=0, policy_cloning=0, value_cloning=0, value_coef=0, gamma=0, lam=0)
        for name in ("gamma", "lam"):
            if getattr(self, name) > 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it lies between 0 and 1")

    def build(self, policy: Any = None) -> "Rehearsal":
        """The part itself."""
        return Rehearsal(self)


class Rehearsal(Hooks):
    """A reservoir of conversations, each with the values of its tokens when it came in."""

    name = "clear"

    def __init__(self, config: CLEAR):
        self.config = config
        self.past = Reservoir(config.capacity, config.seed)
        """Items are [conversation, values then], one value a token."""
        self._known = 0
        self._found: dict[str, float] = {}

    def begin(self, backend: Any) -> None:
        """Refused without a critic where a loss needs one."""
        if self.config.replay > 0 or self.config.value_cloning > 0:
            refuse_without_critic(backend, self.name, "train with lm/ppo, or set replay and value_cloning to 0")

    def batch(self, backend: Any, batch: TokenBatch) -> TokenBatch:
        """Offer what was collected to the reservoir, with what the acting critic says of it."""
        self._known = len(self.past)
        offered = [row for row in batch.rows if row.lane != REPLAYED and any(row.mask) and _rewarded(row)]
        places = [self.past.place() for _ in offered]
        # Of several rows for one place the last stays.
        kept = {place: row for place, row in zip(places, offered, strict=True) if place is not None}
        self._store(backend, dict(sorted(kept.items())))
        return batch

    def penalty(self, backend: Any) -> Tensor | None:
        """The losses on remembered conversations; nothing in the first update, whose rows they all are."""
        if not self._known:
            return None
        drawn = self.past.sample(self.config.rows)
        rows: list[Recorded] = [row for row, _ in drawn]
        config = self.config
        found = off_policy.losses(
            backend.score(TokenBatch(tuple(rows))),
            rows,
            [then for _, then in drawn],
            gamma=config.gamma,
            lam=config.lam,
        )
        self._found = {"policy_cloning": found.cloning.item(), "value_cloning": found.values.item()}
        return (
            config.replay * (found.policy + config.value_coef * found.critic)
            + config.policy_cloning * found.cloning
            + config.value_cloning * found.values
        )

    def metrics(self) -> Mapping[str, float]:
        """The last estimates of both distances, nats and squared units a token, and the filled share of the memory."""
        return {**self._found, "filled": len(self.past) / self.config.capacity}

    def state(self) -> dict[str, Any]:
        """The reservoir."""
        kept = self.past.state()
        return {**kept, "items": [[plain(row), values] for row, values in kept["items"]], "known": self._known}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave."""
        self.past.load({**state, "items": [[restored(row), values] for row, values in state["items"]]})
        self._known = int(state["known"])

    def _store(self, backend: Any, kept: Mapping[int, Recorded]) -> None:
        """Put conversations into their places, with what the critic says of them now."""
        if not kept:
            return
        with torch.no_grad():
            values_BT = backend.score(TokenBatch(tuple(kept.values()))).values_BT
        for number, (place, row) in enumerate(kept.items()):
            values = np.zeros(len(row)) if values_BT is None else values_BT[number, : len(row)].double().cpu().numpy()
            self.past.put(place, [row, values])


def _rewarded(row: Recorded) -> bool:
    return all(math.isfinite(turn.reward) for turn in row.turns)
