"""Elastic weight consolidation of a language policy."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from perdure.core.component import component
from perdure.core.errors import ConfigError, DataError
from perdure.lm import fisher as measure
from perdure.lm import penalties
from perdure.lm.batch import TokenBatch
from perdure.lm.conversation import Recorded, plain, restored
from perdure.lm.extensions.base import at_least, fresh, has_critic, held
from perdure.lm.fisher import BandEdges, EWCMode, FisherDropout, FisherKind, FisherSample, ParameterScope
from perdure.lm.fisher_samples import DEFAULT_SAMPLE_MIX, select_fisher_samples, solved_edge
from perdure.lm.hooks import Hooks


@component
class EWC:
    """ewc_lambda / 2 * sum over anchors and parameters of F (theta - theta*)^2.

    Kirkpatrick et al., 2017 (arXiv:1612.00796, equation 3); mode online: Schwarz et al., 2018 (arXiv:1805.06370).
    F is measured at a shift on answers of the regime that ends, clipped at the .99 quantile and divided by its
    greatest entry, tensor by tensor, so that ewc_lambda is the stiffness of the most important parameter.
    """

    needs_boundary: ClassVar[bool] = True

    ewc_lambda: float = 100.0
    mode: EWCMode = EWCMode.ONLINE
    fisher_gamma: float = 0.95
    """online: the share of the old Fisher information that a shift keeps, in [0, 1]."""
    snapshots: int = 4
    """multi_snapshot: how many anchors are kept."""
    average_snapshots: bool = True
    """multi_snapshot: divide the sum of the penalties by their number, so that lambda does not grow with it."""
    parameter_scope: str = ParameterScope.ALL
    """lora_only, value_only, lora_and_value, all, or a regular expression."""
    fisher: FisherKind = FisherKind.EMPIRICAL
    fisher_topk: int = 8
    """exact_topk: the tokens summed over."""
    fisher_dropout: FisherDropout = FisherDropout.DISABLED
    value_fisher: bool = True
    """Measure the value head by the Gaussian likelihood of its values; else it has no Fisher information."""
    max_samples: int = 32
    fisher_sample_mix: Mapping[str, float] | None = None
    """Shares of the bands of reward; None: lm.fisher.DEFAULT_SAMPLE_MIX."""
    fisher_bands: BandEdges = BandEdges.QUANTILE
    """From which reward on a sample counts as solved."""
    bounds: tuple[float, float] | None = None
    """fisher_bands bounds: the least and greatest reward of an answer."""
    exact_budget: bool = True
    """Draw max_samples samples and no more, where the least of one a band would give more."""
    whole_regime: bool = True
    """Draw from all answers since the last shift; else from the last window alone."""
    remembered: int = 512
    """whole_regime: the newest answers that are kept to draw from."""
    fisher_seed: int = 0

    def __post_init__(self):
        at_least(self, ewc_lambda=0, snapshots=1, fisher_topk=1, max_samples=1, remembered=1)
        if not 0 <= self.fisher_gamma <= 1:
            raise ConfigError(f"fisher_gamma is {self.fisher_gamma}; it lies between 0 and 1")
        measure.build_parameter_filter(self.parameter_scope)

    def build(self, policy: Any = None) -> "Consolidation":
        """The part itself."""
        return Consolidation(self)


class Consolidation(Hooks):
    """Anchors, and the answers of the present regime from which the next one will be measured."""

    name = "ewc"

    def __init__(self, config: EWC):
        self.config = config
        self.anchors: list[dict[str, dict[str, Tensor]]] = []
        """Of each shift that is remembered, oldest first: `weights` and `precision` by parameter."""
        self._pool: list[Recorded] = []
        self._trained = False
        self._rng = random.Random(config.fisher_seed)
        self._generator = torch.Generator().manual_seed(config.fisher_seed)
        self._found: dict[str, float] = {}

    @property
    def has_snapshots(self) -> bool:
        """Whether anything is held yet."""
        return bool(self.anchors)

    def begin(self, backend: Any) -> None:
        """Refuse a scope without parameters before anything is trained."""
        held(backend, self.config.parameter_scope)

    def batch(self, backend: Any, batch: TokenBatch) -> TokenBatch:
        """Remember what was collected; replayed rows are of other regimes."""
        found = fresh(batch)
        self._pool = [*self._pool, *found][-self.config.remembered :] if self.config.whole_regime else found
        self._trained = True
        return batch

    def shift(self, backend: Any, shift: Mapping[str, Any]) -> None:
        """Anchor the policy of the regime that ends, if it was trained in at all; forget its answers."""
        if self._trained:
            self.consolidate(backend)
        self._pool, self._trained = [], False

    def consolidate(
        self, backend: Any, samples: Sequence[Any] | None = None, rewards: Sequence[float] | None = None
    ) -> None:
        """Anchor the parameters where they stand, by a Fisher information measured on `samples` and their rewards.

        Without them the answers of the present regime are drawn from. DataError where there are none, RunFailed where
        the Fisher information is 0 everywhere.
        """
        samples = self._pool if samples is None else samples
        rewards = [row.turns[0].reward for row in samples] if rewards is None else rewards
        config = self.config
        chosen = select_fisher_samples(
            samples,
            rewards,
            max_samples=config.max_samples,
            mix=config.fisher_sample_mix or DEFAULT_SAMPLE_MIX,
            rng=self._rng,
            solved=solved_edge(rewards, edges=config.fisher_bands, bounds=config.bounds),
            truncate=config.exact_budget,
        )
        precision = self.estimate_fisher(backend, chosen)
        weights = penalties.snapshot(held(backend, config.parameter_scope))
        if config.mode == EWCMode.ONLINE and self.anchors:
            before = self.anchors[-1]["precision"]
            precision = {name: config.fisher_gamma * before[name] + each for name, each in precision.items()}
        kept = 1 if config.mode == EWCMode.ONLINE else config.snapshots
        self.anchors = [*self.anchors, {"weights": weights, "precision": precision}][-kept:]

    def estimate_fisher(self, backend: Any, samples: Sequence[Any]) -> dict[str, Tensor]:
        """The clipped and normalised Fisher information on `samples`, each with ids and mask, by parameter."""
        config = self.config
        found = measure.estimate_fisher(
            backend.policy.model,
            held(backend, config.parameter_scope),
            [FisherSample(each.ids, each.mask) for each in samples],
            kind=config.fisher,
            dropout=config.fisher_dropout,
            topk=config.fisher_topk,
            temperature=backend.policy.sampling.temperature,
            value_head=backend.policy.value_head if config.value_fisher and has_critic(backend) else None,
            generator=self._generator,
        )
        return measure.normalised(found)

    def penalty(self, backend: Any) -> Tensor | None:
        """What the policy pays for having moved from its anchors."""
        if not self.anchors:
            return None
        parameters = backend.named_parameters()
        terms = [penalties.pull(parameters, each["weights"], each["precision"]) for each in self.anchors]
        share = len(terms) if self.config.average_snapshots else 1
        penalty = 0.5 * self.config.ewc_lambda * torch.stack(terms).sum() / share
        self._found = {"penalty": penalty.detach().item()}
        return penalty

    def metrics(self) -> Mapping[str, float]:
        """The last penalty, and how many anchors it is made of."""
        return {**self._found, "anchors": float(len(self.anchors))}

    def state(self) -> dict[str, Any]:
        """Anchors, remembered answers and random numbers."""
        version, words, gauss = self._rng.getstate()
        return {
            "anchors": [{key: dict(each) for key, each in anchor.items()} for anchor in self.anchors],
            "scope": self.config.parameter_scope,
            "pool": [plain(row) for row in self._pool],
            "trained": self._trained,
            "rng": [version, list(words), gauss],
            "generator": self._generator.get_state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave; DataError for another scope of parameters."""
        if state["scope"] != self.config.parameter_scope:
            raise DataError(f"the checkpoint holds anchors of {state['scope']}, not of {self.config.parameter_scope}")
        self.anchors = [{key: dict(each) for key, each in anchor.items()} for anchor in state["anchors"]]
        self._pool, self._trained = [restored(row) for row in state["pool"]], bool(state["trained"])
        version, words, gauss = state["rng"]
        self._rng.setstate((version, tuple(words), gauss))
        self._generator.set_state(state["generator"])
