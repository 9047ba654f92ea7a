"""A small causal language model with random weights, for tests and first steps without any download."""

from typing import Any

import torch

from perdure.core.errors import ConfigError, refuse_other_than_whole

ARCHITECTURES = ("llama", "qwen2", "qwen3")


def tiny_model(
    tokenizer_or_vocab: Any,
    *,
    width: int = 128,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    context: int = 512,
    seed: int = 0,
    architecture: str = "llama",
    initializer_range: float = 0.02,
) -> Any:
    """A `transformers` causal model in evaluation mode; 0.82 million parameters for bytes at the defaults.

    `tokenizer_or_vocab` is the tokenizer to fit, or the size of the vocabulary. "llama" ties its output to its
    embeddings and has no biases; "qwen2" does neither; "qwen3" is "llama" with queries and keys of one length.
    `initializer_range` is the deviation of the random weights: at 1 / sqrt(width) a small model learns sooner what
    to attend to than at transformers' own 0.02. The weights depend on `seed` and the options alone, and the global
    generator of torch is left as it was. ConfigError for sizes that are none or do not divide.
    """
    import transformers

    if architecture not in ARCHITECTURES:
        raise ConfigError(f"architecture is {architecture!r}; known: {', '.join(ARCHITECTURES)}")
    sizes = {"width": width, "layers": layers, "heads": heads, "kv_heads": kv_heads, "context": context}
    for name, size in sizes.items():
        refuse_other_than_whole(name, size, 1)
    if width % (2 * heads) or heads % kv_heads:
        raise ConfigError(
            f"width {width}, heads {heads}, kv_heads {kv_heads} do not fit: heads must divide width into even parts, "
            "and kv_heads must divide heads"
        )
    if not isinstance(initializer_range, int | float) or not 0 < initializer_range < 1:
        raise ConfigError(f"initializer_range is {initializer_range!r}; it is a deviation between 0 and 1")
    sized = isinstance(tokenizer_or_vocab, int)
    options = {
        "vocab_size": tokenizer_or_vocab if sized else len(tokenizer_or_vocab),
        "pad_token_id": None if sized else tokenizer_or_vocab.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": None if sized else tokenizer_or_vocab.eos_token_id,
        "hidden_size": width,
        "intermediate_size": 3 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": context,
        "tie_word_embeddings": architecture != "qwen2",
        "initializer_range": initializer_range,
    }
    if architecture == "qwen3":
        options["head_dim"] = width // heads
    name = architecture.capitalize()
    config, model = (getattr(transformers, f"{name}{kind}") for kind in ("Config", "ForCausalLM"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model(config(**options)).eval()
