"""Named tensors from a file of weights, and what its header says; nothing in a file is ever executed."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perdure.core.errors import DataError

DAMAGED = (OSError, RuntimeError, EOFError, ValueError, KeyError, IndexError)
"""What torch and safetensors raise for damaged files, beside two exceptions of their own."""


def read_weights(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a .safetensors or .pt file, on the CPU, and the header of the former.

    Raises DataError naming the file where it is damaged, holds more than weights, or names no tensors.
    """
    from safetensors import SafetensorError, safe_open

    try:
        if file.suffix == ".safetensors":
            with safe_open(str(file), framework="pt") as opened:
                names: list[str] = list(opened.keys())
                return {name: opened.get_tensor(name) for name in names}, dict(opened.metadata() or {})
        found: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        if not isinstance(error, (SafetensorError, *DAMAGED)) and type(error).__name__ != "UnpicklingError":
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{file} cannot be read as weights ({reason}); use another copy") from None
    if not isinstance(found, dict):
        raise DataError(f"{file} holds a {type(found).__name__}, not named tensors; save a state_dict")
    return {str(name): each for name, each in found.items() if isinstance(each, Tensor)}, {}
