"""How a trainer scores tokens: log-probabilities, values and entropies of right-padded rows in one forward pass.

Rows with one prompt compute it once, where the model can (lm.shared) and it saves something.

Shapes: B rows, T tokens, N scored tokens, V vocabulary, D width.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from perdure.core.errors import ConfigError, Refused
from perdure.lm import packing, shared
from perdure.lm.trajectory import Trajectory


class Padded(NamedTuple):
    """Trajectories of different lengths as tensors, padded on the right."""

    ids_BT: torch.Tensor
    mask_BT: torch.Tensor
    """True exactly where the model chose the token."""
    logprobs_BT: torch.Tensor
    """The sampler's, 0 where it chose nothing."""
    lengths_B: torch.Tensor


class Scores(NamedTuple):
    """What the model says of given tokens; 0 wherever nothing was asked."""

    logprobs_BT: torch.Tensor
    """log p(ids[t] | ids[<t]) in fp32; 0 at t = 0."""
    values_BT: torch.Tensor | None
    """The value before token t, which has seen ids[<t], for 1 <= t < length."""
    entropy_BT: torch.Tensor | None
    """Of the distribution token t was drawn from, in nats."""
    final_values_B: torch.Tensor | None = None
    """The value after each row's last token: what a truncated trajectory goes on from."""


def pad(trajectories: Sequence[Trajectory], pad_id: int) -> Padded:
    """Stack trajectories, which must not be empty, as long as the longest."""
    lengths = [len(trajectory) for trajectory in trajectories]
    if not all(lengths):
        raise ConfigError(f"trajectory {lengths.index(0)} of {len(lengths)} has no tokens; leave it out")
    shape = (len(lengths), max(lengths, default=0))
    padded = Padded(
        torch.full(shape, pad_id), torch.zeros(shape, dtype=torch.bool), torch.zeros(shape), torch.tensor(lengths)
    )
    for row, trajectory in enumerate(trajectories):
        padded.ids_BT[row, : lengths[row]] = torch.tensor(trajectory.ids)
        padded.mask_BT[row, : lengths[row]] = torch.tensor(trajectory.mask)
        padded.logprobs_BT[row, : lengths[row]] = torch.tensor(trajectory.logprobs)
    return padded


def score(
    model: Any,
    ids_BT: torch.Tensor,
    lengths_B: torch.Tensor,
    *,
    temperature: float = 1.0,
    value_head: Callable[[torch.Tensor], torch.Tensor] | None = None,
    entropy: bool = False,
    where_BT: torch.Tensor | None = None,
) -> Scores:
    """Score the tokens of each row at `temperature`, gradients included.

    Only tokens where `where_BT` holds (by default all but the first of each row) are multiplied by the vocabulary.
    `value_head` maps hidden states [..., D] in fp32 to values [...] or [..., 1]. Nothing at or beyond a row's
    length has any influence, whatever its ids are. ConfigError for a temperature that is not above 0.
    """
    if not temperature > 0:
        raise ConfigError(f"temperature is {temperature}; it must be above 0")
    positions_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
    real_BT = positions_T < lengths_B[:, None].to(ids_BT.device)
    wanted_BT = real_BT & (positions_T > 0)
    asked_BT = wanted_BT if where_BT is None else wanted_BT & where_BT
    # An id of the row itself instead of padding: its activations are finite, where a stray id could bring NaN.
    ids_BT = torch.where(real_BT, ids_BT, ids_BT[:, :1])
    rows_N, columns_N = asked_BT.nonzero(as_tuple=True)
    laid = None
    if shared.can(model):
        laid = shared.layout(ids_BT, lengths_B, packing.prompts(ids_BT, lengths_B, asked_BT))
    hidden_BTD, logits_NV = _run(model, ids_BT, laid, rows_N, columns_N - 1, keep_hidden=value_head is not None)
    logits_NV = logits_NV.float() if temperature == 1 else logits_NV.float() / temperature
    chosen_N = -functional.cross_entropy(logits_NV, ids_BT[rows_N, columns_N], reduction="none")
    values_BT = final_B = None
    if value_head is not None:
        assert hidden_BTD is not None, "it was kept"
        values_BT, final_B = _values(value_head, hidden_BTD, wanted_BT, lengths_B)
    return Scores(
        _spread(chosen_N, asked_BT),
        values_BT,
        _spread(_entropy(logits_NV), asked_BT) if entropy else None,
        final_B,
    )


