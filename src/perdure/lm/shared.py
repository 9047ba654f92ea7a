"""Rows that begin with the same prompt, in one pass that computes the prompt once.

All tokens stand in one list: each different prompt, then each row's rest. Everything in a model but its attention
looks at a token alone and takes the list as it is; attention is handed the prompts as rows of their own, and the rests
as rows that see their prompt and themselves. It is the model's own attention, so that results are those of whole rows.
Shapes: B rows, T tokens of one, U prompts, P tokens of one, R tokens of a rest, M tokens in the list, H heads, E width
of a head.
"""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from perdure.core.errors import Refused
from perdure.lm import fused, generic, packing

Tensor = torch.Tensor


class Layout(NamedTuple):
    """Where the tokens of rows stand in the list."""

    ids_M: Tensor
    positions_M: Tensor
    place_BT: Tensor
    """Of each token of the rows; beyond a row's length, of some other token."""
    owner_B: Tensor
    """The prompt that a row goes on from."""
    seen_BRS: Tensor
    """Whether a token of a rest sees one of its prompt or of the rest (S = P + R); one for all rows if prompts are of
    one length."""
    shape: tuple[int, int, int, int]
    """U, P, B, R."""


def can(model: Any) -> bool:
    """Whether a model's attention can be handed such rows.

    It can where all layers attend to all that came before by the library's scaled dot product, and nothing is
    computed a second time on the way back.
    """
    bare = fused.library_model(model)
    if "position_ids" not in inspect.signature(bare.forward).parameters or _recomputes(bare):
        return False
    if getattr(model, "active_peft_config", None) is not None and model.active_peft_config.is_prompt_learning:
        return False
    own = getattr(bare.config, "_attn_implementation", None) == "sdpa"
    return own and generic.attends_to_everything(bare.config) and _dispatches(bare)


def layout(ids_BT: Tensor, lengths_B: Tensor, prompts: packing.Prompts) -> Layout | None:
    """The list of the tokens of right-padded rows; None where padded rows are hardly more tokens."""
    lengths = lengths_B.tolist()
    if not packing.shares(range(len(lengths)), lengths, prompts):
        return None
    device = ids_BT.device
    owner_B, cuts_B = torch.tensor(prompts.owners, device=device), torch.tensor(prompts.lengths, device=device)
    first_U = torch.tensor([prompts.owners.index(number) for number in range(max(prompts.owners) + 1)], device=device)
    count, rows = len(first_U), len(lengths)
    most = max(prompts.lengths)
    rest = max(length - cut for length, cut in zip(lengths, prompts.lengths, strict=True))
    within_P, within_R = torch.arange(most, device=device), torch.arange(rest, device=device)
    starts_BR = cuts_B[:, None] + within_R
    # Beyond its end a row repeats its first token, which is finite and within the context.
    starts_BR = torch.where(starts_BR < lengths_B.to(device)[:, None], starts_BR, 0)
    prompts_UP = torch.where(within_P < cuts_B[first_U, None], ids_BT[first_U, :most], ids_BT[first_U, :1])
    after_BT = torch.arange(ids_BT.shape[1], device=device) - cuts_B[:, None]
    row_B1 = torch.arange(rows, device=device)[:, None]
    place_BT = torch.where(
        after_BT < 0,
        owner_B[:, None] * most + after_BT + cuts_B[:, None],
        count * most + row_B1 * rest + after_BT.clamp(0, rest - 1),
    )
    cuts_C = cuts_B if len(set(prompts.lengths)) > 1 else cuts_B[:1]
    of_prompt_CRP = (within_P < cuts_C[:, None, None]).expand(-1, rest, -1)
    of_rest_CRR = (within_R <= within_R[:, None]).expand(len(cuts_C), -1, -1)
    return Layout(
        torch.cat([prompts_UP.flatten(), ids_BT.gather(1, starts_BR).flatten()]),
        torch.cat([within_P.repeat(count), starts_BR.flatten()]),
        place_BT,
        owner_B,
        torch.cat([of_prompt_CRP, of_rest_CRR], -1),
        (count, most, rows, rest),
    )


@contextlib.contextmanager
def attending(model: Any, laid: Layout) -> Iterator[dict[str, Tensor]]:
    """The inputs of a forward pass over the list, and the model made ready for it.

    Refused where some layer did not attend by the library's attention: it may have mixed rows that are strangers.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    config = fused.library_model(model).config
    own, name, calls = config._attn_implementation, f"perdure_{id(laid)}", list[int]()
    attention = functools.partial(_attend, ALL_ATTENTION_FUNCTIONS[own], laid, calls)
    ALL_ATTENTION_FUNCTIONS[name] = attention
    config._attn_implementation = name
    try:
        yield {"input_ids": laid.ids_M[None], "position_ids": laid.positions_M[None]}
    finally:
        config._attn_implementation = own
        del ALL_ATTENTION_FUNCTIONS[name]
    if len(calls) != config.num_hidden_layers:
        raise Refused(
            f"{type(model).__name__} attends in {len(calls)} of {config.num_hidden_layers} layers, so that rows cannot "
            "share their prompts; load it with attn_implementation='eager', under which they do not"
        )


def _attend(
    own: Callable[..., tuple[Tensor, Any]],
    laid: Layout,
    calls: list[int],
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """[1, M, H, E]: attention `own` over prompts and over rests; query, key and value are [1, H, M, E]."""
    calls.append(len(calls))
    prompts, rests = zip(*(_parted(each, laid.shape) for each in (query, key, value)), strict=True)
    seen = (torch.cat([prompts[part][laid.owner_B], rests[part]], 2) for part in (1, 2))
    of_prompts_UPHE, _ = own(module, *prompts, None, **options)
    of_rests_BRHE, _ = own(module, rests[0], *seen, laid.seen_BRS[:, None], **options)
    return torch.cat([of_prompts_UPHE.flatten(0, 1), of_rests_BRHE.flatten(0, 1)])[None], None


def _parted(x: Tensor, shape: tuple[int, int, int, int]) -> tuple[Tensor, Tensor]:
    """[1, H, M, E] as prompts [U, H, P, E] and rests [B, H, R, E]."""
    count, most, rows, rest = shape
    prompts, rests = x[0].split([count * most, rows * rest], 1)
    return prompts.unflatten(1, (count, most)).transpose(0, 1), rests.unflatten(1, (rows, rest)).transpose(0, 1)


def _recomputes(bare: Any) -> bool:
    """Whether activations are computed again on the way back, when the model attends as ever."""
    return any(getattr(module, "gradient_checkpointing", False) for module in bare.modules())


def _dispatches(bare: Any) -> bool:
    """Whether the model looks its attention up in the library's own table."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    homes = (kind.__module__ for kind in type(bare).__mro__ if kind.__module__.startswith("transformers.models."))
    home = next(homes, None)
    return home is not None and vars(sys.modules[home]).get("ALL_ATTENTION_FUNCTIONS") is ALL_ATTENTION_FUNCTIONS
