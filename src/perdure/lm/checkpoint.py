"""Everything of a training that changes, in a folder: weights, moments and state, without pickle.

weights.safetensors   trainable parameters and buffers of the model, and the value head
moments.safetensors   what the optimiser remembers of each parameter, by the parameter's name
extra.safetensors     tensors of the extra state
state.json            the rest: rates, counters, extra values and arrays, and a print of the frozen weights

The frozen base of an adapter is not written; a checkpoint is refused on another base.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from perdure.core.errors import DataError, Refused
from perdure.harness.checkpoint import decode, encode, read_json
from perdure.lm import sharding

Tensor = torch.Tensor

VERSION = 1
SAMPLE = 4096
"""Elements at each end of a frozen tensor that its print covers."""
MARK = "!tensor"
OWN = "value"
"""Under which name a parameter outside model and value head is kept beside its moments."""


def save(
    folder: Path,
    *,
    model: torch.nn.Module,
    value_head: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint into an existing folder.

    `extra` holds nested dicts with text keys, lists, tuples, JSON values, NumPy arrays and tensors. DataError for
    anything else, Refused for a model that several processes hold in parts.
    """
    _refuse_sharded(model)
    tensors: dict[str, Tensor] = {}
    state = {
        "version": VERSION,
        "frozen": _print(model),
        "optimizer": None if optimizer is None else _groups(optimizer),
        "extra": _without_tensors(dict(extra or {}), "extra", tensors),
    }
    _write(folder / "weights.safetensors", _changing(model, value_head))
    if optimizer is not None:
        _write(folder / "moments.safetensors", dict(_moments(optimizer, _names(model, value_head))))
    _write(folder / "extra.safetensors", tensors)
    (folder / "state.json").write_text(json.dumps(encode(state)) + "\n")


