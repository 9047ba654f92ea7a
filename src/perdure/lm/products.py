"""One matrix of the decoder's weights, laid out as the machine multiplies few rows by it fastest.

Shapes: N rows, I inputs, O outputs.
"""

from typing import NamedTuple

import torch

Tensor = torch.Tensor

LARGE = 2**18
"""Entries from which a matrix is worth a layout of its own: below, the calls cost more than it saves."""


class Plain(NamedTuple):
    """A matrix as torch multiplies by it."""

    matrix_IO: Tensor
    bias_O: Tensor | None

    def __call__(self, x_NI: Tensor) -> Tensor:
        """x W + b."""
        if self.bias_O is None:
            return torch.mm(x_NI, self.matrix_IO)
        return torch.addmm(self.bias_O, x_NI, self.matrix_IO)

    def add_to(self, total_NO: Tensor, x_NI: Tensor) -> Tensor:
        """`total` + x W + b, in the place of `total`."""
        total_NO.addmm_(x_NI, self.matrix_IO)
        return total_NO if self.bias_O is None else total_NO.add_(self.bias_O)


class Blocked(NamedTuple):
    """A matrix in the blocks in which oneDNN reads it, once and for all, instead of anew at every product."""

    blocks: Tensor
    bias_O: Tensor | None

    def __call__(self, x_NI: Tensor) -> Tensor:
        """x W + b."""
        return torch.ops.mkldnn._linear_pointwise(x_NI, self.blocks, self.bias_O, "none", [], "")

    def add_to(self, total_NO: Tensor, x_NI: Tensor) -> Tensor:
        """`total` + x W + b, in the place of `total`."""
        return total_NO.add_(self(x_NI))


Product = Plain | Blocked


def product(matrix_OI: Tensor, bias_O: Tensor | None, dtype: torch.dtype) -> Product:
    """A copy of a linear layer's matrix and bias in precision `dtype`."""
    bias_O = None if bias_O is None else bias_O.to(dtype, copy=True)
    if matrix_OI.numel() >= LARGE and can_block(matrix_OI.device, dtype):
        return Blocked(torch.ops.mkldnn._reorder_linear_weight(matrix_OI.to(dtype).contiguous()), bias_O)
    matrix_IO = torch.empty(matrix_OI.shape[::-1], dtype=dtype, device=matrix_OI.device)
    return Plain(matrix_IO.copy_(matrix_OI.t()), bias_O)


def can_block(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies so on this machine: x86 processors, of which one was measured (AMD EPYC, AVX512)."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
