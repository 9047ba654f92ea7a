"""The optimiser step of the language backends: clipped policy loss, critic, entropy and divergence of some rows."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from perdure.lm import forward, packing, step
from perdure.lm.objectives import aggregation, kl, losses
from perdure.lm.packing import Batch
from perdure.lm.settings import RatioMode, Settings

Tensor = torch.Tensor

LOSSES = {
    RatioMode.PER_TOKEN: losses.ppo,
    RatioMode.SEQUENCE_MEAN: losses.sequence_mean,
    RatioMode.GSPO: losses.gspo,
}


class Rows(NamedTuple):
    """The rows of an update, ready to be trained on."""

    batch: Batch
    targets_B: Tensor | None
    """What the value after each row's last token regresses on; None where values are read before tokens."""

    def take(self, rows: list[int]) -> "Rows":
        """Some of the rows."""
        targets_B = self.targets_B
        return Rows(packing.take(self.batch, rows), None if targets_B is None else targets_B[rows])


class Pieces:
    """The micro-batches of one optimiser step, scored by a `preparing.Scorer`, and the sums of what they measured.

    Processes that train together all hold the step's rows, and each scores its share of them.
    """

    def __init__(self, scorer: Any, rows: Rows, settings: Settings):
        self._scorer, self._settings = scorer, settings
        self._counts = aggregation.count(rows.batch.mask_BT, rows.batch.turns_BT)
        self._rows = rows.take(step.dealt(range(len(rows.batch.lengths_B))))
        names = ["policy_loss", "value_loss", "entropy", "ratio_mean", "clip_fraction", "kl"]
        names += [] if rows.batch.reference_BT is None else ["kl_reference"]
        self._sums = dict[str, float].fromkeys(names, 0.0)

    def losses(self) -> Iterator[Callable[[], Tensor]]:
        """One loss a micro-batch; their sum is the step's, however the rows are cut."""
        for index in self._scorer.plan(self._rows.batch):
            yield lambda index=index: self._loss(self._rows.take(index))

    def totals(self) -> dict[str, float]:
        """What the micro-batches of all processes measured."""
        return dict(zip(self._sums, step.summed(list(self._sums.values())), strict=True))

    def _loss(self, rows: Rows) -> Tensor:
        batch, settings = rows.batch, self._settings
        scores = self._scorer.score(batch, entropy=True)
        entropy_BT = scores.entropy_BT
        assert entropy_BT is not None, "it was asked for"
        loss = LOSSES[RatioMode(str(settings.ratio))]
        policy_BT = loss(scores.logprobs_BT, batch.old_BT, batch.advantages_BT, batch.mask_BT, **settings.clips)
        weights_BT = self._weights(batch)
        parts = {
            "policy_loss": aggregation.total(policy_BT, weights_BT),
            "value_loss": self._critic(scores, rows),
            "entropy": aggregation.total(entropy_BT, aggregation.token_mean(batch.mask_BT, self._counts)),
        }
        whole = parts["policy_loss"] + settings.value_coef * parts["value_loss"]
        if settings.entropy_coef:
            whole = whole - settings.entropy_coef * parts["entropy"]
        if batch.reference_BT is not None:
            name = str(settings.kl_penalty)
            distance_BT = kl.estimate(name, scores.logprobs_BT, batch.reference_BT, batch.mask_BT)
            parts["kl_reference"] = aggregation.total(distance_BT, weights_BT)
            whole = whole + settings.kl_coeff * parts["kl_reference"]
        self._add(parts, scores.logprobs_BT, batch)
        return whole

    def _critic(self, scores: forward.Scores, rows: Rows) -> Tensor:
        """The mean over the values that are read."""
        batch, clip = rows.batch, self._settings.value_clip
        if rows.targets_B is None:
            assert scores.values_BT is not None, "there is a critic"
            assert batch.returns_BT is not None, "values are read before tokens"
            values_BT, targets_BT, mask_BT = scores.values_BT, batch.returns_BT, batch.mask_BT
            old_BT, count = batch.old_values_BT, self._counts.tokens
        else:
            assert scores.final_values_B is not None, "a value is read after each row"
            values_BT, targets_BT = scores.final_values_B[:, None], rows.targets_B[:, None]
            mask_BT, old_BT, count = torch.ones_like(targets_BT, dtype=torch.bool), None, self._counts.rows
        return losses.value_loss(values_BT, targets_BT, mask_BT, old_values_BT=old_BT, clip=clip).sum() / count

    def _weights(self, batch: Batch) -> Tensor:
        """Tokens count alike where each has a ratio of its own, else answers do."""
        if self._settings.ratio == RatioMode.PER_TOKEN:
            return aggregation.token_mean(batch.mask_BT, self._counts)
        return aggregation.sequence_mean(batch.mask_BT, self._counts)

    def _add(self, parts: dict[str, Tensor], logprobs_BT: Tensor, batch: Batch) -> None:
        with torch.no_grad():
            log_ratio_BT = torch.where(batch.mask_BT, logprobs_BT - batch.old_BT, 0.0)
            share_BT = self._weights(batch)
            ratio_BT = log_ratio_BT.exp()
            if self._settings.ratio != RatioMode.PER_TOKEN:
                count_B1 = batch.mask_BT.sum(-1, keepdim=True).clamp(min=1)
                ratio_BT = (log_ratio_BT.sum(-1, keepdim=True) / count_B1).exp().expand_as(log_ratio_BT)
            low, high = self._clip_widths()
            good_BT = batch.advantages_BT > 0
            clipped_BT = torch.where(good_BT, ratio_BT > 1 + high, (ratio_BT < 1 - low) & (batch.advantages_BT < 0))
            measured = {
                **parts,
                "ratio_mean": aggregation.total(ratio_BT, share_BT),
                "clip_fraction": aggregation.total(clipped_BT.double(), share_BT),
                "kl": aggregation.total(
                    kl.estimate("k3", batch.old_BT, logprobs_BT, batch.mask_BT),
                    aggregation.token_mean(batch.mask_BT, self._counts),
                ),
            }
            for name, value in measured.items():
                self._sums[name] += float(value)

    def _clip_widths(self) -> tuple[float, float]:
        """The widths in use below and above 1."""
        if self._settings.clip_range is not None:
            return self._settings.clip_range, self._settings.clip_range
        return (3e-4, 4e-4) if self._settings.ratio == RatioMode.GSPO else (0.2, 0.2)