def load(
    folder: Path,
    *,
    model: torch.nn.Module,
    value_head: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> dict[str, Any]:
    """Put a checkpoint into a model, value head and optimiser built as those it was saved from; returns `extra`.

    DataError, before anything is changed, where the files are damaged or belong to other shapes, names, another
    frozen base or another optimiser.
    """
    _refuse_sharded(model)
    state = decode(read_json(folder / "state.json"))
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise DataError(f"{folder / 'state.json'} is not a checkpoint of this version ({VERSION}); use another copy")
    if state["frozen"] != _print(model):
        raise DataError(f"{folder} was saved over other frozen weights; build the model from the same base")
    weights = _read(folder / "weights.safetensors")
    present = _changing(model, value_head)
    _refuse_other(folder / "weights.safetensors", weights, present)
    if (state["optimizer"] is None) != (optimizer is None):
        raise DataError(f"{folder} was saved {'without' if optimizer else 'with'} an optimiser; load it likewise")
    moments = {} if optimizer is None else _matched(folder, optimizer, state["optimizer"], _names(model, value_head))
    extra = _with_tensors(state["extra"], _read(folder / "extra.safetensors"))
    with torch.no_grad():
        for name, tensor in present.items():
            tensor.copy_(weights[name])
    if optimizer is not None:
        for group, saved in zip(optimizer.param_groups, state["optimizer"], strict=True):
            group.update(saved)
        optimizer.state.clear()
        for parameter, found in moments.items():
            if OWN in found:
                with torch.no_grad():
                    parameter.copy_(found.pop(OWN))
            optimizer.state[parameter] = found
    return extra


def _refuse_sharded(model: torch.nn.Module) -> None:
    if sharding.parts(model):
        raise Refused("checkpoints of a sharded model are not supported; gather its weights and save them yourself")


def _changing(model: torch.nn.Module, value_head: torch.nn.Module | None) -> dict[str, Tensor]:
    """The tensors that training may change, by name: the model's own storage, not copies."""
    found: dict[str, Tensor] = {}
    for title, module in (("model", model), ("value_head", value_head)):
        if module is not None:
            found |= {f"{title}.{name}": each for name, each in module.named_parameters() if each.requires_grad}
            kept = module.state_dict(keep_vars=True)
            found |= {f"{title}.{name}": each for name, each in module.named_buffers() if name in kept}
    return found


def _names(model: torch.nn.Module, value_head: torch.nn.Module | None) -> dict[int, str]:
    return {id(each): name for name, each in _changing(model, value_head).items()}


def _print(model: torch.nn.Module) -> int:
    """A number that tells frozen weights apart: of their names, shapes, types and both ends of their contents."""
    found = 0
    for name, each in sorted(model.named_parameters()):
        if not each.requires_grad:
            found = zlib.crc32(f"{name} {tuple(each.shape)} {each.dtype}".encode(), found)
            flat = each.detach().reshape(-1)
            for end in (flat[:SAMPLE], flat[-SAMPLE:]):
                found = zlib.crc32(end.contiguous().cpu().view(torch.uint8).numpy().tobytes(), found)
    return found


def _groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The settings of each parameter group (rates, betas...), without parameters."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def _ordered(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> Iterator[tuple[str, Tensor]]:
    """Each parameter of an optimiser and its name; others.N (its place) for one that no module of ours holds."""
    every = [each for group in optimizer.param_groups for each in group["params"]]
    for place, each in enumerate(every):
        yield names.get(id(each), f"others.{place}"), each


def _moments(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> Iterator[tuple[str, Tensor]]:
    """What the optimiser keeps, as NAME/KEY; a parameter outside our modules also itself, as NAME/value."""
    for name, parameter in _ordered(optimizer, names):
        if name.startswith("others."):
            yield f"{name}/{OWN}", parameter
        for key, value in optimizer.state.get(parameter, {}).items():
            yield f"{name}/{key}", torch.as_tensor(value)


def _matched(
    folder: Path, optimizer: torch.optim.Optimizer, groups: Any, names: Mapping[int, str]
) -> dict[Tensor, dict[str, Tensor]]:
    """What to remember of each parameter; DataError where the file speaks of others or of other shapes."""
    file = folder / "moments.safetensors"
    saved, found = _read(file), dict[Tensor, dict[str, Tensor]]()
    known = dict(_ordered(optimizer, names))
    if len(groups) != len(optimizer.param_groups):
        raise DataError(f"{folder} has {len(groups)} parameter groups, the optimiser {len(optimizer.param_groups)}")
    for key, tensor in saved.items():
        name, _, kind = key.rpartition("/")
        parameter = known.get(name)
        if parameter is None or (tensor.dim() and tensor.shape != parameter.shape):
            raise DataError(f"{file} holds {key} {list(tensor.shape)}, which fits no parameter of the optimiser")
        found.setdefault(parameter, {})[kind] = tensor if tensor.dim() == 0 else tensor.to(parameter.device)
    return found


def _without_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The value with each tensor put into `tensors` and a mark in its place."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {MARK: name}
    if isinstance(value, Mapping):
        if MARK in value or not all(isinstance(key, str) for key in value):
            raise DataError(f"{name} has a key that is not text or is {MARK!r}; choose other keys")
        return {key: _without_tensors(each, f"{name}/{key}", tensors) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_without_tensors(each, f"{name}/{place}", tensors) for place, each in enumerate(value))
    return value


def _with_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {MARK}:
            if value[MARK] not in tensors:
                raise DataError(f"extra.safetensors lacks {value[MARK]}; use another copy of the checkpoint")
            return tensors[value[MARK]]
        return {key: _with_tensors(each, tensors) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_with_tensors(each, tensors) for each in value)
    return value


def _write(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Tensors as they are; copies, since several may share storage."""
    from safetensors.torch import save_file

    save_file({name: each.detach().cpu().contiguous().clone() for name, each in tensors.items()}, str(file))


def _read(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(str(file))
    except (OSError, SafetensorError) as error:
        raise DataError(f"{file} cannot be read ({error}); use another copy of the checkpoint") from None


def _refuse_other(file: Path, saved: Mapping[str, Tensor], present: Mapping[str, Tensor]) -> None:
    for name in sorted(saved.keys() ^ present.keys()):
        where = "the file holds it, the model does not" if name in saved else "the model has it, the file does not"
        raise DataError(f"{file}: {name} does not match: {where}; build the model as it was when it was saved")
    for name, tensor in saved.items():
        if tensor.shape != present[name].shape or tensor.dtype != present[name].dtype:
            raise DataError(
                f"{file}: {name} is {tensor.dtype} {list(tensor.shape)}, the model's {present[name].dtype} "
                f"{list(present[name].shape)}; it belongs to another model"
            )
