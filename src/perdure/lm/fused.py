"""Weights of Llama, Mistral, Qwen2 and Qwen3 models, copied into the few large matrices that the decoder multiplies.

Per layer four matrices: queries, keys and values side by side, their output, gate and up side by side, down. The
gains of the norms before a matrix are multiplied into it. Rotated pairs of query and key stand next to each
other, so that rotation is one complex product. Shapes: D width, H query heads, K key heads, E width of a head.
"""

import sys
from typing import Any, NamedTuple

import torch
from torch import nn

from perdure.lm import sharding
from perdure.lm.products import Product, product

KNOWN = ("llama", "mistral", "qwen2", "qwen3")
"""`model_type` of the layouts that are known here."""
ROTATIONS = ("default", "llama3")


class Shape(NamedTuple):
    """The sizes of a model."""

    layers: int
    heads: int
    key_heads: int
    head_width: int
    width: int
    inner: int
    epsilon: float
    context: int


class Layer(NamedTuple):
    """One layer, norms folded in."""

    qkv: Product
    heads_gain: torch.Tensor | None
    """[H + K, E] where queries and keys are normed."""
    out: Product
    gate_up: Product
    down: Product


class Weights(NamedTuple):
    """A whole model."""

    embedding: torch.Tensor
    layers: tuple[Layer, ...]
    gain: torch.Tensor
    head: Product
    frequencies: torch.Tensor
    """Radians a position of each rotated pair, [E / 2] in fp32."""


def unsupported(model: Any) -> str | None:
    """What the decoder cannot do about `model`, as "field is value"; None where it can run it."""
    bare = library_model(model)
    config = bare.config
    # A sharded model's class is made of torch's own and the library's.
    kind = type(bare).__bases__[-1] if sharding.parts(bare) else type(bare)
    rope = getattr(config, "rope_parameters", None) or {}
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    checks: list[tuple[str, Any, bool]] = [
        ("model_type", config.model_type, config.model_type in KNOWN),
        ("class", kind.__name__, kind.__module__.startswith("transformers.models.")),
        ("rope_parameters.rope_type", rope.get("rope_type"), rope.get("rope_type") in ROTATIONS),
        ("rope_parameters.partial_rotary_factor", *_default(rope, "partial_rotary_factor", 1.0)),
        ("hidden_act", *_default(vars(config), "hidden_act", "silu")),
        ("sliding_window", window, window is None),
        ("quantization_config", *_default(vars(config), "quantization_config", None)),
        ("attn_logit_softcapping", *_default(vars(config), "attn_logit_softcapping", None)),
        ("final_logit_softcapping", *_default(vars(config), "final_logit_softcapping", None)),
    ]
    for field, value, fits in checks:
        if not fits:
            return f"{field} is {value!r}"
    return _unsupported_module(model)


def shape(model: Any) -> Shape:
    """The sizes of a supported model."""
    config = library_model(model).config
    return Shape(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        head_width=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        width=config.hidden_size,
        inner=config.intermediate_size,
        epsilon=config.rms_norm_eps,
        context=config.max_position_embeddings,
    )


def pack(model: Any, dtype: torch.dtype) -> Weights:
    """Copy the present weights of a supported model, adapters merged, in precision `dtype`."""
    bare, sizes = library_model(model), shape(model)
    with torch.no_grad():
        return Weights(
            bare.get_input_embeddings().weight.detach().to(dtype, copy=True),
            tuple(_layer(layer, sizes, dtype) for layer in bare.model.layers),
            (bare.model.norm.weight.float() * sizes.width**0.5).to(dtype),
            product(*_matrix(bare.get_output_embeddings()), dtype),
            bare.model.rotary_emb.inv_freq.detach().float().clone(),
        )


def _layer(layer: Any, sizes: Shape, dtype: torch.dtype) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    q, k, v = (_matrix(each) for each in (attention.q_proj, attention.k_proj, attention.v_proj))
    q, k = ([None if part is None else _paired(part, sizes.head_width) for part in each] for each in (q, k))
    qkv, qkv_bias = _beside(q, k, v)
    gate_up, gate_up_bias = _beside(_matrix(mlp.gate_proj), _matrix(mlp.up_proj))
    # The norm divides by the length of the vector, not by its root mean square: sqrt(D) is part of the gain.
    scale = sizes.width**0.5
    gain = _heads_gain(attention, sizes)
    return Layer(
        product(_folded(qkv, layer.input_layernorm.weight, scale), qkv_bias, dtype),
        None if gain is None else gain.to(dtype, copy=True),
        product(*_matrix(attention.o_proj), dtype),
        product(_folded(gate_up, layer.post_attention_layernorm.weight, scale), gate_up_bias, dtype),
        product(*_matrix(mlp.down_proj), dtype),
    )


