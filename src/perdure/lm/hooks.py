"""What may take part in the training of a language policy without being its algorithm.

Replay, penalties against forgetting and a prefix that tells the regime are objects of this kind; a
backend takes any number of them, and their order is the order in which they act.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch


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
