"""From trajectories of any length to padded tensors, and to micro-batches of about as many tokens each.

A batch is padded on the right. Micro-batches hold rows of like length, so that little of a forward pass is padding;
results come back in the order of the rows. B rows, T tokens.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from perdure.core.errors import ConfigError
from perdure.lm.trajectory import Trajectory

Tensor = torch.Tensor

WORTH_SHARING = 0.9
"""Prompts are computed once where that leaves less than this share of the tokens: it has a cost of its own."""


class Batch(NamedTuple):
    """The rows of an update; every tensor but lengths_B is [B, T]."""

    ids_BT: Tensor
    lengths_B: Tensor
    mask_BT: Tensor
    """True at trainable tokens."""
    turns_BT: Tensor
    """The turn that a token belongs to, -1 outside turns."""
    sampler_BT: Tensor
    """The sampler's log-probabilities."""
    old_BT: Tensor
    """Those that ratios start from: the sampler's, until the trainer's replace them."""
    advantages_BT: Tensor
    returns_BT: Tensor | None = None
    """The critic's targets."""
    old_values_BT: Tensor | None = None
    """The acting critic's values."""
    reference_BT: Tensor | None = None
    """The reference policy's log-probabilities."""
    importance_BT: Tensor | None = None
    """Weights against the sampler's rounding."""


def pack(
    trajectories: Sequence[Trajectory],
    pad_id: int,
    *,
    advantages: Sequence[Any] | None = None,
    returns: Sequence[Any] | None = None,
    values: Sequence[Any] | None = None,
    device: Any = None,
) -> Batch:
    """Trajectories (and arrays [T] of each) as one padded batch; missing advantages are 0.

    ConfigError for an empty list or trajectory, arrays that do not fit, or a first token that would be trained:
    nothing comes before it, so it has no probability.
    """
    _check(trajectories)
    lengths = [len(each) for each in trajectories]
    ids_BT = torch.full((len(lengths), max(lengths)), pad_id, dtype=torch.long)
    for row, each in enumerate(trajectories):
        ids_BT[row, : len(each)] = torch.tensor(each.ids)
    sampler_BT = laid_out([each.logprobs for each in trajectories], lengths, "logprobs")
    batch = Batch(
        ids_BT=ids_BT,
        lengths_B=torch.tensor(lengths),
        mask_BT=laid_out([each.mask for each in trajectories], lengths, "mask").bool(),
        turns_BT=_turns(trajectories, max(lengths)),
        sampler_BT=sampler_BT,
        old_BT=sampler_BT,
        advantages_BT=torch.zeros_like(sampler_BT),
    )
    batch = filled(batch, advantages=advantages, returns=returns, values=values)
    return batch if device is None else _each(batch, lambda tensor: tensor.to(device))


def filled(
    batch: Batch,
    *,
    advantages: Sequence[Any] | None = None,
    returns: Sequence[Any] | None = None,
    values: Sequence[Any] | None = None,
) -> Batch:
    """The batch with the arrays [T] of each trajectory that are given; ConfigError where they do not fit."""
    given = {"advantages": advantages, "returns": returns, "values": values}
    fields = {"advantages": "advantages_BT", "returns": "returns_BT", "values": "old_values_BT"}
    lengths, device = batch.lengths_B.tolist(), batch.ids_BT.device
    laid = {fields[name]: laid_out(rows, lengths, name).to(device) for name, rows in given.items() if rows is not None}
    return batch._replace(**laid)


def take(batch: Batch, rows: Sequence[int]) -> Batch:
    """Some rows, cut to the longest of them."""
    index = torch.as_tensor(list(rows), dtype=torch.long, device=batch.lengths_B.device)
    width = int(batch.lengths_B[index].max()) if len(rows) else 0
    return _each(batch, lambda tensor: tensor[index] if tensor.dim() == 1 else tensor[index][:, :width])


class Prompts(NamedTuple):
    """What rows begin with: the tokens before the first that is trained, of which equal ones can be computed once."""

    owners: list[int]
    """The number of each row's prompt, counted in the order in which they first come."""
    lengths: list[int]


def prompts(ids_BT: Tensor, lengths_B: Tensor, trained_BT: Tensor) -> Prompts:
    """The prompts of right-padded rows; a row's last token is never part of its prompt."""
    if not len(lengths_B):
        return Prompts([], [])
    trained = (trained_BT & (torch.arange(ids_BT.shape[1], device=ids_BT.device) > 0)).numpy(force=True)
    firsts = np.where(trained.any(-1), trained.argmax(-1), ids_BT.shape[1])
    lengths = np.minimum(firsts, lengths_B.numpy(force=True) - 1).tolist()
    numbers: dict[bytes, int] = {}
    owners: list[int] = []
    for row, length in zip(ids_BT.numpy(force=True), lengths, strict=True):
        owners.append(numbers.setdefault(row[:length].tobytes(), len(numbers)))
    return Prompts(owners, lengths)


