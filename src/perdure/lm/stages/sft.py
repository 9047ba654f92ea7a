"""Supervised tuning: the mean negative log-likelihood of the answers' tokens, dropout off."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from perdure.lm import forward, packing, update, value_head
from perdure.lm.stages import fitting
from perdure.lm.stages.dataset import Examples, examples
from perdure.lm.stages.folder import write_json
from perdure.lm.stages.sections import SftConfig
from perdure.lm.stages.trajectories import Record

Tensor = torch.Tensor


def run(
    policy: Any,
    records: Iterable[Record],
    source: Mapping[str, Any],
    settings: SftConfig,
    folder: Path,
    say: Callable[[str], None],
) -> fitting.Fitted:
    """Tune `policy` on records from `source`; leaves data.json and the policy, without a value head, in `folder`.

    A critic of the policy before is none of the policy after, so none is written.
    """
    data = examples(list(records), policy, settings.filter, source=source, holdout=settings.holdout, seed=settings.seed)
    write_json(folder / "data.json", data.card)
    counts = data.card["counts"]
    say(f"{counts['train']} examples to train on, {counts['held_out']} held out, of {counts['read']} read")
    fitted = fitting.fit(Supervised(policy, data, settings), settings, folder, say)
    policy.save(folder)
    (folder / value_head.FILES[0]).unlink()
    return fitted


class Supervised:
    """The task (stages.fitting.Task) of a policy's model, or of its adapter alone, on examples."""

    value_head: torch.nn.Module | None = None

    def __init__(self, policy: Any, data: Examples, settings: SftConfig):
        self.model, self.data, self.settings = policy.model, data, settings
        self.rows = len(data.train)
        self._pad, self._device = policy.chat.pad_id, policy.model.device
        self._held = packing.pack(data.held_out, self._pad, device=self._device) if data.held_out else None
        self.model.eval()

    def losses(self, rows: Sequence[int], step: int) -> Iterator[Callable[[], Tensor]]:
        """Each micro-batch's share of the mean over the batch's trainable tokens."""
        examples = [self.data.train[row] for row in rows]
        if step < self.settings.opening_steps:
            examples = [example.opening() for example in examples]
        batch = packing.pack(examples, self._pad, device=self._device)
        total = int(batch.mask_BT.sum())
        for index in packing.plan(batch.lengths_B.tolist(), self.settings.tokens_per_micro_batch):
            yield lambda index=index: -self._sum(packing.take(batch, index)) / total

    def judge(self) -> dict[str, float]:
        """The mean negative log-likelihood of the held-out tokens, in nats."""
        if self._held is None:
            return {}
        scored = update.scored(
            self.model, self._held, tokens=self.settings.tokens_per_micro_batch, bf16=self.settings.bf16
        )
        return {"loss": -float(scored.logprobs_BT[self._held.mask_BT].mean())}

    def _sum(self, part: packing.Batch) -> Tensor:
        scores = forward.score(self.model, part.ids_BT, part.lengths_B, where_BT=part.mask_BT)
        return scores.logprobs_BT.sum()
