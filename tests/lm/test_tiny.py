"""Small random models: sizes, repeatability, refusals."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from perdure.core.errors import ConfigError  # noqa: E402
from perdure.lm.tiny import tiny_model  # noqa: E402
from perdure.lm.tokens import byte_tokenizer  # noqa: E402


def count(model):
    return sum(each.numel() for each in model.parameters())


def test_sizes_are_those_of_the_arithmetic():
    layer = 128 * (128 + 2 * 64 + 128) + 3 * 128 * 384 + 2 * 128
    assert count(tiny_model(byte_tokenizer())) == 259 * 128 + 4 * layer + 128
    qwen = tiny_model(300, width=16, layers=1, heads=2, kv_heads=1, architecture="qwen2")
    assert count(qwen) == 2 * 300 * 16 + 16 * (16 + 2 * 8 + 16) + (16 + 2 * 8) + 3 * 16 * 48 + 3 * 16

    norms = tiny_model(300, width=16, layers=1, heads=2, kv_heads=1, architecture="qwen3")
    assert count(norms) == 300 * 16 + 16 * (16 + 2 * 8 + 16) + 3 * 16 * 48 + 3 * 16 + 2 * 8


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_weights_have_the_deviation_asked_for(architecture):
    model = tiny_model(300, width=64, layers=1, architecture=architecture, initializer_range=0.1)
    for each in (model.get_input_embeddings().weight, model.model.layers[0].mlp.up_proj.weight):
        assert float(each.detach().std()) == pytest.approx(0.1, rel=0.05)


def test_weights_depend_on_the_seed_and_nothing_global():
    before = torch.random.get_rng_state()
    one, same, other = (tiny_model(20, width=8, layers=1, heads=2, seed=seed).lm_head.weight for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_it_knows_the_tokens_and_the_context():
    tokenizer = byte_tokenizer()
    model = tiny_model(tokenizer, width=8, layers=1, heads=2, context=40)
    assert not model.training
    found = (model.config.eos_token_id, model.config.pad_token_id, model.config.max_position_embeddings)
    assert found == (258, 256, 40)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"width": 10, "heads": 4}, "width 10"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads 3"),
        ({"architecture": "rnn"}, "'rnn'"),
        ({"initializer_range": 0.0}, "initializer_range is 0.0"),
        ({"initializer_range": "nan"}, "initializer_range is 'nan'"),
        ({"layers": 0}, "layers is 0; it is a whole number"),
        ({"width": 0}, "width is 0"),
        ({"context": 99.5}, "context is 99.5"),
    ],
)
def test_impossible_sizes_are_refused(options, named):
    with pytest.raises(ConfigError, match=named):
        tiny_model(20, **options)
