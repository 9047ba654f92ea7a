"""What an update needs to know before its first step: the policy's own view of the batch, advantages and targets."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from perdure.core.errors import RunFailed
from perdure.lm import estimates, forward, packing, update
from perdure.lm.batch import TokenBatch
from perdure.lm.clipped import Rows
from perdure.lm.objectives import kl
from perdure.lm.settings import OldPolicyPass, Settings
from perdure.lm.trajectory import Trajectory


class View(NamedTuple):
    """What a policy says of some rows; no gradient."""

    packed: packing.Batch
    logprobs_BT: Tensor
    values_BT: Tensor
    """Before each token."""
    finals_B: Tensor
    """After each row's last token."""


class Scorer(NamedTuple):
    """A model with its critic, and how their passes are made."""

    model: Any
    value_head: nn.Module
    pad_id: int
    temperature: float
    tokens: int
    """Of one pass, padding included."""
    bf16: bool = False
    """Whether passes without gradients run under autocast, as those of the optimiser do."""

    def plan(self, packed: packing.Batch) -> list[list[int]]:
        """The rows of each pass over a packed batch."""
        return forward.plan(self.model, packed, self.tokens)

    def score(self, packed: packing.Batch, *, entropy: bool = False) -> forward.Scores:
        """One pass over a packed batch's trainable tokens."""
        return forward.score(
            self.model,
            packed.ids_BT,
            packed.lengths_B,
            temperature=self.temperature,
            value_head=self.value_head,
            entropy=entropy,
            where_BT=packed.mask_BT,
        )

    def view(self, rows: Sequence[Trajectory], *, dropout: bool, seed: tuple[int, int]) -> View:
        """All rows, in micro-batches; with `dropout` its masks are drawn from `seed`."""
        packed = packing.pack(rows, self.pad_id, device=self.model.device)
        with _seeded(seed):
            found = self._scored(packed, dropout=dropout)
        assert found.values_BT is not None, "there is a critic"
        assert found.final_values_B is not None, "there is a critic"
        return View(packed, found.logprobs_BT, found.values_BT, found.final_values_B)

    def reference(
        self, packed: packing.Batch, parameters: Mapping[str, nn.Parameter], weights: Mapping[str, Tensor]
    ) -> Tensor:
        """Log-probabilities [B, T] of the model as it would be with other weights; no gradient."""
        with _swapped(parameters, weights):
            return self._scored(packed).logprobs_BT

    def _scored(self, packed: packing.Batch, *, dropout: bool = False) -> update.Scored:
        return update.scored(
            self.model,
            packed,
            tokens=self.tokens,
            temperature=self.temperature,
            value_head=self.value_head,
            bf16=self.bf16,
            dropout=dropout,
        )


def prepared(
    scorer: Scorer,
    batch: TokenBatch,
    settings: Settings,
    number: int,
    reference: Callable[[packing.Batch], Tensor] | None,
) -> tuple[Rows, dict[str, float]]:
    """The rows of update `number` with all that its steps read, and what this says of critic and sampler.

    `reference` gives the log-probabilities that a divergence is measured from. RunFailed where a value or target is
    not finite.
    """
    view = _old(scorer, batch.rows, settings, number)
    bootstraps = _bootstraps(scorer, batch, settings, number)
    final = settings.value_position == "final"
    if final:
        values = [np.array([value]) for value in view.finals_B.double().tolist()]
        held = [float(value[0]) for value in values]
        found = estimates.by_turn(batch, held, bootstraps, settings.gamma, settings.lam)
    else:
        values = packing.unpadded(view.values_BT, view.packed.lengths_B)
        found = estimates.by_token(batch, values, bootstraps, settings.gamma, settings.lam)
    if not all(np.isfinite(each).all() for each in (*values, *found.returns)):
        raise RunFailed(f"update {number}: a value or its target is not finite; lower the learning rate")
    device = view.packed.ids_BT.device
    given = {"advantages": found.advantages} | ({} if final else {"returns": found.returns, "values": values})
    ready = packing.filled(view.packed, **given)
    metrics = kl.mismatch_metrics(view.logprobs_BT, ready.sampler_BT, ready.mask_BT)
    read = [np.ones(1, bool) if final else np.array(row.mask, bool) for row in batch.rows]
    pooled = [np.concatenate([each[at] for each, at in zip(which, read)]) for which in (values, found.returns)]
    metrics["explained_variance"] = estimates.explained_variance(*pooled)
    if settings.old_policy_pass != OldPolicyPass.SAMPLER:
        ready = ready._replace(old_BT=view.logprobs_BT)
    if reference is not None:
        ready = ready._replace(reference_BT=reference(view.packed))
    targets_B = torch.tensor(np.concatenate(found.returns), dtype=torch.float32, device=device) if final else None
    return Rows(ready, targets_B), metrics


def _old(scorer: Scorer, rows: Sequence[Trajectory], settings: Settings, number: int) -> View:
    """The policy as it is; dropout is live in the reference's pass alone."""
    live = settings.old_policy_pass == OldPolicyPass.TRAIN
    return scorer.view(rows, dropout=live, seed=(settings.seed, number))


def _bootstraps(scorer: Scorer, batch: TokenBatch, settings: Settings, number: int) -> list[float]:
    """The value of what follows each episode; 0 where nothing does."""
    found = [0.0] * batch.count
    known = [episode for episode, tail in enumerate(batch.tails) if tail]
    if known:
        states = [_state(batch.tails[episode]) for episode in known]
        finals_B = _old(scorer, states, settings, number).finals_B
        for episode, value in zip(known, finals_B.double().tolist(), strict=True):
            found[episode] = value
    return found


def _state(ids: Sequence[int]) -> Trajectory:
    found = Trajectory()
    found.observe(ids)
    return found


@contextlib.contextmanager
def _seeded(seed: tuple[int, int]) -> Iterator[None]:
    """Torch's generators begin at `seed`, and are put back afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))
        yield


@contextlib.contextmanager
def _swapped(parameters: Mapping[str, nn.Parameter], weights: Mapping[str, Tensor]) -> Iterator[None]:
    """The parameters holding other weights for a while; their own storage comes back untouched."""
    own = {name: each.data for name, each in parameters.items()}
    try:
        for name, each in parameters.items():
            each.data = weights[name].to(each.device)
        yield
    finally:
        for name, each in parameters.items():
            each.data = own[name]
