"""The reward components of the registry; each file beside this one that holds more of them is re-exported.

Keys are info keys; a dotted one reaches into nested mappings.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

from perdure.core.component import component
from perdure.core.errors import ConfigError
from perdure.rewards.component import Bounds, RewardComponent, check_positive, check_range, clip
from perdure.rewards.exploration import Exploration as Exploration
from perdure.rewards.expression import Expression as Expression
from perdure.rewards.reading import number, read, reads

Info = Mapping[str, Any]


@component
class LedgerDelta(RewardComponent):
    """The change of an account since the last step, over `scale`, held within [low, high].

    The first step of an episode counts from the reset's info; where that does not show the account,
    it counts zero.
    """

    key: str = "ledger.net"
    scale: float = 1.0
    """The change, in the account's unit, that is worth 1."""
    low: float = -1.0
    high: float = 1.0

    def __post_init__(self):
        check_positive(scale=self.scale)
        check_range(self.low, self.high)

    def requires(self) -> tuple[str, ...]:
        """The account."""
        return (self.key,)

    def bounds(self) -> Bounds:
        """The declared range."""
        return self.low, self.high

    def start(self, xp: Any, info: Info) -> Any:
        """The account at the reset; NaN where it is not shown."""
        if reads(info, self.key):
            return number(xp, read(info, self.key))
        return number(xp, xp.full(xp.shape(info["terminated"]), math.nan))

    def step(self, xp: Any, memory: Any, action: Any, info: Info) -> tuple[Any, Any]:
        """The account now, and what it gained."""
        now = number(xp, read(info, self.key))
        gained = xp.where(xp.isnan(memory), 0.0, now - memory) / self.scale
        return now, clip(xp, gained, self.low, self.high)


@component
class LedgerLevel(RewardComponent):
    """The standing of an account in (0, 1): 1/2 (1 + tanh((account - reference) / scale))."""

    key: str = "ledger.net"
    reference: float = 0.0
    """The account's value that counts 1/2."""
    scale: float = 1.0

    def __post_init__(self):
        check_positive(scale=self.scale)

    def requires(self) -> tuple[str, ...]:
        """The account."""
        return (self.key,)

    def bounds(self) -> Bounds:
        """(0, 1)."""
        return 0.0, 1.0

    def step(self, xp: Any, memory: Any, action: Any, info: Info) -> tuple[Any, Any]:
        """The standing after the step."""
        return memory, 0.5 * (1 + xp.tanh((number(xp, read(info, self.key)) - self.reference) / self.scale))


@component
class Throughput(RewardComponent):
    """What was processed in this step over what could have been, held within [0, 1]."""

    key: str = "throughput"
    capacity: float = 1.0
    """The amount per step, in the unit of the key, that counts 1."""

    def __post_init__(self):
        check_positive(capacity=self.capacity)

    def requires(self) -> tuple[str, ...]:
        """The amount processed."""
        return (self.key,)

    def bounds(self) -> Bounds:
        """[0, 1]."""
        return 0.0, 1.0

    def step(self, xp: Any, memory: Any, action: Any, info: Info) -> tuple[Any, Any]:
        """The share of the capacity."""
        return memory, clip(xp, number(xp, read(info, self.key)) / self.capacity, 0.0, 1.0)


@component
class FailureEvent(RewardComponent):
    """Minus the number of failures in this step (a flag counts as one), at most `cap`; at best 0."""

    key: str = "failures"
    cap: float = 1.0

    def __post_init__(self):
        check_positive(cap=self.cap)

    def requires(self) -> tuple[str, ...]:
        """The count or flag."""
        return (self.key,)

    def bounds(self) -> Bounds:
        """[-cap, 0]."""
        return -self.cap, 0.0

    def step(self, xp: Any, memory: Any, action: Any, info: Info) -> tuple[Any, Any]:
        """The penalty."""
        return memory, clip(xp, -number(xp, read(info, self.key)), -self.cap, 0.0)


@component
class ServiceLevel(RewardComponent):
    """The attained service level over the agreed one, held within [0, 1]."""

    key: str = "sla"
    """Share of what was due that was done in time, in [0, 1]."""
    target: float = 0.95

    def __post_init__(self):
        check_positive(target=self.target)

    def requires(self) -> tuple[str, ...]:
        """The attained level."""
        return (self.key,)

    def bounds(self) -> Bounds:
        """[0, 1]."""
        return 0.0, 1.0

    def step(self, xp: Any, memory: Any, action: Any, info: Info) -> tuple[Any, Any]:
        """How much of the target is met."""
        return memory, clip(xp, number(xp, read(info, self.key)) / self.target, 0.0, 1.0)