def plan(model: Any, batch: packing.Batch, tokens: int) -> list[list[int]]:
    """The rows of each micro-batch that `score` is to be given: about `tokens` tokens, padding included."""
    found = packing.prompts(batch.ids_BT, batch.lengths_B, batch.mask_BT) if shared.can(model) else None
    return packing.plan(batch.lengths_B.tolist(), tokens, found)


def _run(
    model: Any,
    ids_BT: torch.Tensor,
    laid: shared.Layout | None,
    rows_N: torch.Tensor,
    columns_N: torch.Tensor,
    *,
    keep_hidden: bool,
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Last hidden states [B, T, D] where they are kept, and the logits of N of them, by the model's own forward pass.

    The states are picked where they enter the output layer, so whatever a model does to its logits is done to
    these as well. Right padding needs no mask: a causal model never looks to the right.
    """
    seen: list[torch.Tensor] = []
    place_BT = torch.arange(ids_BT.numel(), device=ids_BT.device).view_as(ids_BT) if laid is None else laid.place_BT

    def pick(_module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        seen.append(inputs[0])
        return (inputs[0].flatten(0, 1)[place_BT[rows_N, columns_N]],)

    handle = model.get_output_embeddings().register_forward_pre_hook(pick)
    passing = contextlib.nullcontext({"input_ids": ids_BT}) if laid is None else shared.attending(model, laid)
    try:
        with passing as inputs:
            logits_NV = model(**inputs, use_cache=False).logits
    finally:
        handle.remove()
    if len(seen) != 1 or seen[0].shape[:2] != inputs["input_ids"].shape or logits_NV.shape[:1] != rows_N.shape:
        raise Refused(
            f"{type(model).__name__} does not give its output layer one hidden state a token; "
            "only decoder-only language models can be scored"
        )
    return seen[0].flatten(0, 1)[place_BT] if keep_hidden else None, logits_NV


def _values(
    value_head: Callable[[torch.Tensor], torch.Tensor],
    hidden_BTD: torch.Tensor,
    wanted_BT: torch.Tensor,
    lengths_B: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values before each real token but the first, and after each row's last one, in fp32 under autocast too."""
    with torch.autocast(hidden_BTD.device.type, enabled=False):
        after_BT = value_head(hidden_BTD.float())
    if after_BT.dim() == hidden_BTD.dim():
        after_BT = after_BT.squeeze(-1)
    final_B = after_BT.gather(1, (lengths_B.to(after_BT.device) - 1)[:, None]).squeeze(1)
    before_BT = functional.pad(after_BT[:, :-1], (1, 0))
    return torch.where(wanted_BT, before_BT, torch.zeros_like(before_BT)), final_B


def _entropy(logits_NV: torch.Tensor) -> torch.Tensor:
    logprobs_NV = logits_NV.log_softmax(-1)
    # A forbidden token has probability 0 and log-probability -inf, and contributes nothing.
    return -(logprobs_NV.exp() * logprobs_NV.clamp(min=torch.finfo(logprobs_NV.dtype).min)).sum(-1)


def _spread(values_N: torch.Tensor, where_BT: torch.Tensor) -> torch.Tensor:
    """Put N numbers where they belong among zeros."""
    return torch.zeros(where_BT.shape, dtype=values_N.dtype, device=values_N.device).masked_scatter(where_BT, values_N)
