"""Models whose weights torch's fully_shard deals to several processes (FSDP2): what a step and a sampler need of them.

Every process that trains calls the model equally often, since each pass gathers weights from all.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import distributed

from perdure.core.errors import Refused

Tensor = torch.Tensor


def parts(model: torch.nn.Module) -> list[Any]:
    """The modules that gather and deal their weights; none where the model is not sharded."""
    if not distributed.is_available():
        return []
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def add_up(model: torch.nn.Module) -> bool:
    """Have gradients summed over processes, where they would be averaged; whether the model is sharded at all."""
    found = parts(model)
    for module in found:
        if not hasattr(module, "set_force_sum_reduction_for_comms"):
            raise Refused(f"sharded models are trained with torch 2.9 and newer; this is {torch.__version__}")
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # Else gloo is asked for a scaled sum, which it lacks.
    return bool(found)


@contextlib.contextmanager
def gathered(model: torch.nn.Module) -> Iterator[None]:
    """Every process holds all weights for a while; each of them must come here."""
    found = parts(model)
    for module in found:
        module.unshard()
    try:
        yield
    finally:
        for module in found:
            module.reshard()


def idle(model: Any) -> Tensor:
    """0 by a pass over one token, for a process that has nothing to score while others do."""
    ids_BT = torch.zeros(1, 1, dtype=torch.long, device=next(model.parameters()).device)
    return 0.0 * model(input_ids=ids_BT, use_cache=False).logits.sum()


def local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor."""
    dealt: Any = tensor
    return dealt.to_local() if is_dealt(tensor) else tensor


def is_dealt(tensor: Tensor) -> bool:
    """Whether each process holds only a part of a tensor."""
    return hasattr(tensor, "to_local")


def norm(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all tensors together, the parts of other processes included."""
    groups = ([each for each in tensors if is_dealt(each) is dealt] for dealt in (False, True))
    found: list[Any] = [torch.nn.utils.get_total_norm(group) for group in groups if group]
    found = [each.full_tensor() if is_dealt(each) else each for each in found]
    return found[0] if len(found) == 1 else torch.linalg.vector_norm(torch.stack(found))
