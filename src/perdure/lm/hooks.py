"""What may take part in the training of a language policy without being its algorithm.

Replay, penalties against forgetting and a prefix that tells the regime are objects of this kind; a
backend takes any number of them, and their order is the order in which they act.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from perdure.core.errors import ConfigError, DataError


class Hooks:
    """Every phase does nothing; override those that a part concerns.

    `backend` is the algorithm that trains (lm.backend.Backend): its `policy` (with `model`,
    `value_head`), `named_parameters()`, `minibatch` and `score(batch)` are what a hook may use.
    A hook changes no weight itself: it adds rows to a batch or a term to the loss.
    """

    name: str = "hook"
    """Prefix of its metrics and key of its state; unique among the hooks of a backend."""

    def begin(self, backend: Any) -> None:
        """Called once, when the backend stands and before its first step: the place for initial weights."""

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """Trainable parameters of its own, which the optimiser and the gradient's clipping then cover."""
        return ()

    def see(self, observation: Any, lane: int = 0) -> None:
        """An observation that the policy is about to act on, before `prefix` is asked for."""

    def prefix(self, lane: int = 0) -> str:
        """Text that opens the user's turn of the coming prompt of an environment copy; "" for none."""
        return ""

    def observe(self, observation: Any, reward: float, info: Mapping[str, Any], lane: int = 0, *, ended: bool) -> None:
        """What one step of an environment copy returned; `ended` where its episode ended with it."""

    def begin_episode(self, lane: int = 0) -> None:
        """A new conversation begins in a lane; -1 is the lane of greedy evaluations, which trains nothing."""

    def batch(self, backend: Any, batch: Any) -> Any:
        """The rows to train on (a TokenBatch), given those that were collected: the place for replay."""
        return batch

    def penalty(self, backend: Any) -> torch.Tensor | None:
        """A scalar added once to the loss of each optimiser step, inside the clipped gradient norm.

        The rows of that step are `backend.minibatch` (a TokenBatch).
        """
        return None

    def after_update(self, backend: Any) -> None:
        """Called when all optimiser steps on a window are done."""

    def shift(self, backend: Any, shift: Mapping[str, Any]) -> None:
        """A regime has ended; the keys of `shift` are those of core.records.Shift."""

    def metrics(self) -> Mapping[str, float]:
        """Scalars since they were last asked for, reported as NAME/KEY."""
        return {}

    def state(self) -> dict[str, Any]:
        """Everything of it that changes: JSON values, NumPy arrays and tensors, in nested dicts and lists."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave; arrays and tensors come back as they were."""


def unique(hooks: Sequence[Hooks]) -> tuple[Hooks, ...]:
    """The hooks of a backend; ConfigError where two have one name."""
    names = [hook.name for hook in hooks]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two hooks are called {twice!r}; give each a name of its own, by which its state is kept")
    return tuple(hooks)


def penalty(hooks: Sequence[Hooks], backend: Any) -> torch.Tensor | None:
    """The sum of the hooks' penalties; None where none has one."""
    terms = [term for hook in hooks if (term := hook.penalty(backend)) is not None]
    return torch.stack(terms).sum() if terms else None


def after_update(hooks: Sequence[Hooks], backend: Any) -> dict[str, float]:
    """Tell every hook that an update is done; their metrics as NAME/KEY."""
    metrics: dict[str, float] = {}
    for hook in hooks:
        hook.after_update(backend)
        metrics |= {f"{hook.name}/{key}": float(value) for key, value in hook.metrics().items()}
    return metrics


def states(hooks: Sequence[Hooks]) -> dict[str, Any]:
    """What each hook has to keep, by its name."""
    return {hook.name: hook.state() for hook in hooks}


def load(hooks: Sequence[Hooks], kept: Mapping[str, Any], place: Any) -> None:
    """Hand out what `states` gave; DataError, naming the place, where it is of other hooks."""
    if kept.keys() != {hook.name for hook in hooks}:
        raise DataError(f"{place} was saved with hooks {sorted(kept)}; build the backend with the same")
    for hook in hooks:
        hook.load(kept[hook.name])
