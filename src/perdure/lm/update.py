"""An update of a policy on a batch: fresh log-probabilities, the combined loss, optimiser steps, metrics.

The passes of an update, in order: `prepared` (log-probabilities of the trainer and of the reference, where the
objective reads them), advantages (objectives.weigh), `update`.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from perdure.core.errors import ConfigError
from perdure.lm import forward, packing, step
from perdure.lm.objectives import aggregation, combined, kl
from perdure.lm.objectives.table import Objective
from perdure.lm.packing import Batch
from perdure.lm.step import Stepper, summed

Tensor = torch.Tensor


class Scored(NamedTuple):
    """What a model says of a batch's tokens, in fp32, without gradient."""

    logprobs_BT: Tensor
    """0 at tokens that are not trainable."""
    values_BT: Tensor | None
    """The value before each token."""
    final_values_B: Tensor | None
    """The value after each row's last token."""


def scored(
    model: Any,
    batch: Batch,
    *,
    tokens: int = 8192,
    temperature: float = 1.0,
    value_head: torch.nn.Module | None = None,
    bf16: bool = False,
    dropout: bool = False,
) -> Scored:
    """Log-probabilities (and values) of a whole batch, in micro-batches of about `tokens`; no gradient.

    `bf16` as the optimiser's passes have it (Optimisation.bf16), so that ratios begin at 1. The model's modes come
    back as they were.
    """
    rows = forward.plan(model, batch, tokens)
    logprobs, values, finals = list[Tensor](), list[Tensor](), list[Tensor]()
    device = batch.ids_BT.device.type
    with _mode(model, dropout), torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=bf16):
        for index in rows:
            part = packing.take(batch, index)
            scores = forward.score(
                model,
                part.ids_BT,
                part.lengths_B,
                temperature=temperature,
                value_head=value_head,
                where_BT=part.mask_BT,
            )
            logprobs.append(scores.logprobs_BT.float())
            if scores.values_BT is not None and scores.final_values_B is not None:
                values.append(scores.values_BT.float())
                finals.append(scores.final_values_B.float()[:, None])
    width = batch.ids_BT.shape[1]
    logprobs_BT = packing.restored(logprobs, rows, width)
    if not values:
        return Scored(logprobs_BT, None, None)
    return Scored(logprobs_BT, packing.restored(values, rows, width), packing.restored(finals, rows, 1)[:, 0])


def reference_logprobs(
    model: Any,
    batch: Batch,
    *,
    reference: Any = None,
    tokens: int = 8192,
    temperature: float = 1.0,
    bf16: bool = False,
) -> Tensor:
    """[B, T]: under the frozen model `reference`, or, without one, under `model` with its LoRA adapters off.

    ConfigError where there is neither.
    """
    if reference is not None:
        return scored(reference, batch, tokens=tokens, temperature=temperature, bf16=bf16).logprobs_BT
    if not hasattr(model, "disable_adapter"):
        raise ConfigError("reference is missing: the model has no adapter to switch off; hand out a frozen copy of it")
    with model.disable_adapter():
        return scored(model, batch, tokens=tokens, temperature=temperature, bf16=bf16).logprobs_BT


def prepared(
    model: Any,
    batch: Batch,
    objective: Objective,
    *,
    reference: Any = None,
    tokens: int = 8192,
    temperature: float = 1.0,
    bf16: bool = False,
) -> tuple[Batch, dict[str, float]]:
    """The batch with what the objective reads of the policy before the update and of the reference, and metrics.

    With old_logprobs "trainer": the trainer's own log-probabilities, weights against the sampler's rounding where
    importance_cap is set, and how far the two disagree. With a KL: the reference's log-probabilities.
    """
    metrics: dict[str, float] = {}
    if objective.old_logprobs == "trainer":
        old_BT = scored(model, batch, tokens=tokens, temperature=temperature, bf16=bf16).logprobs_BT
        metrics = kl.mismatch_metrics(old_BT, batch.sampler_BT, batch.mask_BT)
        batch = batch._replace(old_BT=old_BT)
        if objective.importance_cap is not None:
            weights_BT = kl.importance_weights(old_BT, batch.sampler_BT, batch.mask_BT, objective.importance_cap)
            batch = batch._replace(importance_BT=weights_BT)
    if objective.kl != "none":
        options = {"tokens": tokens, "temperature": temperature, "bf16": bf16}
        batch = batch._replace(reference_BT=reference_logprobs(model, batch, reference=reference, **options))
    return batch, metrics


