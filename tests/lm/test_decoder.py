"""The built-in decoder against the library's own forward pass: layouts, adapters, precision, refusals."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from perdure.core.errors import Refused  # noqa: E402
from perdure.lm import decoder, fused, products  # noqa: E402
from perdure.lm.sampler import sampler  # noqa: E402
from perdure.lm.tiny import tiny_model  # noqa: E402
from perdure.lm.tokens import byte_tokenizer  # noqa: E402

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 96,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
PEFT = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")
"""peft reads an attribute that transformers 5.24 deprecates."""
BLOCKS = pytest.mark.skipif(
    not products.can_block(torch.device("cpu"), torch.bfloat16), reason="oneDNN does not multiply by blocks here"
)
T = transformers
LAYOUTS = {
    "llama": (T.LlamaForCausalLM, T.LlamaConfig, {"tie_word_embeddings": True}),
    "llama biases": (T.LlamaForCausalLM, T.LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "llama wide heads": (T.LlamaForCausalLM, T.LlamaConfig, {"head_dim": 24, "rms_norm_eps": 0.1}),
    "llama3 rotation": (T.LlamaForCausalLM, T.LlamaConfig, {"rope_parameters": LLAMA3}),
    "mistral": (T.MistralForCausalLM, T.MistralConfig, {"sliding_window": None}),
    "qwen2": (T.Qwen2ForCausalLM, T.Qwen2Config, {}),
    "qwen3": (T.Qwen3ForCausalLM, T.Qwen3Config, {"head_dim": 16}),
    "one key head": (T.LlamaForCausalLM, T.LlamaConfig, {"num_key_value_heads": 1}),
    "a key head a query head": (T.LlamaForCausalLM, T.LlamaConfig, {"num_key_value_heads": 4}),
}  # fmt: skip


def build(name, **changes):
    """A model of that layout in which no parameter has a value that could hide a mistake."""
    model_class, config_class, options = LAYOUTS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = model_class(config_class(**(SIZES | options | changes))).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def reference(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1]


def fed(cache, rows, given, room=8):
    """Feed `given` {row: ids}; logits by row."""
    order = cache.arrange(rows)
    return dict(zip(order, cache.feed([given[row] for row in order], room), strict=True))


def check_turns(model, engine, tolerance=1e-5):
    """Three ragged turns with steps and retirements between, all rows against the whole text anew."""
    random = np.random.default_rng(0)
    texts = {row: [] for row in range(5)}
    cache = engine.cache(5)
    for rows, longest in (([0, 1, 2, 3, 4], 12), ([4, 1, 3], 5), ([2, 0, 3, 4], 9)):
        given = {row: random.integers(0, 50, random.integers(1, longest)).tolist() for row in rows}
        logits = fed(cache, rows, given)
        for row in rows:
            texts[row] += given[row]
            torch.testing.assert_close(logits[row], reference(model, texts[row]), atol=tolerance, rtol=tolerance)
        running = cache.arrange(rows)
        while running:
            new = random.integers(0, 50, len(running)).tolist()
            for row, token, found in zip(running, new, cache.step(torch.tensor(new)), strict=True):
                texts[row].append(token)
                torch.testing.assert_close(found, reference(model, texts[row]), atol=tolerance, rtol=tolerance)
            position = int(random.integers(len(running)))
            cache.retire(position)
            running[position] = running[-1]
            running.pop()


@pytest.mark.parametrize("blocks", [pytest.param(True, marks=BLOCKS), False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_logits_are_those_of_the_library(name, blocks, monkeypatch):
    monkeypatch.setattr(products, "LARGE", 1 if blocks else products.LARGE)
    model = build(name)
    with torch.inference_mode():
        check_turns(model, decoder.Engine(model))


def test_a_feed_in_several_passes_is_one_feed(monkeypatch):
    model = build("qwen2")
    monkeypatch.setattr(decoder, "TOKENS_AT_ONCE", 10)
    with torch.inference_mode():
        check_turns(model, decoder.Engine(model))


def test_equal_lengths_need_no_mask_and_repeated_rows_go_their_own_ways():
    model = build("llama")
    with torch.inference_mode():
        cache = decoder.Engine(model).cache(2)
        fed(cache, [0, 1], {0: [1, 2, 3], 1: [4, 5, 6]})
        cache.repeat(2)
        found = fed(cache, [0, 1, 2, 3], {0: [7], 1: [8], 2: [7], 3: [9]})
        cache.keep([1, 2])
        more = fed(cache, [2, 1], {2: [10, 11], 1: [12]})
    for row, text in {0: [1, 2, 3, 7], 1: [1, 2, 3, 8], 2: [4, 5, 6, 7], 3: [4, 5, 6, 9]}.items():
        torch.testing.assert_close(found[row], reference(model, text), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(more[2], reference(model, [4, 5, 6, 7, 10, 11]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(more[1], reference(model, [1, 2, 3, 8, 12]), atol=1e-5, rtol=1e-5)


def test_a_copy_of_the_weights_changes_with_refresh_only():
    model = build("llama")
    engine = decoder.Engine(model)
    before = reference(model, [1, 2, 3])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    with torch.inference_mode():
        torch.testing.assert_close(fed(engine.cache(1), [0], {0: [1, 2, 3]})[0], before, atol=1e-5, rtol=1e-5)
        engine.refresh()
        found = fed(engine.cache(1), [0], {0: [1, 2, 3]})[0]
    torch.testing.assert_close(found, reference(model, [1, 2, 3]), atol=1e-5, rtol=1e-5)


@PEFT
def test_adapters_are_followed_through_training_switching_off_and_merging():
    peft = pytest.importorskip("peft")
    bare = build("qwen2")
    plain = reference(bare, [1, 2, 3])
    targets = ["q_proj", "v_proj", "down_proj"]
    model = peft.get_peft_model(bare, peft.LoraConfig(r=3, lora_alpha=6, target_modules=targets)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_()
    engine = decoder.Engine(model)

    def found():
        engine.refresh()
        with torch.inference_mode():
            return fed(engine.cache(1), [0], {0: [1, 2, 3]})[0]

    adapted = reference(model, [1, 2, 3])
    assert (adapted - plain).abs().max() > 0.1
    torch.testing.assert_close(found(), adapted, atol=1e-4, rtol=1e-5)
    with model.disable_adapter():
        torch.testing.assert_close(found(), plain, atol=1e-5, rtol=1e-5)
    model.merge_adapter()
    torch.testing.assert_close(found(), adapted, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("blocks", [pytest.param(True, marks=BLOCKS), False])
def test_half_precision_is_near(blocks, monkeypatch):
    monkeypatch.setattr(products, "LARGE", 1 if blocks else products.LARGE)
    model = build("llama")
    with torch.inference_mode():
        found = fed(decoder.Engine(model, torch.bfloat16).cache(1), [0], {0: [1, 2, 3]})[0]
    assert found.dtype == torch.bfloat16
    assert 1e-6 < (found.float() - reference(model, [1, 2, 3])).abs().max() < 0.05 * found.float().abs().max()


def test_caches_do_not_depend_on_each_other():
    model = build("llama")
    with torch.inference_mode():
        engine = decoder.Engine(model)
        one, other = engine.cache(1), engine.cache(1)
        fed(one, [0], {0: [1, 2]})
        fed(other, [0], {0: [3]})
        torch.testing.assert_close(fed(one, [0], {0: [4]})[0], reference(model, [1, 2, 4]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("mistral", {"sliding_window": 8}, "sliding_window is 8"),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}, "sliding_window is 8"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ("llama", {"rope_parameters": LINEAR}, "rope_type is 'linear'"),
    ],
)  # fmt: skip
def test_fields_it_does_not_know_are_named(name, changes, reason):
    model = build(name, **changes)
    assert reason in fused.unsupported(model)


@PEFT
def test_other_layouts_hooks_and_adapters_are_named():
    peft = pytest.importorskip("peft")
    config = T.GPT2Config(vocab_size=300, n_embd=16, n_layer=1, n_head=2, n_positions=32)
    assert fused.unsupported(T.GPT2LMHeadModel(config)) == "model_type is 'gpt2'"
    hooked = build("llama")
    hooked.model.layers[1].mlp.register_forward_hook(lambda module, inputs, output: output)
    assert fused.unsupported(hooked) == "model.layers.1.mlp has a forward hook"
    captured = build("llama")
    captured(torch.tensor([[1]]), output_hidden_states=True)
    assert fused.unsupported(captured) is None
    dora = peft.get_peft_model(build("llama"), peft.LoraConfig(target_modules=["q_proj"], use_dora=True))
    assert "q_proj is a peft" in fused.unsupported(dora)
    prefix = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    assert "peft_type" in fused.unsupported(peft.get_peft_model(build("llama"), prefix))


def test_fast_refuses_what_auto_hands_on():
    tokenizer = byte_tokenizer()
    model = tiny_model(tokenizer, width=16, layers=1, heads=2)
    model.config.hidden_act = "gelu"
    with pytest.raises(Refused, match=r"hidden_act is 'gelu'; use backend: transformers"):
        sampler(model, tokenizer, backend="fast")
    with pytest.raises(Refused, match=r"dtype torch\.bfloat16"):
        sampler(model, tokenizer, dtype=torch.bfloat16)
    assert type(sampler(model, tokenizer).engine).__module__ == "perdure.lm.generic"
    engine = decoder.Engine(tiny_model(tokenizer, width=16, layers=1, heads=2))
    engine._model.config.hidden_act = "gelu"
    with pytest.raises(Refused, match="can no longer run"):
        engine.refresh()


def test_the_norm_counts_its_epsilon():
    model = build("llama wide heads")
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1e-3)
    with torch.inference_mode():
        found = fed(decoder.Engine(model).cache(1), [0], {0: [1, 2, 3]})[0]
    torch.testing.assert_close(found, reference(model, [1, 2, 3]), atol=1e-6, rtol=1e-4)
    assert math.isfinite(found.sum())
