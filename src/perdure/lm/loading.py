"""Models and tokenizers by name or folder: built in place, converted from a package, full weights or an adapter.

Nothing is downloaded. An adapter's folder names its base model; where that was built in place, perdure.json beside
the adapter says how.
"""

# Models and tokenizers are any of transformers', whose stubs say little.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import contextlib
import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from perdure.core.component import component
from perdure.core.errors import ConfigError, DataError, MissingExtra

TINY, SMOLLM2 = "perdure/tiny", "perdure/smollm2"
RECIPE = "perdure.json"


class Loaded(NamedTuple):
    """A model with its tokenizer."""

    model: Any
    tokenizer: Any
    recipe: dict[str, Any] | None
    """How the base was built, where it lies in no folder."""


@component
class LoRA:
    """Low-rank adapters (Hu et al. 2021, arXiv 2106.09685): W + (alpha / r) B A, of which only A and B are trained."""

    r: int = 8
    alpha: float = 16.0
    target: str | tuple[str, ...] = "all-linear"
    """Names of the adapted layers, or all linear ones but the output."""
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.r < 1:
            raise ConfigError(f"r is {self.r}; an adapter's rank is at least 1")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout is {self.dropout}; it lies from 0 up to 1, which is excluded")


def load(name_or_path: str | Path, *, seed: int = 0, tiny: Mapping[str, Any] | None = None) -> Loaded:
    """`perdure/tiny` (random weights from `seed`), `perdure/smollm2`, or a folder.

    `tiny` holds sizes of the first, and perhaps the file of a tokenizer. Raises ConfigError for a name that is
    neither of them nor a folder, DataError for a folder that holds no model.
    """
    if str(name_or_path) == TINY:
        return _tiny(seed, dict(tiny or {}))
    if tiny:
        raise ConfigError(f"tiny is set, but the model is {str(name_or_path)!r}; it sizes {TINY} alone")
    if str(name_or_path) == SMOLLM2:
        from perdure.lm.smollm import smollm2

        return _full(smollm2())
    folder = Path(name_or_path).resolve()  # An adapter remembers where its base lies, from any working directory.
    if not folder.is_dir():
        raise ConfigError(
            f"name_or_path is {str(name_or_path)!r}, which is no folder here; nothing is downloaded: "
            f"name {TINY}, {SMOLLM2} or a folder with a model"
        )
    return _adapter(folder) if (folder / "adapter_config.json").is_file() else _full(folder)


def adapted(model: Any, settings: LoRA, seed: int) -> Any:
    """The model with a fresh adapter, drawn from `seed`; only the adapter is trained."""
    peft = _peft()
    target: Any = settings.target if isinstance(settings.target, str) else list(settings.target)
    config = peft.LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=target,
        task_type="CAUSAL_LM",
    )
    try:
        with torch.random.fork_rng(), quietly():
            torch.manual_seed(seed)
            return peft.get_peft_model(model, config)
    except ValueError as error:
        raise ConfigError(f"lora.target is {settings.target!r}: {error}") from None


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """No progress bars of transformers, and none of its warnings about an attribute that peft still reads."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
            yield
    finally:
        if shown:
            logging.enable_progress_bar()


def write_recipe(recipe: Mapping[str, Any], folder: Path) -> None:
    """Note beside an adapter how its base is built."""
    (folder / RECIPE).write_text(json.dumps({"base": recipe}, indent=1) + "\n", encoding="utf-8")


def _tiny(seed: int, sizes: dict[str, Any]) -> Loaded:
    from perdure.lm.tiny import tiny_model
    from perdure.lm.tokens import byte_tokenizer, load_tokenizer

    file = sizes.get("tokenizer")
    if file is not None and not isinstance(file, str | Path):
        raise ConfigError(f"tiny.tokenizer is {file!r}; it is the path of a tokenizer.json")
    tokenizer = byte_tokenizer() if file is None else load_tokenizer(Path(file))
    sizes |= {} if file is None else {"tokenizer": str(Path(file).resolve())}
    try:
        model = tiny_model(tokenizer, seed=seed, **{key: size for key, size in sizes.items() if key != "tokenizer"})
    except TypeError as error:
        raise ConfigError(f"tiny holds {sorted(sizes)}: {error}") from None
    return Loaded(model, tokenizer, {"name": TINY, "seed": seed, "tiny": sizes})


def _full(folder: Path) -> Loaded:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with quietly():
            model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{folder} holds no model and tokenizer that transformers can load ({reason})") from None
    for (
        each
    ) in model.parameters():  # Mapped from the file they are not aligned, which changes the last bits of products.
        each.data = each.data.clone()
    return Loaded(model, tokenizer, None)


def _adapter(folder: Path) -> Loaded:
    """The adapter on the base model that its config names, or that perdure.json beside it describes."""
    from transformers import AutoTokenizer

    recipe = _read_json(folder / RECIPE).get("base") if (folder / RECIPE).is_file() else None
    if recipe is not None:
        base = load(recipe["name"], seed=recipe["seed"], tiny=recipe["tiny"])
    else:
        name = _read_json(folder / "adapter_config.json").get("base_model_name_or_path")
        if not name:
            raise DataError(f"{folder / 'adapter_config.json'} names no base model; set base_model_name_or_path")
        base = load(name if Path(name).is_dir() or name in (TINY, SMOLLM2) else folder / name)
    try:
        with quietly():
            model = _peft().PeftModel.from_pretrained(base.model, str(folder), is_trainable=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(f"{folder} holds no adapter that fits its base model ({str(error).splitlines()[0]})") from None
    own = (folder / "tokenizer_config.json").is_file()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True) if own else base.tokenizer
    return Loaded(model, tokenizer, base.recipe)


def _read_json(file: Path) -> dict[str, Any]:
    from perdure.harness.checkpoint import read_json

    return read_json(file)


def _peft() -> Any:
    try:
        import peft
    except ImportError:
        raise MissingExtra("peft", "language") from None
    return peft
