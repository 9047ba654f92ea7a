"""A language policy by name or folder, as a document asks for it."""

# A model and a tokenizer are any of transformers'.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perdure.core.component import make
from perdure.core.errors import ConfigError, DataError, nearest
from perdure.lm import loading
from perdure.lm.policy import LanguagePolicy
from perdure.lm.prompts import PromptBuilder
from perdure.lm.sampling import Sampling
from perdure.lm.value_head import FILES, head_file


def language_policy(
    name_or_path: str | Path = loading.TINY,
    *,
    seed: int = 0,
    tiny: Mapping[str, Any] | None = None,
    lora: Mapping[str, Any] | None = None,
    value_head: str | None = None,
    system: str = "",
    context_turns: int = 0,
    **options: Any,
) -> LanguagePolicy:
    """A policy by name: `perdure/tiny` (random weights from `seed`), `perdure/smollm2`, or a folder.

    A folder holds full weights or an adapter, perhaps a value head; without one the policy begins with a new one,
    unless `value_head` is "required". "fresh" says that this is meant, which training asks for. `tiny` holds sizes
    of `lm.tiny.tiny_model` and perhaps `tokenizer`, the file of one (else a token is a byte), `lora` the keys of
    `lm.loading.LoRA`. `options` are the fields of `lm.sampling.Sampling` and the constructor's options. Raises
    ConfigError naming an unknown or unusable one.

        policy = language_policy("perdure/tiny", seed=1, max_new_tokens=16, lora={"r": 4})
    """
    drawn = {each.name for each in dataclasses.fields(Sampling)}
    sampling = make(Sampling, {name: options.pop(name) for name in list(options) if name in drawn}, "policy.kwargs")
    known = {*inspect.signature(LanguagePolicy).parameters, *drawn} - {"model", "tokenizer", "sampling"}
    for name in options:
        if name not in known:
            raise ConfigError(f"policy.kwargs.{name} is not a key here; {nearest(name, known)}")
    loaded = loading.load(name_or_path, seed=seed, tiny=tiny)
    model = loaded.model
    if lora is not None:
        if hasattr(model, "peft_config"):
            raise ConfigError(f"lora is set, but {name_or_path} holds an adapter already; leave lora out")
        model = loading.adapted(model, make(loading.LoRA, lora, "policy.kwargs.lora"), seed)
    prompts = options.pop("prompts", None) or PromptBuilder(system, None, context_turns)
    policy = LanguagePolicy(model, loaded.tokenizer, sampling=sampling, prompts=prompts, seed=seed, **options)
    policy.recipe = loaded.recipe
    _begin_head(policy, Path(name_or_path), value_head)
    return policy


def _begin_head(policy: LanguagePolicy, folder: Path, value_head: str | None) -> None:
    if value_head not in (None, "required", "fresh"):
        raise ConfigError(f"value_head is {value_head!r}; it must be 'required' or 'fresh'")
    found = head_file(folder) is not None and policy.load_value_head(folder)
    if found or (not folder.is_dir() and value_head != "required"):
        return
    if value_head == "required":
        raise DataError(f"{folder} has no value head ({', '.join(FILES)}); train one, or set value_head: fresh")
    policy.without_value_head = str(folder) if value_head is None else None
