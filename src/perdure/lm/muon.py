"""Muon: momentum made orthogonal for the matrices of hidden layers, AdamW for everything else."""

# The parameters of torch's optimisers are typed loosely.
# pyright: reportUnknownMemberType=false

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

Tensor = torch.Tensor
MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic whose iteration draws singular values near 1."""
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """AdamW, but that each group with `orthogonal` moves its matrices by their orthogonal momentum.

    B <- 0.95 B + G, W <- W - rate (0.2 sqrt(max(rows, columns)) NS(G + 0.95 B) + weight_decay W), where NS is the
    Newton-Schulz iteration of Jordan et al. 2024 (Muon: an optimizer for hidden layers in neural networks). The
    factor (Liu et al. 2025, arXiv 2502.16982) gives steps of the size that AdamW's have, so that one rate suits both.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], *, weight_decay: float, **adamw: Any):
        others = [group for group in groups if not group["orthogonal"]]
        self._adamw = torch.optim.AdamW(others, weight_decay=weight_decay, **adamw) if others else None
        self._matrices = [{**group, "weight_decay": weight_decay} for group in groups if group["orthogonal"]]
        super().__init__([*self._matrices, *(self._adamw.param_groups if self._adamw else ())], {})
        if self._adamw:
            self._adamw.state = self.state

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step on the gradients that are there."""
        for group in self._matrices:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._move(matrix, matrix.grad, group["lr"], group["weight_decay"])
        if self._adamw:
            self._adamw.step()

    def _move(self, matrix: Tensor, gradient: Tensor, rate: float, weight_decay: float) -> None:
        state = self.state[matrix]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(matrix)
        momentum = state["momentum"].mul_(MOMENTUM).add_(gradient)
        matrix.mul_(1 - rate * weight_decay)
        turned = orthogonal(gradient.add(momentum, alpha=MOMENTUM))
        matrix.add_(turned, alpha=-0.2 * rate * max(matrix.shape) ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """Nearly U V^T of `matrix` = U S V^T: singular values from about 0.7 to 1.2, those near 0 smaller."""
    turned = matrix / matrix.norm().clamp(min=1e-7)
    tall = matrix.shape[0] > matrix.shape[1]
    if tall:
        turned = turned.T
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        square = turned @ turned.T
        turned = a * turned + (b * square + c * square @ square) @ turned
    return turned.T if tall else turned


def hidden_matrices(model: nn.Module) -> set[int]:
    """The ids of what Muon is for: weights of linear layers, but for those that give the output or are embeddings."""
    output = getattr(model, "get_output_embeddings", lambda: None)()
    ends: Iterable[nn.Module] = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    outer = {id(parameter) for module in [*ends, output] if module is not None for parameter in module.parameters()}
    found = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    return found - outer