def _heads_gain(attention: Any, sizes: Shape) -> torch.Tensor | None:
    """The gains of Qwen3's norms of queries and keys, a row a head."""
    if not hasattr(attention, "q_norm"):
        return None
    q, k = (_paired(norm.weight, sizes.head_width) for norm in (attention.q_norm, attention.k_norm))
    return torch.cat([q.expand(sizes.heads, -1), k.expand(sizes.key_heads, -1)])


def _folded(matrix: torch.Tensor, gain: torch.Tensor, scale: float) -> torch.Tensor:
    """The matrix [out, in] times the gain of its inputs."""
    return matrix.float() * (gain.float() * scale)


def _paired(part: torch.Tensor, head_width: int) -> torch.Tensor:
    """Entry i and entry i + E/2 of each head, which rotate together, moved next to each other."""
    halves = part.reshape(-1, 2, head_width // 2, *part.shape[1:])
    return halves.transpose(1, 2).reshape(part.shape)


def _beside(*parts: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Matrices, and biases where any has one, one after the other."""
    biases = [torch.zeros_like(matrix[:, 0]) if bias is None else bias for matrix, bias in parts]
    joined = None if all(bias is None for _, bias in parts) else torch.cat(biases)
    return torch.cat([matrix for matrix, _ in parts]), joined


def _matrix(module: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The matrix [out, in] and the bias that a linear layer multiplies by now, its active adapters included."""
    if type(module) is nn.Linear:
        return module.weight.detach(), None if module.bias is None else module.bias.detach()
    matrix, bias = _matrix(module.get_base_layer())
    if module.disable_adapters or module.merged:
        return matrix, bias
    deltas = [module.get_delta_weight(name) for name in module.active_adapters if name in module.lora_A]
    return matrix + sum(delta.to(matrix.dtype) for delta in deltas), bias


def _unsupported_module(model: Any) -> str | None:
    """The first module that computes something the decoder would not."""
    bare = library_model(model)
    for name, module in model.named_modules():
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        if not all(_of_library(hook) for hook in hooks):
            return f"{name or type(model).__name__} has a forward hook"
    places = [("embed_tokens", bare.get_input_embeddings(), nn.Embedding)]
    places += [(name, module, nn.Linear) for name, module in _linears(bare)]
    for name, module, plain in places:
        if type(module) is not plain and not _is_plain_lora(module):
            return f"{name} is a {type(module).__module__}.{type(module).__name__}"
    config = getattr(model, "active_peft_config", None)
    return f"peft_type is {config.peft_type!r}" if config is not None and config.is_prompt_learning else None


def _linears(bare: Any) -> list[tuple[str, Any]]:
    """Every place where the decoder expects a linear layer."""
    places = [("lm_head", bare.get_output_embeddings())]
    for index, layer in enumerate(bare.model.layers):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            places.append((f"layers[{index}].self_attn.{name}", getattr(layer.self_attn, name)))
        for name in ("gate_proj", "up_proj", "down_proj"):
            places.append((f"layers[{index}].mlp.{name}", getattr(layer.mlp, name)))
    return places


def _is_plain_lora(module: Any) -> bool:
    """Whether a layer is peft's sum of a linear layer and low-rank products."""
    layers = sys.modules.get("peft.tuners.lora.layer")  # Without peft no layer is one of its own.
    if layers is None or type(module) is not layers.Linear or type(module.get_base_layer()) is not nn.Linear:
        return False
    return not module.lora_variant and not any(module.lora_bias.values()) and not module.fan_in_fan_out


def _of_library(hook: Any) -> bool:
    return getattr(hook, "__module__", "").startswith(("transformers.", "torch.distributed."))


def _default(config: dict[str, Any], field: str, usual: Any) -> tuple[Any, bool]:
    value = config.get(field, usual)
    return value, value == usual


def library_model(model: Any) -> Any:
    """The model of the library itself, below peft's wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
