"""What every reward component is: a pure function of a step's info, with a scope and bounds."""

from collections.abc import Mapping
from typing import Any

from perdure.core.errors import ConfigError

Bounds = tuple[float | None, float | None]


class RewardComponent:
    """A number read from each step: element-wise, with the array module `xp` (numpy or jax.numpy).

    `info` holds the world's own values and always "obs", "env_reward", "terminated" and
    "truncated", for one lane or for a batch of them; the result has the shape of "env_reward".
    What a component remembers between steps is a pytree of arrays that `step` takes and returns.
    """

    scope: str = "step"
    """"step", or "episode": then it counts only on the step that ends an episode."""
    sustained: bool = True
    """Whether it can be earned on every step, and so belongs into the bounds of the reward of a step."""

    def requires(self) -> tuple[str, ...]:
        """The info keys it reads."""
        raise NotImplementedError

    def bounds(self) -> Bounds:
        """Lowest and highest raw value; None where there is no such value."""
        raise NotImplementedError

    def start(self, xp: Any, info: Mapping[str, Any]) -> Any:
        """The memory at the start of an episode, from the info of the reset; () where nothing is kept."""
        return ()

    def step(self, xp: Any, memory: Any, action: Any, info: Mapping[str, Any]) -> tuple[Any, Any]:
        """The memory after a step, and the unweighted value of it."""
        raise NotImplementedError


def check_range(low: float | None, high: float | None) -> None:
    """Raise ConfigError unless low < high where both are given."""
    if low is not None and high is not None and not low < high:
        raise ConfigError(f"low is {low} and high is {high}; low must be the lesser")


def check_positive(**values: float) -> None:
    """Raise ConfigError for the first named value that is not a positive finite number."""
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise ConfigError(f"{name} is {value}; give a positive number")


def clip(xp: Any, value: Any, low: float | None, high: float | None) -> Any:
    """The value held within the bounds that are given."""
    value = value if low is None else xp.maximum(value, low)
    return value if high is None else xp.minimum(value, high)