def update(
    stepper: Stepper,
    model: Any,
    batch: Batch,
    objective: Objective,
    *,
    value_head: torch.nn.Module | None = None,
    kl_coefficient: float = 0.0,
    penalties: Sequence[Callable[[], Tensor | None]] = (),
    temperature: float = 1.0,
    epochs: int = 1,
    minibatches: int = 1,
    order: np.random.Generator | None = None,
    dealt: bool = True,
) -> dict[str, float]:
    """`epochs` passes over a batch, each in `minibatches` optimiser steps; the mean of the steps' metrics.

    `order` shuffles the rows of each epoch. With several processes: `dealt` says that all hold the same batch (and
    the same `order`), of which each takes its share; otherwise each brings rows of its own. Each of `penalties` is
    called once a step. ConfigError where there are more minibatches than rows, RunFailed as in Stepper.step.
    """
    count = len(batch.lengths_B)
    if not 1 <= minibatches <= count or epochs < 1:
        raise ConfigError(
            f"minibatches is {minibatches} and epochs {epochs}; at least 1 each, at most {count} minibatches"
        )
    found: list[dict[str, float]] = []
    for _ in range(epochs):
        rows = np.arange(count) if order is None else order.permutation(count)
        for chosen in np.array_split(rows, minibatches):
            part = packing.take(batch, step.dealt(chosen) if dealt else chosen.tolist())
            pieces = _Pieces(stepper, model, part, objective, value_head, kl_coefficient, temperature)
            metrics = stepper.step(pieces.losses(), penalties)
            found.append(metrics | combined.metrics(pieces.totals()))
    return {name: float(np.mean([each[name] for each in found])) for name in found[0]}


class _Pieces:
    """The micro-batches of one optimiser step, and the sums that they leave."""

    def __init__(
        self,
        stepper: Stepper,
        model: Any,
        batch: Batch,
        objective: Objective,
        value_head: torch.nn.Module | None,
        kl_coefficient: float,
        temperature: float,
    ):
        self.model, self.batch, self.objective = model, batch, objective
        self.value_head = value_head if objective.needs_values else None
        self.kl_coefficient, self.temperature = kl_coefficient, temperature
        self.rows = forward.plan(model, batch, stepper.settings.tokens_per_micro_batch)
        self.denominators = aggregation.count(batch.mask_BT, batch.turns_BT, pooled=summed)
        self.sums: list[dict[str, Tensor]] = []

    def losses(self) -> Iterator[Callable[[], Tensor]]:
        for rows in self.rows:
            yield lambda rows=rows: self._loss(packing.take(self.batch, rows))

    def _loss(self, part: Batch) -> Tensor:
        scores = forward.score(
            self.model,
            part.ids_BT,
            part.lengths_B,
            temperature=self.temperature,
            value_head=self.value_head,
            entropy=self.objective.entropy_coefficient > 0,
            where_BT=part.mask_BT,
        )
        result = combined.combined(
            self.objective,
            part,
            self.denominators,
            scores.logprobs_BT,
            values_BT=scores.values_BT,
            entropy_BT=scores.entropy_BT,
            kl_coefficient=self.kl_coefficient,
        )
        self.sums.append(result.sums)
        return result.loss

    def totals(self) -> dict[str, float]:
        """The sums over all micro-batches and processes."""
        local = combined.added(self.objective, self.sums)
        names = [name for name in local if name != combined.LARGEST]
        pooled = dict(zip(names, summed([local[name] for name in names]), strict=True))
        return pooled | {combined.LARGEST: summed([local[combined.LARGEST]], largest=True)[0]}


@contextlib.contextmanager
def _mode(model: torch.nn.Module, dropout: bool) -> Iterator[None]:
    """Dropout on or off; every module's mode comes back as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(dropout)
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
