"""Learning from old answers: a uniform sample of the past, and off-policy corrected targets and losses.

T tokens that the policy chose, in their order.
"""

# pyright: strict

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perdure.core.errors import ConfigError

Floats = NDArray[np.float64]


class VTrace(NamedTuple):
    """What the policy and the critic learn from one old conversation."""

    advantages_T: Floats
    """rho_t (r_t + gamma_t v_{t+1} - V_t): what the gradient of log pi is weighted with."""
    targets_T: Floats
    """v_t, what the critic regresses on."""
    weights_T: Floats
    """rho_t, the truncated importance weights."""


def vtrace(
    log_ratios_T: ArrayLike,
    values_T: ArrayLike,
    rewards_T: ArrayLike,
    ends_T: Sequence[bool] | NDArray[np.bool_],
    *,
    bootstrap: float = 0.0,
    gamma: float = 0.99,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    lam: float = 1.0,
) -> VTrace:
    """V-trace over the chosen tokens of one conversation (Espeholt et al., 2018, arXiv:1802.01561, section 4.1).

    `log_ratios_T` are log pi - log mu, `values_T` the values of the states before the tokens. Time passes between
    turns: the discount past a turn's last token (`ends_T`) is `gamma`, inside a turn 1. `bootstrap` is the value
    of what follows, 0 where the episode terminated. rho_t = min(rho_bar, pi/mu), c_t = lam min(c_bar, pi/mu).
    """
    ratios = np.exp(np.minimum(np.asarray(log_ratios_T, np.float64), 50.0))
    values, rewards = np.asarray(values_T, np.float64), np.asarray(rewards_T, np.float64)
    discounts = np.where(np.asarray(ends_T, bool), gamma, 1.0)
    if not ratios.shape == values.shape == rewards.shape == discounts.shape:
        raise ConfigError("vtrace takes one log-ratio, value, reward and end for each token")
    rho, c = np.minimum(rho_bar, ratios), lam * np.minimum(c_bar, ratios)
    targets, advantages = np.zeros_like(values), np.zeros_like(values)
    following, correction = bootstrap, 0.0
    for t in reversed(range(values.size)):
        advantages[t] = rho[t] * (rewards[t] + discounts[t] * (following + correction) - values[t])
        correction = rho[t] * (rewards[t] + discounts[t] * following - values[t]) + discounts[t] * c[t] * correction
        targets[t], following = values[t] + correction, values[t]
    return VTrace(advantages, targets, rho)


class Reservoir:
    """A uniform sample of everything that was offered: the n-th item is kept with probability capacity / n.

    Vitter, 1985 (algorithm R). Items are anything; `state` hands them out as they are.
    """

    def __init__(self, capacity: int, seed: int = 0):
        if capacity < 1:
            raise ConfigError(f"capacity is {capacity}; it must be at least 1")
        self.capacity, self.items = capacity, list[Any]()
        self.seen = 0
        self._random = np.random.Generator(np.random.Philox(seed))

    def __len__(self) -> int:
        return len(self.items)

    def place(self) -> int | None:
        """Where the next item goes, None where it is not kept; counts it as offered."""
        self.seen += 1
        if self.seen <= self.capacity:
            return self.seen - 1
        place = int(self._random.integers(self.seen))
        return place if place < self.capacity else None

    def put(self, place: int, item: Any) -> None:
        """Store an item where `place` said."""
        self.items[place : place + 1] = [item]

    def add(self, item: Any) -> bool:
        """Offer an item; whether it was kept."""
        place = self.place()
        if place is not None:
            self.put(place, item)
        return place is not None

    def sample(self, count: int) -> list[Any]:
        """At most `count` distinct items, uniformly."""
        chosen = self._random.permutation(len(self.items))[:count]
        return [self.items[index] for index in chosen.tolist()]

    def state(self) -> dict[str, Any]:
        """The items, the count and the random numbers."""
        return {"items": list(self.items), "seen": self.seen, "random": _words(self._random.bit_generator.state)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave; the capacity is this reservoir's own."""
        self.items, self.seen = list(state["items"]), int(state["seen"])
        self._random.bit_generator.state = state["random"]


def _words(state: Any) -> Any:
    """A generator's state with plain numbers for NumPy's."""
    if isinstance(state, Mapping):
        return {str(key): _words(each) for key, each in state.items()}  # type: ignore[misc]
    return state
