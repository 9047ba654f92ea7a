"""The critic of a language policy: one linear map of the last hidden state, kept beside the model.

It is a module outside the language model, in fp32 whatever the model's precision, and is trained in full
where the model trains adapters only.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from perdure.core.errors import ConfigError, DataError
from perdure.lm.weights import read_weights

FILES = ("v_head.safetensors", "value_head.safetensors", "v_head.pt", "value_head.pt")
"""File names that are read, in this order; the first is the one written."""

PREFIXES = ("", "summary.", "v_head.", "v_head.summary.", "value_head.", "value_head.summary.")
"""What may stand before weight and bias in a file (other libraries nest the layer)."""


class ValueHead(nn.Module):
    """V = w h + b of a hidden state h.

    `init` "zeros" begins with V = 0 everywhere, so that the first advantages are the rewards';
    "default" is torch's random initialisation, which the reference uses.
    """

    def __init__(self, width: int, init: str = "zeros"):
        super().__init__()
        if init not in ("zeros", "default"):
            raise ConfigError(f"value_init is {init!r}; it must be 'zeros' or 'default'")
        self.summary = nn.Linear(width, 1, dtype=torch.float32)
        if init == "zeros":
            nn.init.zeros_(self.summary.weight)
            nn.init.zeros_(self.summary.bias)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Values [B, T] in fp32 of hidden states [B, T, D] (any leading shape)."""
        return self.summary(hidden_BTD.float()).squeeze(-1)

    def save(self, folder: Path) -> None:
        """Write v_head.safetensors into an existing folder."""
        from safetensors.torch import save_file

        weights = {name: getattr(self.summary, name).detach().cpu().contiguous() for name in ("weight", "bias")}
        save_file(weights, str(folder / FILES[0]))

    def read(self, folder: Path) -> bool:
        """Take up the weights of the first of `FILES` in a folder; False if there is none.

        Raises DataError, naming the file, for weights of another shape, non-finite ones, or other contents.
        A .pt file is read as weights only: nothing in it is executed.
        """
        file = head_file(folder)
        if file is None:
            return False
        found = _named(read_weights(file)[0], file)
        for name, tensor in found.items():
            parameter = getattr(self.summary, name)
            if tuple(tensor.shape) != tuple(parameter.shape):
                raise DataError(
                    f"{file}: {name} has shape {list(tensor.shape)}, the model needs {list(parameter.shape)}; "
                    "it belongs to a model of another width"
                )
            if not torch.isfinite(tensor).all():
                raise DataError(f"{file}: {name} holds numbers that are not finite; use another copy")
        with torch.no_grad():
            for name, tensor in found.items():
                getattr(self.summary, name).copy_(tensor)
        return True


def head_file(folder: Path) -> Path | None:
    """The file of a folder that holds a value head, if any."""
    return next((folder / name for name in FILES if (folder / name).is_file()), None)


def _named(tensors: Mapping[str, Tensor], file: Path) -> dict[str, Tensor]:
    """weight and bias under any of the known prefixes."""
    for prefix in PREFIXES:
        if {f"{prefix}weight", f"{prefix}bias"} <= tensors.keys():
            return {name: tensors[f"{prefix}{name}"].float() for name in ("weight", "bias")}
    keys = ", ".join(map(str, list(tensors)[:8])) or "nothing"
    raise DataError(f"{file} has {keys}; a value head has weight and bias, bare or after summary. or v_head.summary.")
