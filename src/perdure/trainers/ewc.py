"""Proximal policy optimisation with elastic weight consolidation at shifts, registered as lm/ewc.

Kirkpatrick et al., 2017 (arXiv:1612.00796). Corrected by default: the Fisher information is measured on answers
of the whole regime that ends, exactly `max_samples` of them, the solved band begins at a quantile of their
rewards, several snapshots share one lambda, and the value head counts by its own likelihood. `preset="reference"`
measures on the last window, takes .9 for solved, overshoots small budgets, sums snapshots, and holds adapters only.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from perdure.core.component import make
from perdure.lm import preset as presets
from perdure.lm.backend import Backend
from perdure.lm.extensions.base import refuse_unknown
from perdure.lm.extensions.consolidation import EWC, Consolidation
from perdure.lm.fisher import (
    DEFAULT_SAMPLE_MIX,
    EWCMode,
    FisherDropout,
    FisherKind,
    ParameterScope,
    build_parameter_filter,
    select_fisher_samples,
)
from perdure.lm.hooks import Hooks
from perdure.lm.settings import Settings
from perdure.lm.step import Optimisation

__all__ = [
    "DEFAULT_SAMPLE_MIX",
    "EWCBackend",
    "EWCMode",
    "FisherDropout",
    "FisherKind",
    "ParameterScope",
    "build_parameter_filter",
    "select_fisher_samples",
]

PRESET: Mapping[str, tuple[Any, Any]] = {
    "parameter_scope": (str(ParameterScope.ALL), str(ParameterScope.LORA_ONLY)),
    "fisher_bands": ("quantile", "absolute"),
    "exact_budget": (True, False),
    "whole_regime": (True, False),
    "average_snapshots": (True, False),
    "value_fisher": (True, False),
}
"""Key of EWC -> (corrected, reference)."""


class EWCBackend(Backend):
    """Proximal policy optimisation held by elastic weight consolidation at shifts (Kirkpatrick et al. 2017).

    `fisher_gamma` is never the discount `gamma`, `fisher_seed` by default `seed`. At a shift the regime that
    ends is consolidated.
    """

    needs_boundary: ClassVar[bool] = True
    keys_of: ClassVar[tuple[type, ...]] = (EWC, Settings, Optimisation)

    def __init__(
        self, policy: Any, optimizer: Any = None, replay_size: int = -1, *, hooks: Sequence[Hooks] = (), **options: Any
    ):
        refuse_unknown(options, EWC, Settings, Optimisation)
        given = {each.name: options.pop(each.name) for each in dataclasses.fields(EWC) if each.name in options}
        given.setdefault("fisher_seed", options.get("seed", 0))
        chosen = presets.resolve(options.get("preset", "corrected"), PRESET, given)
        self.consolidation = Consolidation(make(EWC, {**given, **chosen}, "algorithm.kwargs"))
        super().__init__(policy, optimizer, replay_size, hooks=(self.consolidation, *hooks), **options)

    @property
    def has_snapshots(self) -> bool:
        """Whether anything has been consolidated."""
        return self.consolidation.has_snapshots

    def consolidate(self, samples: Sequence[Any] | None = None, rewards: Sequence[float] | None = None) -> None:
        """Anchor the policy where it stands.

        The Fisher information is measured on `samples` (each with ids and mask) chosen by their rewards, by
        default on what was collected since the last shift. DataError where there is none, RunFailed where the
        Fisher information is 0 everywhere.
        """
        self.consolidation.consolidate(self, samples, rewards)

    def estimate_fisher(self, samples: Sequence[Any]) -> dict[str, Tensor]:
        """The clipped and normalised Fisher information on `samples`, by parameter."""
        return self.consolidation.estimate_fisher(self, samples)
