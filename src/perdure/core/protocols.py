"""The seams: what the harness asks of a learner, and a learner of a world or third-party code."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from perdure.core.records import Evaluation, RegimeSchedule, RolloutWindow, Shift, Spec


class World(Protocol):
    """A pure world: functions of arrays, its physics in a pytree `task` of traced scalars.

    `step` may return a sixth value, a mapping of arrays, which reward components can read.
    Optional: `bounds(task) -> (low, high)` in score units.
    """

    @property
    def spec(self) -> Spec: ...
    def task(self, **params: float) -> Any: ...
    def reset(self, key: Any, task: Any) -> tuple[Any, Any]: ...
    def step(self, key: Any, state: Any, action: Any, task: Any) -> tuple[Any, ...]: ...


class Learner(Protocol):
    """Everything the harness knows of a learner, compiled or not. States are opaque values."""

    seeds: tuple[int, ...]

    def init(self, seeds: tuple[int, ...]) -> Any:
        """The state before the first step, for all seeds at once."""
        ...

    def advance(self, state: Any, schedule: RegimeSchedule, steps: int) -> tuple[Any, RolloutWindow, Mapping[str, Any]]:
        """Train for at most `steps` further environment steps of each seed.

        Runs whole windows only, and returns after any number of them (so that progress shows);
        an empty window means that no whole window fits: `state` holds the policy in force at
        the mark. Only the run's own end (`schedule.total_steps`) cuts the last window short.
        Metrics are arrays [windows, seeds], with "step" [windows] saying where each window ended.
        """
        ...

    def step(self, state: Any) -> int:
        """Environment steps of one seed done so far."""
        ...

    def evaluate(self, state: Any, params: Mapping[str, float] | None, episodes: int) -> Evaluation:
        """Greedy episodes under a configuration; never touches training state.

        `params` are a segment's (None: the world as it comes). Random numbers come from
        (seed, step), so evaluating or not changes nothing, and repeating gives the same numbers.
        """
        ...

    def on_regime_shift(self, state: Any, shift: Shift) -> Any:
        """Tell the algorithm of a shift; returns the state after it."""
        ...

    def save(self, state: Any, folder: Path) -> None:
        """Write everything that changes into an existing empty folder."""
        ...

    def load(self, folder: Path) -> Any:
        """The state that `save` wrote; raises DataError for another program's checkpoint."""
        ...

    def export(self, state: Any, folder: Path) -> Mapping[str, Any]:
        """Write policy weights into `folder` (npz or safetensors); returns a description (JSON values)."""
        ...

    def policy(self, state: Any, position: int) -> Callable[[Any], Any]:
        """The greedy policy of the seed at `position`: observation -> action in world units."""
        ...

    def close(self) -> None:
        """Release environments and other resources."""
        ...


@runtime_checkable
class Policy(Protocol):
    """A third-party policy. Optional hooks: act_with_info, act_batch, observe, seed, state_dict, load_state_dict."""

    def act(self, observation: Any) -> Any: ...


@runtime_checkable
class Algorithm(Protocol):
    """A third-party algorithm, driven window by window on host environments; it mutates itself."""

    @property
    def policy(self) -> Policy: ...
    def update(self, window: RolloutWindow) -> Mapping[str, float]: ...
    def on_regime_shift(self, shift: Mapping[str, Any]) -> None: ...
    def save_checkpoint(self, path: Path) -> None: ...