def plan(lengths: Sequence[int], tokens: int, shared: Prompts | None = None) -> list[list[int]]:
    """Rows of each micro-batch: as many as make the model compute at most `tokens` tokens, padding included.

    Rows of like length stand together, longest first; with `shared`, where that is less to compute, rows of one
    prompt do, which then counts once. A row longer than `tokens` is alone in its micro-batch. ConfigError where
    `tokens` is not positive.
    """
    if tokens < 1:
        raise ConfigError(f"tokens_per_micro_batch is {tokens}; it must be positive")
    rows = range(len(lengths))
    by_length = _filled_up(sorted(rows, key=lambda row: (-lengths[row], row)), lengths, tokens, None)
    if shared is None or len(set(shared.owners)) == len(lengths):
        return by_length
    longest = dict[int, int]()
    for row in rows:
        longest[shared.owners[row]] = max(lengths[row], longest.get(shared.owners[row], 0))
    by_prompt = sorted(rows, key=lambda row: (-longest[shared.owners[row]], shared.owners[row], -lengths[row], row))
    plans = (by_length, _filled_up(by_prompt, lengths, tokens, shared))
    return min(plans, key=lambda parts: sum(computed(part, lengths, shared) for part in parts))


def computed(rows: Sequence[int], lengths: Sequence[int], shared: Prompts | None) -> int:
    """Tokens of a pass over some rows: their padded rectangle, or that of prompts and that of what follows them."""
    padded = len(rows) * max(lengths[row] for row in rows)
    if shared is None:
        return padded
    count = len({shared.owners[row] for row in rows})
    apart = count * max(shared.lengths[row] for row in rows)
    apart += len(rows) * max(lengths[row] - shared.lengths[row] for row in rows)
    return apart if apart < WORTH_SHARING * padded else padded


def shares(rows: Sequence[int], lengths: Sequence[int], shared: Prompts) -> bool:
    """Whether prompts that are computed once save some rows enough."""
    return computed(rows, lengths, shared) < computed(rows, lengths, None)


def restored(parts: Sequence[Tensor], rows: Sequence[Sequence[int]], width: int) -> Tensor:
    """[B, width]: results [b, t] of micro-batches, each row back in its place, 0 where a part was narrower."""
    whole_BT = torch.zeros(sum(len(each) for each in rows), width, dtype=parts[0].dtype, device=parts[0].device)
    for part_BT, index in zip(parts, rows, strict=True):
        whole_BT[torch.as_tensor(list(index), device=whole_BT.device), : part_BT.shape[1]] = part_BT
    return whole_BT


def laid_out(rows: Sequence[Any], lengths: Sequence[int], name: str = "values") -> Tensor:
    """[B, T] float32: arrays of the given lengths, 0 past them; ConfigError naming a row that has another length."""
    padded = np.zeros((len(lengths), max(lengths)), np.float32)
    if len(rows) != len(lengths):
        raise ConfigError(f"{name} are given for {len(rows)} of {len(lengths)} trajectories; give them for each")
    for row, (values, length) in enumerate(zip(rows, lengths, strict=True)):
        if len(values) != length:
            raise ConfigError(f"{name} of trajectory {row} are {len(values)} for {length} tokens; give one a token")
        padded[row, :length] = values
    return torch.from_numpy(padded)


def unpadded(values_BT: Tensor, lengths_B: Tensor) -> list[np.ndarray]:
    """Rows as arrays [T] (float64) of their own lengths."""
    rows = values_BT.detach().double().cpu().numpy()
    return [row[: int(length)] for row, length in zip(rows, lengths_B, strict=True)]


def _filled_up(order: Sequence[int], lengths: Sequence[int], tokens: int, shared: Prompts | None) -> list[list[int]]:
    """The rows in this order, cut where one more would be beyond `tokens`."""
    parts: list[list[int]] = []
    for row in order:
        if parts and computed([*parts[-1], row], lengths, shared) <= tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts


def _each(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """The batch with every tensor that it has changed."""
    return batch._replace(**{name: change(each) for name, each in batch._asdict().items() if each is not None})


def _check(trajectories: Sequence[Trajectory]) -> None:
    if not trajectories:
        raise ConfigError("there are no trajectories to pack; an update needs at least one")
    for number, each in enumerate(trajectories):
        if not each.ids:
            raise ConfigError(f"trajectory {number} has no tokens; leave it out")
        if each.mask[:1] == [True]:
            raise ConfigError(
                f"trajectory {number} begins with a trainable token, which nothing precedes; give a prompt"
            )


def _turns(trajectories: Sequence[Trajectory], width: int) -> Tensor:
    turns_BT = torch.full((len(trajectories), width), -1, dtype=torch.long)
    for row, each in enumerate(trajectories):
        for number, turn in enumerate(each.turns):
            turns_BT[row, turn.start : turn.end] = number
    return turns_BT