@component
class VerifierPass(RewardComponent):
    """1 where a verifier passed, else 0; with `scope: episode` only the final verdict counts."""

    key: str = "verifier_pass"
    scope: Literal["step", "episode"] = "step"

    def requires(self) -> tuple[str, ...]:
        """The verdict."""
        return (self.key,)

    def bounds(self) -> Bounds:
        """[0, 1]."""
        return 0.0, 1.0

    def step(self, xp: Any, memory: Any, action: Any, info: Info) -> tuple[Any, Any]:
        """The verdict as a number; a graded one is held within [0, 1]."""
        return memory, clip(xp, number(xp, read(info, self.key)), 0.0, 1.0)


@component
class ActionValidity(RewardComponent):
    """`valid` where the world accepted the action, `invalid` where it did not."""

    key: str = "action_valid"
    valid: float = 0.0
    invalid: float = -1.0

    def __post_init__(self):
        check_range(self.invalid, self.valid)

    def requires(self) -> tuple[str, ...]:
        """The flag."""
        return (self.key,)

    def bounds(self) -> Bounds:
        """(invalid, valid)."""
        return self.invalid, self.valid

    def step(self, xp: Any, memory: Any, action: Any, info: Info) -> tuple[Any, Any]:
        """One of the two values."""
        return memory, number(xp, xp.where(number(xp, read(info, self.key)) > 0, self.valid, self.invalid))


@component
class Cost(RewardComponent):
    """Minus what the step cost, over `scale`, at most `cap`; at best 0."""

    key: str = "cost"
    scale: float = 1.0
    """The cost that counts -1."""
    cap: float = 1.0

    def __post_init__(self):
        check_positive(scale=self.scale, cap=self.cap)

    def requires(self) -> tuple[str, ...]:
        """The cost."""
        return (self.key,)

    def bounds(self) -> Bounds:
        """[-cap, 0]."""
        return -self.cap, 0.0

    def step(self, xp: Any, memory: Any, action: Any, info: Info) -> tuple[Any, Any]:
        """The penalty."""
        return memory, clip(xp, -number(xp, read(info, self.key)) / self.scale, -self.cap, 0.0)


@component
class EpisodeCompletion(RewardComponent):
    """1 on the step that ends an episode as asked for, else 0; never part of a step's bounds."""

    on: Literal["terminated", "truncated", "either"] = "terminated"
    """Which end counts."""
    key: str | None = None
    """A flag, such as "success", that must hold too."""

    scope = "episode"

    def requires(self) -> tuple[str, ...]:
        """The flags of the end, and the key."""
        flags = ("terminated", "truncated") if self.on == "either" else (self.on,)
        return flags if self.key is None else (*flags, self.key)

    def bounds(self) -> Bounds:
        """[0, 1]."""
        return 0.0, 1.0

    def step(self, xp: Any, memory: Any, action: Any, info: Info) -> tuple[Any, Any]:
        """1 or 0."""
        terminated, truncated = xp.asarray(info["terminated"], bool), xp.asarray(info["truncated"], bool)
        ended = {"terminated": terminated, "truncated": truncated, "either": terminated | truncated}[self.on]
        if self.key is not None:
            ended = ended & (number(xp, read(info, self.key)) > 0)
        return memory, number(xp, ended)


@component
class Constant(RewardComponent):
    """The same value on every step: a living bonus, or the price of time where it is negative."""

    value: float = 1.0

    def __post_init__(self):
        if not math.isfinite(self.value):
            raise ConfigError(f"value is {self.value}; give a finite number")

    def requires(self) -> tuple[str, ...]:
        """Nothing."""
        return ()

    def bounds(self) -> Bounds:
        """(value, value)."""
        return self.value, self.value

    def step(self, xp: Any, memory: Any, action: Any, info: Info) -> tuple[Any, Any]:
        """The value, for every lane."""
        return memory, number(xp, xp.full(xp.shape(info["terminated"]), self.value))


@component
class EnvScalar(RewardComponent):
    """A scalar of the environment as it is, held within the bounds that are given: by default its own reward."""

    key: str = "env_reward"
    low: float | None = None
    high: float | None = None

    def __post_init__(self):
        check_range(self.low, self.high)

    def requires(self) -> tuple[str, ...]:
        """The scalar."""
        return (self.key,)

    def bounds(self) -> Bounds:
        """(low, high) as given."""
        return self.low, self.high

    def step(self, xp: Any, memory: Any, action: Any, info: Info) -> tuple[Any, Any]:
        """The scalar."""
        return memory, clip(xp, number(xp, read(info, self.key)), self.low, self.high)
